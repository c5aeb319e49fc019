"""One file of a table, how it is to be read, and what is asked of its columns in every format."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from stmaml.errors import SourceError, closest


@dataclass(frozen=True)
class Reading:
    """How files are to be read."""

    delimiter: str | None = None  # what separates the columns of a CSV file; found out if not given
    columns: tuple[str, ...] = ()  # the columns that are needed; all if none is named
    known: tuple[str, ...] = ()  # columns that are expected: a CSV file may hold one of them alone
    may_be_empty: bool = False  # whether a header without rows will do
    sheet: str | None = None  # of an Excel file; the first if not given


@dataclass(frozen=True)
class Part:
    """One file of a table, on disk or in an archive."""

    label: str
    content: Path | bytes


def tidy(frame: pl.DataFrame, columns: tuple[str, ...]) -> pl.DataFrame:
    """The frame without blanks around names, its columns in the order asked for."""
    frame = frame.rename(str.strip).select(columns or pl.all())
    return frame.with_columns(*(_decoded(column) for column in frame if column.dtype == pl.Binary))


def _decoded(column: pl.Series) -> pl.Series:
    """Text that was stored as bytes, as some writers do; other bytes as they are."""
    try:
        return column.cast(pl.String)
    except pl.exceptions.PolarsError:
        return column


def places(label: str, header: Sequence[str], wanted: Sequence[str]) -> list[int] | None:
    """Where the wanted columns are; None for all."""
    if twice := [name for name in header if list(header).count(name) > 1]:
        raise SourceError(f"{label} has two columns named '{twice[0]}'. Rename or remove one of them.")
    check_has(header, wanted, label)
    return sorted(header.index(name) for name in wanted) or None


def check_has(header: Sequence[str], wanted: Iterable[str], label: str) -> None:
    """Raises SourceError for a column that is not there, listing those that are."""
    if absent := [name for name in wanted if name not in header]:
        shown = ", ".join(header[:40]) + (f" and {len(header) - 40} more" if len(header) > 40 else "")
        meant = "".join(f"; did you mean '{close}'?" for close in closest(absent[0], header))
        raise SourceError(f"{label} has no column '{absent[0]}'{meant or ';'} {'It' if meant else 'it'} has: {shown}.")


def first_line(error: BaseException) -> str:
    """What an error says, without its details."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
