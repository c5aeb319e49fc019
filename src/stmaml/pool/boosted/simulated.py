"""Tasks drawn from groups of training, with any number of labelled rows, and what all tasks look like when joined."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from stmaml.pool.base import Draw, GroupedRows, Tasks

STEPS = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987)
"""Numbers of labelled rows that are tried, as far as a table asks for them."""
MAX_PASSES = 32


def steps_to(shots: int) -> list[int]:
    """Numbers of labelled rows up to the most there may be."""
    return [step for step in STEPS if step < shots] + [max(shots, 0)]


def simulate(rows: GroupedRows, draw: Draw, most: int) -> Tasks:
    """Tasks of all groups in turn, until about so many rows are asked."""
    random = np.random.default_rng([draw.seed, 7])
    groups, steps = rows.by_group(), steps_to(draw.shots)
    support, query, asked = [], [], 0
    for _ in range(MAX_PASSES):
        for group in random.permutation(len(groups)):
            labelled, wanted = _split(groups[group], steps, draw, random)
            support.append(labelled)
            query.append(wanted)
            asked += len(wanted)
            if asked >= most and len(query) >= len(groups):
                return Tasks(rows, tuple(support), tuple(query))
    return Tasks(rows, tuple(support), tuple(query))


def _split(mine: np.ndarray, steps: list[int], draw: Draw, random: np.random.Generator) -> tuple[np.ndarray, ...]:
    shots = min(steps[random.integers(len(steps))], len(mine) - 1)
    mixed = mine if draw.ordered else random.permutation(mine)
    rest = mixed[shots:]
    if len(rest) > draw.max_query:
        rest = random.choice(rest, draw.max_query, replace=False)
    return np.sort(mixed[:shots]), np.sort(rest)


@dataclass(frozen=True)
class Joined:
    """Labelled and asked rows of all tasks, one after the other."""

    support: Int[np.ndarray, " s"]
    support_task: Int[np.ndarray, " s"]
    asked: Int[np.ndarray, " n"]
    task: Int[np.ndarray, " n"]
    shots: Int[np.ndarray, " t"]

    @staticmethod
    def of(tasks: Tasks) -> "Joined":
        """The rows of some tasks."""
        shots = tasks.shots
        support = np.concatenate([*tasks.support, np.zeros(0, dtype=int)]).astype(int)
        return Joined(support, np.repeat(np.arange(len(tasks)), shots), tasks.asked.astype(int), tasks.task, shots)

    @property
    def log_shots(self) -> Float[np.ndarray, " n"]:
        """How much is known of the group of each asked row."""
        return np.log1p(self.shots[self.task])

    @property
    def padded(self) -> tuple[Int[np.ndarray, "t s"], Bool[np.ndarray, "t s"]]:
        """The labelled rows of each task side by side, and which of them are there."""
        there = np.arange(max(int(self.shots.max(initial=0)), 1)) < self.shots[:, None]
        rows = np.zeros(there.shape, dtype=int)
        rows[there] = self.support
        return rows, there

    @property
    def used(self) -> Int[np.ndarray, " u"]:
        """All rows that are labelled or asked, once."""
        return np.unique(np.concatenate([self.support, self.asked]))
