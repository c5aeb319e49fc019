"""The prior over tables on public ones: alone, and the pool with and without it.

    python studies/tables.py --open FOLDER                                  read the tables and keep their rows
    python studies/prior_tables.py --run FOLDER --others KEPT --out FILE.jsonl [--half development] [--jobs 16]
    python studies/prior_tables.py --run FOLDER --others KEPT --out FILE.jsonl --weights FILE      other weights
    python studies/prior_tables.py --show FILE.jsonl [...]

Groups are dealt into five parts as in `tables.py`; each is predicted by what was fitted to all groups of the other
four, to 20 of them, or to 10. What the other members say is kept, so that weights of the prior are tried in seconds.
Settings may be chosen on the development half alone."""

import argparse
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student
from weighing import Case, Known, cases_of, keep, pinned

from stmaml.compiled import remember_programs
from stmaml.pool.base import Draw
from stmaml.pool.prior import NAME, Prior
from stmaml.pool.registry import usual_members
from stmaml.pool.scoring import score_with
from stmaml.tables.groups import usual_shots
from tables import SHOTS, SPLITS, read

SIZES = (0, 20, 10)  # groups to learn from; 0 for all
WITH, CALIBRATED, PLAIN = "pool with prior", "prior calibrated", "prior as it is"
QUICK = ("mixed", "mixed-slopes", "mixed-curves", "mixed-logistic", "shares")


def scored(case: Case, kept: Path, weights: str | None = None) -> list[dict[str, Any]]:
    """A record for each number of labelled rows and each row of the table: the prior as it is, calibrated, and the pool
    with and without it. What members say is kept in a file, and read from there if it is there."""
    remember_programs()
    if not (kept / f"{case.name}.npz").exists():
        keep(case, kept, ())
    known = Known.read(case, kept)
    return records_of(known.with_member(prior_of(weights)) if weights else known)


def records_of(known: Known) -> list[dict[str, Any]]:
    """The same of what is known."""
    parts = {
        WITH: known,
        "pool": known.only(lambda name: name != NAME),
        CALIBRATED: known.only(lambda name: name == NAME),
    }
    poolings = {row: part.pooling() for row, part in parts.items()}
    case, records = known.case, []
    about = {"table": case.table, "split": case.number, "ordered": case.ordered, "size": case.size}
    about["learnt"] = known.held[0].tasks.rows.num_groups
    for shots in known.tests:
        found = {row: score_with(part.tests[shots][0], poolings[row], known.table.scale) for row, part in parts.items()}
        rows = {row: one.rows["pool"] for row, one in found.items()}
        rows[NAME] = found[WITH].rows[NAME]
        together, _ = known.tests[shots]
        if not together.tasks.rows.num_classes:
            rows[PLAIN] = {"coverage90": _plain_coverage(together.forecasts[NAME], together.tasks)}
        groups = found[WITH].groups.tolist()
        for row, scores in rows.items():
            each = {name: np.round(values, 7).tolist() for name, values in scores.items()}
            line = {"shots": shots, "row": row, "groups": groups, "scores": each}
            records.append({**about, **line, "seconds": round(known.seconds[NAME], 2)})
    return records


def score_directly(case: Case, weights: str | None, only: list[str], steps: int = 0) -> list[dict[str, Any]]:
    """The prior beside mixed models, each as it stands: nothing is calibrated or pooled. With steps, the prior
    trained further on the table is one more row."""
    remember_programs()
    split = case.split()
    train = split.train
    members = [prior_of(weights), *(one for one in usual_members(train) if one.name in QUICK)]
    members = [one for one in members if not only or one.name in only]
    members += [Prior(Path(weights) if weights else None, steps, "prior, trained further")] if steps else []
    records = []
    for member in members:
        begun = time.process_time()
        (fitted,) = member.fit_each(train, [np.arange(train.num_groups)], Draw(usual_shots(train.counts)))
        said = {shots: fitted.predict(tasks) for shots, tasks in split.tests.items()}
        spent = round(time.process_time() - begun, 2)
        for shots, tasks in split.tests.items():
            scores = {name: np.round(each, 7).tolist() for name, each in _plain_scores(said[shots], tasks).items()}
            about = {"table": case.table, "split": case.number, "ordered": case.ordered, "size": case.size}
            more = {"learnt": train.num_groups, "shots": shots, "row": member.name}
            records.append({**about, **more, "scores": scores, "seconds": spent})
    return records


def prior_of(weights: str | None) -> Prior:
    """With the weights of a file, or those of the package."""
    return Prior(Path(weights)) if weights else Prior()


def _plain_scores(said: Any, tasks: Any) -> dict[str, np.ndarray]:
    """Scores of each task in spreads of the target, or of classes."""
    y, count = tasks.rows.y[tasks.asked], np.bincount(tasks.task)
    if tasks.rows.num_classes:
        share = said.mean[np.arange(len(y)), y.astype(int)]
        each = {"nll": -np.log(np.maximum(share, 1e-9)), "accuracy": said.mean.argmax(1) == y}
    else:
        off = (y - said.mean) ** 2
        nll = 0.5 * np.log(2 * np.pi * said.variance) + 0.5 * off / said.variance
        each = {"mse": off, "nll": nll, "coverage90": off < 1.6449**2 * said.variance}
    return {name: np.bincount(tasks.task, values) / count for name, values in each.items()}


def _plain_coverage(said: Any, tasks: Any) -> np.ndarray:
    """The share of each task's rows within the 90 % interval that the prior gives by itself."""
    off = np.abs(said.mean - tasks.rows.y[tasks.asked]) / np.sqrt(said.variance)
    return np.bincount(tasks.task, off < 1.6449) / np.bincount(tasks.task)


def run(flags: argparse.Namespace) -> None:
    """Fits and scores what is not in the file yet, in several processes."""
    key = ("table", "split", "size", "ordered")
    done = {tuple(one[name] for name in key) for one in read([flags.out])} if flags.out.exists() else set()
    cases = cases_of(flags.run, flags.half, flags.tables, ["first" if flags.ordered else "random"], flags.sizes)
    wanted = [
        one for one in cases if one.number < flags.splits and (one.table, one.number, one.size, one.ordered) not in done
    ]
    wanted.sort(key=lambda one: (one.number, one.path.stat().st_size, one.size))
    until = float(os.environ.get("DEADLINE", "inf")) - 20
    if flags.direct:
        work = partial(score_directly, weights=flags.weights, only=flags.only, steps=flags.steps)
    else:
        flags.others.mkdir(parents=True, exist_ok=True)
        work = partial(scored, kept=flags.others, weights=flags.weights)
    context = get_context("spawn")
    core = context.Value("i", 0) if flags.pin else None
    with ProcessPoolExecutor(flags.jobs, context, pinned, (core,)) as pool, flags.out.open("a") as file:
        futures = {pool.submit(work, case): case for case in wanted}
        try:
            for future in as_completed(futures, timeout=max(until - time.time(), 1) if until < 1e12 else None):
                _write(future, futures[future], file)
        except TimeoutError:
            print("out of time; what is done is kept", flush=True)
            for process in list((pool._processes or {}).values()):
                process.kill()


def _write(future: Any, case: Case, file: Any) -> None:
    try:
        records = future.result()
    except Exception as error:  # one table that fails must not stop the others
        print(f"{case.name}: {type(error).__name__}: {error}", file=sys.stderr)
        return
    file.write("".join(json.dumps(record) + "\n" for record in records))
    file.flush()
    print(case.name, records[0]["seconds"], "s", flush=True)


def show(records: list[dict[str, Any]], base: str) -> None:
    """Tables in Markdown, numbers and classes apart: by number of groups and of labelled rows the error over that of
    the pool without the prior, as a geometric mean over tables with its 95 % interval; differences of the negative
    log-density; shares of rows that 90 % intervals hold; and the ratio of each table."""
    found = by_table(records)
    for title, metric, numbers in (
        ("squared error over that of", "mse", True),
        ("negative log-density less that of", "nll", True),
        ("share in 90 % intervals, also", "coverage90", True),
        ("log-loss less that of", "nll", False),
    ):
        print(f"\n**{title} {base}** ({'numbers' if numbers else 'classes'})\n")
        print("| groups | | " + " | ".join(f"{shots} rows" for shots in SHOTS) + " |\n|---|---|" + "--:|" * len(SHOTS))
        mine = {key: rows for key, rows in found.items() if (("mse" in rows[base]) == numbers)}
        names = dict.fromkeys(row for rows in mine.values() for row, scores in rows.items() if metric in scores)
        for size, row in product(SIZES, names):
            cells = [_gaps(mine, size, shots, row, base, metric) for shots in SHOTS]
            if any(cells) and (row != base or metric == "coverage90"):
                some = " | ".join(_cell(list(cell.values()), metric) for cell in cells)
                print(f"| {size or 'all'} | {row} | {some} |")
        if metric != "coverage90":
            print()
            for size, shots in product(SIZES, SHOTS):
                cell = _gaps(mine, size, shots, WITH, base, metric)
                form = np.exp if metric == "mse" else float
                print(size or "all", f"groups, {shots} rows:", ", ".join(f"{k} {form(v):.3f}" for k, v in cell.items()))


Found = dict[tuple[str, int, int], dict[str, dict[str, float]]]


def by_table(records: list[dict[str, Any]]) -> Found:
    """By table, number of groups and of labelled rows: the mean score of each row over all groups of the parts that
    every row has. A table with no more groups than are asked for has those of all."""
    found: dict[Any, dict[str, dict[str, dict[int, list[float]]]]] = {}
    for record in records:
        key = record["table"], record["size"], record["shots"]
        for metric, values in record["scores"].items():
            found.setdefault(key, {}).setdefault(record["row"], {}).setdefault(metric, {})[record["split"]] = values
    whole: Found = {}
    for key, rows in found.items():
        common = set.intersection(*(set(parts) for row in rows.values() for parts in row.values()))
        if common:
            whole[key] = {
                row: {
                    m: float(np.mean(np.concatenate([parts[i] for i in sorted(common)]))) for m, parts in each.items()
                }
                for row, each in rows.items()
            }
    learnt = {record["table"]: record["learnt"] for record in records if not record["size"]}
    same = {
        (table, few, shots): rows
        for (table, size, shots), rows in whole.items()
        for few in SIZES[1:]
        if not size and learnt[table] <= few + 1  # parts of a table differ by one group
    }
    return {**same, **whole}


def _gaps(found: Found, size: int, shots: int, row: str, base: str, metric: str) -> dict[str, float]:
    """By table: the logarithm of the ratio of squared errors, the difference of losses, or a share."""
    here = {t: rows for (t, s, k), rows in found.items() if (s, k) == (size, shots) and metric in rows.get(row, {})}
    if metric == "coverage90":
        return {table: rows[row][metric] for table, rows in here.items()}
    form = np.log if metric == "mse" else float
    return {table: float(form(rows[row][metric]) - form(rows[base][metric])) for table, rows in here.items()}


def _cell(values: list[float], metric: str) -> str:
    """The mean over tables and its 95 % interval."""
    if not values:
        return ""
    mean = float(np.mean(values))
    half = student.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0
    if metric == "mse":
        return f"{np.exp(mean):.3f} ({np.exp(mean - half):.2f} to {np.exp(mean + half):.2f}; {len(values)})"
    return f"{mean:.3f} ± {half:.3f} ({len(values)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--out", type=Path, default=Path("prior.jsonl"))
    parser.add_argument("--show", type=Path, nargs="*")
    parser.add_argument("--half", choices=("development", "reporting"), default="development")
    parser.add_argument("--tables", nargs="*", default=[])
    parser.add_argument("--sizes", type=int, nargs="*", default=list(SIZES))
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--weights")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--ordered", action="store_true")
    parser.add_argument("--others", type=Path, default=Path("kept"), help="folder for what the other members say")
    parser.add_argument("--pin", action="store_true", help="each process on a core of its own")
    parser.add_argument("--direct", action="store_true", help="beside mixed models, nothing calibrated")
    parser.add_argument("--only", nargs="*", default=[], help="with --direct: members to score")
    parser.add_argument("--steps", type=int, default=0, help="with --direct: of training the prior further")
    parser.add_argument("--base", default="pool", help="the row that others are shown over")
    flags = parser.parse_args()
    if flags.run:
        run(flags)
    if flags.show:
        show(list(read(flags.show)), flags.base)


if __name__ == "__main__":
    main()
