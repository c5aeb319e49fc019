"""The kinds of columns, and how the cells of each become numbers a network can read."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from jaxtyping import Float32, Shaped

from stmaml.errors import SourceError

MISSING_WORDS = ("", "na", "n/a", "nan", "null", "none", "nil", "?", "-")
TRUE_WORDS, FALSE_WORDS = ("true", "yes", "t", "y", "1"), ("false", "no", "f", "n", "0")
DATE_FORMATS = (
    "%Y-%m-%d",
    "%Y-%m-%d %H:%M:%S",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%dT%H:%M:%S",
    "%Y-%m-%dT%H:%M:%SZ",
    "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%dT%H:%M",
    "%Y/%m/%d",
    "%d.%m.%Y",
    "%d.%m.%Y %H:%M",
    "%m/%d/%Y",
    "%m/%d/%Y %H:%M",
    "%d/%m/%Y",
    "%d/%m/%Y %H:%M",
)
MAX_SCALED = 8.0  # an outlier beyond so many spreads tells no more than that it is one
SECONDS_A_DAY = 86_400.0
PERIODS = {"year": 365.2425, "week": 7.0, "day": 1.0}


def as_text(series: pl.Series, missing: Sequence[str] = ()) -> pl.Series:
    """Cells as trimmed text, null where missing; whole numbers without a point, as they stand in CSV files."""
    if series.dtype.is_float():
        series = series.fill_nan(None)
        finite = series.filter(series.is_finite())
        if finite.len() == series.drop_nulls().len() and (finite == finite.round()).all():
            series = series.cast(pl.Int64, strict=False)
    text = series.cast(pl.String).str.strip_chars()
    gone = text.str.to_lowercase().is_in(list(MISSING_WORDS)) | text.is_in(list(missing))
    if codes := _codes(missing):  # 9999.90 is the code 9999.9, too
        gone = gone | text.cast(pl.Float64, strict=False).is_in(codes).fill_null(False)
    return text.set(gone.fill_null(True), None)


def _codes(missing: Sequence[str]) -> list[float]:
    return [code for word in missing if (code := as_number(word)) is not None]


def as_numbers(series: pl.Series, missing: Sequence[str] = ()) -> pl.Series:
    """Cells as numbers, null where missing or not a number."""
    if series.dtype == pl.String:
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
    """Cells as days since 1970, null where missing or in another format."""
    if series.dtype.is_temporal():
        moments = series.cast(pl.Datetime("us"), strict=False)
    else:
        moments = as_text(series).str.strptime(pl.Datetime("us"), date_format or DATE_FORMATS[0], strict=False)
    return moments.dt.epoch("us").cast(pl.Float64) / (1e6 * SECONDS_A_DAY)


def check_finite(numbers: pl.Series) -> None:
    """Raises SourceError if a column holds infinity."""
    infinite = numbers.is_infinite().fill_null(False)
    if infinite.any():
        row = int(infinite.arg_max() or 0)
        raise SourceError(
            f"column '{numbers.name}' holds infinity in row {row + 1}. Correct it, or leave the cell empty if the "
            "value is unknown."
        )


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
        raise SourceError(f"column '{series.name}' must hold {wanted}; it holds '{bad[0]}'. Correct the column.")
    if bad.len():
        notes.append(f"'{series.name}' has {bad.len()} cells that are not {wanted}, such as '{bad[0]}': missing")


def _note_missing(name: str, values: pl.Series, has_missing: bool, notes: list[str]) -> None:
    if not has_missing and values.null_count():
        notes.append(f"'{name}' is missing in {values.null_count()} rows, which never was so in training")


def _with_indicator(
    columns: Shaped[np.ndarray, "n k"], values: pl.Series, has_missing: bool
) -> Float32[np.ndarray, "n j"]:
    parts = [columns, values.is_null().to_numpy()[:, None]] if has_missing else [columns]
    return np.concatenate([part.astype(np.float32) for part in parts], axis=1)


def as_flags(series: pl.Series, missing: Sequence[str]) -> pl.Series:
    """Cells as 1 and 0, null where they are neither."""
    words = as_text(series, missing).str.to_lowercase()
    return words.replace_strict(
        [*TRUE_WORDS, *FALSE_WORDS],
        [1.0] * len(TRUE_WORDS) + [0.0] * len(FALSE_WORDS),
        default=None,
        return_dtype=pl.Float64,
    )


@dataclass(frozen=True)
class Numeric:
    """A column of numbers: scaled, with the median where a cell is missing."""

    name: str
    fill: float
    mean: float
    std: float
    low: float
    high: float
    has_missing: bool
    kind: str = "numeric"

    @property
    def outputs(self) -> list[str]:
        """Names of the numbers it becomes."""
        return [self.name, f"{self.name} is missing"] if self.has_missing else [self.name]

    def encode(self, series: pl.Series, missing: Sequence[str], notes: list[str]) -> Float32[np.ndarray, "n k"]:
        """The numbers a network reads."""
        numbers = as_numbers(series, missing)
        check_finite(numbers)
        _check_are_numbers(series, numbers, missing, notes)
        check_range(self.name, numbers, self.low, self.high)
        _note_missing(self.name, numbers, self.has_missing, notes)
        filled = numbers.fill_null(self.fill).to_numpy()
        scaled = np.clip((filled - self.mean) / self.std, -MAX_SCALED, MAX_SCALED)
        return _with_indicator(scaled[:, None], numbers, self.has_missing)

    def describe(self) -> str:
        """What was learnt, in words."""
        return f"{self.low:.4g} to {self.high:.4g}, mean {self.mean:.4g}"


@dataclass(frozen=True)
class Boolean:
    """A column of yes and no: 1 and 0, with the usual share of yes where a cell is missing."""

    name: str
    fill: float
    has_missing: bool
    kind: str = "boolean"

    @property
    def outputs(self) -> list[str]:
        """Names of the numbers it becomes."""
        return [self.name, f"{self.name} is missing"] if self.has_missing else [self.name]

    def encode(self, series: pl.Series, missing: Sequence[str], notes: list[str]) -> Float32[np.ndarray, "n k"]:
        """The numbers a network reads."""
        flags = as_flags(series, missing)
        _check_are_numbers(series, flags, missing, notes, wanted="yes and no")
        _note_missing(self.name, flags, self.has_missing, notes)
        return _with_indicator(flags.fill_null(self.fill).to_numpy()[:, None], flags, self.has_missing)

    def describe(self) -> str:
        """What was learnt, in words."""
        return f"{100 * self.fill:.0f} % yes"


@dataclass(frozen=True)
class Categorical:
    """A column of names: one number for each frequent one, and one for all others, new and missing ones included."""

    name: str
    levels: tuple[str, ...]
    num_values: int
    has_missing: bool
    kind: str = "categorical"

    @property
    def outputs(self) -> list[str]:
        """Names of the numbers it becomes."""
        extra = [f"{self.name} is missing"] if self.has_missing else []
        return [*(f"{self.name} is {level}" for level in self.levels), f"{self.name} is other", *extra]

    def encode(self, series: pl.Series, missing: Sequence[str], notes: list[str]) -> Float32[np.ndarray, "n k"]:
        """The numbers a network reads."""
        text = as_text(series, missing)
        codes = text.replace_strict(
            list(self.levels), list(range(len(self.levels))), default=len(self.levels), return_dtype=pl.Int64
        ).to_numpy()
        new = text.filter(~text.is_in(list(self.levels))).drop_nulls()
        if self.num_values == len(self.levels) and new.len():
            notes.append(f"'{self.name}' has values that training did not, such as '{new[0]}'; they count as other")
        _note_missing(self.name, text, self.has_missing, notes)
        one_hot = np.eye(len(self.levels) + 1, dtype=np.float32)[codes]
        return _with_indicator(one_hot, text, self.has_missing)

    def describe(self) -> str:
        """What was learnt, in words."""
        shown = ", ".join(self.levels[:4])
        rest = self.num_values - min(4, len(self.levels))
        return f"{shown} and {rest} more" if rest > 0 else shown


@dataclass(frozen=True)
class Date:
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

    @property
    def outputs(self) -> list[str]:
        """Names of the numbers it becomes."""
        cycles = [f"{self.name} {part} {wave}" for part in self.parts for wave in ("sin", "cos", "sin 2", "cos 2")]
        return [self.name, *cycles, *([f"{self.name} is missing"] if self.has_missing else [])]

    def encode(self, series: pl.Series, missing: Sequence[str], notes: list[str]) -> Float32[np.ndarray, "n k"]:
        """The numbers a network reads."""
        days = as_dates(series.set(as_text(series, missing).is_null(), None), self.date_format)
        _check_are_numbers(series, days, missing, notes, wanted="dates as in training")
        _note_missing(self.name, days, self.has_missing, notes)
        known = days.is_not_null().to_numpy()[:, None]
        values = days.fill_null(self.mean).to_numpy()
        columns = [np.clip((values - self.mean) / self.std, -MAX_SCALED, MAX_SCALED)]
        for part in self.parts:
            angle = 2 * np.pi * values / PERIODS[part]
            columns += [np.sin(angle), np.cos(angle), np.sin(2 * angle), np.cos(2 * angle)]
        return _with_indicator(np.stack(columns, axis=1) * known, days, self.has_missing)

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

    @property
    def outputs(self) -> list[str]:
        """None."""
        return []

    def describe(self) -> str:
        """Why."""
        return self.reason


Column = Numeric | Boolean | Categorical | Date | Dropped
KINDS: dict[str, type] = {
    "numeric": Numeric,
    "boolean": Boolean,
    "categorical": Categorical,
    "date": Date,
    "dropped": Dropped,
}
