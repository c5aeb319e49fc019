"""Rows put aside on disk in buckets, and taken back bucket by bucket, each in the order in which they came.

A table in a bucket's file costs some tenths of a millisecond, however few its rows are. So rows wait in memory until
there are many."""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
import polars.selectors as cs
from jaxtyping import Int

from stmaml.border.writing import writing

WAITING_BYTES = 64 << 20
OLDEST = pl.CompatLevel.oldest()  # text as one piece: a slice of the newer form drags the text of all rows along


@dataclass
class Spill:
    """Buckets of rows, one file each: tables in Arrow's form, one after the other."""

    folder: Path
    sizes: dict[int, list[int]] = field(default_factory=dict)
    """The bytes of each table in a bucket's file."""
    rows: dict[int, int] = field(default_factory=dict)
    """The rows that each bucket has had."""
    waiting: list[tuple[pl.DataFrame, Int[np.ndarray, " n"]]] = field(default_factory=list)
    """Rows that are not written yet, and their buckets."""

    def add(self, frame: pl.DataFrame, bucket: Int[np.ndarray, " n"]) -> None:
        """Puts each row into its bucket."""
        for number, count in zip(*(array.tolist() for array in np.unique(bucket, return_counts=True)), strict=True):
            self.rows[number] = self.rows.get(number, 0) + count
        self.waiting.append((frame.with_columns(cs.categorical().cast(pl.String)), bucket))
        if sum(frame.estimated_size() for frame, _ in self.waiting) >= WAITING_BYTES:
            self._write()

    def _write(self) -> None:
        """Writes the rows that wait."""
        if not self.waiting:
            return
        frames, buckets = zip(*self.waiting, strict=True)
        self.waiting.clear()
        bucket = np.concatenate(buckets)
        frame = pl.concat(frames, how="vertical_relaxed")[np.argsort(bucket, kind="stable")]
        found = np.unique(np.sort(bucket), return_index=True, return_counts=True)
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            for number, first, count in zip(*(array.tolist() for array in found), strict=True):
                self._append(number, frame.slice(first, count))

    def _append(self, number: int, frame: pl.DataFrame) -> None:
        content = io.BytesIO()
        frame.write_ipc_stream(content, compat_level=OLDEST)
        with self._path(number).open("ab") as file:
            self.sizes.setdefault(number, []).append(file.write(content.getbuffer()))

    def take(self, number: int) -> pl.DataFrame | None:
        """The rows of a bucket, which is then empty; None where there are none."""
        self._write()
        if number not in self.sizes:
            return None
        parts = []
        with self._path(number).open("rb") as file:
            for size in self.sizes.pop(number):
                parts.append(pl.read_ipc_stream(io.BytesIO(file.read(size))))
        self._path(number).unlink()
        return pl.concat(parts, how="vertical_relaxed")

    def take_all(self, numbers: Sequence[int]) -> pl.DataFrame | None:
        """The rows of several buckets, likewise."""
        found = [frame for number in numbers if (frame := self.take(number)) is not None]
        return pl.concat(found, how="vertical_relaxed") if found else None

    def _path(self, number: int) -> Path:
        return self.folder / f"bucket-{number:05d}.arrow"
