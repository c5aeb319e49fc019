"""The order of the rows of a table, where one of its columns says it."""

from collections.abc import Sequence

import numpy as np
import polars as pl
from jaxtyping import Float

from stmaml.errors import SourceError
from stmaml.tables.cells import as_names, as_numbers
from stmaml.tables.dates import as_dates
from stmaml.tables.parts import check_has


def sorted_by(frame: pl.DataFrame, order: str | None, missing: Sequence[str] = ()) -> pl.DataFrame:
    """The rows sorted by the column that orders them, if there is one; rows without a value come last."""
    if order is None or order not in frame.columns:
        return frame
    return frame[np.argsort(order_values(frame, order, missing), kind="stable")]


def order_values(frame: pl.DataFrame, order: str, missing: Sequence[str] = ()) -> Float[np.ndarray, " n"]:
    """What orders the rows, as numbers; infinity where unknown."""
    check_has(frame.columns, [order], "the table")
    series = frame[order]
    values = as_numbers(series, missing)
    if 2 * values.null_count() > values.len():
        values = as_dates(series, None)
    if 2 * values.null_count() > values.len():
        raise SourceError(
            f"column '{order}' holds neither numbers nor dates in most rows, so it cannot order them. Name another "
            "with --order, or write its dates as 2024-12-31."
        )
    return values.fill_null(np.inf).to_numpy()


def unordered_note(frame: pl.DataFrame, order: str, missing: Sequence[str] = ()) -> list[str]:
    """What to say of rows that have no place in the order."""
    unknown = int(np.isinf(order_values(frame, order, missing)).sum())
    return [f"{unknown} rows have no '{order}' and count as the last of their groups"] if unknown else []


def backwards_note(
    query: pl.DataFrame, support: pl.DataFrame, order: str | None, task: str, missing: Sequence[str] = ()
) -> list[str]:
    """What to say of groups with labelled rows that come after rows that are asked for."""
    frames = support, query
    if order is None or not all(order in frame.columns for frame in frames):
        return []
    both = all(task in frame.columns for frame in frames)  # else all rows are of one group
    last, first = (
        pl.DataFrame({"group": as_names(frame[task], missing) if both else [""] * len(frame)})
        .with_columns(at=_readable(frame[order], missing))
        .drop_nulls()
        .group_by("group")
        .agg(last=pl.col("at").max(), first=pl.col("at").min())
        for frame in frames
    )
    count = last.join(first, on="group", suffix="_asked").filter(pl.col("last") > pl.col("first_asked")).height
    which = "1 group has" if count == 1 else f"{count} groups have"
    told = f"{which} labelled rows that come after rows asked for, by '{order}'; what is said was learnt for later rows"
    return [told] if count else []


def _readable(series: pl.Series, missing: Sequence[str]) -> pl.Series:
    """Cells as numbers, or else as dates; null where they are neither, which most may be in rows that are asked for."""
    numbers = as_numbers(series, missing)
    return numbers if numbers.null_count() < numbers.len() else as_dates(series, None)
