"""Cells as dates and moments: read, judged by those of training, and written."""

import math
from collections.abc import Sequence

import numpy as np
import polars as pl

from stmaml.errors import SourceError
from stmaml.tables.cells import as_text, check_usable, outside_of

ISO_DAY = "%Y-%m-%d"
ISO_FORMATS = (ISO_DAY, "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M")
ZONE_FORMATS = ("%Y-%m-%d %H:%M:%S%.f%#z", "%Y-%m-%d %H:%M%#z")
DATE_FORMATS = ("%Y/%m/%d", "%d.%m.%Y", "%d.%m.%Y %H:%M", "%m/%d/%Y", "%m/%d/%Y %H:%M", "%d/%m/%Y", "%d/%m/%Y %H:%M")
SECONDS_A_DAY = 86_400.0
FAR_SPANS, FAR_DAYS = 3, 50 * 365.25  # beyond the dates of training; the slip of a century is more, as is 1970 for 2024


def as_dates(series: pl.Series, date_format: str | None) -> pl.Series:
    """Cells as days since 1970, null where missing or in another format.

    Text may be in the given format or in ISO 8601: a date, or a date and a time, with a T or a blank between them, with
    or without seconds and fractions. Moments with a zone or an offset are turned to UTC; those without are taken as
    they stand."""
    check_usable(series)
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


def check_days(name: str, days: pl.Series, low: float, high: float, notes: list[str]) -> None:
    """Raises SourceError where most dates lie so far from those of training that they must be slips. Forecasts are
    asked far beyond it: what lies outside by as much as numbers may not is but noted."""
    span, first, last = high - low, as_day(low), as_day(high)
    far = max(FAR_SPANS * span, FAR_DAYS)
    slips = outside_of(days, low - far, high + far)
    if 2 * slips.len() > days.len() - days.null_count():
        raise SourceError(
            f"column '{name}' holds dates such as {as_day(slips[0])}; in training it went from {first} to {last}. "
            "Correct them, or fit again with a table that has such dates."
        )
    if (outside := outside_of(days, low - span, high + span)).len():
        furthest = as_day(max(outside.to_list(), key=lambda day: max(low - day, day - high)))
        notes.append(
            f"'{name}' has {outside.len()} dates far from those of training ({first} to {last}), such as {furthest}"
        )


def as_day(day: float) -> str:
    """A day since 1970 as a date."""
    return str(np.datetime64(math.floor(day), "D"))


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
