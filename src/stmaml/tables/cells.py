"""Cells as text, names, numbers, dates and flags, whatever format they were stored in."""

import math
from collections.abc import Sequence

import numpy as np
import polars as pl

from stmaml.errors import SourceError

MISSING_WORDS = ("", "na", "n/a", "nan", "null", "none", "nil", "?", "-")
TRUE_WORDS, FALSE_WORDS = ("true", "yes", "t", "y", "1"), ("false", "no", "f", "n", "0")
ISO_DAY = "%Y-%m-%d"
ISO_FORMATS = (ISO_DAY, "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M")
ZONE_FORMATS = ("%Y-%m-%d %H:%M:%S%.f%#z", "%Y-%m-%d %H:%M%#z")
DATE_FORMATS = ("%Y/%m/%d", "%d.%m.%Y", "%d.%m.%Y %H:%M", "%m/%d/%Y", "%m/%d/%Y %H:%M", "%d/%m/%Y", "%d/%m/%Y %H:%M")
DECIMAL_COMMA = r"^[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+$"
SECONDS_A_DAY = 86_400.0
MOST = 1e300  # of a number
FAR_SPANS, FAR_DAYS = 3, 50 * 365.25  # beyond the dates of training; the slip of a century is more, as is 1970 for 2024


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
    if series.dtype.is_integer() and not missing:
        return series.cast(pl.String)
    return _without(_trimmed(series).str.replace(r"^([+-]?\d+)\.0+$", "${1}"), missing)


def as_levels(series: pl.Series, missing: Sequence[str] = (), *, numbers: bool = False) -> pl.Series:
    """Cells as levels, null where missing; numbers have one name however they are written: 1, 1.0 and 01 are 1."""
    text = as_text(series, missing)
    if not numbers:
        return text
    values = text.cast(pl.Float64, strict=False)
    return text.zip_with(values.is_null(), values.cast(pl.String).str.strip_suffix(".0"))


def are_numbers(text: pl.Series) -> bool:
    """Whether all cells that are not missing are numbers."""
    return text.cast(pl.Float64, strict=False).null_count() == text.null_count()


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


def as_written_numbers(text: pl.Series, *, known: bool = False) -> pl.Series:
    """Text as the numbers it is written as, or as it stands where that would change a cell: 007 is a name.

    Of a column `known` to hold numbers 7.50 is a number too, and NA is none at all."""
    cells = text.drop_nulls()
    for dtype in (pl.Int64, pl.Float64):
        numbers = cells.cast(dtype, strict=False)
        back = numbers.cast(pl.String)
        same = ((back == cells) | (back.str.strip_suffix(".0") == cells)) & numbers.cast(pl.Float64).is_finite()
        if cells.len() and same.fill_null(False).all():
            return text.cast(dtype)
    return as_numbers(text) if known and are_numbers(as_text(text)) else text


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


def have_zones(series: pl.Series, days: pl.Series) -> pl.Series:
    """Which moments have a zone or an offset; null for cells that are no dates, and for days without a time of day.

    Midnights alone are such days where moments are a type: many tools have no other type for days."""
    if not series.dtype.is_temporal():
        text = as_text(series)
        zones = text.str.contains(r":.*(Z|z|UTC|[+-])").set(~text.str.contains(":"), None)
    elif getattr(series.dtype, "time_zone", None):
        zones = series.is_not_null()
    else:
        times = (days % 1 != 0).any()
        zones = pl.Series(series.name, [False if times else None] * series.len(), dtype=pl.Boolean)
    return zones.set(days.is_null(), None)


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
    """Raises SourceError if a column holds infinity, or what is next to it: differences would be infinite."""
    infinite = (numbers.cast(pl.Float64).abs() > MOST).fill_null(False)
    if infinite.any():
        row = int(infinite.arg_max() or 0)
        what = "infinity" if math.isinf(numbers[row]) else f"{numbers[row]:.3g}"
        where = f"column '{numbers.name}' holds {what} in row {row + 1}"
        raise SourceError(f"{where}. Correct it, or leave the cell empty if the value is unknown.")


def check_range(name: str, numbers: pl.Series, low: float, high: float) -> None:
    """Raises SourceError where most numbers lie far from where those of training lay, as with another unit."""
    width = max(high - low, 1e-9 * max(abs(low), abs(high), 1.0))
    outside = _outside(numbers, low - width, high + width)
    if 2 * outside.len() > numbers.len() - numbers.null_count():
        raise SourceError(
            f"column '{name}' holds values such as {outside[0]:.6g}; in training it went from {low:.6g} to "
            f"{high:.6g}. Convert it to the unit of the training table."
        )


def check_days(name: str, days: pl.Series, low: float, high: float, notes: list[str]) -> None:
    """Raises SourceError where most dates lie so far from those of training that they must be slips. Forecasts are
    asked far beyond it: what lies outside by as much as numbers may not is but noted."""
    span, first, last = high - low, as_day(low), as_day(high)
    far = max(FAR_SPANS * span, FAR_DAYS)
    slips = _outside(days, low - far, high + far)
    if 2 * slips.len() > days.len() - days.null_count():
        raise SourceError(
            f"column '{name}' holds dates such as {as_day(slips[0])}; in training it went from {first} to {last}. "
            "Correct them, or fit again with a table that has such dates."
        )
    if (outside := _outside(days, low - span, high + span)).len():
        furthest = as_day(max(outside.to_list(), key=lambda day: max(low - day, day - high)))
        notes.append(
            f"'{name}' has {outside.len()} dates far from those of training ({first} to {last}), such as {furthest}"
        )


def _outside(numbers: pl.Series, low: float, high: float) -> pl.Series:
    present = numbers.drop_nulls()
    return present.filter((present < low) | (present > high))


def as_day(day: float) -> str:
    """A day since 1970 as a date."""
    return str(np.datetime64(math.floor(day), "D"))


def check_are_numbers(
    series: pl.Series,
    read: pl.Series,
    missing: Sequence[str],
    notes: list[str],
    wanted: str = "numbers",
    such_as: str = "",
) -> None:
    """Raises SourceError if most cells of a column cannot be read; a few of them are missing values."""
    if series.dtype.is_numeric() and read.null_count() <= series.null_count():
        return  # nothing was lost, and text of many numbers takes long
    text = as_text(series, missing)
    bad = text.filter(read.is_null()).drop_nulls()
    if 2 * bad.len() > text.drop_nulls().len():
        raise SourceError(f"column '{series.name}' must hold {wanted}{such_as}; it holds '{bad[0]}'. {advice(bad)}")
    if bad.len():
        notes.append(f"'{series.name}' has {bad.len()} cells that are not {wanted}, such as '{bad[0]}': missing")


def check_zones(series: pl.Series, days: pl.Series, zoned: bool, example: str, notes: list[str] | None) -> pl.Series:
    """The days without those of moments that have a zone where training had none, or lack one where it had: such a
    moment may be hours off. Raises SourceError if most are so and what is odd is to be noted."""
    differ = (have_zones(series, days) != zoned).fill_null(False)
    if notes is None or not (count := int(differ.sum())):
        return days.set(differ, None)
    found = as_text(series).filter(differ)[0]
    if 2 * count > len(days) - days.null_count():
        wanted = "with a zone" if zoned else "without a zone"
        advised = "Add it, such as Z or -04:00" if zoned else "Write them by the clock of that table"
        raise SourceError(
            f"column '{series.name}' must hold moments {wanted}, as in training, such as {example}; it holds "
            f"'{found}'. {advised}, or give days alone."
        )
    kind, others = ("without", "one") if zoned else ("with", "none")
    notes.append(
        f"'{series.name}' has {count} moments {kind} a zone, such as '{found}', where others have {others}: missing"
    )
    return days.set(differ, None)


def advice(cells: pl.Series) -> str:
    """How to mend cells that should be numbers or dates."""
    commas = decimal_comma(cells) is not None
    return "Write decimals with a point, not with a comma." if commas else "Correct the column."


def as_flags(series: pl.Series, missing: Sequence[str]) -> pl.Series:
    """Cells as 1 and 0, null where they are neither."""
    truth = dict.fromkeys(TRUE_WORDS, 1.0) | dict.fromkeys(FALSE_WORDS, 0.0)
    words = as_text(series, missing).str.to_lowercase()
    return words.replace_strict(truth, default=None, return_dtype=pl.Float64)
