"""The pool on the station table, member by member, so that a machine with a GPU can train those that want one.

    python studies/stations.py stations.parquet FOLDER --days 300
    python studies/stations_pool.py pack FOLDER stations.npz              the rows as numbers, in 14 MB
    python studies/stations_pool.py fit stations.npz KEPT --members st-maml [--minutes 4]
    python studies/stations_pool.py score stations.npz KEPT ...           the pool of all that was kept

`fit` needs neither polars nor a table: it fits members to what `stmaml fit FOLDER/train.parquet` would, and keeps what
they say of the 1,000 training stations that weights and calibration come from, and of the 1,000 test stations. Stations
are those of `studies/stations.py`; 100 other days of each are asked for.
"""

import argparse
import json
import lzma
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from stmaml.pool.base import Column, Draw, Forecast, GroupedRows, Tasks
from stmaml.pool.crossfit import HeldOut, fold_fits, held_out_tasks, out_of_fold, scored_with, shot_counts
from stmaml.pool.meta import Meta, on_cpu
from stmaml.pool.meta_wide import InMemory, Wide
from stmaml.pool.pooling import learn_pooling
from stmaml.pool.registry import members_named
from stmaml.pool.scoring import POOL, score_with
from stmaml.progress import Told, listening

SHOTS = 10
ASKED = 100


@dataclass(frozen=True)
class Stations:
    """All that members read."""

    rows: GroupedRows
    """Of training stations, as many days as members read."""
    every: GroupedRows
    """All days of training stations."""
    chosen: np.ndarray
    """Which of them are the rows above."""
    test: GroupedRows
    fold: np.ndarray
    mean: float
    std: float
    """Of the target, in degrees."""

    @property
    def draw(self) -> Draw:
        """How `fit` draws tasks."""
        return Draw(SHOTS)

    def wide(self) -> Wide:
        """All days, for members that draw tasks from them."""
        counts = self.every.counts
        start, y = np.cumsum(counts) - counts, self.every.y.astype(np.float32)
        return Wide(InMemory(self.every.x, y), start, counts, np.arange(len(counts)), 0.0, 1.0)

    def held(self) -> list[Tasks]:
        """Questions about held-out training stations, by number of labelled days."""
        return held_out_tasks(self.rows, self.draw, shot_counts(SHOTS), self.fold)

    def tests(self) -> list[Tasks]:
        """Questions about test stations."""
        draw = replace(self.draw, max_query=ASKED)
        return [draw.tasks(self.test, shots, 1) for shots in shot_counts(SHOTS)]


def pack(folder: Path, out: Path) -> None:
    """Both tables as numbers of cells, and what the schema makes of each cell."""
    import polars as pl

    from stmaml.pool.crossfit import folds_of
    from stmaml.pool.opening import enough, open_pool_table
    from stmaml.pool.rows import grouped_rows
    from stmaml.tables.benchmark import Config, TableConfig

    train, test = (pl.read_parquet(folder / f"{name}.parquet").sort("STATION", "DATE") for name in ("train", "test"))
    table = open_pool_table(train, Config(TableConfig("STATION", "TEMP")), shots=SHOTS)
    order = train.with_row_index("")
    some = enough(order, train["STATION"], [], thin=True)[0][""].to_numpy()
    arrays, both = {}, pl.concat([train, test])
    group = both["STATION"].rank("dense").to_numpy().astype(int) - 1
    rows = grouped_rows(table.schema, table.factors, both, group)
    if not np.array_equal(rows.x[: len(train)][some], table.rows.x):
        raise SystemExit("the rows that members read were not found again")
    start = 0
    for column in table.schema.used:
        arrays |= _cells(column.name, both[column.name], rows.x[:, start : start + len(column.outputs)])
        start += len(column.outputs)
    arrays |= _cells("TEMP", both["TEMP"], rows.y[:, None])
    about = {
        "columns": [[column.name, column.kind] for column in rows.columns],
        "train": train.height,
        "mean": table.schema.target.mean,
        "std": table.schema.target.std,
    }
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
    chosen = np.zeros(train.height, dtype=bool)
    chosen[some] = True
    arrays["chosen"] = _squeezed(np.packbits(chosen).tobytes())
    arrays["fold"] = folds_of(table.names).astype(np.int8)
    trained = train.group_by("STATION", maintain_order=True).len()
    arrays["counts"] = trained["len"].to_numpy().astype(np.int16)
    arrays["test_counts"] = test.group_by("STATION", maintain_order=True).len()["len"].to_numpy().astype(np.int16)
    if tuple(trained["STATION"]) != tuple(table.names):
        raise SystemExit("stations stand in another order than the rows that members read")
    np.savez(out, allow_pickle=False, **arrays)
    print(f"{out}: {out.stat().st_size / 2**20:.1f} MiB, {train.height:,} and {test.height:,} days")


def _cells(name: str, column: Any, made: np.ndarray) -> dict[str, np.ndarray]:
    """The number of each cell's value among all, and what is made of each."""
    code = column.rank("dense").fill_null(0).to_numpy().astype(np.uint16)
    kinds, first = np.unique(code, return_index=True)
    table = np.zeros((int(kinds[-1]) + 1, made.shape[1]), dtype=np.float32)
    table[kinds] = made[first]
    if not np.array_equal(table[code], made.astype(np.float32)):
        raise SystemExit(f"{name} is not made of its own cells alone")
    planes = code.view(np.uint8).reshape(-1, 2).T
    return {f"code {name}": _squeezed(planes.tobytes()), f"made {name}": table}


def _squeezed(content: bytes) -> np.ndarray:
    return np.frombuffer(lzma.compress(content, preset=6), dtype=np.uint8)


def unpack(path: Path) -> Stations:
    """The rows again."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    about = json.loads(arrays["about"].tobytes())
    made = {}
    for name in (name.removeprefix("code ") for name in arrays if name.startswith("code ")):
        planes = np.frombuffer(lzma.decompress(arrays[f"code {name}"].tobytes()), dtype=np.uint8).reshape(2, -1)
        made[name] = arrays[f"made {name}"][np.ascontiguousarray(planes.T).view(np.uint16)[:, 0]]
    y = made.pop("TEMP")[:, 0].astype(float)
    x, size = np.concatenate([*made.values()], axis=1), about["train"]
    columns = tuple(Column(name, kind) for name, kind in about["columns"])

    def rows(part: slice, counts: np.ndarray) -> GroupedRows:
        group = np.repeat(np.arange(len(counts)), counts)
        return GroupedRows(x[part], y[part], group, np.zeros((len(group), 0), dtype=int), columns)

    every, test = rows(slice(size), arrays["counts"]), rows(slice(size, None), arrays["test_counts"])
    packed = np.frombuffer(lzma.decompress(arrays["chosen"].tobytes()), dtype=np.uint8)
    chosen = np.flatnonzero(np.unpackbits(packed)[:size])
    fold = arrays["fold"].astype(int)
    return Stations(every.at(chosen), every, chosen, test, fold, about["mean"], about["std"])


def fit(path: Path, folder: Path, names: tuple[str, ...], minutes: float | None, steps: int | None) -> None:
    """Keeps what each member says."""
    stations = unpack(path)
    folder.mkdir(parents=True, exist_ok=True)
    for member in members_named(names, stations.rows, minutes=minutes):
        wide = None if on_cpu() else stations.wide()
        one: Any = replace(member, wide=wide, steps=steps) if isinstance(member, Meta) else member
        begun, used = time.monotonic(), time.process_time()
        with listening(_show):
            fits, whole = fold_fits(one, stations.rows, stations.fold, stations.draw)
        print(f"{member.name}: fitted in {time.monotonic() - begun:.0f} s", flush=True)
        arrays = {}
        for shots, held, test in zip(shot_counts(SHOTS), stations.held(), stations.tests(), strict=True):
            arrays |= _packed(f"held|{shots}", out_of_fold(fits, held, stations.fold))
            arrays |= _packed(f"test|{shots}", whole.predict(test))
            error = (arrays[f"test|{shots}|mean"] - stations.test.y[test.asked]) ** 2
            print(f"  {shots} days: {np.mean(error) * stations.std**2:.2f}", flush=True)
        looks = whole.state()
        arrays |= {name: looks[name] for name in ("steps", "curve") if name in looks}
        arrays["seconds"] = np.array([time.monotonic() - begun, time.process_time() - used])
        np.savez(folder / f"{member.name}.npz", allow_pickle=False, **arrays)


def _show(told: Told) -> None:
    print(f"  {time.strftime('%H:%M:%S')} {told.what} {told.done:,} {told.text}", flush=True)


def _packed(name: str, said: Forecast) -> dict[str, np.ndarray]:
    spread = np.log(np.maximum([said.task_variance, said.noise_variance], 1e-30)).astype(np.float16)
    return {f"{name}|mean": said.mean.astype(np.float32), f"{name}|log_variance": spread}


def _unpacked(arrays: dict[str, np.ndarray], name: str) -> Forecast:
    task, noise = np.exp(arrays[f"{name}|log_variance"].astype(float))
    return Forecast(arrays[f"{name}|mean"].astype(float), task, noise)


def score(path: Path, folders: list[Path], names: tuple[str, ...]) -> None:
    """The pool of all members that were kept, and each of them, with 95 % intervals over stations."""
    stations = unpack(path)
    kept = {}
    for file in (file for folder in folders for file in sorted(folder.glob("*.npz"))):
        if not names or file.stem in names:
            with np.load(file) as content:
                kept[file.stem] = {name: content[name] for name in content.files}
    counts = shot_counts(SHOTS)
    held = [
        HeldOut(n, one, {m: _unpacked(said, f"held|{n}") for m, said in kept.items()}, scored_with(stations.fold, one))
        for n, one in zip(counts, stations.held(), strict=True)
    ]
    pooling = learn_pooling(held)
    found: dict[str, dict[str, list[str]]] = {}
    for place, (shots, one) in enumerate(zip(counts, stations.tests(), strict=True)):
        said = {member: _unpacked(arrays, f"test|{shots}") for member, arrays in kept.items()}
        scored = score_with(HeldOut(shots, one, said, np.zeros(len(one), dtype=int)), pooling, stations.std)
        for row, scores in scored.rows.items():
            for metric, values in scores.items():
                width = 1.96 * np.std(values, ddof=1) / len(values) ** 0.5
                found.setdefault(metric, {}).setdefault(row, []).append(f"{np.mean(values):.4g} ± {width:.2g}")
        weights = dict(zip(pooling.members, pooling.weight[place], strict=True))
        print(f"{shots} days: weights", {name: round(float(weight), 3) for name, weight in weights.items()})
    for metric, rows in found.items():
        print(f"\n{metric}, by labelled days", *counts)
        for row in sorted(rows, key=lambda row: row != POOL):
            print(f"| {row} | {' | '.join(rows[row])} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pack", "fit", "score"))
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path, nargs="+")
    parser.add_argument("--members", nargs="*", default=[])
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--steps", type=int)
    flags = parser.parse_args()
    if flags.what == "pack":
        pack(flags.source, flags.out[0])
    elif flags.what == "fit":
        fit(flags.source, flags.out[0], tuple(flags.members), flags.minutes, flags.steps)
    else:
        score(flags.source, flags.out, tuple(flags.members))


if __name__ == "__main__":
    main()
