"""Which columns matter: by how much the error on held-out groups rises when a column is mixed up among rows.

A member answers for groups that it has not seen, as in all scores. A column is mixed up in labelled and in asked rows
alike; one that is the same within each group is mixed up among groups, so that it stays so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from stmaml.metrics import summarise
from stmaml.pool.base import Arrays, Fitted, Forecast, GroupedRows, Tasks
from stmaml.pool.crossfit import out_of_fold
from stmaml.pool.pooling import Pooling
from stmaml.pool.rows import Factors
from stmaml.tables.schema import Schema

MOST_TASKS = 60  # groups that are asked, one task each
MOST_COLUMNS = 40
MOST_ROWS = 10_000
"""Asked rows of all mixed-up copies together, beyond which columns are mixed up less often than REPEATS, but once at
least: the prior takes as long for more as to be scored."""
REPEATS = 3
MIN_GROUPS = 4


@dataclass(frozen=True)
class Places:
    """Where a column of the table stands among the numbers of a row."""

    name: str
    x: tuple[int, ...]
    levels: tuple[int, ...] = ()


def places_of(schema: Schema, factors: Factors) -> list[Places]:
    """The first columns of a table that are inputs, and further groupings of the same name with them."""
    found, start = [], 0
    groupings = list(factors.levels)
    for column in schema.used:
        numbers = tuple(range(start, start + len(column.outputs)))
        start += len(numbers)
        levels = (groupings.index(column.name),) if column.name in groupings else ()
        found.append(Places(column.name, numbers, levels))
    return found[:MOST_COLUMNS]


@dataclass(frozen=True)
class Shaken:
    """Tasks of held-out groups as they are, then again with each column mixed up, some times over."""

    shots: int
    names: tuple[str, ...]
    repeats: int
    tasks: Tasks
    """All copies in one: the plain one first, then those of the first column."""
    fold: Int[np.ndarray, " g"]
    """The fold of each group of all copies."""

    def means(self, fits: Sequence[Fitted]) -> Float[np.ndarray, "k n *c"]:
        """What a member that has not seen a group expects of it, for each copy."""
        said = out_of_fold(fits, self.tasks, self.fold).mean
        return said.reshape(self.copies, -1, *said.shape[1:])

    @property
    def copies(self) -> int:
        """The plain one and the others."""
        return 1 + len(self.names) * self.repeats

    @property
    def y(self) -> Float[np.ndarray, " n"]:
        """The truth of the asked rows of one copy."""
        return self.tasks.rows.y[self.tasks.asked].reshape(self.copies, -1)[0]

    @property
    def task(self) -> Int[np.ndarray, " n"]:
        """The task of the asked rows of one copy."""
        return self.tasks.task[: len(self.y)]


def shake(
    tasks: Tasks, shots: int, fold: Int[np.ndarray, " g"], places: Sequence[Places], seed: int = 0
) -> Shaken | None:
    """One task of each group with its columns mixed up; None where there is too little to mix."""
    few, mine = _few(tasks, fold)
    if len(few) < MIN_GROUPS or not places:
        return None
    repeats = int(np.clip(MOST_ROWS // (len(few.asked) * len(places)), 1, REPEATS))
    random = np.random.default_rng(seed)
    copies = [few.rows] + [mixed_up(few.rows, one, random) for one in places for _ in range(repeats)]
    names = tuple(one.name for one in places)
    return Shaken(shots, names, repeats, _stacked(few, copies), np.tile(mine, len(copies)))


def _few(tasks: Tasks, fold: Int[np.ndarray, " g"]) -> tuple[Tasks, Int[np.ndarray, " g"]]:
    """The first task of each of some groups, on rows that are asked or labelled alone, and the folds of its groups."""
    first = np.sort(np.unique(tasks.group, return_index=True)[1])[:MOST_TASKS]
    one_each = tasks.only(np.isin(np.arange(len(tasks)), first))
    used = np.unique(np.concatenate([np.zeros(0, dtype=int), *one_each.support, *one_each.query]))
    groups = np.unique(tasks.rows.group[used])

    def moved(parts: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        return tuple(np.searchsorted(used, part) for part in parts)

    return Tasks(tasks.rows.at(used), moved(one_each.support), moved(one_each.query)), fold[groups]


def mixed_up(rows: GroupedRows, places: Places, random: np.random.Generator) -> GroupedRows:
    """The rows with one column dealt out anew: to rows, or to groups where it is the same within each."""
    x, levels = rows.x.copy(), rows.levels.copy()
    source = _dealt(rows, places, random)
    x[:, places.x] = rows.x[source][:, places.x]
    levels[:, places.levels] = rows.levels[source][:, places.levels]
    return replace(rows, x=x, levels=levels)


def _dealt(rows: GroupedRows, places: Places, random: np.random.Generator) -> Int[np.ndarray, " n"]:
    """The row that each takes its value from."""
    first = np.unique(rows.group, return_index=True)[1]
    own = rows.x[:, places.x]
    if np.array_equal(own, own[first][rows.group]):
        return first[random.permutation(len(first))][rows.group]
    return random.permutation(len(rows.y))


def _stacked(tasks: Tasks, copies: Sequence[GroupedRows]) -> Tasks:
    rows, (length, groups) = tasks.rows, (len(tasks.rows.y), tasks.rows.num_groups)
    whole = replace(
        rows,
        x=np.concatenate([one.x for one in copies]),
        y=np.tile(rows.y, len(copies)),
        group=np.concatenate([rows.group + i * groups for i in range(len(copies))]),
        levels=np.concatenate([one.levels for one in copies]),
    )

    def moved(parts: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        return tuple(part + i * length for i in range(len(copies)) for part in parts)

    return Tasks(whole, moved(tasks.support), moved(tasks.query))


def shaken_arrays(shaken: Sequence[Shaken], fits: Sequence[Fitted]) -> Arrays:
    """What a member says of all copies, by number of labelled rows, as arrays to be saved."""
    return {str(one.shots): one.means(fits).astype(np.float32) for one in shaken}


def are_of(arrays: Arrays, shaken: Sequence[Shaken]) -> bool:
    """Whether a member was asked for these copies: a version that mixed up each column more often kept others."""
    shapes = [arrays[str(one.shots)].shape[:2] for one in shaken if str(one.shots) in arrays]
    return shapes == [(one.copies, len(one.y)) for one in shaken]


def importance_of(
    shaken: Sequence[Shaken], said: Mapping[str, Arrays], pooling: Pooling, scale: float = 1.0
) -> dict[str, Any]:
    """For each number of labelled rows: the pool's error, and by which share of it the error rises with each column
    mixed up, with its 95 % interval over groups. Squared errors for numbers, log-losses for classes."""
    return {str(one.shots): _importance(one, said, pooling, scale) for one in shaken}


def _importance(shaken: Shaken, said: Mapping[str, Arrays], pooling: Pooling, scale: float) -> dict[str, Any]:
    errors = np.stack([_errors(shaken, copy, said, pooling, scale) for copy in range(shaken.copies)])
    base = errors[0]
    rises = (errors[1:] - base).reshape(len(shaken.names), shaken.repeats, -1).mean(1)
    level = float(base.mean()) or 1.0
    columns = {name: summarise(rise / level) for name, rise in zip(shaken.names, rises, strict=True)}
    return {"error": float(base.mean()), "groups": len(base), "columns": columns}


def _errors(
    shaken: Shaken, copy: int, said: Mapping[str, Arrays], pooling: Pooling, scale: float
) -> Float[np.ndarray, " t"]:
    """The pool's error in each task of a copy."""
    shots = np.full(len(shaken.y), shaken.shots)
    means = {name: arrays[str(shaken.shots)][copy].astype(float) for name, arrays in said.items()}
    sure = np.ones(len(shots))
    forecasts = {name: Forecast(mean, 0 * sure, sure) for name, mean in means.items()}
    if shaken.tasks.rows.num_classes:
        odds = pooling.odds(forecasts, shots)[np.arange(len(shots)), shaken.y.astype(int)]
        errors = -np.log(np.maximum(odds, 1e-12))
    else:
        errors = (pooling.mixture(forecasts, shots).expected() - shaken.y) ** 2 * scale**2
    return np.bincount(shaken.task, errors) / np.bincount(shaken.task)
