"""A user's table as a benchmark: a group is a task, some of its rows are labelled, others are asked for."""

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import polars as pl
from jaxtyping import Shaped

from stmaml.benchmarks.base import Benchmark, BenchmarkConfig, Rows, Shelf, Sweep
from stmaml.benchmarks.sources import MAX_GROUPS
from stmaml.errors import RunError, SettingError, SourceError
from stmaml.tables.aftercare import Calibrating
from stmaml.tables.calibration import caution
from stmaml.tables.cells import as_labels
from stmaml.tables.groups import GroupTasks, Sizes, Split, TaskSizes, split_groups
from stmaml.tables.leaks import leak_notes
from stmaml.tables.ordering import sorted_by, unordered_note
from stmaml.tables.parts import Reading, check_has
from stmaml.tables.reading import Groups, group_rows, read_table, row_list
from stmaml.tables.schema import Schema, check_roles, infer_schema, table_keys
from stmaml.tables.target import WantedTarget, check_target
from stmaml.tasks import Scaling, TaskSpec

SHOT_COUNTS = (0, 1, 2, 5, 10, 20, 50, 100)
TEST_TASKS = 600
PARTS = ("train", "val", "test")


@dataclass(frozen=True)
class TableConfig:
    """What is predicted from what, and in which groups."""

    task: str
    """Column that says which group a row belongs to."""
    target: str
    """Column to predict."""
    features: tuple[str, ...] = ()
    """Columns to predict it from; all others if none is named."""
    drop: tuple[str, ...] = ()
    """Columns to leave out."""
    categorical: tuple[str, ...] = ()
    """Columns of names, whatever they look like: numbers that stand for kinds."""
    ordinal: tuple[str, ...] = ()
    """Columns of levels that have an order: that of the numbers in them, or else the one in which they first appear."""
    kind: WantedTarget = "auto"
    """What the target is: numbers, or classes; found out if not given."""
    missing: tuple[str, ...] = ()
    """Values that stand for a missing one, such as 9999.9, beside empty cells and NA."""
    order: str | None = None
    """Column that orders the rows of a group: labelled rows are then the first ones, and later ones are asked for."""
    within: tuple[str, ...] = ()
    """Columns of larger groups that the groups lie within, such as a district of schools."""
    also: tuple[str, ...] = ()
    """Columns of other groupings that cut across the groups, such as the items of a questionnaire."""
    keep_codes: bool = False
    """Take values of the target that are far from all others as real."""
    sizes: Sizes = field(default_factory=Sizes)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to be read, if not all."""
        roles = (self.task, self.target, *((self.order,) if self.order else ()), *self.within, *self.also)
        return tuple(dict.fromkeys((*roles, *self.features))) if self.features else ()

    @property
    def named(self) -> tuple[str, ...]:
        """All columns that are named."""
        named = (self.task, self.target, *self.features, *self.drop, *self.categorical, *self.ordinal)
        return (*named, *self.within, *self.also, *((self.order,) if self.order else ()))

    @property
    def categories(self) -> tuple[str, ...]:
        """The columns that hold names, whatever they look like."""
        grouped = [name for name in (*self.within, *self.also) if name not in (*self.drop, *self.ordinal)]
        return tuple(dict.fromkeys((*self.categorical, *grouped)))

    def check(self) -> None:
        """Raises SettingError if one column is to serve two purposes."""
        check_roles(self.task, self.target, self.features, self.drop, self.categorical, self.ordinal)


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
        paths = [Path(self.data)] if self.data else [Path(file) for file in self.files]
        return open_frame(read_table(paths, self.reading), self, shelf)


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
    else:
        schema = Schema.from_json(config.schema)
    x, y = schema.encode(frame, "the table", notes), schema.target.values(frame, schema.missing)
    digest = _digest(groups, x, y)
    if config.digest not in (None, digest) and config.data is None:
        raise RunError(
            f"the table at {config.files[0]} has changed since it was first learnt from. Restore it, or fit anew with "
            "--force."
        )
    found = Sizes(sizes.shots, sizes.query_size, sizes.min_query)
    settings = replace(config, table=replace(table, sizes=found), schema=schema.to_json(), digest=digest)
    parts = {name: _source(getattr(split, name), name, groups, x, y, schema, sizes) for name in PARTS}
    few = caution(len(split.val), schema.target.is_class)
    unplaced = [] if table.order is None else unordered_note(frame, table.order, table.missing)
    said = [_said_of_groups(frame.height, table, split, sizes), *notes, *unplaced, *few]
    return _opened(settings, schema, split, parts, sizes.shots, said, shelf)


def _opened(
    settings: Config,
    schema: Schema,
    split: Split,
    parts: dict[str, GroupTasks],
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


def infer_columns(
    whole: pl.DataFrame, frame: pl.DataFrame, keys: pl.Series, train: pl.Series, table: TableConfig, notes: list[str]
) -> Schema:
    """What each column of a frame holds, by the rows to train on, and what is odd about it; `whole` has the rows
    without a target too."""
    schema = infer_schema(
        frame,
        table.task,
        table.target,
        train=train.to_numpy(),
        features=table.features,
        drop=table.drop,
        categorical=table.categories,
        ordinal=table.ordinal,
        kind=table.kind,
        missing=table.missing,
        notes=notes,
    )
    if not schema.used:
        dropped = "; ".join(f"'{column.name}' is dropped ({column.describe()})" for column in schema.columns[:8])
        raise SourceError(f"no column is left to predict from: {dropped or 'no other is used'}. Bring some that vary.")
    if not schema.target.is_class:
        notes.extend(check_target(whole[table.target], table.missing, keep_codes=table.keep_codes))
    notes.extend(leak_notes(frame, keys, schema))
    return schema


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


def with_targets(frame: pl.DataFrame, table: TableConfig, notes: list[str]) -> tuple[pl.DataFrame, pl.Series]:
    """The rows that have a group and a target, and their groups."""
    keys = table_keys(frame, table.task, table.missing)
    known = keys.is_not_null() & as_labels(frame[table.target], table.missing).is_not_null()
    if not known.any():
        raise SourceError(f"no row has both a '{table.task}' and a '{table.target}'. Check the two columns.")
    if not known.all():
        lacking = f"no '{table.task}' or no '{table.target}'"
        notes.append(
            f"{int((~known).sum())} of {frame.height} rows have {lacking} and are left out: {row_list(~known)}"
        )
        frame, keys = frame.filter(known), keys.filter(known)
    return frame, keys


def _said_of_groups(num_rows: int, table: TableConfig, split: Split, sizes: TaskSizes) -> str:
    skipped = f"; {len(split.skipped):,} skipped, below {sizes.min_rows} rows" if split.skipped else ""
    which = "the first of a group" if sizes.ordered else "drawn at random"
    return (
        f"{num_rows:,} rows; groups by '{table.task}': {len(split.train):,} to train, {len(split.val):,} to validate "
        f"and calibrate, {len(split.test):,} to test{skipped}. Up to {sizes.shots} labelled rows, {which}"
    )
