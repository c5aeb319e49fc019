"""Rows that stand in a table more than once, where that is more likely a slip than chance."""

from collections.abc import Sequence

import polars as pl

ENOUGH_VALUES = 20  # different ones, before it says much that two rows have the same
HARDLY_TWICE = 0.9  # of the rows have values of their own


def copies_note(
    frame: pl.DataFrame, task: str, target: str, numbers: Sequence[str], dates: Sequence[str]
) -> str | None:
    """A sentence about rows that are alike in every column; none where rows may well be so by chance, as answers of yes
    and no are. `numbers` and `dates` are the columns that hold such."""
    twice = frame.is_duplicated()
    if not twice.any():
        return None
    different, count = frame.unique(), frame.filter(twice).n_unique()
    rows = different.filter(pl.len().over(task) > 1)  # a group of one row tells nothing of how rows differ
    if not (_seldom_alike(rows, task, [*numbers, *dates]) or _seldom_a_day(rows, task, target, numbers, dates, count)):
        return None
    which = "1 row stands" if count == 1 else f"{count:,} rows stand"
    return f"{which} twice or more, alike in every column; if that is a mistake, take the copies out"


def twice_note(labelled: pl.DataFrame, known: pl.DataFrame) -> list[str]:
    """What to say of labelled rows that stand in their own file more than once; nothing where rows known before do so,
    too, and may well be alike by nature."""
    twice = comparable(labelled).is_duplicated()
    if not twice.any() or known.is_duplicated().any():
        return []
    count = comparable(labelled).filter(twice).n_unique()
    which = "1 labelled row stands" if count == 1 else f"{count:,} labelled rows stand"
    return [
        f"{which} there twice or more, alike in every column, and each copy counts; if that is a mistake, take it out"
    ]


def comparable(frame: pl.DataFrame) -> pl.DataFrame:
    """The columns by whose cells rows can be compared."""
    return frame.select(column.name for column in frame if not column.dtype.is_nested() and column.dtype != pl.Object)


def _seldom_alike(rows: pl.DataFrame, task: str, names: Sequence[str]) -> bool:
    """Whether rows that differ hardly ever agree in all numbers and dates that vary within groups."""
    telling = [name for name in names if _is_rich(rows, name) and 2 * _num_different(rows, task, name) > rows.height]
    return bool(telling) and _num_different(rows, *telling) >= HARDLY_TWICE * rows.height


def _seldom_a_day(
    rows: pl.DataFrame, task: str, target: str, numbers: Sequence[str], dates: Sequence[str], count: int
) -> bool:
    """Whether a group has several rows of one date less often than copies: several by nature had different targets."""
    others = [rows.height - _num_different(rows, task, date) for date in dates if _is_rich(rows, date)]
    return target in numbers and _is_rich(rows, target) and min(others, default=count) < count


def _is_rich(rows: pl.DataFrame, name: str) -> bool:
    return rows[name].n_unique() >= ENOUGH_VALUES


def _num_different(rows: pl.DataFrame, *names: str) -> int:
    return rows.select(names).n_unique()
