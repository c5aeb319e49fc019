"""A table that stays on disk, opened for a pool: members learn from some groups, the meta-learned one from all."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from stmaml.pool.meta_wide import Wide
from stmaml.pool.opening import MOST_ROWS, PoolTable, open_pool_table
from stmaml.pool.rows import nested
from stmaml.tables.benchmark import Config, check_unchanged
from stmaml.tables.ondisk.opening import OnDisk, look_at, schema_of_sample
from stmaml.tables.schema import Schema


def open_pool_on_disk(config: Config, *, shots: int | None = None, seed: int = 0) -> PoolTable:
    """A sample of whole groups in memory, with scales of all rows; and all groups in shards."""
    table, notes = config.table, list[str]()
    disk = look_at(config.paths, config.reading, table, prepare=lambda frame: nested(frame, table))
    check_unchanged(config, disk.survey.digest)
    sample = disk.sampled(disk.survey.names if disk.is_small else _ranked(disk.survey.names))
    if config.schema is None:
        schema = schema_of_sample(disk, table, sample, train=None, notes=notes)
    else:
        schema = Schema.from_json(config.schema)
    known = replace(config, schema=schema.to_json(), digest=disk.survey.digest, on_disk=True)
    opened = open_pool_table(sample, known, shots=shots, seed=seed)
    if disk.is_small:
        return replace(opened, notes=(*opened.notes, *disk.notes, *notes))
    wide = _wide(disk, schema, opened.names, notes)
    said = (*opened.notes[:1], _said(disk, sample), *opened.notes[1:], *disk.notes, *notes)
    return replace(opened, wide=wide, notes=said)


def _ranked(names: Sequence[str]) -> list[str]:
    """Names of groups by a digest: neither the order of rows nor a seed changes which are the first."""
    return sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())


def _said(disk: OnDisk, sample: pl.DataFrame) -> str:
    return (
        f"these are some of {disk.survey.rows:,} rows in {disk.survey.groups.height:,} groups, which stay on disk. Up "
        f"to {MOST_ROWS:,} rows of them train and score all models; the meta-learned one draws tasks from all "
        f"groups. The {sample.height:,} rows are kept with the pool; for other groups name the table with --support"
    )


def _wide(disk: OnDisk, schema: Schema, names: tuple[str, ...], notes: list[str]) -> Wide:
    shards = disk.shards(schema, notes)
    groups, target = shards.groups, schema.target
    place = {name: number for number, name in enumerate(names)}
    sampled = groups["name"].replace_strict(list(place), list(place.values()), default=-1, return_dtype=pl.Int64)
    start, count = (groups[column].to_numpy().astype(np.int64) for column in ("start", "count"))
    mean, std = (0.0, 1.0) if target.is_class else (target.mean, target.std)
    return Wide(shards, start, count, sampled.to_numpy(), mean, std)
