"""The rows of a large table as numbers, group after group, in files that are mapped into memory.

Rows are first scattered over shards by a hash of their group's name, in the order in which they come; then each shard,
which memory holds, is sorted by group. All is read and written in order."""

import hashlib
import json
import mmap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import polars as pl
from jaxtyping import Float, Float32, Int

from stmaml.border.files import read_file
from stmaml.border.writing import writing
from stmaml.errors import RunError
from stmaml.locks import locked
from stmaml.progress import tell
from stmaml.run_files import read_sealed, write_sealed
from stmaml.tables.ondisk.cache import Whole, make_room
from stmaml.tables.ondisk.files import DiskTable
from stmaml.tables.ondisk.survey import Asked, Survey
from stmaml.tables.schema import Schema

GROUPS = "groups.parquet"
SHARD_BYTES = 1 << 26
MOST_SHARDS = 512  # files that are open at once


@dataclass(frozen=True)
class Shards:
    """Inputs and targets of all rows; a row is told by its place, counted through all shards."""

    folder: Path
    starts: Int[np.ndarray, " s"]
    """The place of each shard's first row."""
    rows: int
    width: int

    @staticmethod
    def load(folder: Path) -> tuple["Shards", list[str]] | None:
        """Those of a folder, and what was said when they were made; None where they are not whole."""
        try:
            about = read_sealed(folder / "shards.json")
            if about["groups"] != _digest(folder / GROUPS):
                return None
            starts, rows, width = np.array(about["starts"], dtype=np.int64), about["rows"], about["width"]
            held = sum((folder / _file(number)).stat().st_size for number in range(len(starts)))
            found = Shards(folder, starts, rows, width), list(about["notes"])
        except (OSError, RunError, KeyError, TypeError, ValueError):  # SourceError is a ValueError
            return None
        return found if held == rows * _stored(width).itemsize else None

    @cached_property
    def groups(self) -> pl.DataFrame:
        """`name`, `start` and `count` of each group."""
        return pl.read_parquet(self.folder / GROUPS)

    @cached_property
    def _maps(self) -> dict[int, tuple[mmap.mmap, np.ndarray]]:
        return {}

    def _mapped(self, number: int) -> tuple[mmap.mmap, np.ndarray]:
        if number not in self._maps:
            try:
                with (self.folder / _file(number)).open("rb") as file:
                    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except OSError as error:
                raise RunError(f"{self.folder} is gone or cannot be read ({error}). Start again to make it.") from error
            self._maps[number] = mapped, np.frombuffer(mapped, dtype=_stored(self.width))
        return self._maps[number]

    def places(self, names: Sequence[str]) -> tuple[Int[np.ndarray, " g"], Int[np.ndarray, " g"]]:
        """Where the rows of these groups begin, and how many each has."""
        wanted = pl.DataFrame({"name": pl.Series(list(names), dtype=pl.String)})
        found = wanted.join(self.groups, on="name", how="left", maintain_order="left")
        return tuple(found[column].to_numpy().astype(np.int64) for column in ("start", "count"))  # type: ignore

    def at(self, places: Int[np.ndarray, " n"]) -> tuple[Float32[np.ndarray, "n dx"], Float[np.ndarray, " n"]]:
        """Inputs and targets of rows. What was mapped for it is handed back, so that memory does not fill with it."""
        shard = np.searchsorted(self.starts, places, side="right") - 1
        found = np.empty(len(places), dtype=_stored(self.width))
        order = np.argsort(shard, kind="stable")
        which, first = np.unique(shard[order], return_index=True)
        for number, mine in zip(which.tolist(), np.split(order, first[1:]), strict=True):
            mapped, rows = self._mapped(number)
            found[mine] = rows[places[mine] - self.starts[number]]
            if hasattr(mmap, "MADV_DONTNEED"):
                mapped.madvise(mmap.MADV_DONTNEED)
        return found["x"], found["y"]


def _digest(path: Path) -> str:
    return hashlib.sha256(read_file(path)).hexdigest()


def _file(number: int) -> str:
    return f"rows-{number:04d}.bin"


def _stored(width: int) -> np.dtype[Any]:
    """A row in a finished shard."""
    return np.dtype([("y", "f8"), ("x", "f4", (width,))])


def _scattered(width: int) -> np.dtype[Any]:
    """A row on its way there: with its group, and with what orders it there."""
    return np.dtype([("group", "u8"), ("order", "f8"), ("y", "f8"), ("x", "f4", (width,))])


def shards_of(table: DiskTable, survey: Survey, asked: Asked, schema: Schema, folder: Path, notes: list[str]) -> Shards:
    """The rows as a schema encodes them, from the folder where they were kept, or made and kept there."""
    name = f"shards-{hashlib.sha256(json.dumps(schema.to_json(), sort_keys=True).encode()).hexdigest()[:16]}"
    kept = Whole(folder / name)
    found = Shards.load(kept.path)
    if found is None:
        with locked([folder]):
            needed = int(1.1 * survey.rows * _scattered(len(schema.outputs)).itemsize)
            make_room(folder, needed, read={file.parent for file in table.files})
            _Making(table, survey, asked, schema, kept.begin()).make()
            kept.finish()
        found = Shards.load(kept.path)
    if found is None:
        raise RunError(f"{kept.path} was written and cannot be read. Set STMAML_CACHE to a folder on another disk.")
    notes.extend(found[1])
    return found[0]


@dataclass
class _Making:
    """Shards as they are made."""

    table: DiskTable
    survey: Survey
    asked: Asked
    schema: Schema
    folder: Path

    @property
    def width(self) -> int:
        return len(self.schema.outputs)

    @cached_property
    def count(self) -> int:
        """Shards, each of a size that is sorted in memory."""
        size = self.survey.rows * _scattered(self.width).itemsize
        return int(np.clip(-(-size // SHARD_BYTES), 1, MOST_SHARDS))

    def make(self) -> None:
        """Writes all of it, with what had to be assumed of the rows."""
        notes: list[str] = []
        with writing(self.folder):
            self._scatter(notes)
            starts, groups = self._gather()
            groups.write_parquet(self.folder / GROUPS)
        about = {"starts": starts, "rows": self.survey.rows, "width": self.width, "notes": first_of_each(notes)}
        write_sealed(self.folder / "shards.json", {**about, "groups": _digest(self.folder / GROUPS)})

    def _scatter(self, notes: list[str]) -> None:
        files = [(self.folder / f"loose-{number:04d}.bin").open("wb") for number in range(self.count)]
        try:
            for _, frame in self.table.batches("writing rows to shards"):
                frame = self.asked.prepare(frame)
                known, keys = self.survey.known(frame, self.asked)
                if known.any():
                    self._write(self._rows(frame.filter(known), keys.filter(known), notes), files)
        finally:
            for file in files:
                file.close()

    def _rows(self, frame: pl.DataFrame, keys: pl.Series, notes: list[str]) -> np.ndarray:
        rows = np.empty(frame.height, dtype=_scattered(self.width))
        rows["group"] = keys.hash(int(self.survey.groups["seed"][0])).to_numpy()
        rows["order"] = 0.0 if self.asked.order is None else self.asked.order_of(frame)
        rows["x"] = self.schema.encode(frame, "the table", notes)
        rows["y"] = self.schema.target.values(frame, self.schema.missing)
        return rows

    def _write(self, rows: np.ndarray, files: Sequence[BinaryIO]) -> None:
        """Appends each row to its shard, in order."""
        shard = _shard(rows["group"], self.count)
        sorted_rows = rows[np.argsort(shard, kind="stable")]
        ends = np.cumsum(np.bincount(shard, minlength=self.count))
        for file, part in zip(files, np.split(sorted_rows, ends[:-1]), strict=True):
            file.write(part.tobytes())

    def _gather(self) -> tuple[list[int], pl.DataFrame]:
        """Sorts each shard by group; gives where shards begin, and where groups do."""
        starts, parts, done, begun = [], [], 0, time.monotonic()
        for number in range(self.count):
            loose = self.folder / f"loose-{number:04d}.bin"
            rows = np.fromfile(loose, dtype=_scattered(self.width))
            loose.unlink()
            order = (
                np.lexsort((rows["order"], rows["group"]))
                if self.asked.order
                else np.argsort(rows["group"], kind="stable")
            )
            whole = np.empty(len(rows), dtype=_stored(self.width))
            whole["x"], whole["y"] = rows["x"][order], rows["y"][order]
            whole.tofile(self.folder / _file(number))
            place, first, count = np.unique(rows["group"][order], return_index=True, return_counts=True)
            parts.append(pl.DataFrame({"place": place, "start": done + first, "count": count}))
            starts.append(done)
            done += len(rows)
            rate = done / max(time.monotonic() - begun, 1e-9)
            tell("sorting shards by group", done, self.survey.rows, text=f"{rate:,.0f} rows/s")
        named = pl.concat(parts).join(self.survey.groups.select("name", "place"), on="place", how="left")
        return starts, named.select("name", "start", "count")


def _shard(group: np.ndarray, count: int) -> np.ndarray:
    """The shard of each group, by the upper bits of its hash."""
    return (((group >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32)).astype(np.uint16)


def first_of_each(notes: Sequence[str]) -> list[str]:
    """Notes of many parts of a table: of those that differ by their numbers alone the first, and how many are alike."""
    alike: dict[str, list[str]] = {}
    for note in notes:
        alike.setdefault("".join(letter for letter in note if not letter.isdigit()), []).append(note)
    return [
        each[0] if len(set(each)) == 1 else f"{each[0]} (so in one of {len(each)} parts of the table that say alike)"
        for each in alike.values()
    ]
