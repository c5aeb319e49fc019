"""Cells as text, names, numbers and flags, whatever format they were stored in; as dates in `dates.py`."""

import math
from collections.abc import Sequence

import polars as pl

from stmaml.errors import SourceError

MISSING_WORDS = ("", "na", "n/a", "nan", "null", "none", "nil", "?", "-")
TRUE_WORDS, FALSE_WORDS = ("true", "yes", "t", "y", "1"), ("false", "no", "f", "n", "0")
DECIMAL_COMMA = r"^[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+$"
MOST = 1e300  # of a number


def unusable_type(series: pl.Series) -> str | None:
    """What the type of a column is called, if its cells cannot be read as words, numbers or dates."""
    dtype = series.dtype
    if dtype.is_nested() or dtype in (pl.Time, pl.Duration, pl.Binary, pl.Object):
        return dtype.base_type().__name__
    return None


def check_usable(series: pl.Series) -> None:
    """Raises SourceError for a column of a type that cannot be read."""
    if (found := unusable_type(series)) is not None:
        raise SourceError(
            f"column '{series.name}' is of type {found}, which cannot be used. Store it as text, numbers or dates."
        )


def _trimmed(series: pl.Series) -> pl.Series:
    """Cells as text; a column of whole numbers without points, as they stand in CSV files."""
    check_usable(series)
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
    check_usable(series)
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
    outside = outside_of(numbers, low - width, high + width)
    if 2 * outside.len() > numbers.len() - numbers.null_count():
        raise SourceError(
            f"column '{name}' holds values such as {outside[0]:.6g}; in training it went from {low:.6g} to "
            f"{high:.6g}. Convert it to the unit of the training table."
        )


def outside_of(numbers: pl.Series, low: float, high: float) -> pl.Series:
    """The numbers below or above a range."""
    present = numbers.drop_nulls()
    return present.filter((present < low) | (present > high))


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


def advice(cells: pl.Series) -> str:
    """How to mend cells that should be numbers or dates."""
    commas = decimal_comma(cells) is not None
    return "Write decimals with a point, not with a comma." if commas else "Correct the column."


def as_flags(series: pl.Series, missing: Sequence[str]) -> pl.Series:
    """Cells as 1 and 0, null where they are neither."""
    truth = dict.fromkeys(TRUE_WORDS, 1.0) | dict.fromkeys(FALSE_WORDS, 0.0)
    words = as_text(series, missing).str.to_lowercase()
    return words.replace_strict(truth, default=None, return_dtype=pl.Float64)
