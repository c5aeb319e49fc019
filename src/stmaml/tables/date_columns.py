"""Columns of dates: found among others, and what they hold."""

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from stmaml.tables.cells import as_text
from stmaml.tables.columns import Column, Date, Dropped
from stmaml.tables.dates import DATE_FORMATS, as_dates, have_zones
from stmaml.tables.target import NUMBER_SHARE


def date_format_of(series: pl.Series, text: pl.Series) -> str | None:
    """The format of all cells but the odd one; empty for dates as such or in ISO 8601, None for no dates."""
    if series.dtype.is_temporal():
        return ""
    present = text.drop_nulls()

    def strays(candidate: str, part: pl.Series) -> int:
        return as_dates(part, candidate or None).null_count()

    best, fewest = None, present.len() + 1
    start = present.head(200)
    for one in ("", *DATE_FORMATS):
        if 2 * strays(one, start) <= start.len() and (count := strays(one, present)) < fewest:
            best, fewest = one, count
        if fewest == 0:
            break
    return best if present.len() - fewest >= NUMBER_SHARE * present.len() else None


def date_column(series: pl.Series, date_format: str | None, chosen: pl.Series) -> Column:
    """What a column of dates holds, by the chosen rows; it is dropped if these are all alike."""
    days = as_dates(series, date_format)
    zones = have_zones(series, days)
    zoned = _zoned(zones, days)
    if zoned is not None:  # the odd other cell is a missing value
        days = days.set((zones != zoned).fill_null(False), None)
    days = days.filter(chosen)
    known = days.drop_nulls().to_numpy()
    if known.size == 0 or known.min() == known.max():
        return Dropped(series.name, "constant in the training groups")
    mean, std, low, high = (float(number) for number in (known.mean(), known.std(), known.min(), known.max()))
    parts = [part for part, least in (("year", 60.0), ("week", 14.0)) if high - low >= least]
    if np.unique(known % 1).size > 1:  # times of day, not days alone
        parts.append("day")
    return Date(series.name, date_format, mean, std, low, high, tuple(parts), bool(days.null_count()), zoned)


def _zoned(zones: pl.Series, days: pl.Series) -> bool | None:
    """Whether moments have a zone, but for the odd one; None where both kinds are usual, and where times of day do not
    vary, so that moments without a zone may as well be days."""
    said = zones.drop_nulls()
    if said.len() == 0:
        return None
    if said.sum() >= NUMBER_SHARE * said.len():
        return True
    few = (~said).sum() >= NUMBER_SHARE * said.len()
    return False if few and (days.filter(~zones.fill_null(True)) % 1).n_unique() > 1 else None


def said_of_zones(series: pl.Series, column: Date, missing: Sequence[str]) -> Iterator[str]:
    """That moments with a zone and without one are mixed."""
    if column.zoned is not None or "day" not in column.parts:
        return
    present = series.set(as_text(series, missing).is_null(), None)
    zones = have_zones(present, as_dates(present, column.date_format)).drop_nulls()
    if 0 < (count := int(zones.sum())) < zones.len():
        yield (
            f"'{column.name}' has {count} moments with a zone and {zones.len() - count} without one; the latter are "
            "taken as UTC"
        )
