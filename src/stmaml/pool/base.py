"""What the members of a pool read and answer. Plain NumPy: a member may be any model of grouped rows."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from stmaml.errors import SourceError

ColumnKind = Literal["number", "flag", "wave"]
"""A scaled number or date, a yes/no (of a category, or of a missing cell), a sine or cosine of a date."""
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Column:
    """One number that each row has."""

    name: str
    kind: ColumnKind


@dataclass(frozen=True)
class GroupedRows:
    """Rows of many groups. Where rows have an order, those of a group stand in it."""

    x: Float[np.ndarray, "n d"]
    """What is predicted from: finite, of the size of 1."""
    y: Float[np.ndarray, " n"]
    """Targets in spreads about their mean, or numbers of classes; NaN where unknown."""
    group: Int[np.ndarray, " n"]
    """The group of each row, counted from 0 in the order of first appearance."""
    levels: Int[np.ndarray, "n a"]
    """Further groupings, outer or crossed: which level a row belongs to, -1 for one that training has not seen."""
    columns: tuple[Column, ...]
    num_classes: int = 0
    """0 for numbers."""

    def __post_init__(self):
        sizes = {len(self.x), len(self.y), len(self.group), len(self.levels)}
        if len(sizes) > 1 or self.x.shape[1] != len(self.columns):
            raise SourceError(f"rows of a table must have one value each; got {sizes} of them.")

    @property
    def num_groups(self) -> int:
        """Groups there are."""
        return int(self.group.max(initial=-1)) + 1

    @property
    def counts(self) -> Int[np.ndarray, " g"]:
        """Rows of each group."""
        return np.bincount(self.group, minlength=self.num_groups)

    def of_groups(self, chosen: Int[np.ndarray, " k"]) -> "GroupedRows":
        """The rows of some groups, which are counted anew in rising order."""
        return self.at(np.flatnonzero(np.isin(self.group, chosen)))

    def at(self, rows: Int[np.ndarray, " m"]) -> "GroupedRows":
        """Some rows, their groups counted anew."""
        group = np.unique(self.group[rows], return_inverse=True)[1]
        return replace(self, x=self.x[rows], y=self.y[rows], group=group, levels=self.levels[rows])

    def by_group(self) -> list[Int[np.ndarray, " _"]]:
        """The rows of each group, in their order."""
        order = np.argsort(self.group, kind="stable")
        return np.split(order, np.cumsum(self.counts)[:-1])


@dataclass(frozen=True)
class Tasks:
    """Questions: predict some rows of a group from other, labelled rows of it. Only labels of the support are read."""

    rows: GroupedRows
    support: tuple[Int[np.ndarray, " _"], ...]
    query: tuple[Int[np.ndarray, " _"], ...]

    def __len__(self) -> int:
        return len(self.query)

    @property
    def asked(self) -> Int[np.ndarray, " n"]:
        """The rows asked for, task after task."""
        return np.concatenate(self.query) if self.query else np.zeros(0, dtype=int)

    @property
    def task(self) -> Int[np.ndarray, " n"]:
        """The task of each asked row."""
        return np.repeat(np.arange(len(self)), [len(rows) for rows in self.query])

    @property
    def group(self) -> Int[np.ndarray, " t"]:
        """The group of each task."""
        return np.array([self.rows.group[rows[0]] for rows in self.query], dtype=int)

    @property
    def shots(self) -> Int[np.ndarray, " t"]:
        """Labelled rows of each task."""
        return np.array([len(rows) for rows in self.support], dtype=int)

    def only(self, chosen: Bool[np.ndarray, " t"]) -> "Tasks":
        """Some of the tasks."""
        kept = np.flatnonzero(chosen)
        return replace(self, support=tuple(self.support[i] for i in kept), query=tuple(self.query[i] for i in kept))


@dataclass(frozen=True)
class Forecast:
    """What a member says of the asked rows, task after task: a normal distribution, or class probabilities."""

    mean: Float[np.ndarray, "n *c"]
    """The expected target; for classes, the probability of each."""
    task_variance: Float[np.ndarray, " n"]
    """Variance of the mean, since the group is known by few rows: more labelled rows make it smaller. For classes, that
    of the probability of the likeliest; 0 where a member cannot tell."""
    noise_variance: Float[np.ndarray, " n"]
    """Variance of a number about its mean; 0 for classes."""

    @property
    def variance(self) -> Float[np.ndarray, " n"]:
        """Of the target."""
        return self.task_variance + self.noise_variance

    @staticmethod
    def joined(parts: Sequence["Forecast"]) -> "Forecast":
        """Several one after the other."""
        names = [field.name for field in fields(Forecast)]
        return Forecast(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


@dataclass(frozen=True)
class Draw:
    """How tasks are drawn from groups."""

    shots: int
    """Most labelled rows."""
    max_query: int = 30
    """Most asked rows of a training task."""
    ordered: bool = False
    """Labelled rows are the first of a group and asked ones come later; else both are drawn at random."""
    seed: int = 0

    def tasks(self, rows: GroupedRows, shots: int, repeats: int) -> Tasks:
        """For each group with a row to spare, `repeats` tasks with so many labelled rows, group after group and then
        all again; up to `max_query` of its other rows are asked. With an order, one task a group tells all."""
        # The same seed for every number of rows: a task with more of them has those of the task with fewer.
        random = np.random.default_rng(self.seed)
        support, query = [], []
        for _ in range(1 if self.ordered else repeats):
            for mine in rows.by_group():
                mixed = mine if self.ordered else random.permutation(mine)
                if len(mine) > shots:
                    support.append(np.sort(mixed[:shots]))
                    query.append(np.sort(evenly(mixed[shots:], self.max_query)))
        return Tasks(rows, tuple(support), tuple(query))


def evenly(rows: Int[np.ndarray, " n"], most: int) -> Int[np.ndarray, " m"]:
    """At most so many of the rows, evenly spaced."""
    return rows if len(rows) <= most else rows[np.linspace(0, len(rows) - 1, most).round().astype(int)]


@runtime_checkable
class Fitted(Protocol):
    """A member that has learnt from groups."""

    def predict(self, tasks: Tasks) -> Forecast:
        """What it says of the asked rows; a task may have no labelled row, or more than any in training."""
        ...

    def state(self) -> Arrays:
        """All that it has learnt, as arrays to be saved."""
        ...


@runtime_checkable
class Member(Protocol):
    """A model of grouped rows that may be part of a pool."""

    @property
    def name(self) -> str:
        """Its row in a table."""
        ...

    def suits(self, rows: GroupedRows) -> bool:
        """Whether it can learn from these rows: numbers or classes, few or many."""
        ...

    def fit_each(self, rows: GroupedRows, parts: Sequence[Shaped[np.ndarray, " _"]], draw: Draw) -> list[Fitted]:
        """One fit for each part, a set of groups to learn from; all other groups are held out from that fit."""
        ...

    def restore(self, state: Arrays) -> Fitted:
        """What was fitted, back from its arrays."""
        ...


@runtime_checkable
class Plain(Member, Protocol):
    """A member whose fits know nothing of each other."""

    def fit(self, rows: GroupedRows, draw: Draw) -> Fitted:
        """What it learns from all the rows."""
        ...


def fit_one_by_one(
    member: Plain, rows: GroupedRows, parts: Sequence[Shaped[np.ndarray, " _"]], draw: Draw
) -> list[Fitted]:
    """`fit_each` of a plain member."""
    return [member.fit(rows.of_groups(part), draw) for part in parts]
