"""A user's table as a benchmark: a group is a task, some of its rows are labelled, others are asked for."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import polars as pl
from jaxtyping import Shaped

from stmaml.benchmarks.base import Benchmark, BenchmarkConfig, Rows, Shelf, Sweep
from stmaml.benchmarks.sources import MAX_GROUPS
from stmaml.errors import RunError, SettingError
from stmaml.tables.aftercare import Calibrating
from stmaml.tables.asking import TableConfig, infer_columns, said_of_copies, with_targets
from stmaml.tables.calibration import caution
from stmaml.tables.groups import GroupTasks, Sizes, Split, TaskSizes, split_groups
from stmaml.tables.ondisk.files import is_large
from stmaml.tables.ondisk.opening import look_at
from stmaml.tables.ondisk.tasks import ShardTasks
from stmaml.tables.ordering import sorted_by, unordered_note
from stmaml.tables.parts import Reading, check_has
from stmaml.tables.reading import Groups, group_rows, read_table
from stmaml.tables.schema import Schema
from stmaml.tasks import Scaling, TaskSpec

SHOT_COUNTS = (0, 1, 2, 5, 10, 20, 50, 100)
TEST_TASKS = 600
PARTS = ("train", "val", "test")


@dataclass(frozen=True)
class Config(BenchmarkConfig):
    """A table, where it lies, and what was made of its columns when it was first opened."""

    page = "table"
    table: TableConfig
    files: tuple[str, ...] = ()
    delimiter: str | None = None
    sheet: str | None = None
    data: str | None = None
    """A table of the same columns to test on, instead of the files."""
    shots: int | None = None
    """Labelled rows to test with; several numbers if not given."""
    schema: dict[str, Any] | None = None
    """What each column holds, found out from training groups if not given."""
    digest: str | None = None
    """First 16 digits of the SHA-256 of all its numbers: files that have changed since are refused."""
    on_disk: bool | None = None
    """Whether its rows stay on disk; by their number if not given."""

    def __post_init__(self):
        most = self.table.sizes.shots
        if self.shots is not None and most is not None and not 0 <= self.shots <= most:
            raise SettingError(f"--shots must be from 0 to {most}, the most it was fitted for; got {self.shots}.")

    @property
    def reading(self) -> Reading:
        """How its files are read."""
        return Reading(self.delimiter, self.table.columns, sheet=self.sheet)

    def open(self, shelf: Shelf | None = None) -> Benchmark:
        """The groups of the table, split and encoded."""
        self.table.check()
        if self.stays_on_disk:
            return open_on_disk(self, shelf)
        return open_frame(read_table(self.paths, self.reading), self, shelf)

    @property
    def paths(self) -> list[Path]:
        """Files and folders to read."""
        return [Path(self.data)] if self.data else [Path(file) for file in self.files]

    @property
    def stays_on_disk(self) -> bool:
        """Whether it is too large for memory."""
        return is_large(self.paths) if self.on_disk is None or self.data else self.on_disk


def open_frame(frame: pl.DataFrame, config: Config, shelf: Shelf | None = None) -> Benchmark:
    """The groups of a table, split and encoded; scales come from training groups alone, or from a given schema."""
    notes: list[str] = []
    table = config.table
    check_has(frame.columns, table.named, "the table")
    whole = sorted_by(frame, table.order, table.missing)
    frame, keys = with_targets(whole, table, notes)
    groups = group_rows(keys)
    sizes = table.sizes.of(groups.count, ordered=table.order is not None)
    split = split_groups(groups.names, groups.count, sizes)
    if config.schema is None:
        schema = infer_columns(whole, frame, keys, keys.is_in(list(split.train)), table, notes)
        notes.extend(said_of_copies(frame, schema, table))
    else:
        schema = Schema.from_json(config.schema)
    x, y = schema.encode(frame, "the table", notes), schema.target.values(frame, schema.missing)
    digest = _digest(groups, x, y)
    check_unchanged(config, digest)
    found = Sizes(sizes.shots, sizes.query_size, sizes.min_query)
    settings = replace(config, table=replace(table, sizes=found), schema=schema.to_json(), digest=digest)
    parts = {name: _source(getattr(split, name), name, groups, x, y, schema, sizes) for name in PARTS}
    few = caution(len(split.val), schema.target.is_class)
    unplaced = [] if table.order is None else unordered_note(frame, table.order, table.missing)
    said = [_said_of_groups(frame.height, table, split, sizes), *notes, *unplaced, *few]
    return _opened(settings, schema, split, parts, sizes.shots, said, shelf)


def open_on_disk(config: Config, shelf: Shelf | None = None) -> Benchmark:
    """The groups of a table that stays on disk; what columns hold is found out from a sample of training groups."""
    table, notes = config.table, list[str]()
    disk = look_at(config.paths, config.reading, table)
    sizes = table.sizes.of(disk.survey.counts, ordered=table.order is not None)
    split = split_groups(disk.survey.names, disk.survey.counts, sizes)
    schema = disk.schema(table, split, notes) if config.schema is None else Schema.from_json(config.schema)
    shards = disk.shards(schema, notes)
    check_unchanged(config, disk.survey.digest)
    found = Sizes(sizes.shots, sizes.query_size, sizes.min_query)
    about = {"schema": schema.to_json(), "digest": disk.survey.digest, "on_disk": True}
    settings = replace(config, table=replace(table, sizes=found), **about)
    spec = task_spec(schema)
    tasks = {part: shards.places(getattr(split, part)) for part in PARTS}
    parts = {part: ShardTasks(shards, *at, spec, sizes, training=part == "train") for part, at in tasks.items()}
    few = caution(len(split.val), schema.target.is_class)
    said = [_said_of_groups(disk.survey.rows, table, split, sizes), *disk.notes, *notes, *few]
    return _opened(settings, schema, split, parts, sizes.shots, said, shelf)


def check_unchanged(config: Config, digest: str) -> None:
    """Raises RunError where the files of a run are no longer those it was fitted to."""
    if config.digest not in (None, digest) and config.data is None:
        raise RunError(
            f"the table at {config.files[0]} has changed since it was first learnt from. Restore it, or fit anew with "
            "--force."
        )


def _opened(
    settings: Config,
    schema: Schema,
    split: Split,
    parts: Mapping[str, GroupTasks | ShardTasks],
    most: int,
    notes: list[str],
    shelf: Shelf | None,
) -> Benchmark:
    counts = (*(shots for shots in SHOT_COUNTS if shots < most), most)
    name = Path(settings.data or settings.files[0]).name if settings.data or settings.files else "rows"
    return Benchmark(
        settings=settings,
        train=parts["train"],
        val=parts["val"],
        test=parts["test"],
        families=("all",),
        conditions={"table": name, "target": schema.target.name, "groups": min(len(split.test), MAX_GROUPS)},
        sweep=Sweep(counts, "labelled rows"),
        test_tasks=TEST_TASKS,
        test_groups=len(split.test),
        labelled=counts if settings.shots is None else (settings.shots,),
        aftercare=Calibrating(parts["train"], parts["val"], counts),
        rows=Rows(settings, parts["train"].pooled),
        notes=tuple(notes),
        own_scaling=target_scaling(schema),
        shelf=shelf or Shelf(),
    )


def schema_of(experiment: Any) -> Schema:
    """What was made of each column of an experiment's table when it was first opened."""
    stored = experiment.benchmark_settings.schema
    if stored is None:
        raise RunError("the run does not say what its columns hold. Restore its config.json from a copy, or fit again.")
    try:
        return Schema.from_json(stored)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"the run's schema lacks or misnames {error}. Restore it from a copy, or fit again.") from error


def task_spec(schema: Schema) -> TaskSpec:
    """What the tasks of a table look like."""
    target, width = schema.target, len(schema.outputs)
    return TaskSpec((width,), len(target.classes), target="class") if target.is_class else TaskSpec((width,), 1)


def target_scaling(schema: Schema) -> Scaling:
    """Inputs stay as the schema scales them; real targets come to mean 0 and spread 1."""
    width = len(schema.outputs)
    return Scaling((0.0,) * width, (1.0,) * width, (schema.target.mean,), (schema.target.std,))


def _digest(groups: Groups, x: Shaped[np.ndarray, "n dx"], y: Shaped[np.ndarray, " n"]) -> str:
    digest = hashlib.sha256("\n".join(groups.names).encode())
    for array in (x, y, groups.order):
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]


def _source(
    names: tuple[str, ...],
    part: str,
    groups: Groups,
    x: Shaped[np.ndarray, "n dx"],
    y: Shaped[np.ndarray, " n"],
    schema: Schema,
    sizes: TaskSizes,
) -> GroupTasks:
    """Tasks of the groups of one part."""
    each = [groups.rows(groups.index[name]) for name in names]
    rows, count = np.concatenate(each), np.array([len(one) for one in each])
    start = np.concatenate([[0], np.cumsum(count)[:-1]])
    labels = y[rows].astype(np.int32) if schema.target.is_class else y[rows, None].astype(np.float32)
    return GroupTasks(
        jnp.asarray(x[rows]),
        jnp.asarray(labels),
        jnp.asarray(start, dtype=jnp.int32),
        jnp.asarray(count, dtype=jnp.int32),
        task_spec(schema),
        sizes,
        training=part == "train",
    )


def _said_of_groups(num_rows: int, table: TableConfig, split: Split, sizes: TaskSizes) -> str:
    skipped = f"; {len(split.skipped):,} skipped, below {sizes.min_rows} rows" if split.skipped else ""
    which = "the first of a group" if sizes.ordered else "drawn at random"
    return (
        f"{num_rows:,} rows; groups by '{table.task}': {len(split.train):,} to train, {len(split.val):,} to validate "
        f"and calibrate, {len(split.test):,} to test{skipped}. Up to {sizes.shots} labelled rows, {which}"
    )
