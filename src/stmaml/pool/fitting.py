"""Fitting a pool to a table: members cross-fitted over its groups, weighed, calibrated and scored."""

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from stmaml.errors import SourceError
from stmaml.pool.base import Fitted, Forecast, Member, Tasks
from stmaml.pool.crossfit import HeldOut, fold_fits, folds_of, held_out_tasks, out_of_fold, scored_with
from stmaml.pool.group_effects import effects_of_table
from stmaml.pool.guarantee import learn_reaches
from stmaml.pool.importance import Shaken, are_of, importance_of, places_of, shake, shaken_arrays
from stmaml.pool.meta import Meta
from stmaml.pool.model import PoolModel
from stmaml.pool.opening import PoolTable
from stmaml.pool.pooling import Pooling, learn_pooling
from stmaml.pool.prior import NAME as PRIOR
from stmaml.pool.prior import Prior
from stmaml.pool.registry import members_named
from stmaml.pool.result import result_of
from stmaml.pool.scoring import fold_poolings, score_held_out
from stmaml.pool.store import PoolRun, PoolSettings
from stmaml.pool.usual import learn_usual
from stmaml.progress import remark, tell
from stmaml.tables.schema import Schema

QUICK, QUICK_ROWS = 32, 8
"""Held-out tasks for each number of labelled rows, and rows of each, for the prior by itself: it is to answer in
seconds, and its intervals hold nearly as well without being calibrated."""
WILD = 1e4
"""Mean square of predictions, in squared spreads of the target: beyond, numbers have run away."""


class PoolStopped(Exception):
    """Fitting was asked to stop; members that were done are kept."""


@dataclass(frozen=True)
class Fit:
    """A pool, and what its scores on held-out groups say."""

    model: PoolModel
    result: dict[str, Any]


def fit_pool(
    table: PoolTable,
    settings: PoolSettings,
    *,
    store: PoolRun | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    free: Callable[[], None] = lambda: None,
) -> Fit:
    """The pool of a table's members. With a store, members are kept as they are done, and those kept are not fitted
    again. `free` is called after members whose programs were compiled, which no other needs."""
    named = members_named(settings.members, table.rows, minutes=settings.minutes, steps=settings.steps)
    members = [_widened(member, table) for member in named]
    fold = folds_of(table.names)
    if settings.members == (PRIOR,) and store is None:
        tasks = held_out_tasks(
            table.rows, dataclasses.replace(table.draw, max_query=QUICK_ROWS), table.counts, fold, most=QUICK
        )
    else:
        tasks = held_out_tasks(table.rows, table.draw, table.counts, fold)
    forecasts: list[dict[str, Forecast]] = [{} for _ in table.counts]
    fitted: dict[str, Fitted] = {}
    seconds: dict[str, float] = {}
    for number, member in enumerate(members):
        if should_stop():
            raise PoolStopped
        tell(f"fitting {member.name}", number, len(members))
        begun = time.monotonic()
        try:
            said, fitted[member.name] = _member(member, table, fold, store, tasks)
        except (
            np.linalg.LinAlgError,
            ArithmeticError,
        ) as error:  # one that this table defeats is no reason to have none
            remark(f"{member.name} is left out, since its numbers do not hold on this table: {error}")
            continue
        if isinstance(member, Meta | Prior):
            free()
        seconds[member.name] = time.monotonic() - begun
        remark(f"{member.name}: {seconds[member.name]:,.1f} s")
        for place, forecast in enumerate(said):
            forecasts[place][member.name] = forecast
    if not fitted:
        raise SourceError(
            "no model of the pool could learn from this table. Look for wild values in the columns above."
        )
    found = zip(table.counts, tasks, forecasts, strict=True)
    held = [HeldOut(shots, one, each, scored_with(fold, one)) for shots, one, each in found if len(one)]
    return _pooled(table, held, fitted, store, seconds)


def _widened(member: Member, table: PoolTable) -> Member:
    """A meta-learned member draws its tasks from all groups, also from those that stay on disk."""
    return dataclasses.replace(member, wide=table.wide) if isinstance(member, Meta) else member


def _member(
    member: Member, table: PoolTable, fold: np.ndarray, store: PoolRun | None, tasks: list[Tasks]
) -> tuple[list[Forecast], Fitted]:
    kept = None if store is None else store.said(member.name, len(table.counts))
    if store is not None and kept is not None:
        return kept, store.member(member.name)
    fits, fitted = fold_fits(member, table.rows, fold, table.draw)
    said = [out_of_fold(fits, one, fold) for one in tasks]
    if not all(np.isfinite(one.mean).all() and np.isfinite(one.variance).all() for one in said):
        raise ArithmeticError("a prediction is not finite")
    if any(np.square(one.mean).mean() > WILD for one in said):
        raise ArithmeticError("its predictions for held-out groups are far from all targets")
    if store is not None:
        store.save_member(member.name, said, fitted, shaken_arrays(_shaken(table, fold, tasks), fits))
    return said, fitted


def _shaken(table: PoolTable, fold: np.ndarray, tasks: list[Tasks]) -> list[Shaken]:
    """Columns mixed up, without labelled rows and with as many as are usual."""
    places, ends = places_of(table.schema, table.factors), {0: 0, len(tasks) - 1: table.counts[-1]}
    found = [shake(tasks[place], shots, fold, places) for place, shots in ends.items()]
    return [one for one in found if one is not None]


def _pooled(
    table: PoolTable, held: list[HeldOut], fitted: dict[str, Fitted], store: PoolRun | None, seconds: dict[str, float]
) -> Fit:
    tell("weighing members", 0, 1)
    pooling = learn_pooling(held)
    usual = learn_usual(pooling, held[0])
    scale = 1.0 if table.schema.target.is_class else table.schema.target.std
    folds = fold_poolings(held)
    scored = score_held_out(folds, scale)
    result = {**result_of(table, pooling, held, scored), "seconds": seconds}
    if store is not None:
        result["importance"] = _importance(table, pooling, scale, store)
    members = {name: fitted[name] for name in pooling.used()}
    config, schema = table.config, table.schema
    known = kept_columns(table.frame, schema, table)
    model = PoolModel(config, schema, table.factors, pooling, usual, members, known, learn_reaches(folds))
    if store is not None:
        if not schema.target.is_class:
            store.save_effects(effects_of_table(table))
        store.save_scored(scored)
        store.save(model, result)
    tell("weighing members", 1, 1)
    return Fit(model, result)


def _importance(table: PoolTable, pooling: Pooling, scale: float, store: PoolRun) -> dict[str, Any]:
    """Which columns matter; nothing where a member was kept by a version that did not ask, or asked otherwise."""
    said = {name: store.shaken(name) for name in pooling.used()}
    fold = folds_of(table.names)
    shaken = _shaken(table, fold, held_out_tasks(table.rows, table.draw, table.counts, fold))
    if not all(arrays and are_of(arrays, shaken) for arrays in said.values()):
        return {}
    return importance_of(shaken, said, pooling, scale)


def kept_columns(frame: pl.DataFrame, schema: Schema, table: PoolTable) -> pl.DataFrame:
    """The rows with all columns that a later question may need."""
    config = table.config.table
    wanted = [*schema.names, *config.within, *config.also, *((config.order,) if config.order else ())]
    return frame.select(name for name in dict.fromkeys(wanted) if name in frame.columns)
