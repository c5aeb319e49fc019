"""Which number of training steps helps groups that were not learnt from."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int
from scipy.special import ndtr

from stmaml.pool.base import Draw, Forecast, GroupedRows, Tasks
from stmaml.pool.meta_answers import Weights, forecast
from stmaml.pool.meta_learner import Plan
from stmaml.pool.meta_tasks import Listed

SHOTS = (0, 2, 5, 10)
MOST_GROUPS = 30  # of a part
OF_ALL = 90  # of all parts, where few of them leave groups out
MOST_ASKED = 32


@dataclass(frozen=True)
class HeldOut:
    """Tasks of the groups that each part does not learn from."""

    tasks: Tasks
    part: Int[np.ndarray, " t"]
    group: Int[np.ndarray, " t"]

    def scores(self, plan: Plan, weights: Weights) -> Float[np.ndarray, " g"]:
        """The mean score of each group in each part that has it not, lower is better."""
        found = forecast(plan, weights, self.part, self.tasks)
        each = row_scores(found, self.tasks.rows.y[self.tasks.asked], plan.num_classes)
        of_task = np.bincount(self.tasks.task, each) / np.bincount(self.tasks.task)
        which = np.unique(np.stack([self.part, self.group]), axis=1, return_inverse=True)[1].reshape(-1)
        return np.bincount(which, of_task) / np.bincount(which)


def held_out(rows: GroupedRows, parts: Sequence[Int[np.ndarray, " _"]], draw: Draw) -> HeldOut | None:
    """Tasks with few and with more labelled rows, of groups that a part has not; None where each part has all."""
    listed, each = Listed.of(rows), []
    left_out = [listed.usable(np.setdiff1d(np.arange(rows.num_groups), part)) for part in parts]
    most = max(MOST_GROUPS, OF_ALL // max(sum(len(others) > 0 for others in left_out), 1))
    for number, others in enumerate(left_out):
        for group in thinned(others, most).tolist():
            each += [(number, group, *task) for task in _tasks(listed.rows(group), group, draw)]
    if not each:
        return None
    part, group, support, query = zip(*each, strict=True)
    return HeldOut(Tasks(rows, support, query), np.array(part), np.array(group))


def _tasks(
    rows: Int[np.ndarray, " n"], group: int, draw: Draw
) -> list[tuple[Int[np.ndarray, " _"], Int[np.ndarray, " _"]]]:
    """Labelled and asked rows of a group, for each number of labelled rows that leaves some to ask for."""
    mixed = rows if draw.ordered else np.random.default_rng([draw.seed, group]).permutation(rows)
    counts = [shots for shots in (*(shots for shots in SHOTS if shots < draw.shots), draw.shots) if shots < len(rows)]
    return [(np.sort(mixed[:shots]), np.sort(thinned(mixed[shots:], MOST_ASKED))) for shots in counts]


def thinned(values: Int[np.ndarray, " n"], most: int) -> Int[np.ndarray, " m"]:
    """All of them, or so many, evenly spaced."""
    return values if len(values) <= most else values[np.linspace(0, len(values) - 1, most).round().astype(int)]


def row_scores(found: Forecast, y: Float[np.ndarray, " n"], num_classes: int) -> Float[np.ndarray, " n"]:
    """The CRPS of a normal distribution at each target; the log-loss of classes."""
    if num_classes:
        return -np.log(np.maximum(found.mean[np.arange(len(y)), y.astype(int)], 1e-6))
    std = np.sqrt(np.maximum(found.variance, 1e-12))
    z = (y - found.mean) / std
    # Gneiting, Raftery, "Strictly Proper Scoring Rules, Prediction, and Estimation", 2007, eq. 21.
    return std * (z * (2 * ndtr(z) - 1) + 2 * np.exp(-np.square(z) / 2) / np.sqrt(2 * np.pi) - 1 / np.sqrt(np.pi))


@dataclass
class Looks:
    """How learners did on held-out groups as training went on."""

    steps: list[int] = field(default_factory=list)
    scores: list[Float[np.ndarray, " g"]] = field(default_factory=list)

    def add(self, step: int, scores: Float[np.ndarray, " g"]) -> None:
        """Takes in the score of each group after so many steps."""
        self.steps.append(step)
        self.scores.append(scores)

    @property
    def curve(self) -> Float[np.ndarray, " l"]:
        """The mean over groups at each look."""
        return np.array([scores.mean() for scores in self.scores])

    @property
    def lowest(self) -> int:
        """The look with the best mean."""
        return int(np.argmin(np.nan_to_num(self.curve, nan=np.inf)))

    @property
    def best(self) -> int:
        """The same; but the first one, unless the gain on it is more than its own standard error."""
        gain = self.scores[0] - self.scores[self.lowest]
        doubt = gain.std(ddof=1) / len(gain) ** 0.5 if len(gain) > 1 else np.inf
        return self.lowest if gain.mean() > doubt else 0

    @property
    def since_lowest(self) -> int:
        """Looks that came after it."""
        return len(self.steps) - 1 - self.lowest
