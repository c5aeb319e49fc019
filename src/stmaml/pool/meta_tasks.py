"""Training tasks of many parts of a table, drawn alike: the same random numbers for every part."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from stmaml.pool.base import Draw, GroupedRows


@dataclass(frozen=True)
class Drawn:
    """Rows of tasks: those of weight 0 are padding."""

    support: Int[np.ndarray, "*m s"]
    given: Float[np.ndarray, "*m s"]
    query: Int[np.ndarray, "*m q"]
    asked: Float[np.ndarray, "*m q"]

    @staticmethod
    def stacked(parts: Sequence["Drawn"]) -> "Drawn":
        """Those of several parts, on an axis after that of steps."""
        names = ("support", "given", "query", "asked")
        return Drawn(*(np.stack([getattr(one, name) for one in parts], axis=1) for name in names))


@dataclass(frozen=True)
class Listed:
    """The rows with a known target, group after group."""

    order: Int[np.ndarray, " n"]
    start: Int[np.ndarray, " g"]
    count: Int[np.ndarray, " g"]

    @staticmethod
    def of(rows: GroupedRows) -> "Listed":
        """Those of a table, in their order within a group."""
        known = np.flatnonzero(np.isfinite(rows.y))
        order = known[np.argsort(rows.group[known], kind="stable")]
        count = np.bincount(rows.group[known], minlength=rows.num_groups)
        return Listed(order, np.cumsum(count) - count, count)

    def rows(self, group: int) -> Int[np.ndarray, " k"]:
        """Those of one group."""
        return self.order[self.start[group] : self.start[group] + self.count[group]]

    def usable(self, groups: Int[np.ndarray, " g"]) -> Int[np.ndarray, " k"]:
        """Those of the groups that have a row."""
        return groups[self.count[groups] > 0]

    def draw(self, parts: Sequence[Int[np.ndarray, " _"]], draw: Draw, steps: Sequence[int], num_tasks: int) -> Drawn:
        """Tasks of each step and each part: any number of labelled rows that leaves one to ask for."""
        numbers = random_numbers(draw, steps, num_tasks, besides=2)
        return Drawn.stacked([self._tasks(part, draw, numbers) for part in parts])

    def _tasks(self, part: Int[np.ndarray, " k"], draw: Draw, numbers: Float[np.ndarray, "n t r"]) -> Drawn:
        group = part[(numbers[..., 0] * len(part)).astype(int)]
        drawn = task_places(group, self.start, self.count, draw, numbers[..., 1:])
        return Drawn(self.order[drawn.support], drawn.given, self.order[drawn.query], drawn.asked)


def random_numbers(draw: Draw, steps: Sequence[int], num_tasks: int, *, besides: int) -> Float[np.ndarray, "n t r"]:
    """Numbers from 0 to 1 for the tasks of each step: so many, then two for each row of a task."""
    size = max(1, draw.shots) + draw.max_query  # networks read at least one row, be it of weight 0
    return np.stack([np.random.default_rng([draw.seed, s]).random((num_tasks, besides + 2 * size)) for s in steps])


def task_places(
    group: Int[np.ndarray, "n t"],
    start: Int[np.ndarray, " g"],
    counts: Int[np.ndarray, " g"],
    draw: Draw,
    numbers: Float[np.ndarray, "n t r"],
) -> Drawn:
    """Tasks of groups whose rows begin at `start`: any number of labelled rows that leaves one to ask for."""
    count = counts[group]
    given = (numbers[..., 0] * (np.minimum(draw.shots, count - 1) + 1)).astype(int)[..., None]
    offers, places = np.split(numbers[..., 1:], 2, axis=-1)
    first, asked = np.arange(max(1, draw.shots)), np.arange(draw.max_query)
    if draw.ordered:
        support, some = np.broadcast_to(first, (*group.shape, len(first))), slice(0, draw.max_query)
        later, real = distinct(count - given[..., 0], offers[..., some], places[..., some])
        query = given + later
    else:
        mixed, there = distinct(count, offers, places)
        support = mixed[..., : len(first)]
        query, real = (np.take_along_axis(array, given + asked, axis=-1) for array in (mixed, there))
    labelled, at = first < given, start[group][..., None]
    support, query = np.where(labelled, at + support, at), np.where(real, at + query, at)
    return Drawn(support, labelled.astype(np.float32), query, real.astype(np.float32))


def distinct(
    count: Int[np.ndarray, "*m"], offers: Float[np.ndarray, "*m k"], places: Float[np.ndarray, "*m k"]
) -> tuple[Int[np.ndarray, "*m k"], Bool[np.ndarray, "*m k"]]:
    """Different numbers below `count` in random order, as many as there are, and which entries are real.

    Floyd's algorithm, for all tasks at once; `offers` and `places` are uniform numbers from 0 to 1."""
    size = offers.shape[-1]
    drawn = np.minimum(count, size)
    chosen = np.full(offers.shape, -1)
    for i in range(size):
        top = count - drawn + i  # numbers up to here are open, this one for the first time
        one = np.minimum((offers[..., i] * (top + 1)).astype(int), top)
        taken = (chosen == one[..., None]).any(-1)
        chosen[..., i] = np.where(i < drawn, np.where(taken, top, one), -1)
    order = np.argsort(places + (chosen < 0), axis=-1)
    chosen = np.take_along_axis(chosen, order, axis=-1)
    return chosen, chosen >= 0
