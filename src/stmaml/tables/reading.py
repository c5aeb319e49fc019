"""Tables as people keep them: CSV and Parquet files, folders and archives of them, read into one frame.

Cells of CSV files stay text: what a column holds is decided once, over all rows, in `schema.py`.
"""

import csv
import io
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath

import numpy as np
import polars as pl
from jaxtyping import Int

from stmaml.border.files import check_regular, gunzip, read_file
from stmaml.data.archives import members
from stmaml.errors import SourceError
from stmaml.progress import tell

DELIMITERS = (",", ";", "\t", "|")
TEXT_ENDINGS = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")
PARQUET_ENDINGS = (".parquet", ".pq")
ARCHIVE_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".zip")
_DAMAGE = (OSError, EOFError, zlib.error)


@dataclass(frozen=True)
class Reading:
    """How files are to be read."""

    delimiter: str | None = None  # what separates the columns of a CSV file; found out if not given
    columns: tuple[str, ...] = ()  # the columns that are needed; all if none is named
    known: tuple[str, ...] = ()  # columns that are expected: a CSV file may hold one of them alone
    may_be_empty: bool = False  # whether a header without rows will do


@dataclass(frozen=True)
class _Part:
    """One file of a table, on disk or in an archive."""

    label: str
    content: Path | bytes


def read_table(paths: Sequence[Path], reading: Reading | None = None) -> pl.DataFrame:
    """All rows of the files, folders and archives, in their order, in one frame."""
    reading = reading or Reading()
    frames: list[pl.DataFrame] = []
    for part in _parts(paths):
        frame = _read_part(part, reading)
        if frames and (odd := set(frame.columns) ^ set(frames[0].columns)):
            raise SourceError(
                f"{part.label} has other columns than the files before it: '{min(odd)}' is in only one of them. "
                "Give files of one table, or name the columns they share with --features."
            )
        frames.append(frame if not frames else frame.select(frames[0].columns))
    try:
        table = pl.concat(frames, how="vertical_relaxed")
    except pl.exceptions.PolarsError as error:
        why = _first_line(error)
        raise SourceError(f"the files hold different types in one column ({why}). Store it in one type.") from error
    if table.height == 0 and not reading.may_be_empty:
        raise SourceError(f"{paths[0]} has a header but no rows. Give a table with rows.")
    return table


def _parts(paths: Sequence[Path]) -> Iterator[_Part]:
    if absent := [path for path in paths if not path.exists()]:
        raise SourceError(f"there is no file {absent[0]}. Check the path.")
    files = [file for path in paths for file in _files(path)]
    for number, file in enumerate(files):
        if len(files) > 1:
            tell("reading files", number, len(files))
        check_regular(file)
        if file.name.lower().endswith(ARCHIVE_ENDINGS):
            yield from _members(file)
        else:
            yield _Part(str(file), file)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(p for p in path.rglob("*") if _is_table(p.name))
    if not found:
        raise SourceError(f"the folder {path} has no CSV or Parquet file. Give the folder that holds the table.")
    return found


def _members(archive: Path) -> Iterator[_Part]:
    """The tables inside an archive, unpacked in memory one by one."""
    total, found = archive.stat().st_size, False
    for name, content, position in members(archive, _is_table):
        found = True
        tell(f"reading {archive.name}", min(position, total), total)
        yield _Part(f"{archive}:{name}", content)
    if not found:
        raise SourceError(f"the archive {archive} has no CSV or Parquet file in it. Give one that holds the table.")


def _is_table(name: str) -> bool:
    return PurePath(name).name.lower().endswith(TEXT_ENDINGS + PARQUET_ENDINGS)


@contextmanager
def _intact(what: str) -> Iterator[None]:
    """Turns the errors of damaged files into one that names the file."""
    try:
        yield
    except SourceError:
        raise
    except _DAMAGE as error:
        raise SourceError(
            f"{what} is damaged or cut short ({_first_line(error)}). Fetch it again, or pack it anew."
        ) from error


def _read_part(part: _Part, reading: Reading) -> pl.DataFrame:
    name = part.label.lower()
    if name.endswith(PARQUET_ENDINGS):
        return _read_parquet(part, reading.columns)
    with _intact(part.label):
        if name.endswith(".gz"):
            packed = part.content if isinstance(part.content, bytes) else read_file(part.content)
            part = _Part(part.label, gunzip(packed, part.label))
        return _read_csv(part, reading)


def _read_parquet(part: _Part, columns: tuple[str, ...]) -> pl.DataFrame:
    source = io.BytesIO(part.content) if isinstance(part.content, bytes) else part.content
    try:
        header = [name.strip() for name in pl.read_parquet_schema(source)]
        places = _places(part.label, header, columns)
        frame = pl.read_parquet(source, columns=places)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise SourceError(
            f"{part.label} is not a whole Parquet file ({_first_line(error)}). Write or fetch it again."
        ) from error
    return _tidy(frame, columns).with_columns(*(_decoded(column) for column in frame if column.dtype == pl.Binary))


def _decoded(column: pl.Series) -> pl.Series:
    """Text that was stored as bytes, as some writers do; other bytes as they are."""
    try:
        return column.cast(pl.String).alias(column.name.strip())
    except pl.exceptions.PolarsError:
        return column.alias(column.name.strip())


def _tidy(frame: pl.DataFrame, columns: tuple[str, ...]) -> pl.DataFrame:
    """The frame without blanks around names, its columns in the order asked for."""
    return frame.rename(str.strip).select(columns or pl.all())


def _read_csv(part: _Part, reading: Reading) -> pl.DataFrame:
    lines = _first_lines(part)
    delimiter = reading.delimiter or _delimiter(lines)
    header = [name.strip() for name in _fields(lines[0], delimiter)]
    if len(header) < 2 and header[0] not in reading.known:
        raise SourceError(
            f"{part.label} has a single column '{_short(lines[0])}' when split at {_called(delimiter)}. Name what "
            "separates its columns with --delimiter."
        )
    places = _places(part.label, header, reading.columns)
    try:
        frame = pl.read_csv(part.content, separator=delimiter, columns=places, infer_schema=False, glob=False)
    except pl.exceptions.PolarsError as error:
        raise SourceError(_csv_complaint(part.label, delimiter, error)) from error
    names = header if places is None else [header[place] for place in places]
    if len(names) == frame.width:  # polars leaves doubled quotes in names as they stand
        frame = frame.rename(dict(zip(frame.columns, names, strict=True)))
    return _tidy(frame, reading.columns)


def _csv_complaint(label: str, delimiter: str, error: Exception) -> str:
    if "utf-8" in str(error):
        return f"{label} is not UTF-8 text. Save it in UTF-8, for instance with 'iconv -f latin1 -t utf-8'."
    if "more fields" in str(error):
        return (
            f"{label} has a row with more fields than its header when split at {_called(delimiter)}. Quote cells that "
            "hold the separator, or name another with --delimiter."
        )
    return f"{label} cannot be read as CSV ({_first_line(error)}). Check its quotes and separators."


def _first_lines(part: _Part) -> list[str]:
    """The header and the row below it, as text."""
    if isinstance(part.content, bytes):
        raw = part.content.split(b"\n", 2)[:2]
    else:
        with part.content.open("rb") as file:
            raw = [file.readline(2**20) for _ in range(2)]
    if not raw[0].strip():
        raise SourceError(f"{part.label} is empty or starts with an empty line. Give a table with a header line.")
    if raw[0].startswith((b"\xff\xfe", b"\xfe\xff")) or b"\x00" in raw[0]:
        raise SourceError(f"{part.label} is not UTF-8 text (it looks like UTF-16 or a binary file). Save it in UTF-8.")
    try:
        return [line.decode("utf-8-sig").rstrip("\r\n") for line in raw if line.strip()]
    except UnicodeDecodeError as error:
        raise SourceError(_csv_complaint(part.label, ",", Exception("utf-8"))) from error


def _delimiter(lines: list[str]) -> str:
    """The separator that splits the header into most columns, and the first row into as many."""

    def fit(delimiter: str) -> tuple[bool, int]:
        counts = [len(_fields(line, delimiter)) for line in lines]
        return len(set(counts)) == 1, counts[0]

    able = [delimiter for delimiter in DELIMITERS if fit(delimiter)[1] > 1]
    return max(able, key=fit) if able else ","


def _fields(line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=delimiter))
    except (csv.Error, TypeError, StopIteration) as error:
        raise SourceError(f"--delimiter must be one character; got {delimiter!r}.") from error


def _places(label: str, header: Sequence[str], wanted: Sequence[str]) -> list[int] | None:
    """Where the wanted columns are; None for all."""
    if twice := [name for name in header if list(header).count(name) > 1]:
        raise SourceError(f"{label} has two columns named '{twice[0]}'. Rename or remove one of them.")
    check_has(header, wanted, label)
    return sorted(header.index(name) for name in wanted) or None


def check_has(header: Sequence[str], wanted: Iterable[str], label: str) -> None:
    """Raises SourceError for a column that is not there, listing those that are."""
    if absent := [name for name in wanted if name not in header]:
        shown = ", ".join(header[:40]) + (f" and {len(header) - 40} more" if len(header) > 40 else "")
        raise SourceError(f"{label} has no column '{absent[0]}'; it has: {shown}.")


def row_list(chosen: pl.Series) -> str:
    """The first few of the chosen rows by their numbers, from 1 for the one below the header."""
    rows = [str(row + 1) for row in chosen.arg_true()]
    return f"{'rows' if len(rows) > 1 else 'row'} {', '.join(rows[:5])}" + (" and others" if len(rows) > 5 else "")


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _called(delimiter: str) -> str:
    return {",": "commas", ";": "semicolons", "\t": "tabs", "|": "|"}.get(delimiter, repr(delimiter))


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


@dataclass(frozen=True)
class Groups:
    """The rows of a table by the group they belong to."""

    names: tuple[str, ...]  # groups in the order of their first rows
    order: Int[np.ndarray, " n"]  # row numbers, one group after the other, each in the table's order
    count: Int[np.ndarray, " g"]  # rows in each group

    @cached_property
    def start(self) -> Int[np.ndarray, " g"]:
        """Where each group's rows begin in `order`."""
        return np.concatenate([[0], np.cumsum(self.count)[:-1]]).astype(np.int64)

    @cached_property
    def index(self) -> dict[str, int]:
        """The place of each group by its name."""
        return {name: i for i, name in enumerate(self.names)}

    def rows(self, group: int) -> Int[np.ndarray, " k"]:
        """The row numbers of one group."""
        begin = int(self.start[group])
        return self.order[begin : begin + int(self.count[group])]


def group_rows(keys: pl.Series) -> Groups:
    """The rows of each key; rows without one belong to no group."""
    frame = pl.DataFrame({"key": keys, "row": np.arange(len(keys))}).drop_nulls("key")
    found = frame.group_by("key", maintain_order=True).agg(pl.col("row"))
    lengths = found["row"].list.len().to_numpy().astype(np.int64)
    return Groups(tuple(found["key"].to_list()), found["row"].explode().to_numpy().astype(np.int64), lengths)
