"""Rows, targets and groups of any kind (polars, pandas, arrays, lists) as columns of a frame."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from sklearn.utils.validation import check_array


def frame_of(X: Any) -> pl.DataFrame:
    """Rows of any kind as a frame: polars, pandas, or an array whose columns are numbered."""
    if isinstance(X, pl.DataFrame):
        frame = X
    elif hasattr(X, "columns") and hasattr(X, "iloc"):
        names = [str(name) for name in X.columns]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"X has two columns named '{twice[0]}'. Rename or remove one of them.")
        frame = pl.DataFrame({name: column_of(X.iloc[:, i]) for i, name in enumerate(names)})
    else:
        lenient: Any = {"dtype": None, "ensure_all_finite": "allow-nan"}
        array = check_array(X, **lenient)
        frame = pl.DataFrame({name: column_of(array[:, i]) for i, name in enumerate(numbered(array.shape[1]))})
    if not frame.width:
        raise ValueError("X has no columns; at least one is needed.")
    if not frame.height:
        raise ValueError("X has no rows; at least one is needed. To predict without labelled rows, call fit() alone.")
    return frame


def names_of(X: Any) -> list[str] | None:
    """The names of the columns, of rows that have any."""
    return [str(name) for name in X.columns] if hasattr(X, "columns") else None


def numbered(count: int) -> list[str]:
    """Names for columns without one."""
    return [f"x{i}" for i in range(count)]


def renamed(frame: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """The frame with these names for its columns, in their order."""
    return frame.rename(dict(zip(frame.columns, names, strict=True)))


def column_of(values: Any) -> pl.Series:
    """A column of a pandas frame or an array; objects as text, with None for missing ones."""
    array = np.asarray(values)
    if array.dtype.kind in "biufM":
        return pl.Series(array)
    return pl.Series([None if _is_missing(value) else str(value) for value in array], dtype=pl.String)


def group_names(groups: Any, name: str) -> pl.Series:
    """The column of groups; a blank is no name."""
    values = np.asarray(groups, dtype=object)
    if values.ndim != 1:
        raise ValueError(f"groups must be one name for each row; got an array of shape {values.shape}.")
    check_no_gaps("groups", [value if str(value).strip() else None for value in values])
    return pl.Series(name, [str(value) for value in values])


def own_name(values: Any, usual: str, taken: Sequence[str]) -> str:
    """What a series is called, or `usual` where it has no name or one that is taken."""
    own = str(getattr(values, "name", None) or usual)
    return next(name for name in (own, usual, f"({usual})", f"(({usual}))") if name not in taken)


def check_no_gaps(name: str, values: Any) -> None:
    """Raises ValueError for a row without a value."""
    gaps = [i for i, value in enumerate(np.asarray(values, dtype=object).ravel()) if _is_missing(value)]
    if gaps:
        raise ValueError(
            f"Input {name} contains NaN or None in {len(gaps)} of its rows, first at index {gaps[0]}. Leave those out."
        )


def _is_missing(value: Any) -> bool:
    """Whether it is None, not a number, or pandas' own NA, which compares to nothing."""
    return value is None or type(value).__name__ == "NAType" or bool(value != value)
