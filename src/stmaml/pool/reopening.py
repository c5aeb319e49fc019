"""What is made again from the rows that a pool's run keeps: its table, and held-out tasks with what members said."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from jaxtyping import Float, Int

from stmaml.errors import RunError
from stmaml.pool.base import Draw, Forecast, GroupedRows, Tasks
from stmaml.pool.crossfit import folds_of, held_out_tasks
from stmaml.pool.group_effects import GroupEffects, effects_of_table
from stmaml.pool.guarded import reading
from stmaml.pool.opening import PoolTable, enough
from stmaml.pool.pooling import Pooling
from stmaml.pool.rows import Factors, group_places, grouped_rows, has_target
from stmaml.pool.scoring import POOL, Scored
from stmaml.pool.store import PoolRun
from stmaml.run_files import read_sealed
from stmaml.tables.reading import group_rows
from stmaml.tables.schema import Schema, table_keys


@dataclass(frozen=True)
class Told:
    """Rows of one held-out group, and what the pool said of those that were asked."""

    name: str
    frame: pl.DataFrame
    """All its rows as the table has them, in order."""
    labelled: Int[np.ndarray, " k"]
    """Those that were known, as places in the frame."""
    asked: Int[np.ndarray, " n"]
    truth: Float[np.ndarray, " n"]
    """In units of the target, or numbers of classes."""
    expected: Float[np.ndarray, " n"]
    """The same; for classes, the probability of the true one."""
    low: Float[np.ndarray, " n"]
    """The ends of the 90 % interval; those of classes are not known."""
    high: Float[np.ndarray, " n"]


@dataclass(frozen=True)
class Reopened:
    """Names and rows of all groups that were scored, and the tasks with the most labelled rows."""

    names: tuple[str, ...]
    frame: pl.DataFrame
    schema: Schema
    rows: GroupedRows
    pooling: Pooling
    tasks: Tasks
    said: dict[str, Forecast]

    @property
    def counts(self) -> Int[np.ndarray, " g"]:
        """Rows of each group."""
        return self.rows.counts

    def told(self, group: int) -> Told:
        """The first task of a group."""
        number = int(np.flatnonzero(self.tasks.group == group)[0])
        asked = self.tasks.task == number
        mine = np.flatnonzero(self.rows.group == group)
        support, query = (np.searchsorted(mine, part[number]) for part in (self.tasks.support, self.tasks.query))
        truth, expected, low, high = self._answer(asked, self.tasks.rows.y[self.tasks.query[number]])
        return Told(self.names[group], self.frame[mine.tolist()], support, query, truth, expected, low, high)

    def _answer(self, asked: np.ndarray, y: Float[np.ndarray, " n"]) -> list[np.ndarray]:
        """Truth, expectation and ends of the 90 % interval of some asked rows."""
        said = {
            name: Forecast(one.mean[asked], one.task_variance[asked], one.noise_variance[asked])
            for name, one in self.said.items()
        }
        shots, target = np.full(len(y), len(self.tasks.support[0])), self.schema.target
        if target.is_class:
            odds = self.pooling.odds(said, shots)[np.arange(len(y)), y.astype(int)]
            return [y, odds, np.full(len(y), np.nan), np.full(len(y), np.nan)]
        finished = self.pooling.finished(self.pooling.mixture(said, shots), shots)
        values = [y, finished.mixture.expected(), *finished.quantiles([0.05, 0.95])]
        return [value * target.std + target.mean for value in values]


def reopen(store: PoolRun, scored: Scored) -> Reopened | None:
    """The tasks that `scored` is of; None where the rows kept are no longer those that were scored, for some were added
    since, or where nothing was kept of what members said."""
    with reading(store.folder, "a whole pool"):
        return _reopened(store, scored)


def effects_again(store: PoolRun, slopes: Sequence[str]) -> GroupEffects:
    """How groups differ, in slopes of the columns that are named, fitted anew to the rows that the run keeps."""
    store.effects()  # refuses runs that have none
    with reading(store.folder, "a whole pool"):
        table = kept_table(store)
    return effects_of_table(table, slopes)


def kept_table(store: PoolRun) -> PoolTable:
    """The table of a finished pool, its frame cut to the rows that members learn from."""
    config, about = store.table(), read_sealed(store.pool_path)
    if config.schema is None:
        raise RunError("its settings do not say what its columns hold")
    schema, pooling = Schema.from_json(config.schema), Pooling.from_json(about["pooling"])
    factors = Factors({name: tuple(levels) for name, levels in about["factors"].items()})
    known = store.known()
    known = known.filter(has_target(schema, known))  # `update` once kept rows without a target
    keys = table_keys(known, schema.task, schema.missing)
    frame, keys = enough(known, keys, [], thin=config.table.order is None)
    groups = group_rows(keys)
    rows = grouped_rows(schema, factors, frame, group_places(groups, frame.height), notes=[])
    draw = Draw(pooling.counts[-1], ordered=config.table.order is not None, seed=store.run.config()["seed"])
    return PoolTable(config, schema, factors, groups.names, rows, frame, draw, ())


def _reopened(store: PoolRun, scored: Scored) -> Reopened | None:
    if store.table().schema is None:
        return None
    table, pooling = kept_table(store), Pooling.from_json(read_sealed(store.pool_path)["pooling"])
    place = pooling.counts.index(scored.shots)
    tasks = held_out_tasks(table.rows, table.draw, pooling.counts, folds_of(table.names))[place]
    kept = {name: store.said(name, len(pooling.counts)) for name in pooling.used()}
    said = {name: each[place] for name, each in kept.items() if each is not None}
    found = Reopened(table.names, table.frame, table.schema, table.rows, pooling, tasks, said)
    return found if _is_same(found, scored) else None


def _is_same(found: Reopened, scored: Scored) -> bool:
    """Whether errors of members on these tasks are those that were saved."""
    if not found.said or not np.array_equal(np.unique(found.tasks.group), scored.groups):
        return False
    name = next(name for name in found.said if name in scored.rows and name != POOL)
    mean, y = found.said[name].mean, found.rows.y[found.tasks.asked]
    if len(mean) != len(y):
        return False
    target = found.schema.target
    if target.is_class:
        errors, saved = (mean.argmax(1) == y).astype(float), scored.rows[name]["accuracy"]
    else:
        errors, saved = (mean - y) ** 2 * target.std**2, scored.rows[name]["mse"]
    place = np.searchsorted(scored.groups, found.tasks.group)[found.tasks.task]
    return bool(np.allclose(np.bincount(place, errors) / np.bincount(place), saved, rtol=1e-4))
