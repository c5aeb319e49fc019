"""Predictions for the rows of a table that is larger than memory, in their order, as one Parquet file.

The answer for a row depends on the labelled rows of its group. So rows to predict and labelled rows are put aside in
buckets by a hash of their group, each bucket is predicted on its own, and its answers go to buckets of neighbouring
rows, which are sorted and written one after the other. Without labelled rows, batches are predicted as they come."""

import contextlib
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
from jaxtyping import UInt64

from stmaml.border.writing import PARTIAL, sync, writing
from stmaml.progress import listening, tell
from stmaml.tables.ondisk.cache import check_space, tables_folder, touch
from stmaml.tables.ondisk.files import DiskTable
from stmaml.tables.ondisk.shards import first_of_each
from stmaml.tables.ondisk.spill import Spill

ROW = "row number of the query"  # a column that travels with the rows
BUCKET_ROWS = 200_000  # that are predicted at once, labelled ones included
FINE_ROWS = 50_000  # in a bucket, several of which are predicted at once; with many buckets, BUCKET_ROWS instead
MANY_BUCKETS = 200
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
        asked, labelled, answers = (Spill(folder / name) for name in ("query", "support", "answers"))
        self._gather(asked, labelled)
        written, begun = 0, time.monotonic()
        for numbers in together(asked, labelled):
            query, support = asked.take_all(numbers), labelled.take_all(numbers)
            if query is None:
                continue
            if support is None and self.support is not None:
                support = pl.DataFrame(schema=self.support.schema)
            found = self._asked(query, support)
            answers.add(found, found[ROW].to_numpy() // BLOCK_ROWS)
            written += found.height
            rate = written / max(time.monotonic() - begun, 1e-9)
            tell("predicting all rows", written, self.query.height, text=f"{rate:,.0f} rows/s")
        self._restore(answers, parts)
        return written

    def _gather(self, asked: Spill, labelled: Spill) -> None:
        """Puts all rows into buckets by their group, but for labelled ones of groups that nobody asks for."""
        total = self.query.height + (0 if self.support is None else self.support.height)
        count = np.uint64(np.clip(max(min(total // FINE_ROWS, MANY_BUCKETS), total // BUCKET_ROWS), 1, MOST_BUCKETS))
        wanted = Distinct()
        for first, frame in self.query.batches("gathering rows to predict"):
            if first == 0:
                self._check_room(asked.folder.parent, frame, GROWTH)
            rows, places = pl.Series(ROW, np.arange(first, first + frame.height)), self._places(frame)
            asked.add(frame.with_columns(rows), (places % count).astype(np.int64))
            wanted.add(places)
        those = wanted.sorted()
        for _, frame in () if self.support is None else self.support.batches("gathering labelled rows"):
            places = self._places(frame)
            known = those[np.searchsorted(those, places).clip(max=len(those) - 1)] == places
            labelled.add(frame.filter(pl.Series(known)), (places[known] % count).astype(np.int64))

    def _places(self, frame: pl.DataFrame) -> UInt64[np.ndarray, " n"]:
        """A hash of each row's group; 0 for rows without one."""
        return self.keys(frame).hash(0).fill_null(0).to_numpy()

    def _asked(self, query: pl.DataFrame, support: pl.DataFrame | None) -> pl.DataFrame:
        with listening(lambda told: None):  # one bar for all pieces
            found, notes = self.ask(query, support)
        self.notes.extend(notes)
        return found

    def _restore(self, answers: Spill, parts: Path) -> None:
        """Writes answers in the order of the query."""
        blocks = sorted(answers.rows)
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


class Distinct:
    """Numbers of which each counts once, some more at a time."""

    def __init__(self):
        self.parts = [pl.Series(dtype=pl.UInt64)]
        """The first has no number twice; the others wait until they are as many."""

    def add(self, numbers: UInt64[np.ndarray, " n"]) -> None:
        """Takes some more."""
        self.parts.append(pl.Series(numbers, dtype=pl.UInt64).unique())
        if sum(map(len, self.parts[1:])) > max(len(self.parts[0]), FINE_ROWS):
            self.parts = [pl.concat(self.parts).unique()]

    def sorted(self) -> UInt64[np.ndarray, " k"]:
        """All of them, in order."""
        return pl.concat(self.parts).unique().sort().to_numpy()


def together(asked: Spill, labelled: Spill) -> Iterator[list[int]]:
    """Buckets in turn, as many at once as hold BUCKET_ROWS rows."""
    some, size = list[int](), 0
    for number in sorted(asked.rows):
        mine = asked.rows[number] + labelled.rows.get(number, 0)
        if some and size + mine > BUCKET_ROWS:
            yield some
            some, size = [], 0
        some.append(number)
        size += mine
    if some:
        yield some
