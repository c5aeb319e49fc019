"""Tables as people keep them: files of many formats, folders and archives of them, read into one frame.

Cells of CSV files stay text: what a column holds is decided once, over all rows, in `schema.py`.
"""

import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath

import numpy as np
import polars as pl
from jaxtyping import Int

from stmaml.border.files import check_regular, gunzip, read_file
from stmaml.data.archives import members
from stmaml.errors import SourceError, forbidden
from stmaml.progress import tell
from stmaml.tables.formats import TYPED_ENDINGS, read_part
from stmaml.tables.parts import Part, Reading, first_line

TEXT_ENDINGS = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")
ARCHIVE_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".zip")
_DAMAGE = (OSError, EOFError, zlib.error)


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
        why = first_line(error)
        raise SourceError(f"the files hold different types in one column ({why}). Store it in one type.") from error
    if table.height == 0 and not reading.may_be_empty:
        raise SourceError(f"{paths[0]} has a header but no rows. Give a table with rows.")
    return table


def files_of(paths: Sequence[Path]) -> list[Path]:
    """The files behind paths, those of folders in the order of their names."""
    for path in paths:
        with _intact(str(path)):
            if not path.exists():
                raise SourceError(f"there is no file {path}. Check the path.")
    return [file for path in paths for file in _files(path)]


def _parts(paths: Sequence[Path]) -> Iterator[Part]:
    files = files_of(paths)
    for number, file in enumerate(files):
        if len(files) > 1:
            tell("reading files", number, len(files))
        with _intact(str(file)):
            check_regular(file)
        if file.name.lower().endswith(ARCHIVE_ENDINGS):
            yield from _members(file)
        else:
            yield Part(str(file), file)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    for _ in os.walk(path, onerror=_refuse_closed):  # globbing passes over folders that may not be listed
        pass
    found = sorted(p for p in path.rglob("*") if _is_table(p.name))
    if not found:
        raise SourceError(f"the folder {path} has no CSV, Parquet, Arrow, JSON lines or Excel file. Give one that has.")
    return found


def _refuse_closed(error: OSError) -> None:
    if isinstance(error, PermissionError):
        raise SourceError(forbidden(f"the folder {error.filename}")) from error


def _members(archive: Path) -> Iterator[Part]:
    """The tables inside an archive, unpacked in memory one by one."""
    total, found = archive.stat().st_size, False
    for name, content, position in members(archive, _is_table):
        found = True
        tell(f"reading {archive.name}", min(position, total), total)
        yield Part(f"{archive}:{name}", content)
    if not found:
        raise SourceError(
            f"the archive {archive} has no CSV, Parquet, Arrow, JSON lines or Excel file in it. Give one that has."
        )


def _is_table(name: str) -> bool:
    return PurePath(name).name.lower().endswith(TEXT_ENDINGS + TYPED_ENDINGS)


@contextmanager
def _intact(what: str) -> Iterator[None]:
    """Turns the errors of damaged files into one that names the file."""
    try:
        yield
    except SourceError:
        raise
    except PermissionError as error:
        raise SourceError(forbidden(what)) from error
    except _DAMAGE as error:
        raise SourceError(
            f"{what} is damaged or cut short ({first_line(error)}). Fetch it again, or pack it anew."
        ) from error


def _read_part(part: Part, reading: Reading) -> pl.DataFrame:
    with _intact(part.label):
        if part.label.lower().endswith(".gz"):
            packed = part.content if isinstance(part.content, bytes) else read_file(part.content)
            part = Part(part.label, gunzip(packed, part.label))
        return read_part(part, reading)


def row_list(chosen: pl.Series) -> str:
    """The first few of the chosen rows by their numbers, from 1 for the one below the header."""
    rows = [str(row + 1) for row in chosen.arg_true()]
    return f"{'rows' if len(rows) > 1 else 'row'} {', '.join(rows[:5])}" + (" and others" if len(rows) > 5 else "")


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
