"""The part of `stmaml predict` that is for tables larger than memory."""

import json
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console

from stmaml.cli.folders import check_folder
from stmaml.cli.progress import showing
from stmaml.errors import SettingError
from stmaml.pool.rows import nested
from stmaml.pool.store import PoolRun, is_pool
from stmaml.runs import Run
from stmaml.tables.formats import PARQUET_ENDINGS
from stmaml.tables.model import load_model
from stmaml.tables.ondisk.files import LARGE_ROWS, is_large, open_files
from stmaml.tables.ondisk.predicting import LargeQuestion
from stmaml.tables.parts import Reading
from stmaml.tables.schema import table_keys

WRITTEN_ROWS = 500_000  # from here on a Parquet file is written piece by piece; other files hold all rows at once


def is_large_question(flags: Any) -> bool:
    """Whether a question of a run is answered from disk."""
    if flags.run is None or flags.run.is_file():
        return False
    paths = [path for path in (flags.query, flags.support) if path is not None]
    if not all(path.exists() for path in paths):
        return False
    return any(is_large([path], WRITTEN_ROWS if _writes_parquet(flags.out) else LARGE_ROWS) for path in paths)


def _writes_parquet(out: Path | None) -> bool:
    return out is not None and out.name.lower().endswith(PARQUET_ENDINGS)


def predict_large(flags: Any, levels: tuple[float, ...], console: Console) -> None:
    """Predicts in pieces, writes one Parquet file, and says how many rows it has."""
    _check(flags)
    check_folder(flags.run)
    with showing(console, "reading"):
        question = _question(flags, levels)
        written = question.answer(flags.out)
    for note in question.notes:
        console.print(f"note: {note}")
    summary = {"rows": written, "out": str(flags.out), "notes": question.notes}
    print(json.dumps(summary) if flags.json else f"wrote {written:,} predictions to {flags.out}")


def _check(flags: Any) -> None:
    if not _writes_parquet(flags.out):
        raise SettingError(
            f"the tables have {LARGE_ROWS:,} rows or more, which are predicted piece by piece and written as Parquet. "
            "Add --out FILE.parquet."
        )
    if flags.save_adapted is not None:
        raise SettingError(
            "--save-adapted writes one file a group, which is for tables that fit into memory. Leave it out, or give "
            "the labelled rows of fewer groups."
        )


def _question(flags: Any, levels: tuple[float, ...]) -> LargeQuestion:
    run = Run(flags.run)
    model: Any = PoolRun(run).load() if is_pool(run) else load_model(flags.run)
    schema, within = model.schema, model.config.table if is_pool(run) else None
    query = open_files([flags.query], Reading(flags.delimiter, known=schema.names))
    support = None
    if flags.support is not None:
        support = open_files([flags.support], Reading(flags.delimiter, known=schema.names, may_be_empty=True))

    def keys(frame: pl.DataFrame) -> pl.Series:
        return table_keys(frame if within is None else nested(frame, within), schema.task, schema.missing)

    def ask(query: pl.DataFrame, support: pl.DataFrame | None) -> tuple[pl.DataFrame, list[str]]:
        settings: dict[str, Any] = {"levels": levels, "coverage": flags.coverage, "suggest": flags.suggest}
        answer = model.predict(query, support, num_samples=flags.samples, seed=flags.seed, **settings)
        return answer.frame, answer.notes

    named = all(schema.task in table.schema for table in (query, support) if table is not None)
    return LargeQuestion(query, support, keys, ask, by_group=named and (support is not None or flags.suggest > 0))
