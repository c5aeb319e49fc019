"""The first pass over a large table: how many rows each group has, and exact counts, means and ends of columns."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Int

from stmaml.border.files import read_file
from stmaml.border.writing import write_bytes
from stmaml.errors import RunError, SourceError
from stmaml.run_files import read_sealed, write_sealed
from stmaml.tables import cells, dates
from stmaml.tables.ondisk.files import DiskTable
from stmaml.tables.ordering import order_values
from stmaml.tables.schema import table_keys
from stmaml.tables.target import MAX_CLASSES
from stmaml.tables.writing import as_parquet

MERGED_AT = 4_000_000  # rows of counts that wait to be added up


def _as_it_is(frame: pl.DataFrame) -> pl.DataFrame:
    return frame


@dataclass(frozen=True)
class Asked:
    """What is asked of a large table."""

    task: str
    target: str
    missing: tuple[str, ...] = ()
    order: str | None = None
    prepare: Callable[[pl.DataFrame], pl.DataFrame] = _as_it_is
    """What is done to rows before their groups are told, such as naming groups by all that they lie within."""

    def keys(self, frame: pl.DataFrame) -> pl.Series:
        """The group of each row, null where it has none."""
        return table_keys(frame, self.task, self.missing)

    def counted_by(self, frame: pl.DataFrame) -> pl.Series:
        """The same, or whole numbers that are their names, which are counted in half the time."""
        series = frame[self.task]
        return series if series.dtype.is_integer() and not self.missing else self.keys(frame)

    def order_of(self, frame: pl.DataFrame) -> Any:
        """What orders the rows of a group, infinity where unknown."""
        assert self.order is not None
        series = frame[self.order]
        if series.dtype.is_numeric():
            return cells.as_numbers(series, self.missing).fill_null(math.inf).to_numpy()
        if series.dtype.is_temporal():
            return dates.as_dates(series, None).fill_null(math.inf).to_numpy()
        return order_values(frame, self.order, self.missing)


@dataclass(frozen=True)
class Moments:
    """What a pass says of a column, exactly; of one that holds no numbers, only how many cells are missing."""

    missing: int = 0
    count: int = 0
    mean: float = 0.0
    square: float = 0.0
    """Sum of squared distances from the mean."""
    low: float = 0.0
    high: float = 0.0
    low_rows: int = 0
    """Rows that hold the lowest value."""
    high_rows: int = 0

    @property
    def std(self) -> float:
        """The standard deviation."""
        return math.sqrt(self.square / self.count) if self.count else 0.0

    def joined(self, other: "Moments") -> "Moments":
        """Of both together (Chan, Golub, LeVeque, "Updating Formulae", 1979)."""
        if 0 in (self.count, other.count):
            known = self if self.count else other
            return dataclasses.replace(known, missing=self.missing + other.missing)
        count, step = self.count + other.count, other.mean - self.mean
        share = other.count / max(count, 1)
        low, high = min(self.low, other.low), max(self.high, other.high)
        return Moments(
            self.missing + other.missing,
            count,
            self.mean + step * share,
            self.square + other.square + step * step * self.count * share,
            low,
            high,
            sum(each.low_rows for each in (self, other) if each.low == low),
            sum(each.high_rows for each in (self, other) if each.high == high),
        )


@dataclass(frozen=True)
class Survey:
    """What one pass over all rows has shown; columns by the rows that have a group and a target."""

    groups: pl.DataFrame
    """`name`, `count` and `place` (a hash of the name) of each group, in the order of their first rows."""
    columns: dict[str, Moments]
    height: int
    lacking: int
    """Rows without a group or a target."""
    labels: tuple[str, ...]
    """All different targets, if there are no more than can be classes."""
    words_are_missing: bool
    """Whether NA and the like are missing targets, since all others are numbers."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the groups."""
        return tuple(self.groups["name"].to_list())

    @property
    def counts(self) -> Int[np.ndarray, " g"]:
        """Rows of each group."""
        return self.groups["count"].to_numpy().astype(np.int64)

    @property
    def rows(self) -> int:
        """Rows that have a group and a target."""
        return int(self.groups["count"].sum())

    @property
    def digest(self) -> str:
        """Stands for groups, counts and columns: files that have changed have another."""
        found = hashlib.sha256("\n".join(self.names).encode())
        found.update(self.counts.tobytes())
        found.update(json.dumps({name: dataclasses.asdict(one) for name, one in self.columns.items()}).encode())
        return found.hexdigest()[:16]

    def known(self, frame: pl.DataFrame, asked: Asked) -> tuple[pl.Series, pl.Series]:
        """Which rows of a batch have a group and a target, and the group of each row."""
        keys, target = asked.keys(frame), frame[asked.target]
        names = cells.as_names(target, asked.missing) if not target.dtype.is_numeric() else None
        there = cells.as_numbers(target, asked.missing).is_not_null() if names is None else names.is_not_null()
        if names is not None and self.words_are_missing:
            there = there & ~cells.is_missing_word(names)
        return there & keys.is_not_null(), keys

    def save(self, folder: Path) -> None:
        """Keeps it, the numbers last."""
        groups = as_parquet(self.groups)
        write_bytes(folder / "groups.parquet", groups)
        about = {name: getattr(self, name) for name in ("height", "lacking", "labels", "words_are_missing")}
        columns = {name: dataclasses.asdict(one) for name, one in self.columns.items()}
        digest = hashlib.sha256(groups).hexdigest()
        write_sealed(folder / "survey.json", {**about, "columns": columns, "groups": digest})

    @staticmethod
    def load(folder: Path) -> "Survey | None":
        """What was kept; None where nothing whole is there."""
        try:
            about = read_sealed(folder / "survey.json")
            groups = read_file(folder / "groups.parquet")
            if about.pop("groups") != hashlib.sha256(groups).hexdigest():
                return None
            columns = {name: Moments(**one) for name, one in about.pop("columns").items()}
            return Survey(pl.read_parquet(groups), columns, **{**about, "labels": tuple(about["labels"])})
        except (OSError, RunError, SourceError, KeyError, TypeError, AttributeError):
            return None


@dataclass
class _Counted:
    """Counts of groups and moments of columns as a pass goes on."""

    asked: Asked
    waiting: list[pl.DataFrame] = field(default_factory=list)
    columns: dict[str, Moments] = field(default_factory=dict)
    labels: set[str] | None = field(default_factory=set)
    all_numbers: bool = True
    height: int = 0

    def add(self, first: int, frame: pl.DataFrame) -> None:
        """Takes in a batch of rows, before which there were so many."""
        frame = self.asked.prepare(frame)
        keys, target = self.asked.counted_by(frame), frame[self.asked.target]
        if target.dtype.is_numeric():
            there, word = cells.as_numbers(target, self.asked.missing).is_not_null(), None
        else:
            names = cells.as_names(target, self.asked.missing)
            there, word = names.is_not_null(), cells.is_missing_word(names)
            self.all_numbers = self.all_numbers and cells.are_numbers(names.set(word, None))
        self._add_labels(target.filter(there))
        kept = there & keys.is_not_null()
        words = pl.Series("words", np.zeros(frame.height, bool)) if word is None else word.alias("words")
        each = pl.DataFrame([keys.alias("name"), words]).filter(kept)
        found = each.group_by("name", maintain_order=True)
        self.waiting.append(found.agg(pl.len().cast(pl.Int64).alias("count"), pl.col("words").sum().cast(pl.Int64)))
        if sum(one.height for one in self.waiting) > MERGED_AT:
            self.waiting = [self._merged()]
        for series in frame if kept.all() else frame.filter(kept):
            if series.name != self.asked.task:
                before = self.columns.get(series.name, Moments())
                self.columns[series.name] = before.joined(_moments(series, self.asked.missing, first))
        self.height += frame.height

    def _add_labels(self, target: pl.Series) -> None:
        if self.labels is None or (found := target.unique()).len() > 2 * MAX_CLASSES:  # 7 and 7.0 are one
            self.labels = None
            return
        self.labels |= set(cells.as_names(found, self.asked.missing).drop_nulls().to_list())
        self.labels = self.labels if len(self.labels) <= MAX_CLASSES else None

    def _merged(self) -> pl.DataFrame:
        return pl.concat(self.waiting).group_by("name", maintain_order=True).agg(pl.all().sum())

    def survey(self) -> Survey:
        """What was found."""
        groups = self._merged()
        if self.all_numbers:
            groups = groups.with_columns(count=pl.col("count") - pl.col("words"))
        groups = groups.filter(pl.col("count") > 0).select(pl.col("name").cast(pl.String), "count")
        if groups.height == 0:
            task, target = self.asked.task, self.asked.target
            raise SourceError(f"no row has both a '{task}' and a '{target}'. Check the two columns.")
        lacking = self.height - int(groups["count"].sum())
        labels = tuple(sorted(self.labels or ()))
        return Survey(_with_places(groups), self.columns, self.height, lacking, labels, self.all_numbers)


def _moments(series: pl.Series, missing: tuple[str, ...], first: int) -> Moments:
    if not series.dtype.is_numeric():
        odd = cells.unusable_type(series) is not None
        empty = series if odd or series.dtype != pl.String else cells.as_text(series, missing)
        return Moments(missing=empty.null_count())
    numbers = cells.as_numbers(series, missing)
    known = numbers.drop_nulls()
    if known.len() == 0:
        return Moments(missing=numbers.len())
    if (infinite := known.is_infinite()).any():
        row = first + int(numbers.is_infinite().fill_null(False).arg_max() or 0) + 1
        raise SourceError(
            f"column '{series.name}' holds infinity in {int(infinite.sum())} rows, the first near row {row:,}. Correct "
            "it, or leave the cell empty if the value is unknown."
        )
    values = known.to_numpy()
    low, high, mean = float(values.min()), float(values.max()), float(values.mean())
    ends = int((values == low).sum()), int((values == high).sum())
    return Moments(numbers.null_count(), len(values), mean, float(np.square(values - mean).sum()), low, high, *ends)


def _with_places(groups: pl.DataFrame) -> pl.DataFrame:
    """Groups with a hash of their names, under a seed by which all are different."""
    for seed in range(100):
        places = groups["name"].hash(seed)
        if places.n_unique() == groups.height:
            return groups.with_columns(place=places, seed=pl.lit(seed, pl.UInt8))
    raise SourceError("two groups cannot be told apart by a hash of their names. Rename some of them.")


def take_survey(table: DiskTable, asked: Asked, folder: Path) -> Survey:
    """Counts and moments of all rows, kept in a folder for the next time."""
    if (kept := Survey.load(folder)) is not None:
        return kept
    counted = _Counted(asked)
    for first, frame in table.batches("counting rows and groups"):
        counted.add(first, frame)
    survey = counted.survey()
    survey.save(folder)
    return survey
