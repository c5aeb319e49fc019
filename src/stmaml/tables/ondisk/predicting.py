"""Predictions for the rows of a table that is larger than memory, in their order, as one Parquet file.

The answer for a row depends on the labelled rows of its group. So rows to predict and labelled rows are put aside in
buckets by a hash of their group, each bucket is predicted on its own, and its answers go to buckets of neighbouring
rows, which are sorted and written one after the other. Without labelled rows, batches are predicted as they come."""

import contextlib
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from stmaml.border.writing import PARTIAL, sync, writing
from stmaml.progress import tell
from stmaml.tables.ondisk.cache import check_space, tables_folder, touch
from stmaml.tables.ondisk.files import DiskTable
from stmaml.tables.ondisk.shards import first_of_each
from stmaml.tables.ondisk.spill import Spill

ROW = "row number of the query"  # a column that travels with the rows
BUCKET_ROWS = 200_000
MOST_BUCKETS = 2000
BLOCK_ROWS = 1_000_000
GROWTH = 3  # bytes put aside for one of the query: its rows, the answers, and the parts they are written to

Ask = Callable[[pl.DataFrame, pl.DataFrame | None], tuple[pl.DataFrame, list[str]]]
"""Rows and labelled rows in; the rows with their predictions, and notes, out."""


@dataclass
class LargeQuestion:
    """Rows to predict and labelled rows, both on disk."""

    query: DiskTable
    support: DiskTable | None
    keys: Callable[[pl.DataFrame], pl.Series]
    """The group of each row."""
    ask: Ask
    by_group: bool
    """Whether the rows of a group are asked together; else batches as they come."""
    notes: list[str] = field(default_factory=list)

    def answer(self, out: Path) -> int:
        """Writes the predictions and says how many there are; the file is whole or not there."""
        with self._aside() as folder:
            parts = folder / "parts"
            parts.mkdir()
            written = self._by_group(folder, parts) if self.by_group else self._in_order(parts)
            self._write(sorted(parts.iterdir()), out)
        self.notes = first_of_each(self.notes)
        return written

    @contextlib.contextmanager
    def _aside(self) -> Iterator[Path]:
        """A folder of this process alone, removed at the end."""
        folder = tables_folder() / f"predict-{secrets.token_hex(8)}"
        touch(folder)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _in_order(self, parts: Path) -> int:
        support = None if self.support is None else pl.concat(frame for _, frame in self.support.batches("reading"))
        written = 0
        for number, (_, frame) in enumerate(self.query.batches("predicting all rows")):
            if number == 0:
                self._check_room(parts, frame, 1)
            found = self._asked(frame, support)
            found.write_parquet(parts / f"{number:06d}.parquet")
            written += found.height
        return written

    def _by_group(self, folder: Path, parts: Path) -> int:
        count = int(np.clip(-(-self.query.height // BUCKET_ROWS), 1, MOST_BUCKETS))
        asked, labelled, answers = (Spill(folder / name) for name in ("query", "support", "answers"))
        for first, frame in self.query.batches("gathering rows to predict"):
            if first == 0:
                self._check_room(folder, frame, GROWTH)
            rows = pl.Series(ROW, np.arange(first, first + frame.height))
            asked.add(frame.with_columns(rows), self._buckets(frame, count))
        for _, frame in () if self.support is None else self.support.batches("gathering labelled rows"):
            labelled.add(frame, self._buckets(frame, count))
        written = 0
        for number in range(count):
            query = asked.take(number)
            if query is not None:
                found = self._asked(query, self._labelled(labelled, number))
                answers.add(found, found[ROW].to_numpy() // BLOCK_ROWS)
                written += found.height
            tell("predicting all rows", min(written, self.query.height), self.query.height)
        self._restore(answers, parts)
        return written

    def _labelled(self, labelled: Spill, number: int) -> pl.DataFrame | None:
        """The labelled rows of a bucket; a table without rows where it has none and others have."""
        if self.support is None:
            return None
        found = labelled.take(number)
        return pl.DataFrame(schema=self.support.schema) if found is None else found

    def _buckets(self, frame: pl.DataFrame, count: int) -> np.ndarray:
        """By the group; rows without one come into the first."""
        return (self.keys(frame).hash(0).fill_null(0).to_numpy() % np.uint64(count)).astype(np.int64)

    def _asked(self, query: pl.DataFrame, support: pl.DataFrame | None) -> pl.DataFrame:
        found, notes = self.ask(query, support)
        self.notes.extend(notes)
        return found

    def _restore(self, answers: Spill, parts: Path) -> None:
        """Writes answers in the order of the query."""
        blocks = sorted(answers.sizes)
        for done, number in enumerate(blocks):
            tell("putting rows in order", done, len(blocks))
            frame = answers.take(number)
            if frame is not None:
                frame.sort(ROW).drop(ROW).write_parquet(parts / f"{number:06d}.parquet")

    def _check_room(self, folder: Path, frame: pl.DataFrame, growth: int) -> None:
        each = frame.estimated_size() / max(frame.height, 1) + 80  # what is predicted is some ten numbers
        check_space(folder, int(growth * each * self.query.height))

    def _write(self, parts: list[Path], out: Path) -> None:
        """All parts as one file, which replaces an old one only when it is whole."""
        tell("writing predictions", 0, 1)
        partial = out.with_name(f".{out.name}.{secrets.token_hex(8)}{PARTIAL}")
        try:
            with writing(out):
                out.parent.mkdir(parents=True, exist_ok=True)
                pl.scan_parquet(parts, glob=False).sink_parquet(partial, maintain_order=True)
                sync(partial)
                partial.replace(out)
        finally:
            partial.unlink(missing_ok=True)
        tell("writing predictions", 1, 1)
