"""The kinds of columns, and how the cells of each become numbers a network can read."""

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import polars as pl
from jaxtyping import Float32, Shaped

from stmaml.errors import SourceError

MISSING_WORDS = ("", "na", "n/a", "nan", "null", "none", "nil", "?", "-")
TRUE_WORDS, FALSE_WORDS = ("true", "yes", "t", "y", "1"), ("false", "no", "f", "n", "0")
ISO_DAY = "%Y-%m-%d"
ISO_FORMATS = (ISO_DAY, "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M")
ZONE_FORMATS = ("%Y-%m-%d %H:%M:%S%.f%#z", "%Y-%m-%d %H:%M%#z")
DATE_FORMATS = ("%Y/%m/%d", "%d.%m.%Y", "%d.%m.%Y %H:%M", "%m/%d/%Y", "%m/%d/%Y %H:%M", "%d/%m/%Y", "%d/%m/%Y %H:%M")
DECIMAL_COMMA = r"^[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+$"
MAX_SCALED = 8.0  # an outlier beyond so many spreads tells no more than that it is one
SECONDS_A_DAY = 86_400.0
PERIODS = {"year": 365.2425, "week": 7.0, "day": 1.0}
Cells = tuple[pl.Series, Shaped[np.ndarray, "n k"]]  # what was read, null where missing, and the numbers made of it


def unusable_type(series: pl.Series) -> str | None:
    """What the type of a column is called, if its cells cannot be read as words, numbers or dates."""
    dtype = series.dtype
    if dtype.is_nested() or dtype in (pl.Time, pl.Duration, pl.Binary, pl.Object):
        return dtype.base_type().__name__
    return None


def _check_usable(series: pl.Series) -> None:
    if (found := unusable_type(series)) is not None:
        raise SourceError(
            f"column '{series.name}' is of type {found}, which cannot be used. Store it as text, numbers or dates."
        )


def _trimmed(series: pl.Series) -> pl.Series:
    """Cells as text; a column of whole numbers without points, as they stand in CSV files."""
    _check_usable(series)
    if series.dtype.is_float():
        series = series.fill_nan(None)
        finite = series.filter(series.is_finite())
        if finite.len() == series.drop_nulls().len() and (finite == finite.round()).all():
            series = series.cast(pl.Int64, strict=False)
    return series.cast(pl.String).str.strip_chars()


def _without(text: pl.Series, missing: Sequence[str]) -> pl.Series:
    """Text without empty cells and those named as missing."""
    gone = text.is_in(["", *missing])
    if codes := _codes(missing):  # 9999.90 is the code 9999.9, too
        gone = gone | text.cast(pl.Float64, strict=False).is_in(codes).fill_null(False)
    return text.set(gone.fill_null(True), None)


def is_missing_word(text: pl.Series) -> pl.Series:
    """Which cells hold a word that stands for a missing value in a column of numbers, such as NA."""
    return text.str.to_lowercase().is_in(list(MISSING_WORDS)).fill_null(False)


def as_text(series: pl.Series, missing: Sequence[str] = ()) -> pl.Series:
    """Cells as trimmed text, null where missing; whole numbers without a point, as they stand in CSV files."""
    text = _without(_trimmed(series), missing)
    return text.set(is_missing_word(text), None)


def as_names(series: pl.Series, missing: Sequence[str] = ()) -> pl.Series:
    """Cells as names, null where empty or named as missing: NA and none are names like others.

    A group is called 7 whether its file says 7 or 7.0, for one table is written in both ways: an integer column with a
    gap becomes one of floats in many tools."""
    return _without(_trimmed(series).str.replace(r"^([+-]?\d+)\.0+$", "${1}"), missing)


def as_labels(series: pl.Series, missing: Sequence[str] = ()) -> pl.Series:
    """Cells as names of classes, null where missing: beside numbers NA is a missing one, beside words it is a class."""
    names = as_names(series, missing)
    absent = is_missing_word(names)
    others = names.filter(~absent).drop_nulls()
    all_numbers = others.cast(pl.Float64, strict=False).null_count() == 0
    return names.set(absent, None) if all_numbers else names


def decimal_comma(text: pl.Series) -> str | None:
    """A number with a decimal comma, if there is one and the other cells are such numbers or whole ones."""
    present = text.drop_nulls()
    commas = present.str.contains(DECIMAL_COMMA)
    whole = present.str.contains(r"^[+-]?\d+$")
    return present.filter(commas)[0] if commas.any() and (commas | whole).all() else None


def _codes(missing: Sequence[str]) -> list[float]:
    return [code for word in missing if (code := as_number(word)) is not None]


def as_numbers(series: pl.Series, missing: Sequence[str] = ()) -> pl.Series:
    """Cells as numbers, null where missing or not a number."""
    _check_usable(series)
    if series.dtype in (pl.String, pl.Categorical, pl.Enum):
        series = as_text(series, missing)
    if series.dtype.is_temporal():
        return pl.Series(series.name, [None] * series.len(), dtype=pl.Float64)
    numbers = series.cast(pl.Float64, strict=False).fill_nan(None)
    codes = _codes(missing)
    return numbers.set(numbers.is_in(codes).fill_null(False), None) if codes else numbers


def as_number(word: str) -> float | None:
    """A word as a number, if it is one."""
    try:
        return float(word)
    except ValueError:
        return None


def as_dates(series: pl.Series, date_format: str | None) -> pl.Series:
    """Cells as days since 1970, null where missing or in another format.

    Text may be in the given format or in ISO 8601: a date, or a date and a time, with a T or a blank between them, with
    or without seconds and fractions. Moments with a zone or an offset are turned to UTC; those without are taken as
    they stand."""
    _check_usable(series)
    if series.dtype.is_temporal():
        moments = _in_utc(series) if isinstance(series.dtype, pl.Datetime) else series.cast(pl.Datetime("us"))
    else:
        text = as_text(series)
        own = () if date_format is None or date_format.startswith(ISO_DAY) else (date_format,)
        moments = _iso_moments(text, _first_read(text, own))
    return moments.dt.epoch("us").cast(pl.Float64) / (1e6 * SECONDS_A_DAY)


def _in_utc(moments: pl.Series) -> pl.Series:
    if isinstance(moments.dtype, pl.Datetime) and moments.dtype.time_zone:
        moments = moments.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    return moments.cast(pl.Datetime("us"))


def _iso_moments(text: pl.Series, read: pl.Series) -> pl.Series:
    """What was read, and beside it the cells in ISO 8601."""
    text = text.set(read.is_not_null(), None)
    read = _first_read(text.str.replace(r"^(\S+)T", "${1} "), ISO_FORMATS, read)
    left = text.set(read.is_not_null(), None)
    if left.null_count() == left.len():
        return read
    zoned = left.str.replace(r"^(\S+)T", "${1} ").str.replace(r" ?(Z|z|UTC)$", "+00:00")
    return _first_read(zoned.str.replace(r" ([+-]\S+)$", "${1}"), ZONE_FORMATS, read)


def _first_read(text: pl.Series, formats: Sequence[str], read: pl.Series | None = None) -> pl.Series:
    """The moment of each cell by the first format that fits, where none is read yet."""
    if read is None:
        read = pl.Series(text.name, [None] * text.len(), dtype=pl.Datetime("us"))
    for one in formats:
        zone = "UTC" if one.endswith("z") else None
        moments = _in_utc(text.str.strptime(pl.Datetime("us", zone), one, strict=False))
        read = read.zip_with(read.is_not_null(), moments)
    return read


def check_finite(numbers: pl.Series) -> None:
    """Raises SourceError if a column holds infinity."""
    infinite = numbers.is_infinite().fill_null(False)
    if infinite.any():
        where = f"column '{numbers.name}' holds infinity in row {int(infinite.arg_max() or 0) + 1}"
        raise SourceError(f"{where}. Correct it, or leave the cell empty if the value is unknown.")


def check_range(name: str, numbers: pl.Series, low: float, high: float) -> None:
    """Raises SourceError where most numbers lie far from where those of training lay, as with another unit."""
    width = max(high - low, 1e-9 * max(abs(low), abs(high), 1.0))
    present = numbers.drop_nulls()
    outside = present.filter((present < low - width) | (present > high + width))
    if 2 * outside.len() > present.len():
        raise SourceError(
            f"column '{name}' holds values such as {outside[0]:.6g}; in training it went from {low:.6g} to "
            f"{high:.6g}. Convert it to the unit of the training table."
        )


def _check_are_numbers(
    series: pl.Series, read: pl.Series, missing: Sequence[str], notes: list[str], wanted: str = "numbers"
) -> None:
    """Raises SourceError if most cells of a column cannot be read; a few of them are missing values."""
    text = as_text(series, missing)
    bad = text.filter(read.is_null()).drop_nulls()
    if 2 * bad.len() > text.drop_nulls().len():
        raise SourceError(f"column '{series.name}' must hold {wanted}; it holds '{bad[0]}'. {advice(bad)}")
    if bad.len():
        notes.append(f"'{series.name}' has {bad.len()} cells that are not {wanted}, such as '{bad[0]}': missing")


def advice(cells: pl.Series) -> str:
    """How to mend cells that should be numbers or dates."""
    commas = decimal_comma(cells) is not None
    return "Write decimals with a point, not with a comma." if commas else "Correct the column."


def as_flags(series: pl.Series, missing: Sequence[str]) -> pl.Series:
    """Cells as 1 and 0, null where they are neither."""
    truth = dict.fromkeys(TRUE_WORDS, 1.0) | dict.fromkeys(FALSE_WORDS, 0.0)
    words = as_text(series, missing).str.to_lowercase()
    return words.replace_strict(truth, default=None, return_dtype=pl.Float64)


class _Input(abc.ABC):
    """A column that is read: its cells become numbers, with one more for each cell that is missing, if any was."""

    name: str
    has_missing: bool

    @property
    def outputs(self) -> list[str]:
        """Names of the numbers it becomes."""
        return [*self._names(), *([f"{self.name} is missing"] if self.has_missing else [])]

    def encode(self, series: pl.Series, missing: Sequence[str], notes: list[str]) -> Float32[np.ndarray, "n k"]:
        """The numbers a network reads."""
        values, columns = self._read(series, missing, notes)
        if not self.has_missing and values.null_count():
            notes.append(f"'{self.name}' is missing in {values.null_count()} rows; in training it never was")
        parts = [columns, values.is_null().to_numpy()[:, None]] if self.has_missing else [columns]
        return np.concatenate([part.astype(np.float32) for part in parts], axis=1)

    @abc.abstractmethod
    def _names(self) -> list[str]: ...

    @abc.abstractmethod
    def _read(self, series: pl.Series, missing: Sequence[str], notes: list[str]) -> Cells: ...


@dataclass(frozen=True)
class Numeric(_Input):
    """A column of numbers: scaled, with the median where a cell is missing."""

    name: str
    fill: float
    mean: float
    std: float
    low: float
    high: float
    has_missing: bool
    kind: str = "numeric"

    def _names(self) -> list[str]:
        return [self.name]

    def _read(self, series: pl.Series, missing: Sequence[str], notes: list[str]) -> Cells:
        numbers = as_numbers(series, missing)
        check_finite(numbers)
        _check_are_numbers(series, numbers, missing, notes)
        check_range(self.name, numbers, self.low, self.high)
        filled = numbers.fill_null(self.fill).to_numpy()
        return numbers, np.clip((filled - self.mean) / self.std, -MAX_SCALED, MAX_SCALED)[:, None]

    def describe(self) -> str:
        """What was learnt, in words."""
        return f"{self.low:.4g} to {self.high:.4g}, mean {self.mean:.4g}"


@dataclass(frozen=True)
class Boolean(_Input):
    """A column of yes and no: 1 and 0, with the usual share of yes where a cell is missing."""

    name: str
    fill: float
    has_missing: bool
    kind: str = "boolean"

    def _names(self) -> list[str]:
        return [self.name]

    def _read(self, series: pl.Series, missing: Sequence[str], notes: list[str]) -> Cells:
        flags = as_flags(series, missing)
        _check_are_numbers(series, flags, missing, notes, wanted="yes and no")
        return flags, flags.fill_null(self.fill).to_numpy()[:, None]

    def describe(self) -> str:
        """What was learnt, in words."""
        return f"{100 * self.fill:.0f} % yes"


@dataclass(frozen=True)
class Categorical(_Input):
    """A column of names: one number for each frequent one, and one for all others, new and missing ones included."""

    name: str
    levels: tuple[str, ...]
    num_values: int
    has_missing: bool
    kind: str = "categorical"

    def _names(self) -> list[str]:
        return [f"{self.name} is {level}" for level in (*self.levels, "other")]

    def _read(self, series: pl.Series, missing: Sequence[str], notes: list[str]) -> Cells:
        text, count = as_text(series, missing), len(self.levels)
        codes = text.replace_strict(list(self.levels), range(count), default=count, return_dtype=pl.Int64).to_numpy()
        new = text.filter(~text.is_in(list(self.levels))).drop_nulls()
        if self.num_values == count and new.len():
            notes.append(f"'{self.name}' has values that training did not, such as '{new[0]}'; they count as other")
        return text, np.eye(count + 1, dtype=np.float32)[codes]

    def describe(self) -> str:
        """What was learnt, in words."""
        shown = ", ".join(self.levels[:4])
        rest = self.num_values - min(4, len(self.levels))
        return f"{shown} and {rest} more" if rest > 0 else shown


@dataclass(frozen=True)
class Date(_Input):
    """A column of dates: linear time, and where the moment lies in the year, the week and the day."""

    name: str
    date_format: str | None
    mean: float
    std: float
    low: float
    high: float
    parts: tuple[str, ...]
    has_missing: bool
    kind: str = "date"

    def _names(self) -> list[str]:
        cycles = [f"{self.name} {part} {wave}" for part in self.parts for wave in ("sin", "cos", "sin 2", "cos 2")]
        return [self.name, *cycles]

    def _read(self, series: pl.Series, missing: Sequence[str], notes: list[str]) -> Cells:
        days = as_dates(series.set(as_text(series, missing).is_null(), None), self.date_format)
        _check_are_numbers(series, days, missing, notes, wanted=f"dates as in training, such as {self.example()}")
        known = days.is_not_null().to_numpy()[:, None]
        values = days.fill_null(self.mean).to_numpy()
        columns = [np.clip((values - self.mean) / self.std, -MAX_SCALED, MAX_SCALED)]
        for part in self.parts:
            angle = 2 * np.pi * values / PERIODS[part]
            columns += [np.sin(angle), np.cos(angle), np.sin(2 * angle), np.cos(2 * angle)]
        return days, np.stack(columns, axis=1) * known

    def example(self) -> str:
        """The first date of training as it may be written."""
        known = self.date_format or ISO_DAY
        if known.startswith(ISO_DAY):
            known = "%Y-%m-%d %H:%M:%S" if "day" in self.parts else ISO_DAY
        return pl.Series([round(self.low * 1e6 * SECONDS_A_DAY)]).cast(pl.Datetime("us")).dt.strftime(known)[0]

    def describe(self) -> str:
        """What was learnt, in words."""
        ends = [str(np.datetime64(0, "D") + np.timedelta64(int(np.floor(end)), "D")) for end in (self.low, self.high)]
        cycles = f"; as time and place in the {', '.join(self.parts)}" if self.parts else ""
        return f"{ends[0]} to {ends[1]}{cycles}"


@dataclass(frozen=True)
class Dropped:
    """A column that is not used."""

    name: str
    reason: str
    kind: str = "dropped"
    has_missing: ClassVar[bool] = False

    @property
    def outputs(self) -> list[str]:
        """None."""
        return []

    def describe(self) -> str:
        """Why."""
        return self.reason


Column = Numeric | Boolean | Categorical | Date | Dropped
KINDS: dict[str, type] = {kind.kind: kind for kind in (Numeric, Boolean, Categorical, Date, Dropped)}
