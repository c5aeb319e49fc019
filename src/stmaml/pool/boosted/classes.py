"""Boosted trees for classes: what all groups share, how sure it may be, and what labelled rows change."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from jaxtyping import Float, Int, Shaped

from stmaml.pool.base import Arrays, Draw, Fitted, Forecast, GroupedRows, Tasks
from stmaml.pool.boosted.growing import Rule, grow, limited, usual_rule
from stmaml.pool.boosted.objectives import Surprise, softmax
from stmaml.pool.boosted.remembered import Remembered
from stmaml.pool.boosted.simulated import Joined
from stmaml.pool.boosted.trees import Trees, part, prefixed

SHARPNESS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25)
DOUBTS = (0.001, 0.003, 0.01, 0.03, 0.1)
NEWTON_STEPS = 4


@dataclass(frozen=True)
class Caution:
    """How sure a model may be: its log-odds by a factor, mixed with a little of the shares of all rows."""

    sharpness: float
    doubt: float
    shares: Float[np.ndarray, " c"]

    def __call__(self, raw: Float[np.ndarray, "n c"]) -> Float[np.ndarray, "n c"]:
        """Probabilities, none of them 0 or 1."""
        return (1 - self.doubt) * softmax(self.sharpness * raw) + self.doubt * self.shares

    def state(self) -> Arrays:
        """As arrays."""
        return {"numbers": np.array([self.sharpness, self.doubt]), "shares": self.shares}

    @staticmethod
    def restored(state: Arrays) -> "Caution":
        """Caution from its arrays."""
        return Caution(float(state["numbers"][0]), float(state["numbers"][1]), state["shares"])


def learn_caution(raw: Float[np.ndarray, "n c"], y: Int[np.ndarray, " n"], shares: Float[np.ndarray, " c"]) -> Caution:
    """The caution under which held-out groups surprise least."""
    options = [Caution(sharpness, doubt, shares) for sharpness, doubt in product(SHARPNESS, DOUBTS)]
    rows = np.arange(len(y))
    return min(options, key=lambda caution: -np.log(caution(raw)[rows, y]).sum())


def shares_of(y: Int[np.ndarray, " n"], num_classes: int) -> Float[np.ndarray, " c"]:
    """The share of each class, as if each had come once more."""
    counts = np.bincount(y, minlength=num_classes) + 1.0
    return counts / counts.sum()


@dataclass(frozen=True)
class ClassTrees:
    """Trees of the columns."""

    trees: Trees
    caution: Caution

    def predict(self, tasks: Tasks) -> Forecast:
        """The same, whatever labelled rows there are."""
        share = self.caution(self.trees.predict(tasks.rows.x[tasks.asked.astype(int)]))
        return Forecast(share, np.zeros(len(share)), np.zeros(len(share)))

    def state(self) -> Arrays:
        """As arrays."""
        return {**prefixed(self.trees.state(), "trees"), **prefixed(self.caution.state(), "caution")}

    @staticmethod
    def restored(state: Arrays) -> "ClassTrees":
        """Trees from their arrays."""
        return ClassTrees(Trees.restored(part(state, "trees")), Caution.restored(part(state, "caution")))


@dataclass(frozen=True)
class ClassRoot:
    """Trees, the rows they have learnt from, and what trees that had not seen their group say of them."""

    fitted: ClassTrees
    rows: GroupedRows
    held_out: Float[np.ndarray, "n c"]

    @property
    def y(self) -> Int[np.ndarray, " n"]:
        """The classes."""
        return self.rows.y.astype(int)


def take_class_root(rows: GroupedRows, draw: Draw) -> ClassRoot:
    """Trees for the groups of some rows."""
    rows = limited(rows, draw.seed)
    y, offset = rows.y.astype(int), np.zeros((len(rows.y), rows.num_classes))
    grown = grow(rows.x, Surprise(y, offset), rows.group, draw.seed, class_rule(usual_rule(len(y)), rows.num_classes))
    caution = learn_caution(grown.held_out, y, shares_of(y, rows.num_classes))
    return ClassRoot(ClassTrees(grown.trees, caution), rows, grown.held_out)


def class_rule(rule: Rule, num_classes: int) -> Rule:
    """Fewer rounds for many classes, since each needs its own tree."""
    most = int(np.clip(400 / num_classes, 20, rule.max_rounds))
    return Rule(rule.rate, rule.leaves, rule.min_leaf, rule.l2, most, rule.patience)


@dataclass(frozen=True)
class PooledClasses:
    """The member `boosting` for classes."""

    roots: Remembered[ClassRoot]
    name: str = "boosting"

    def suits(self, rows: GroupedRows) -> bool:
        """Classes."""
        return rows.num_classes > 1

    def fit_each(self, rows: GroupedRows, parts: Sequence[Shaped[np.ndarray, " _"]], draw: Draw) -> list[Fitted]:
        """One fit for each part."""
        return [root.fitted for root in self.roots.of_each(rows, parts, draw)]

    def restore(self, state: Arrays) -> ClassTrees:
        """Back from its arrays."""
        return ClassTrees.restored(state)


@dataclass(frozen=True)
class Leaning:
    """How a group leans to each class, in log-odds, and how sure that is."""

    mean: Float[np.ndarray, "t c"]
    variance: Float[np.ndarray, "t c"]


def leaning(raw: Float[np.ndarray, "s c"], y: Int[np.ndarray, " s"], joined: Joined, variance: float) -> Leaning:
    """The likeliest leanings of tasks given their labelled rows, under a normal prior: a few of Newton's steps."""
    count, size = len(joined.shots), raw.shape[1]
    mean, curve, came = np.zeros((count, size)), np.full((count, size), 1 / variance), np.eye(size)[y]

    def total(value: np.ndarray) -> np.ndarray:
        return np.stack([np.bincount(joined.support_task, column, count) for column in value.T], axis=1)

    for _ in range(NEWTON_STEPS):
        share = softmax(raw + mean[joined.support_task])
        curve = total(share * (1 - share)) + 1 / variance
        # Classes pull on each other: steps that forget so are made shorter.
        mean = mean + 0.7 * (total(came - share) - mean / variance) / curve
    return Leaning(mean, 1 / curve)
