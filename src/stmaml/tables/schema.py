"""What the columns of a table hold: found out once, stored with the run, applied to every new row."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import polars as pl
from jaxtyping import Float32

from stmaml.border.typed import from_dict, need
from stmaml.errors import SourceError, closest
from stmaml.runs import as_json
from stmaml.tables import cells
from stmaml.tables.columns import KINDS, Boolean, Categorical, Column, Date, Dropped, Numeric, Ordinal, Used
from stmaml.tables.date_columns import date_column, date_format_of, said_of_zones
from stmaml.tables.oddities import centre_and_spread, code_notes, day_numbers, far_codes, name_notes, odd_values
from stmaml.tables.parts import check_has
from stmaml.tables.roles import check_roles
from stmaml.tables.stored import check_scale
from stmaml.tables.target import NUMBER_SHARE, Chosen, Target, WantedTarget, infer_target

MAX_LEVELS = 24
MAX_RANKS = 1000
MIN_LEVEL_ROWS = 5
MIN_INPUTS = 5  # fewer than these, and each is too much of what is known to be left out
Wanted = Literal["auto", "categorical", "ordinal"]


@dataclass(frozen=True)
class Schema:
    """What each column of a table holds, with all that turns new rows into the same numbers."""

    task: str
    target: Target
    columns: tuple[Column, ...]
    missing: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The columns it knows: group, target and inputs."""
        return (self.task, self.target.name, *(column.name for column in self.used))

    @property
    def used(self) -> tuple[Used, ...]:
        """The columns that are inputs."""
        return tuple(column for column in self.columns if not isinstance(column, Dropped))

    @property
    def numbers(self) -> tuple[str, ...]:
        """The columns that hold numbers."""
        target = () if self.target.is_class else (self.target.name,)
        return (*target, *(column.name for column in self.used if isinstance(column, Numeric)))

    @property
    def outputs(self) -> list[str]:
        """Names of all inputs of the network."""
        return [name for column in self.columns for name in column.outputs]

    def encode(
        self, frame: pl.DataFrame, label: str = "the table", notes: list[str] | None = None, *, known: bool = False
    ) -> Float32[np.ndarray, "n dx"]:
        """The inputs of each row. What had to be assumed is added to `notes`; rows `known` before are not judged, since
        those of one group may be the odd ones of their table."""
        notes = [] if notes is None else notes
        absent = [column.name for column in self.used if column.name not in frame.columns]
        self._check_enough(frame, absent, label)
        if absent:
            notes.append(f"{label} lacks {_quoted(absent)}; taken as missing in all rows")
        full = frame.with_columns(pl.Series(name, [None] * frame.height, dtype=pl.String) for name in absent)
        said = {column.name: [] if column.name in absent else notes for column in self.used}
        parts = [
            column.encode(full[column.name], self.missing, None if known else said[column.name]) for column in self.used
        ]
        return np.concatenate(parts, axis=1).astype(np.float32)

    def _check_enough(self, frame: pl.DataFrame, absent: Sequence[str], label: str) -> None:
        """Raises SourceError for a table that lacks inputs, but for a few of many."""
        total = len(self.used)
        if not absent or (total >= MIN_INPUTS and 5 * len(absent) < total):
            return
        unknown = [name for name in frame.columns if name not in self.names]
        pairs = [(name, close[0]) for name in absent if (close := closest(name, unknown))]
        if pairs:
            meant = ", ".join(f"'{new}' for '{name}'" for name, new in pairs[:3])
            raise SourceError(f"{label} lacks {_quoted(absent)}; did it mean {meant}? Rename it as in training.")
        if 2 * len(absent) > total:
            raise SourceError(
                f"{label} is of another kind than the training table: it lacks {_quoted(absent)}; it has: "
                f"{', '.join(frame.columns[:20])}. Give a table with the columns that training used."
            )
        raise SourceError(
            f"{label} lacks {_quoted(absent)}, {len(absent)} of {total} inputs. Add what is lacking, as an empty "
            "column if it is unknown."
        )

    def to_json(self) -> dict[str, Any]:
        """The schema as plain lists and dictionaries."""
        return as_json(self)

    @staticmethod
    def from_json(content: dict[str, Any]) -> "Schema":
        """The schema back from `to_json`; RunError if it is none that was ever found out."""
        columns = tuple(from_dict(KINDS[column["kind"]], column, "schema.") for column in content["columns"])
        target, missing = content["target"], need(tuple[str, ...], content["missing"], "missing")
        schema = Schema(need(str, content["task"], "task"), from_dict(Target, target, "target."), columns, missing)
        for each in (*columns, schema.target):
            check_scale(as_json(each), each.name)
        return schema


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:8]) + (" and others" if len(names) > 8 else "")


def infer_column(
    series: pl.Series, keys: pl.Series, train: Chosen, missing: Sequence[str] = (), wanted: Wanted = "auto"
) -> Column:
    """What a column holds, judged by all rows; its mean, spread and frequent values by training rows alone."""
    if (odd := cells.unusable_type(series)) is not None:
        return Dropped(series.name, f"of type {odd}, which cannot be used")
    text = cells.as_text(series, missing)
    present = text.drop_nulls()
    if present.len() == 0:
        return Dropped(series.name, "empty")
    if present.n_unique() == 1 and present.len() == text.len():
        return Dropped(series.name, "constant")
    chosen = pl.Series(train)
    if wanted != "auto":
        numbers = cells.are_numbers(text)
        make = {"categorical": _categorical, "ordinal": _ordinal}[wanted]
        return make(cells.as_levels(series, missing, numbers=numbers), keys, chosen, numbers)
    flags = cells.as_flags(series, missing)
    if flags.null_count() == text.null_count():
        known = flags.filter(chosen).drop_nulls().to_numpy()
        return Boolean(
            series.name, float(np.mean(known)) if known.size else 0.5, bool(text.filter(chosen).null_count())
        )
    numbers = cells.as_numbers(series, missing)
    if numbers.len() - numbers.null_count() >= NUMBER_SHARE * present.len():
        cells.check_finite(numbers)
        return _numeric(series.name, numbers.filter(chosen))
    if (comma := cells.decimal_comma(text)) is not None:
        return Dropped(series.name, f"numbers with decimal commas, such as '{comma}': write them with points")
    if (found := date_format_of(series, text)) is not None:
        return date_column(series.set(text.is_null(), None), found or None, chosen)
    return _categorical(text, keys, chosen)


def _numeric(name: str, numbers: pl.Series) -> Column:
    known = numbers.drop_nulls().to_numpy()
    if known.size == 0 or known.min() == known.max():
        return Dropped(name, "constant in the training groups")
    low, fill, high = np.quantile(known, [0.001, 0.5, 0.999])
    mean, std = centre_and_spread(known)
    return Numeric(name, float(fill), mean, std or 1.0, float(low), float(high), bool(numbers.null_count()))


def _categorical(text: pl.Series, keys: pl.Series, chosen: pl.Series, numbers: bool = False) -> Column:
    name = text.name
    pairs = pl.DataFrame({"key": keys, "value": text}).drop_nulls().unique()
    num_values = int(text.drop_nulls().n_unique())
    num_groups = int(keys.drop_nulls().n_unique())
    if num_values > 2 and pairs.height <= num_groups and num_values > num_groups / 2:
        return Dropped(name, "names the groups: a new group would have a new value")
    if num_values > 50 and num_values > 0.5 * text.drop_nulls().len():
        return Dropped(name, "text with hardly a value twice")
    known = text.filter(chosen)
    counts = known.drop_nulls().value_counts(sort=True).filter(pl.col("count") >= MIN_LEVEL_ROWS)
    levels = tuple(sorted(counts[name].head(MAX_LEVELS).to_list()))
    if not levels:
        return Dropped(name, "text with hardly a value twice")
    return Categorical(name, levels, int(known.drop_nulls().n_unique()), bool(known.null_count()), numbers)


def _ordinal(text: pl.Series, keys: pl.Series, chosen: pl.Series, numbers: bool) -> Column:
    del keys
    found = text.drop_nulls().unique(maintain_order=True).to_list()
    if len(found) > MAX_RANKS:
        raise SourceError(
            f"column '{text.name}' has {len(found):,} different values, and --ordinal takes up to {MAX_RANKS:,}. Leave "
            "it a number."
        )
    levels, order = _ordered(found)
    blank = Ordinal(text.name, levels, order, 0.0, 0.0, 1.0, bool(text.filter(chosen).null_count()), numbers)
    known = blank.ranks(text.filter(chosen)).drop_nulls().to_numpy()
    if known.size == 0 or known.min() == known.max():
        return Dropped(text.name, "constant in the training groups")
    return replace(blank, fill=float(np.median(known)), mean=float(known.mean()), std=float(known.std()))


def _ordered(found: list[str]) -> tuple[tuple[str, ...], str]:
    """Levels from the lowest to the highest, and what they were ordered by."""
    values = [cells.as_number(word) for word in found]
    if None in values:
        numbers = [re.search(r"\d+(\.\d+)?", word) for word in found]
        values = [None if number is None else float(number[0]) for number in numbers]
    if None in values or len(set(values)) < len(found):
        return tuple(found), "in the order in which they first appear"
    return tuple(word for _, word in sorted(zip(values, found, strict=True))), "in the order of their numbers"


def infer_schema(
    frame: pl.DataFrame,
    task: str,
    target: str,
    *,
    train: Chosen,
    features: Sequence[str] = (),
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    ordinal: Sequence[str] = (),
    kind: WantedTarget = "auto",
    missing: Sequence[str] = (),
    notes: list[str] | None = None,
) -> Schema:
    """The schema of a table; `train` says which rows scales may be learnt from."""
    notes = [] if notes is None else notes
    check_has(frame.columns, [task, target, *features, *drop, *categorical, *ordinal], "the table")
    check_roles(task, target, features, drop, categorical, ordinal)
    names = [name for name in (features or frame.columns) if name not in (task, target, *drop)]
    keys = table_keys(frame, task, missing)
    wanted: dict[str, Wanted] = {**dict.fromkeys(categorical, "categorical"), **dict.fromkeys(ordinal, "ordinal")}
    columns = tuple(infer_column(frame[name], keys, train, missing, wanted.get(name, "auto")) for name in names)
    schema = Schema(task, infer_target(frame[target], train, kind, missing), columns, tuple(missing))
    notes.extend(name_notes("group", keys, cells.is_missing_word(keys)))
    if schema.target.is_class:
        labels = cells.as_labels(frame[target], missing)
        notes.extend(name_notes("class", labels, cells.is_missing_word(labels)))
    notes.extend(_said_of_inputs(frame, schema))
    return schema


def _said_of_inputs(frame: pl.DataFrame, schema: Schema) -> Iterator[str]:
    """What is odd about columns of numbers, and which order was taken where one was asked for."""
    numeric = [column.name for column in schema.used if isinstance(column, Numeric)]
    for name in numeric:
        numbers = cells.as_numbers(frame[name], schema.missing)
        codes = far_codes(numbers)
        yield from code_notes(name, codes)
        rest = numbers.filter(~numbers.is_in([code.value for code in codes]))
        said = odd_values(name, rest), day_numbers(name, cells.as_text(frame[name], schema.missing))
        yield from filter(None, said)
    for column in schema.used:
        if isinstance(column, Date):
            yield from said_of_zones(frame[column.name], column, schema.missing)
        if isinstance(column, Ordinal):
            yield f"column '{column.name}' is ordinal: {column.describe()}"


def table_keys(frame: pl.DataFrame, task: str, missing: Sequence[str] = ()) -> pl.Series:
    """The group of each row, null where it has none; one group without a name where there is no such column."""
    if task not in frame.columns:
        return pl.Series(task, [""] * frame.height, dtype=pl.String)
    return cells.as_names(frame[task], missing)
