"""Trees for classes that read summaries of labelled rows, trained on tasks simulated from groups."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Shaped

from stmaml.pool.base import Arrays, Draw, Fitted, Forecast, GroupedRows, Tasks
from stmaml.pool.boosted.classes import Caution, ClassRoot, class_rule, leaning, learn_caution, shares_of
from stmaml.pool.boosted.growing import grow
from stmaml.pool.boosted.objectives import Surprise, softmax
from stmaml.pool.boosted.reading import Labelled, nearby
from stmaml.pool.boosted.remembered import Remembered
from stmaml.pool.boosted.simulated import Joined, simulate
from stmaml.pool.boosted.summaries import near_columns, simulated_rows, summaries_rule
from stmaml.pool.boosted.trees import Trees, part, prefixed

VARIANCES = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Variances between groups that are tried, in log-odds."""
MOST_NUMBERS = 1_000_000
"""Numbers that simulated rows may have in all: many classes need many columns."""


@dataclass(frozen=True)
class Start:
    """What is said before trees have read the labelled rows, and all that they read."""

    offset: Float[np.ndarray, "n c"]
    features: Float[np.ndarray, "n f"]
    variance: Float[np.ndarray, "n c"]
    """How unsure the group's leanings are, in log-odds."""


@dataclass(frozen=True)
class ClassReader:
    """What trees read: the columns, what all groups share, and how labelled rows differ from it."""

    shares: Float[np.ndarray, " c"]
    variance: float
    """Between groups, in log-odds."""
    near: tuple[int, ...]
    unit: Float[np.ndarray, " u"]

    def start(self, rows: GroupedRows, raw: Float[np.ndarray, "n c"], joined: Joined) -> Start:
        """A line for each asked row; `raw` is what trees of all groups say of the rows that are used."""
        support, asked, labelled = joined.support, joined.asked, Labelled.of(joined)
        y = rows.y[support].astype(int)
        lean = leaning(raw[support], y, joined, self.variance)
        left = np.zeros_like(raw)
        left[support] = np.eye(raw.shape[1])[y] - softmax(raw[support])
        features = np.column_stack(
            [
                *(rows.x[asked], joined.log_shots, raw[asked], lean.mean[joined.task]),
                *(self._seen(y, joined)[joined.task], labelled.means(left)[joined.task]),
                nearby(rows, joined, labelled, self.near, left, self.unit),
            ]
        )
        return Start(raw[asked] + lean.mean[joined.task], features, lean.variance[joined.task])

    def _seen(self, y: Int[np.ndarray, " s"], joined: Joined) -> Float[np.ndarray, "t c"]:
        """Shares of classes among labelled rows, as if one more had come with the shares of all rows."""
        size = len(self.shares)
        counts = np.bincount(joined.support_task * size + y, minlength=len(joined.shots) * size).reshape(-1, size)
        return (counts + self.shares) / (joined.shots[:, None] + 1)

    def state(self) -> Arrays:
        """As arrays."""
        near = {"near": np.array(self.near, dtype=int), "unit": self.unit}
        return {"shares": self.shares, "variance": np.array(self.variance), **near}

    @staticmethod
    def restored(state: Arrays) -> "ClassReader":
        """A reader from its arrays."""
        near = tuple(int(j) for j in state["near"])
        return ClassReader(state["shares"], float(state["variance"]), near, state["unit"])


@dataclass(frozen=True)
class ClassSummaries:
    """What trees add to log-odds when they read labelled rows."""

    shared: Trees
    reader: ClassReader
    trees: Trees
    caution: Caution

    def predict(self, tasks: Tasks) -> Forecast:
        """Probabilities, with the variance of the largest that is due to the group's unknown leaning."""
        joined, rows = Joined.of(tasks), tasks.rows
        raw, used = np.zeros((len(rows.y), len(self.reader.shares))), joined.used
        raw[used] = self.shared.predict(rows.x[used])
        start = self.reader.start(rows, raw, joined)
        share = self.caution(start.offset + self.trees.predict(start.features))
        top = np.arange(len(share)), share.argmax(1)
        variance = (share[top] * (1 - share[top])) ** 2 * start.variance[top]
        return Forecast(share, np.minimum(variance, share[top] * (1 - share[top])), np.zeros(len(share)))

    def state(self) -> Arrays:
        """As arrays."""
        parts = {
            "shared": self.shared.state(),
            "reader": self.reader.state(),
            "trees": self.trees.state(),
            "caution": self.caution.state(),
        }
        return {key: value for name, state in parts.items() for key, value in prefixed(state, name).items()}


@dataclass(frozen=True)
class ClassSummariesMember:
    """The member `boosting-summaries` for classes."""

    roots: Remembered[ClassRoot]
    name: str = "boosting-summaries"

    def suits(self, rows: GroupedRows) -> bool:
        """Classes."""
        return rows.num_classes > 1

    def fit_each(self, rows: GroupedRows, parts: Sequence[Shaped[np.ndarray, " _"]], draw: Draw) -> list[Fitted]:
        """One fit for each part."""
        return [learn_class_summaries(root, draw) for root in self.roots.of_each(rows, parts, draw)]

    def restore(self, state: Arrays) -> ClassSummaries:
        """Back from its arrays."""
        return ClassSummaries(
            Trees.restored(part(state, "shared")),
            ClassReader.restored(part(state, "reader")),
            Trees.restored(part(state, "trees")),
            Caution.restored(part(state, "caution")),
        )


def learn_class_summaries(root: ClassRoot, draw: Draw) -> ClassSummaries:
    """Trees of what is left on simulated tasks, whose groups the shared trees had not seen."""
    rows, size = root.rows, root.rows.num_classes
    most = min(simulated_rows(len(rows.y)), MOST_NUMBERS // (rows.x.shape[1] + 6 * size))
    joined = Joined.of(simulate(rows, draw, most))
    y, group = root.y[joined.asked], rows.group[joined.asked]
    reader = _learn_reader(root, joined)
    start = reader.start(rows, root.held_out, joined)
    rule = class_rule(summaries_rule(len(y)), size)
    grown = grow(start.features, Surprise(y, start.offset), group, draw.seed, rule)
    caution = learn_caution(start.offset + grown.held_out, y, reader.shares)
    return ClassSummaries(root.fitted.trees, reader, grown.trees, caution)


def _learn_reader(root: ClassRoot, joined: Joined) -> ClassReader:
    """A reader under whose variance held-out groups surprise least."""
    raw, y = root.held_out, root.y

    def surprise(variance: float) -> float:
        lean = leaning(raw[joined.support], y[joined.support], joined, variance)
        share = softmax(raw[joined.asked] + lean.mean[joined.task])
        return float(-np.log(np.maximum(share[np.arange(len(share)), y[joined.asked]], 1e-12)).sum())

    near, unit = near_columns(root.rows)
    return ClassReader(shares_of(y, root.rows.num_classes), min(VARIANCES, key=surprise), near, unit)
