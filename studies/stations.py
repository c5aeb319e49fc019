"""The station table in two: stations that `stmaml fit --method` would learn from, and those that it would test.

    python examples/gsod_table.py 2019.tar.xz stations.parquet
    python studies/stations.py stations.parquet FOLDER [--days 120]
    stmaml fit FOLDER/train.parquet --task STATION --target TEMP --shots 10 --minutes 4 --run runs/stations
    stmaml evaluate runs/stations --data FOLDER/test.parquet

So a pool is scored on the stations of docs/log/tables.md: of those with 110 days or more, 85 % train and calibrate, and
the first 1,000 of the rest are tested. Of each training station so many days are kept, at random; if not told, as many
as most members of a pool would learn from by themselves, which is 300,000 in all. Of each test station 110 are.
"""

import argparse
from pathlib import Path

import polars as pl

from stmaml.pool.opening import MOST_ROWS
from stmaml.tables.groups import TaskSizes, split_groups

TESTED = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--days", type=int)
    flags = parser.parse_args()
    table, folder = pl.read_parquet(flags.table), flags.folder
    folder.mkdir(parents=True, exist_ok=True)
    counts = table.group_by("STATION").len().sort("STATION")
    sizes = TaskSizes(shots=10, query_size=100, min_query=100)
    split = split_groups(counts["STATION"].cast(pl.String).to_list(), counts["len"].to_numpy(), sizes)
    train = [*split.train, *split.val]
    for name, stations, days in (
        ("train", train, flags.days or MOST_ROWS // len(train)),
        ("test", split.test[:TESTED], sizes.min_rows),
    ):
        mine = table.filter(pl.col("STATION").cast(pl.String).is_in(list(stations)))
        order = pl.int_range(pl.len()).shuffle(seed=0).over("STATION")
        some = mine.filter(order < days).sort("STATION", "DATE")
        some.write_parquet(folder / f"{name}.parquet", compression="zstd", compression_level=19)
        print(f"{name}: {len(stations):,} stations, {some.height:,} days")


if __name__ == "__main__":
    main()
