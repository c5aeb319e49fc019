"""How far targets of new groups lie from what is said of them: learnt from groups held out."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from stmaml.pool.base import Arrays, Forecast
from stmaml.pool.boosted.growing import Rule, grow
from stmaml.pool.boosted.objectives import LogVariance
from stmaml.pool.boosted.trees import Trees, part, prefixed

PRIOR_GROUPS = 3.0
"""How many groups the belief is worth that one factor serves all numbers of labelled rows."""
MOST_FROM_TASK = 0.95
"""The largest part of a variance that may be due to the group."""
LEAST = 1e-8


@dataclass(frozen=True)
class Said:
    """What a model says of rows: a mean, a variance, and how much of it is due to the unknown group."""

    mean: Float[np.ndarray, " n"]
    task_variance: Float[np.ndarray, " n"]
    variance: Float[np.ndarray, " n"]
    log_shots: Float[np.ndarray, " n"]
    x: Float[np.ndarray, "n d"]

    @property
    def features(self) -> Float[np.ndarray, "n f"]:
        """What variances are read from."""
        return np.column_stack([self.x, self.mean, self.log_shots])


@dataclass(frozen=True)
class Spread:
    """Factors of variances: by the number of labelled rows, and by trees of columns and mean."""

    log_shots: Float[np.ndarray, " s"]
    factor: Float[np.ndarray, " s"]
    trees: Trees

    def forecast(self, said: Said) -> Forecast:
        """What was said, with variances that hold for new groups."""
        factor = np.interp(said.log_shots, self.log_shots, self.factor)
        total = np.maximum(said.variance * factor * np.exp(self.trees.predict(said.features)[:, 0]), LEAST)
        task = np.minimum(said.task_variance, MOST_FROM_TASK * total)
        return Forecast(said.mean, task, total - task)

    def state(self) -> Arrays:
        """As arrays."""
        return {"log_shots": self.log_shots, "factor": self.factor, **prefixed(self.trees.state(), "trees")}

    @staticmethod
    def restored(state: Arrays) -> "Spread":
        """Factors from their arrays."""
        return Spread(state["log_shots"], state["factor"], Trees.restored(part(state, "trees")))


def learn_spread(
    said: Said, y: Float[np.ndarray, " n"], group: Int[np.ndarray, " n"], seed: int, *, trees: bool = True
) -> Spread:
    """The factors that fit errors on held-out groups; trees only as far as other groups gain from them."""
    ratio = (y - said.mean) ** 2 / np.maximum(said.variance, LEAST)
    levels, factor = _by_shots(ratio, said.log_shots, group)
    ratio = np.maximum(ratio / np.interp(said.log_shots, levels, factor), 1e-6)
    size = len(y)
    min_leaf = int(np.clip(size / 12, 10, 200))
    rule = Rule(rate=0.15, leaves=5, min_leaf=min_leaf, l2=5.0, max_rounds=50 if trees else 0, patience=10)
    grown = grow(said.features, LogVariance(ratio), group, seed, rule)
    return Spread(levels, factor, grown.trees)


def _by_shots(ratio: np.ndarray, log_shots: np.ndarray, group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    levels, place = np.unique(log_shots, return_inverse=True)
    overall = max(float(ratio.mean()), 1e-6)
    means = np.bincount(place, ratio) / np.bincount(place)
    groups = np.array([len(np.unique(group[place == i])) for i in range(len(levels))])
    return levels, (groups * means + PRIOR_GROUPS * overall) / (groups + PRIOR_GROUPS)
