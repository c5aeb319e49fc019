"""Writes a large table of groups as a folder of Parquet files, and measures how it is fitted and predicted.

    python studies/large_table.py write /tmp/big --rows 100_000_000 --groups 1_000_000
    python studies/large_table.py stages fit /tmp/big --task shop --target y --on-disk --run /tmp/run --members mean
    python studies/large_table.py predict /tmp/run --rows 1_000_000

`stages` is a command of stmaml that says, for each stage, seconds by the clock and of the processor, and the largest
memory so far (VmHWM)."""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import tyro

from stmaml.progress import Told

FILE_ROWS = 5_000_000
KINDS = ("plain", "round", "long", "tall")


@dataclass(frozen=True)
class Write:
    """Write the table: a group has a level and a slope of its own; rows come in any order."""

    folder: tyro.conf.Positional[Path]
    rows: int = 100_000_000
    groups: int = 1_000_000
    seed: int = 0

    def __call__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        level, slope = np.random.default_rng([self.seed, 0]).normal(size=(2, self.groups)).astype(np.float32)
        for number, first in enumerate(range(0, self.rows, FILE_ROWS)):
            size = min(FILE_ROWS, self.rows - first)
            frame = rows_of(level, slope, size, np.random.default_rng([self.seed, 1, number]))
            frame.write_parquet(self.folder / f"part-{number:04d}.parquet", row_group_size=500_000)
        held = sum(file.stat().st_size for file in self.folder.iterdir())
        print(f"{self.rows:,} rows of {self.groups:,} groups, {held / 1e9:.2f} GB, in {self.folder}")


def rows_of(level: np.ndarray, slope: np.ndarray, size: int, random: np.random.Generator) -> pl.DataFrame:
    """Rows of random groups."""
    group = random.integers(0, len(level), size)
    x, z = random.normal(size=(2, size)).astype(np.float32)
    kind = random.integers(0, len(KINDS), size)
    y = 20 + 3 * level[group] + slope[group] * x + 0.5 * np.sin(2 * z) * (kind == 1) + 0.5 * random.normal(size=size)
    gap = random.random(size) < 0.02
    return pl.DataFrame(
        {
            "shop": group.astype(np.int32),
            "x": x,
            "z": pl.Series(z).set(pl.Series(gap), None),
            "kind": pl.Series(kind).replace_strict(range(len(KINDS)), KINDS, return_dtype=pl.String),
            "y": y.astype(np.float32),
        }
    )


@dataclass(frozen=True)
class Predict:
    """Predict rows of new groups, with five labelled rows each, by a pool that was fitted to the table."""

    run: tyro.conf.Positional[Path]
    rows: int = 1_000_000

    def __call__(self) -> None:
        support, query = self._questions()
        out = self.run / "predictions.parquet"
        words = ["predict", self.run, "--support", support, "--query", query, "--out", out]
        subprocess.run([sys.executable, __file__, "stages", *map(str, words)], check=True)
        shutil.rmtree(query.parent)

    def _questions(self) -> tuple[Path, Path]:
        """Labelled rows and rows to predict of new groups."""
        place = self.run.with_name(f"{self.run.name}-asked")
        (place / "query").mkdir(parents=True, exist_ok=True)
        groups, random = max(1, self.rows // 100), np.random.default_rng(5)
        level, slope = random.normal(size=(2, groups)).astype(np.float32)
        for number, first in enumerate(range(0, self.rows, FILE_ROWS)):
            frame = rows_of(level, slope, min(FILE_ROWS, self.rows - first), random)
            frame = frame.with_columns(pl.col("shop") + 10**8)
            frame.drop("y").write_parquet(place / "query" / f"part-{number:04d}.parquet")
        labelled = [rows_of(level, slope, groups, random).with_columns(shop=np.arange(groups)) for _ in range(5)]
        pl.concat(labelled).with_columns(pl.col("shop") + 10**8).write_parquet(place / "support.parquet")
        return place / "support.parquet", place / "query"


def stages(words: list[str]) -> None:
    """A command, with a line for each stage on standard error as it ends."""
    from stmaml import cli
    from stmaml.cli import progress

    timed, show = _Stages(), progress._Shown.__call__

    def both(self: progress._Shown, told: Told) -> None:
        timed.note(told)
        show(self, told)

    progress._Shown.__call__ = both
    sys.argv = ["stmaml", *words]
    try:
        cli.main()
    finally:
        timed.end()
        timed.what, timed.begun = "all", (timed.first[0], 0.0)
        timed.end()


class _Stages:
    """Says what each stage took."""

    def __init__(self) -> None:
        self.what, self.total, self.begun = "start", 0, _now()
        self.first = self.begun

    def note(self, told: Told) -> None:
        if told.total and told.what != self.what:
            self.end()
            self.what, self.begun = told.what, _now()
        self.total = told.total or self.total

    def end(self) -> None:
        clock, processor = (b - a for a, b in zip(self.begun, _now(), strict=True))
        about = {"stage": self.what, "of": self.total, "seconds": round(clock, 1), "processor": round(processor, 1)}
        print(json.dumps({**about, "peak_MB": peak()}), file=sys.stderr, flush=True)


def _now() -> tuple[float, float]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return time.monotonic(), used.ru_utime + used.ru_stime


def peak() -> int:
    """The largest resident memory so far, in megabytes."""
    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{os.getpid()}/status").read_text())
    return int(found[1]) // 1000 if found else -1


if __name__ == "__main__":
    if sys.argv[1:2] == ["stages"]:
        stages(sys.argv[2:])
    else:
        tyro.extras.subcommand_cli_from_dict({"write": Write, "predict": Predict})()
