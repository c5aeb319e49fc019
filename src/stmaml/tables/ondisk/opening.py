"""A table that stays on disk, opened: a first look at all rows, a sample of groups, and shards."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from stmaml.border.writing import write_bytes
from stmaml.tables.asking import TableConfig, infer_columns
from stmaml.tables.cells import as_numbers
from stmaml.tables.formats import whole
from stmaml.tables.groups import Split
from stmaml.tables.ondisk.cache import table_cache, touch
from stmaml.tables.ondisk.exact import check_ends, mended, wanted_kind
from stmaml.tables.ondisk.files import DiskTable, open_files
from stmaml.tables.ondisk.sample import SAMPLED_ROWS, first_groups, rows_of
from stmaml.tables.ondisk.shards import Shards, shards_of
from stmaml.tables.ondisk.survey import Asked, Survey, take_survey
from stmaml.tables.parts import Reading, check_has
from stmaml.tables.schema import Schema
from stmaml.tables.writing import as_parquet

Prepare = Callable[[pl.DataFrame], pl.DataFrame]


@dataclass(frozen=True)
class OnDisk:
    """The files of a table, what a pass over them has shown, and where more of it is kept."""

    files: DiskTable
    asked: Asked
    survey: Survey
    folder: Path

    @property
    def is_small(self) -> bool:
        """Whether a sample holds all of it."""
        return self.survey.rows <= SAMPLED_ROWS

    @property
    def counts(self) -> dict[str, int]:
        """Rows of each group."""
        return dict(zip(self.survey.names, self.survey.counts.tolist(), strict=True))

    @property
    def notes(self) -> list[str]:
        """What to say of all rows."""
        lacking, task, target = self.survey.lacking, self.asked.task, self.asked.target
        if not lacking:
            return []
        return [f"{lacking:,} of {self.survey.height:,} rows have no '{task}' or no '{target}' and are left out"]

    def sampled(self, ranked: Sequence[str]) -> pl.DataFrame:
        """The rows of the first of these groups, as many as a sample holds."""
        names = list(ranked) if self.is_small else first_groups(ranked, self.counts, SAMPLED_ROWS)
        digest = hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
        kept = self.folder / f"sample-{digest}.parquet"
        if not kept.exists():
            write_bytes(kept, as_parquet(rows_of(self.files, self.survey, self.asked, names)))
        with whole(str(kept), "Parquet"):
            return pl.read_parquet(kept)

    def schema(self, table: TableConfig, split: Split, notes: list[str]) -> Schema:
        """What columns hold, with scales from training groups alone."""
        others = (*split.val, *split.test, *split.skipped) if self.is_small else ()
        sample = self.sampled([*split.train, *others])
        return schema_of_sample(self, table, sample, train=list(split.train), notes=notes)

    def shards(self, schema: Schema, notes: list[str]) -> Shards:
        """All rows as the schema encodes them."""
        return shards_of(self.files, self.survey, self.asked, schema, self.folder, notes)


def look_at(paths: Sequence[Path], reading: Reading, table: TableConfig, prepare: Prepare | None = None) -> OnDisk:
    """The files of a table and a first pass over them, or what was kept of one."""
    files = open_files(paths, reading)
    check_has(list(files.schema), table.named, "the table")
    asked = Asked(table.task, table.target, table.missing, table.order)
    asked = asked if prepare is None else replace(asked, prepare=prepare)
    about = {"task": table.task, "target": table.target, "missing": table.missing, "order": table.order}
    within = [] if prepare is None else table.within
    folder = table_cache(files.files, {**about, "within": within, "columns": list(files.schema)})
    touch(folder)
    return OnDisk(files, asked, take_survey(files, asked, folder), folder)


def schema_of_sample(
    disk: OnDisk, table: TableConfig, sample: pl.DataFrame, *, train: list[str] | None, notes: list[str]
) -> Schema:
    """What columns hold, by a sample of groups and by what a pass over all rows has shown. Scales come from the groups
    to train on: those named; or all of the table, and then as exact as a pass tells them."""
    sample, survey = disk.asked.prepare(sample), disk.survey
    keys = disk.asked.keys(sample)
    chosen = keys.is_not_null() if train is None else keys.is_in(train)
    wanted = replace(table, kind=wanted_kind(table.kind, survey))
    schema = infer_columns(sample, sample, keys, chosen, wanted, notes)
    if disk.is_small:
        return schema
    if not schema.target.is_class:
        numbers = as_numbers(sample[table.target], table.missing)
        check_ends(table.target, numbers, survey.columns[table.target], keep_codes=table.keep_codes)
    notes.append(
        f"the table stays on disk: kinds of columns, medians and quantiles are those of {keys.n_unique():,} groups "
        f"with {sample.height:,} rows; counts, missing cells and ends are those of all rows"
    )
    return mended(schema, survey, sample, scales=train is None)
