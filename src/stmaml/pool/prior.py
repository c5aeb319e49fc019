"""A member of a pool that is not trained: a learner that ships with the package and has seen many made-up tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Shaped

from stmaml.pool.base import Arrays, Draw, Fitted, Forecast, GroupedRows, Tasks, fit_one_by_one
from stmaml.prior.learner import Learner, Memory
from stmaml.prior.reading import AT_ONCE, MOST_CLASSES, Kept, Question, keep_rows, questions, recall, respond
from stmaml.prior.weights import load_weights, shipped_learner

NAME = "prior"
MIN_GROUPS = 3
KINDS = ("number", "flag", "wave")


@dataclass(frozen=True)
class FittedPrior:
    """Rows to learn from, which are read when the first question comes."""

    kept: Kept
    learner: Learner

    @cached_property
    def memory(self) -> Memory:
        """What the learner remembers of the rows."""
        return recall(self.learner, self.kept)

    def predict(self, tasks: Tasks) -> Forecast:
        """Mean and variances, or class probabilities."""
        total, classes = len(tasks.asked), self.kept.num_classes
        found = Forecast(np.zeros((total, classes) if classes else total), np.zeros(total), np.zeros(total))
        asked = questions(tasks.support, tasks.query, tasks.rows.y)
        for slots in sorted({one.slots for one in asked}):
            alike = [one for one in asked if one.slots == slots]
            for first in range(0, len(alike), AT_ONCE):
                self._fill(tasks.rows, alike[first : first + AT_ONCE], found)
        return found

    def _fill(self, rows: GroupedRows, some: list[Question], found: Forecast) -> None:
        mean, variance, task, odds = respond(self.learner, self.memory, self.kept, rows.x, rows.y, some)
        for i, one in enumerate(some):
            mine = slice(len(one.labelled), len(one.labelled) + len(one.asked))
            there = slice(one.place, one.place + len(one.asked))
            if self.kept.num_classes:
                found.mean[there] = shares(odds[:, i, mine])
            else:
                found.mean[there], found.task_variance[there] = mean[0, i, mine], task[0, i, mine]
                found.noise_variance[there] = variance[0, i, mine] - task[0, i, mine]

    def state(self) -> Arrays:
        """The rows; the weights are the package's."""
        kept = self.kept
        number = np.array(kept.num_classes)
        return {
            "x": kept.x,
            "y": kept.y,
            "group": kept.group,
            "chosen": kept.chosen,
            "kind": kept.kind,
            "classes": number,
        }


def shares(odds: Shaped[np.ndarray, "b n"]) -> Shaped[np.ndarray, "n c"]:
    """Probabilities from the log-odds of each class against all others; of the second of two classes alone."""
    yes = 1 / (1 + np.exp(-odds.T))
    if yes.shape[1] == 1:
        return np.concatenate([1 - yes, yes], axis=1)
    return yes / yes.sum(1, keepdims=True)


@dataclass(frozen=True)
class Prior:
    """The shipped learner as a member of a pool."""

    weights: Path | None = None
    """Those of the package if not given."""
    name: str = NAME

    def suits(self, rows: GroupedRows) -> bool:
        """Where there are a few groups, a column and not too many classes."""
        return rows.num_groups >= MIN_GROUPS and rows.x.shape[1] > 0 and rows.num_classes <= MOST_CLASSES

    def fit(self, rows: GroupedRows, draw: Draw) -> FittedPrior:
        """Keeps rows; nothing is trained."""
        kind = np.array([KINDS.index(column.kind) for column in rows.columns], dtype=int)
        return FittedPrior(
            keep_rows(rows.x, rows.y, rows.group, kind, rows.num_classes, seed=draw.seed), self._learner()
        )

    def fit_each(self, rows: GroupedRows, parts: Sequence[Shaped[np.ndarray, " _"]], draw: Draw) -> list[Fitted]:
        """Rows of each part."""
        return fit_one_by_one(self, rows, parts, draw)

    def restore(self, state: Arrays) -> FittedPrior:
        """The rows back, with the package's weights."""
        rows = state["x"], state["y"], state["group"]
        return FittedPrior(Kept(*rows, state["chosen"], state["kind"], int(state["classes"])), self._learner())

    def _learner(self) -> Learner:
        return shipped_learner() if self.weights is None else load_weights(self.weights)
