"""The part of `stmaml predict` that needs no run: a learner that ships with the package reads the training table."""

from dataclasses import replace
from typing import Any

from stmaml.errors import SettingError
from stmaml.pool.fitting import fit_pool
from stmaml.pool.opening import open_pool_table
from stmaml.pool.prior import NAME
from stmaml.pool.store import PoolSettings
from stmaml.prior.reading import limits_said
from stmaml.tables.adapted import Answer
from stmaml.tables.benchmark import Config, TableConfig
from stmaml.tables.parts import Reading
from stmaml.tables.reading import read_table
from stmaml.tables.schema import Schema
from stmaml.tables.writing import check_writable


def answer_of_table(flags: Any, levels: tuple[float, ...], form: str) -> tuple[Schema, Answer]:
    """Predictions from a training table and no training; intervals are calibrated on its own groups, held out."""
    _check(flags)
    config = Config(TableConfig(flags.task, flags.target, order=flags.order), (str(flags.train),), flags.delimiter)
    config.table.check()
    reading = Reading(flags.delimiter, config.table.columns, sheet=flags.sheet)
    table = open_pool_table(read_table([flags.train], reading), config, seed=flags.seed)
    model = fit_pool(table, PoolSettings((NAME,))).model
    asked = replace(reading, known=model.schema.names)
    query = read_table([flags.query], asked)
    check_writable(query, form)
    support = None if flags.support is None else read_table([flags.support], replace(asked, may_be_empty=True))
    answer = model.predict(query, support, levels=levels, coverage=flags.coverage, suggest=flags.suggest)
    limits = limits_said(len(table.rows.y), table.rows.num_groups, table.rows.x.shape[1])
    return model.schema, replace(answer, notes=[*table.notes, *limits, *answer.notes])


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
