"""The order of the rows of a table, where one of its columns says it."""

from collections.abc import Sequence

import numpy as np
import polars as pl
from jaxtyping import Float

from stmaml.errors import SourceError
from stmaml.tables.cells import as_dates, as_numbers
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
