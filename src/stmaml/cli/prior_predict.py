"""The part of `stmaml predict` that needs no run: a learner that ships with the package reads the training table."""

import hashlib
import itertools
from dataclasses import replace
from typing import Any

import polars as pl

from stmaml.errors import SettingError
from stmaml.pool.fitting import fit_pool
from stmaml.pool.opening import open_pool_table
from stmaml.pool.prior import NAME
from stmaml.pool.store import PoolSettings
from stmaml.prior.reading import limits_said
from stmaml.tables.adapted import Answer
from stmaml.tables.benchmark import Config, TableConfig
from stmaml.tables.parts import Reading, check_has
from stmaml.tables.reading import read_table
from stmaml.tables.schema import Schema
from stmaml.tables.writing import check_writable

MOST_CALIBRATED = 2_000  # rows of groups that are held out in turn: more make intervals hardly better


def answer_of_table(flags: Any, levels: tuple[float, ...], form: str) -> tuple[Schema, Answer]:
    """Predictions from a training table and no training; intervals are calibrated on its own groups, held out."""
    _check(flags)
    wanted = TableConfig(flags.task, flags.target, drop=flags.drop, missing=flags.missing, order=flags.order)
    config = Config(wanted, (str(flags.train),), flags.delimiter)
    config.table.check()
    reading = Reading(flags.delimiter, config.table.columns, sheet=flags.sheet)
    frame = read_table([flags.train], reading)
    check_has(frame.columns, config.table.named, "the table")
    query = read_table([flags.query], replace(reading, known=tuple(frame.columns)))
    check_writable(query, form)
    table = open_pool_table(_enough(frame, query, flags.task), config, seed=flags.seed)
    known = replace(reading, known=table.schema.names, may_be_empty=True)
    support = None if flags.support is None else read_table([flags.support], known)
    for name, one in {"support": support, "query": query}.items():  # what they lack is said before the work
        if one is not None and not one.is_empty():
            table.schema.encode(one.head(1), f"the {name} table")
    model = fit_pool(table, PoolSettings((NAME,), steps=flags.steps)).model
    answer = model.predict(
        query,
        support,
        levels=levels,
        coverage=flags.coverage,
        suggest=flags.suggest,
        **({"guarantee": True} if flags.guarantee else {}),
    )
    limits = limits_said(frame.height, frame[flags.task].n_unique(), table.rows.x.shape[1])
    return model.schema, replace(answer, notes=[*table.notes, *limits, *answer.notes])


def _enough(frame: pl.DataFrame, query: pl.DataFrame, task: str) -> pl.DataFrame:
    """All rows, or those of as many groups as the prior has a use for, by a digest of their names, and of the groups
    that are asked for."""
    if frame.height <= MOST_CALIBRATED:
        return frame
    counts = dict(frame.select(pl.col(task).cast(pl.String).alias("name")).group_by("name").len().iter_rows())
    ranked = sorted(counts, key=lambda name: hashlib.sha256(str(name).encode()).digest())
    some = [name for name, before in zip(ranked, _before(ranked, counts), strict=True) if before < MOST_CALIBRATED]
    asked = query[task].cast(pl.String).unique().to_list() if task in query.columns else []
    return frame.filter(pl.col(task).cast(pl.String).is_in([*some, *asked]))


def _before(ranked: list[str], counts: dict[str, int]) -> list[int]:
    """Rows of all groups that come before each."""
    return [0, *itertools.accumulate(counts[name] for name in ranked)][:-1]


def _check(flags: Any) -> None:
    if flags.run is not None:
        raise SettingError(f"--train predicts without a run; got {flags.run} besides. Leave one of them out.")
    for name in ("task", "target"):
        if getattr(flags, name) is None:
            raise SettingError(
                f"--train needs --task, the column that names the group, and --target; --{name} is missing."
            )
    if flags.save_adapted is not None:
        raise SettingError("--save-adapted is for a run of one method; it has no use beside --train.")
