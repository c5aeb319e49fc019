"""Processor seconds and memory of `stmaml predict --train`, each time in a process of its own.

    python studies/prior_seconds.py [--rows 500 5000 50000] [--repeats 3]

Tables have 4 columns and groups of 20 rows; 50 rows in 5 new groups are asked for, with 10 labelled rows of each. The
first start compiles what the next ones find: its cache folder is empty. Of the others the least is shown.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import polars as pl

A_GROUP, NEW, KNOWN = 20, 5, 10


def write_tables(room: Path, rows: int) -> list[str]:
    """A table, labelled and asked rows of new groups; and the words of the command."""
    random = np.random.default_rng(0)
    group = np.arange(rows + NEW * A_GROUP) // A_GROUP
    x = random.normal(size=(len(group), 4))
    level, slope = random.normal(size=(2, group.max() + 1))
    y = level[group] + (1 + 0.5 * slope[group]) * x[:, 0] + np.sin(2 * x[:, 1]) + 0.3 * random.normal(size=len(group))
    table = pl.DataFrame({"shop": group, **{f"c{i}": x[:, i] for i in range(4)}, "sold": y})
    new, place = pl.col("shop") >= rows // A_GROUP, np.arange(len(group)) % A_GROUP
    table.filter(~new).write_csv(room / "table.csv")
    table.filter(new & pl.Series(place < KNOWN)).write_csv(room / "known.csv")
    table.filter(new & pl.Series(place >= KNOWN)).drop("sold").write_csv(room / "ask.csv")
    files = {"--train": "table", "--support": "known", "--query": "ask", "--out": "said"}
    words = [word for flag, name in files.items() for word in (flag, str(room / f"{name}.csv"))]
    return ["predict", *words, "--task", "shop", "--target", "sold"]


def measured(words: list[str], cache: Path) -> tuple[float, float]:
    """Processor seconds and the most megabytes of one command."""
    environment = {**os.environ, "STMAML_CACHE": str(cache), "JAX_PLATFORMS": "cpu"}
    silent = subprocess.DEVNULL
    child = subprocess.Popen([sys.executable, "-m", "stmaml", *words], env=environment, stdout=silent, stderr=silent)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = status
    if status:
        raise SystemExit(f"the command failed: {' '.join(words)}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[500, 5_000, 50_000])
    parser.add_argument("--repeats", type=int, default=3)
    flags = parser.parse_args()
    print("| rows | first start | later | memory, first | later |\n|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        for rows in flags.rows:
            room = Path(folder) / f"{rows}"
            room.mkdir()
            words = write_tables(room, rows)
            first, *others = (measured(words, room / "cache") for _ in range(1 + flags.repeats))
            least = min(others)
            print(f"| {rows:,} | {first[0]:.1f} s | {least[0]:.1f} s | {first[1]:.0f} MB | {least[1]:.0f} MB |")


if __name__ == "__main__":
    main()
