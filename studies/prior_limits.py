"""How far the prior over tables is from the best that can be known, on made-up tables it has not seen.

    python studies/prior_limits.py --out others.jsonl [--tables 20]                the limit, and what is fitted
    python studies/prior_limits.py --out prior.jsonl --weights FILE [--tables 20]  the prior, on the same tables
    python studies/prior_limits.py --show others.jsonl prior.jsonl

For linear tables the limit is exact (`bayes_limit`); for all others there is none, and the prior stands beside a mixed
model and boosting with summaries fitted to each table. Errors are in variances of the target."""

import argparse
import json
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.random as jr
import numpy as np

from stmaml.benchmarks.hierarchies import Shape, Table, bayes_limit, linear_tables, one_of, sample_tables, table_key
from stmaml.pool import boosted, mixed
from stmaml.pool.base import Column, Draw, GroupedRows, Tasks
from stmaml.pool.prior import KINDS, Prior

GROUPS, SHOTS = (5, 10, 20, 50), (0, 2, 5, 10)
NEW, SLOTS, COLUMNS = 8, 20, 4
FITTED = ("mixed-slopes", "boosting-summaries")


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
    known = {member.name: member for member in [*mixed.MEMBERS, *boosted.MEMBERS]}
    members = [Prior(Path(flags.weights))] if flags.weights else [known[name] for name in FITTED]
    until = float(os.environ.get("DEADLINE", "inf")) - 15
    with flags.out.open("a") as file:
        for kind in ("linear", "all"):
            for groups in GROUPS:
                for shots in SHOTS:
                    if time.time() < until:
                        for record in _records(kind, groups, shots, members, flags.tables):
                            file.write(json.dumps(record) + "\n")
                        file.flush()


def _records(kind: str, groups: int, shots: int, members: list[Any], count: int) -> list[dict[str, Any]]:
    shape, key = Shape(groups, NEW, SLOTS, COLUMNS), jr.fold_in(table_key(4242), groups)
    limits = None
    if kind == "linear":
        tables, truth = jax.jit(partial(linear_tables, shape, count, shots=shots))(key=key)
        found = [bayes_limit(one_of(tables, i), one_of(truth, i)) for i in range(count)]
        limits = [np.stack(part) for part in zip(*found, strict=True)]
    else:
        tables = jax.jit(partial(sample_tables, shape, count, shots=shots))(key=key)
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


def show(files: list[Path]) -> None:
    found: dict[tuple[str, int, int, int], dict[str, Any]] = {}
    for record in (json.loads(line) for file in files for line in file.read_text().splitlines()):
        place = tuple(record[name] for name in ("kind", "groups", "shots", "table"))
        found.setdefault(place, {}).update(record["scores"])
    rows = ("limit", "prior", *FITTED)
    whole = {place: scores for place, scores in found.items() if all(row in scores for row in rows[1:])}
    for kind in ("linear", "all"):
        for metric in ("mse", "nll", "holds"):
            print(f"\n{kind}, {metric}\n\n| groups | rows | " + " | ".join(rows) + " |\n|--:|--:|" + "--:|" * len(rows))
            for groups in GROUPS:
                for shots in SHOTS:
                    here = [scores for place, scores in whole.items() if place[:3] == (kind, groups, shots)]
                    cells = [_cell([one[row][metric] for one in here if row in one]) for row in rows]
                    print(f"| {groups} | {shots} | " + " | ".join(cells) + " |")


def _cell(values: list[float]) -> str:
    if not values:
        return ""
    return f"{np.mean(values):.3f} ± {1.96 * np.std(values) / max(len(values), 1) ** 0.5:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path, nargs="*")
    parser.add_argument("--weights")
    parser.add_argument("--tables", type=int, default=20)
    flags = parser.parse_args()
    if flags.out:
        run(flags)
    if flags.show:
        show(flags.show)


if __name__ == "__main__":
    main()
