"""Where what was made of a large table is kept: one folder a table, found again by a digest of its files."""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from stmaml.border.writing import PARTIAL, writing
from stmaml.data.folders import cache_folder
from stmaml.errors import RunError, SourceError
from stmaml.locks import check_unlocked

MOST_BYTES = 100 * 10**9  # of all tables together; what was not used for longest goes first
VERSION = 1  # of what is written: a change makes all that is kept another table's


def table_cache(files: Sequence[Path], asked: dict[str, Any]) -> Path:
    """The folder for what is made of these files for these settings; another one once a file has changed."""
    kept = [(str(file.resolve()), (found := file.stat()).st_size, found.st_mtime_ns) for file in files]
    about = json.dumps([VERSION, pl.__version__, kept, asked], sort_keys=True)  # polars' hashes are those of a version
    return tables_folder() / hashlib.sha256(about.encode()).hexdigest()[:16]


def tables_folder() -> Path:
    """Where the folders of all tables lie."""
    return cache_folder() / "tables"


def touch(folder: Path) -> None:
    """Makes the folder, and marks it as used now."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)


def make_room(folder: Path, needed: int, *, most: int = MOST_BYTES, read: Collection[Path] = ()) -> None:
    """Removes other tables, but for those that are being read, where all together would hold too much; SourceError
    where the disk has no room."""
    held = {other: size_of(other) for other in folder.parent.iterdir() if other.is_dir()}
    total = sum(held.values()) + needed
    for other in sorted(held, key=_last_used):
        if total <= most or other == folder or other in read or _is_in_use(other):
            continue
        shutil.rmtree(other, ignore_errors=True)
        total -= held[other]
    check_space(folder, needed)


def check_space(folder: Path, needed: int) -> None:
    """Raises SourceError where a disk has less room than is needed."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise SourceError(
            f"the rows of this table take about {gigabytes(needed)} in {folder}, and {gigabytes(free)} are free. Free "
            "some space, or set STMAML_CACHE to a folder on another disk."
        )


def gigabytes(size: int) -> str:
    """A number of bytes as people write it."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e8 else f"{size / 1e6:,.1f} MB"


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder; those that vanish meanwhile count nothing."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total


def _last_used(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0


def _is_in_use(folder: Path) -> bool:
    try:
        check_unlocked(folder)
    except RunError:
        return True
    return False


@dataclass(frozen=True)
class Whole:
    """A folder that is there as a whole or not at all: filled beside its place, then moved there."""

    path: Path

    @property
    def partial(self) -> Path:
        """Where it is filled."""
        return self.path.with_name(f"{self.path.name}{PARTIAL}")

    def begin(self) -> Path:
        """An empty folder to fill; what an earlier process left unfinished is removed."""
        shutil.rmtree(self.partial, ignore_errors=True)
        with writing(self.partial):
            self.partial.mkdir(parents=True)
        return self.partial

    def finish(self) -> None:
        """Moves what was filled to its place."""
        with writing(self.path):
            shutil.rmtree(self.path, ignore_errors=True)
            self.partial.replace(self.path)
