"""A member of a pool that is not trained: a learner that ships with the package and has seen many made-up tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Shaped

from stmaml.border.shapes import check_arrays
from stmaml.errors import RunError
from stmaml.pool.base import Arrays, Draw, Fitted, Forecast, GroupedRows, Tasks
from stmaml.prior.learner import Learner, Memory
from stmaml.prior.reading import (
    AT_ONCE,
    FEW,
    MOST_CLASSES,
    MOST_COLUMNS,
    MOST_ROWS,
    Kept,
    Question,
    keep_rows,
    questions,
    recall,
    respond,
    room_for,
)
from stmaml.prior.tuning import FEWEST_GROUPS, Tuned, tune
from stmaml.prior.tuning import MOST_ROWS as TUNED_ROWS
from stmaml.prior.weights import arrays_of, learner_of, load_weights, shipped_learner
from stmaml.progress import remark

NAME = "prior"
TUNED = "tuned."
MIN_GROUPS = 3
KINDS = ("number", "flag", "wave")
MOST_KEPT = 8 * MOST_ROWS  # in a file: three groups of any size are always kept


@dataclass(frozen=True)
class FittedPrior:
    """Rows to learn from, which are read when the first question comes."""

    kept: Kept
    learner: Learner
    room: tuple[int, int]
    """What groups and their rows are padded to."""
    tuned: bool = False
    """Whether its weights are no longer the package's."""

    @cached_property
    def memory(self) -> Memory:
        """What the learner remembers of the rows."""
        return recall(self.learner, self.kept, self.room)

    def predict(self, tasks: Tasks) -> Forecast:
        """Mean and variances, or class probabilities."""
        total, classes = len(tasks.asked), self.kept.num_classes
        found = Forecast(np.zeros((total, classes) if classes else total), np.zeros(total), np.zeros(total))
        at_once = FEW if len(tasks) <= FEW else AT_ONCE
        asked = questions(tasks.support, tasks.query, tasks.rows.y)
        for slots in sorted({one.slots for one in asked}):
            alike = [one for one in asked if one.slots == slots]
            for first in range(0, len(alike), at_once):
                self._fill(tasks.rows, alike[first : first + at_once], found, at_once)
        return found

    def _fill(self, rows: GroupedRows, some: list[Question], found: Forecast, at_once: int) -> None:
        mean, variance, task, odds = respond(self.learner, self.memory, self.kept, rows.x, rows.y, some, at_once)
        for i, one in enumerate(some):
            mine = slice(len(one.labelled), len(one.labelled) + len(one.asked))
            there = slice(one.place, one.place + len(one.asked))
            if self.kept.num_classes:
                found.mean[there] = shares(odds[:, i, mine])
            else:
                found.mean[there], found.task_variance[there] = mean[0, i, mine], task[0, i, mine]
                found.noise_variance[there] = variance[0, i, mine] - task[0, i, mine]

    def state(self) -> Arrays:
        """The rows, and the weights where they are not the package's."""
        kept = self.kept
        weights = {f"{TUNED}{name}": array for name, array in arrays_of(self.learner).items()} if self.tuned else {}
        number = np.array(kept.num_classes)
        return {
            "x": kept.x,
            "y": kept.y,
            "group": kept.group,
            "chosen": kept.chosen,
            "kind": kept.kind,
            "classes": number,
            **weights,
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
    steps: int = 0
    """Steps in which it is trained further on the table."""
    name: str = NAME

    def suits(self, rows: GroupedRows) -> bool:
        """Where there are a few groups, a column and not too many classes."""
        return rows.num_groups >= MIN_GROUPS and rows.x.shape[1] > 0 and rows.num_classes <= MOST_CLASSES

    def fit_each(self, rows: GroupedRows, parts: Sequence[Shaped[np.ndarray, " _"]], draw: Draw) -> list[Fitted]:
        """Keeps rows of each part; nothing is trained unless that is asked for."""
        some = [rows.of_groups(part) for part in parts]
        kept = [self._kept(one, draw) for one in some]
        room, learner = room_for(kept), self._learner()
        if not self.steps:
            return [FittedPrior(one, learner, room) for one in kept]
        tuned = [self._tuned(learner, one, draw) for one in some]
        if len(tuned):
            remark(_in_words(tuned[-1], self.steps))
        found = zip(kept, tuned, strict=True)
        return [FittedPrior(one, by.learner if by else learner, room, by is not None) for one, by in found]

    def restore(self, state: Arrays) -> FittedPrior:
        """The rows back, with the package's weights or those that were trained further."""
        rows = state["x"], state["y"], state["group"]
        kept = _checked(Kept(*rows, state["chosen"], state["kind"], int(state["classes"])))
        own = {name.removeprefix(TUNED): array for name, array in state.items() if name.startswith(TUNED)}
        learner = learner_of(own, "the member") if own else self._learner()
        return FittedPrior(kept, learner, room_for([kept]), bool(own))

    def _kept(self, rows: GroupedRows, draw: Draw, most: int = MOST_ROWS) -> Kept:
        kind = np.array([KINDS.index(column.kind) for column in rows.columns], dtype=int)
        return keep_rows(rows.x, rows.y, rows.group, kind, rows.num_classes, seed=draw.seed, most_rows=most)

    def _tuned(self, learner: Learner, rows: GroupedRows, draw: Draw) -> Tuned | None:
        """The learner trained further; None where that does not help, or where groups are few."""
        if rows.num_groups < FEWEST_GROUPS:
            return None
        found = tune(learner, self._kept(rows, draw, TUNED_ROWS), self.steps, seed=draw.seed)
        return found if found.helped else None

    def _learner(self) -> Learner:
        return shipped_learner() if self.weights is None else load_weights(self.weights)


def _checked(kept: Kept) -> Kept:
    """Rows from a file, if there are a few of few groups, of known kinds and classes: memory goes by their number."""
    check_arrays(kept)
    bounds = {
        "group": (kept.group, len(kept.group)),
        "kind": (kept.kind, len(KINDS)),
        "chosen": (kept.chosen, np.inf),
        "y": (kept.y if kept.num_classes else np.zeros(0), kept.num_classes),
    }
    for name, (numbers, end) in bounds.items():
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < end:
            raise RunError(f"'{name}' holds a number that cannot be")
    if not 0 < len(kept.y) <= MOST_KEPT or kept.x.shape[1] > MOST_COLUMNS or not 0 <= kept.num_classes <= MOST_CLASSES:
        raise RunError(f"{len(kept.y)} rows of {kept.x.shape[1]} columns and {kept.num_classes} classes")
    return kept


def _in_words(found: Tuned | None, steps: int) -> str:
    if found is None:
        return (
            f"the prior stays as it is: held-out groups do not gain from training, or there are under {FEWEST_GROUPS}"
        )
    first, best = found.looks[0], min(found.looks)
    return f"the prior: {steps} steps lowered the loss of held-out groups from {first:.3f} to {best:.3f}"
