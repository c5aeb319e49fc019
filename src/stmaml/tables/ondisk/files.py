"""The files of a large table, read in batches of rows; CSV files are converted to Parquet once."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from stmaml.border.files import check_regular
from stmaml.border.writing import PARTIAL, writing
from stmaml.errors import SourceError
from stmaml.progress import tell
from stmaml.tables.delimited import csv_complaint, layout
from stmaml.tables.formats import PARQUET_ENDINGS, whole
from stmaml.tables.ondisk.cache import check_space, table_cache, touch
from stmaml.tables.parts import Part, Reading, check_has, first_line, places, tidy
from stmaml.tables.reading import files_of

CSV_ENDINGS = (".csv", ".tsv", ".txt")
LARGE_ROWS = 2_000_000  # of Parquet files: from here on a table is left on disk
LARGE_BYTES = 256 << 20  # of CSV files
CELLS_AT_ONCE = 1 << 22
ROWS_AT_ONCE = 1 << 19


@dataclass(frozen=True)
class DiskTable:
    """Parquet files of one table."""

    files: tuple[Path, ...]
    heights: tuple[int, ...]
    schema: dict[str, Any]
    """The type of each column, wide enough for all files."""
    columns: tuple[str, ...] = ()
    """Those that are needed; all if none is named."""

    @property
    def height(self) -> int:
        """Rows of all files."""
        return sum(self.heights)

    @property
    def batch_rows(self) -> int:
        """Rows that are read at once."""
        return max(1000, min(ROWS_AT_ONCE, CELLS_AT_ONCE // max(1, len(self.schema))))

    def batches(self, what: str) -> Iterator[tuple[int, pl.DataFrame]]:
        """The rows in their order, some at a time, each with the number of rows before it; progress is told."""
        done, total, begun = 0, self.height, time.monotonic()
        tell(what, 0, max(total, 1))
        for file, height in zip(self.files, self.heights, strict=True):
            for first in range(0, height, self.batch_rows):
                frame = self._read(file, first)
                yield done, frame
                done += frame.height
                rate = done / max(time.monotonic() - begun, 1e-9)
                tell(what, done, total, text=f"{rate:,.0f} rows/s")

    def _read(self, file: Path, first: int) -> pl.DataFrame:
        with whole(str(file), "Parquet"):
            names = _names(file)
            scan = pl.scan_parquet(file, glob=False).rename(names)
            frame = scan.select(list(self.schema)).slice(first, self.batch_rows).collect()
        return tidy(frame.cast(pl.Schema(self.schema)), ())


def _names(file: Path) -> dict[str, str]:
    """Names of columns without blanks around them."""
    return {name: name.strip() for name in pl.read_parquet_schema(file) if name != name.strip()}


def is_large(paths: Sequence[Path], most: int | None = None) -> bool:
    """Whether files hold so many rows (LARGE_ROWS if not given) that they are not well kept in memory; those of other
    formats than Parquet and CSV never do."""
    files = files_of(paths)
    if not _can_stay(files):
        return False
    text = sum(file.stat().st_size for file in files if not _is_parquet(file))
    rows = sum(_height(file) for file in files if _is_parquet(file))
    return text >= LARGE_BYTES or rows >= (LARGE_ROWS if most is None else most)


def _can_stay(files: Sequence[Path]) -> bool:
    return all(file.name.lower().endswith(PARQUET_ENDINGS + CSV_ENDINGS) for file in files)


def _is_parquet(file: Path) -> bool:
    return file.name.lower().endswith(PARQUET_ENDINGS)


def _height(file: Path) -> int:
    check_regular(file)
    with whole(str(file), "Parquet"):
        return int(pl.scan_parquet(file, glob=False).select(pl.len()).collect().item())


def open_files(paths: Sequence[Path], reading: Reading) -> DiskTable:
    """The files of a table, which must have the same columns."""
    files = files_of(paths)
    if not _can_stay(files):
        odd = next(file for file in files if not _can_stay([file]))
        raise SourceError(f"{odd} cannot be left on disk: only Parquet and CSV files can. Write it as Parquet.")
    found = [_as_parquet(file, reading) for file in files]
    schema = _common_schema(files, found, reading)
    table = DiskTable(tuple(found), tuple(_height(file) for file in found), schema, reading.columns)
    if table.height == 0 and not reading.may_be_empty:
        raise SourceError(f"{paths[0]} has a header but no rows. Give a table with rows.")
    return table


def _common_schema(files: Sequence[Path], found: Sequence[Path], reading: Reading) -> dict[str, Any]:
    """The columns that are needed, with a type that suits all files."""
    first: list[str] = []
    empty = []
    for label, file in zip(files, found, strict=True):
        with whole(str(label), "Parquet"):
            one = {name.strip(): dtype for name, dtype in pl.read_parquet_schema(file).items()}
        places(str(label), [name.strip() for name in pl.read_parquet_schema(file)], reading.columns)
        first = first or list(reading.columns or one)
        if not reading.columns and (odd := set(one) ^ set(first)):
            raise SourceError(
                f"{label} has other columns than the files before it: '{min(odd)}' is in only one of them. Give files "
                "of one table, or name the columns they share with --features."
            )
        check_has(list(one), first, str(label))
        empty.append(pl.DataFrame(schema={name: one[name] for name in first}))
    try:
        return dict(pl.concat(empty, how="vertical_relaxed").schema)
    except pl.exceptions.PolarsError as error:
        why = first_line(error)
        raise SourceError(f"the files hold different types in one column ({why}). Store it in one type.") from error


def _as_parquet(file: Path, reading: Reading) -> Path:
    """A Parquet file as it is; a CSV file's cells as text in one that is made once and kept."""
    check_regular(file)
    if _is_parquet(file):
        return file
    delimiter, header = layout(Part(str(file), file), reading)
    places(str(file), header, reading.columns)
    folder = table_cache([file], {"delimiter": delimiter})
    made = folder / "table.parquet"
    touch(folder)
    if made.exists():
        return made
    check_space(folder, file.stat().st_size)
    partial = made.with_name(f"{made.name}.{time.time_ns()}{PARTIAL}")
    tell(f"converting {file.name}", 0, 1)
    try:
        scan = pl.scan_csv(file, separator=delimiter, infer_schema=False, glob=False, new_columns=header)
        with writing(made):
            scan.sink_parquet(partial)
            partial.replace(made)
    except pl.exceptions.PolarsError as error:
        raise SourceError(csv_complaint(str(file), delimiter, error)) from error
    finally:
        partial.unlink(missing_ok=True)
    tell(f"converting {file.name}", 1, 1)
    return made
