"""How far the prior over tables is from the best that can be known, on made-up tables it has not seen.

    python studies/prior_limits.py --out limits.jsonl [--tables 20] [--jobs 16]          all of it
    python studies/prior_limits.py --out prior.jsonl --weights FILE --only prior         other weights, the same tables
    python studies/prior_limits.py --show limits.jsonl [prior.jsonl] [--figure limits.png]

For linear tables the limit is exact (`bayes_limit`); for all others there is none, and the prior stands beside a mixed
model and boosting with summaries fitted to each table. Errors are in variances of the target."""

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from prior_tables import prior_of
from weighing import pinned

from stmaml.benchmarks.hierarchies import Shape, Table, bayes_limit, linear_tables, one_of, sample_tables, table_key
from stmaml.benchmarks.hierarchy_rows import whole_rows
from stmaml.compiled import remember_programs
from stmaml.pool import boosted, mixed
from stmaml.pool.base import Column, Draw, GroupedRows, Tasks
from stmaml.pool.prior import KINDS

GROUPS, SHOTS = (5, 10, 20, 50), (0, 2, 5, 10)
NEW, SLOTS, COLUMNS = 8, 20, 4
FITTED = ("mixed-slopes", "boosting-summaries")
BASE = {"linear": "limit", "all": "mixed-slopes"}


def grouped(table: Table) -> tuple[GroupedRows, Tasks]:
    """Rows of one table's groups to learn from, and tasks of the new ones."""
    groups, slots = table.row.shape
    real = np.flatnonzero(np.asarray(table.column))
    kinds = np.asarray(table.kind)
    columns = tuple(Column(f"c{i}", KINDS[kinds[i]]) for i in real)
    x = np.asarray(table.x, float)[..., real].reshape(-1, len(real))
    group, y = np.repeat(np.arange(groups), slots), np.asarray(table.y, float).ravel()
    rows = GroupedRows(x, y, group, np.zeros((len(y), 0), dtype=int), columns)
    known = np.asarray(table.labelled, bool).ravel()
    new = [np.flatnonzero(group == i) for i in range(table.num_train, groups)]
    tasks = Tasks(rows, tuple(one[known[one]] for one in new), tuple(one[~known[one]] for one in new))
    return rows.at(np.flatnonzero(group < table.num_train)), tasks


def scores(mean: np.ndarray, variance: np.ndarray, y: np.ndarray) -> dict[str, float]:
    nll = 0.5 * np.log(2 * np.pi * variance) + 0.5 * (y - mean) ** 2 / variance
    inside = np.abs(y - mean) < 1.6449 * np.sqrt(variance)
    return {"mse": float(np.mean((y - mean) ** 2)), "nll": float(nll.mean()), "holds": float(inside.mean())}


def run(flags: argparse.Namespace) -> None:
    """All cells that there is time for, in several processes."""
    until = float(os.environ.get("DEADLINE", "inf")) - 15
    # Cells of one program stand apart, so that it is compiled once.
    cells = [(kind, groups, shots) for shots in SHOTS for kind in ("linear", "all") for groups in GROUPS]
    context = get_context("spawn")
    core = context.Value("i", 0) if flags.pin else None
    with ProcessPoolExecutor(flags.jobs, context, pinned, (core,)) as pool, flags.out.open("a") as file:
        waiting = [pool.submit(_records, *cell, flags.only, flags.weights, flags.tables) for cell in cells]
        try:
            for future in as_completed(waiting, timeout=max(until - time.time(), 1) if until < 1e12 else None):
                file.write("".join(json.dumps(record) + "\n" for record in future.result()))
                file.flush()
        except TimeoutError:
            print("out of time; what is done is kept", flush=True)
            for process in list((pool._processes or {}).values()):
                process.kill()


def members_of(names: list[str], weights: str | None) -> list[Any]:
    known = {member.name: member for member in [*mixed.MEMBERS, *boosted.MEMBERS]}
    return [prior_of(weights) if name == "prior" else known[name] for name in names]


def _records(
    kind: str, groups: int, shots: int, names: list[str], weights: str | None, count: int
) -> list[dict[str, Any]]:
    remember_programs()
    members = members_of(names, weights)
    shape, key = Shape(groups, NEW, SLOTS, COLUMNS), jr.fold_in(table_key(4242), groups)
    limits = None
    # Drawn as without labelled rows, so that one program draws the tables of all cells.
    if kind == "linear":
        tables, truth = jax.jit(partial(linear_tables, shape, count, shots=0))(key=key)
    else:
        tables, truth = jax.jit(partial(sample_tables, shape, count, shots=0))(key=key), None
    labelled = jnp.broadcast_to(whole_rows(shape, shots)[1], tables.labelled.shape)
    tables = replace(tables, labelled=labelled)
    if truth is not None:
        found = [bayes_limit(one_of(tables, i), one_of(truth, i)) for i in range(count)]
        limits = [np.stack(part) for part in zip(*found, strict=True)]
    found = []
    for i in range(count):
        table = one_of(tables, i)
        if bool(table.is_class):
            continue
        rows, tasks = grouped(table)
        y = tasks.rows.y[tasks.asked]
        said = {}
        if limits is not None:
            said["limit"] = scores(*(one[i].ravel()[tasks.asked] for one in limits), y)
        for member in members:
            (fitted,) = member.fit_each(rows, [np.arange(rows.num_groups)], Draw(10))
            forecast = fitted.predict(tasks)
            said[member.name] = scores(forecast.mean, forecast.variance, y)
        found.append({"kind": kind, "groups": groups, "shots": shots, "table": i, "scores": said})
    return found


def show(files: list[Path], figure: Path | None) -> None:
    found: dict[tuple[str, int, int, int], dict[str, Any]] = {}
    for record in (json.loads(line) for file in files for line in file.read_text().splitlines()):
        place = tuple(record[name] for name in ("kind", "groups", "shots", "table"))
        found.setdefault(place, {}).update(record["scores"])
    rows = ("limit", "prior", *FITTED)
    whole = {place: scores for place, scores in found.items() if all(row in scores for row in rows[1:])}
    for kind in ("linear", "all"):
        print(f"\n{kind}: geometric mean of squared errors over {BASE[kind]}'s, 95 % interval over tables")
        _table(
            whole,
            kind,
            [row for row in rows if row != BASE[kind]],
            lambda one, row, base=BASE[kind]: _over(one, row, base),
            np.exp,
        )
        for metric in ("nll", "holds"):
            print(f"\n{kind}: {metric}")
            _table(
                whole, kind, rows, lambda one, row, metric=metric: [each[row][metric] for each in one if row in each]
            )
    if figure:
        draw(whole, figure)


def _table(
    whole: dict,
    kind: str,
    rows: Sequence[str],
    values: Callable[..., list[float]],
    form: Callable[[float], float] = float,
) -> None:
    print("\n| groups | rows | tables | " + " | ".join(rows) + " |\n|--:|--:|--:|" + "--:|" * len(rows))
    for groups in GROUPS:
        for shots in SHOTS:
            here = [scores for place, scores in whole.items() if place[:3] == (kind, groups, shots)]
            cells = [_cell(values(here, row), form) for row in rows]
            print(f"| {groups} | {shots} | {len(here)} | " + " | ".join(cells) + " |")


def _over(here: list[dict[str, Any]], row: str, base: str) -> list[float]:
    return [float(np.log(one[row]["mse"] / one[base]["mse"])) for one in here if row in one and base in one]


def draw(whole: dict, path: Path) -> None:
    """Squared errors of linear tables over the best possible, by groups and labelled rows."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(SHOTS), figsize=(11, 3), sharey=True, layout="constrained")
    for axis, shots in zip(axes, SHOTS, strict=True):
        for row, mark in zip(("prior", *FITTED), "osD", strict=True):
            logs = [
                _over([one for place, one in whole.items() if place[:3] == ("linear", groups, shots)], row, "limit")
                for groups in GROUPS
            ]
            middle = np.array([np.mean(each) for each in logs])
            half = np.array([1.96 * np.std(each) / len(each) ** 0.5 for each in logs])
            ends = np.exp(middle) - np.exp(middle - half), np.exp(middle + half) - np.exp(middle)
            axis.errorbar(GROUPS, np.exp(middle), ends, marker=mark, label=row, capsize=2)
        axis.axhline(1, color="gray", linewidth=0.8)
        axis.set(xscale="log", yscale="log", title=f"{shots} labelled rows", xlabel="groups to learn from")
        axis.set_xticks(GROUPS, [str(one) for one in GROUPS])
        axis.minorticks_off()
    axes[0].set_ylabel("squared error over the\nbest possible")
    axes[0].set_yticks([1, 1.2, 1.5, 2, 3], ["1", "1.2", "1.5", "2", "3"])
    axes[-1].legend(frameon=False)
    figure.savefig(path, dpi=150)


def _cell(values: list[float], form: Callable[[float], float] = float) -> str:
    if not values:
        return ""
    half = 1.96 * np.std(values) / max(len(values), 1) ** 0.5
    return f"{form(np.mean(values)):.3f} ± {half:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path, nargs="*")
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--weights", help="of the prior; those of the package if not given")
    parser.add_argument("--only", nargs="*", default=["prior", *FITTED], help="members to score")
    parser.add_argument("--tables", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--pin", action="store_true", help="each process on a core of its own")
    flags = parser.parse_args()
    if flags.out:
        run(flags)
    if flags.show:
        show(flags.show, flags.figure)


if __name__ == "__main__":
    main()
