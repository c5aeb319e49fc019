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
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from public_tables import DEVELOPMENT, DEVELOPMENT_CLASSES, REPORTING, REPORTING_CLASSES

from stmaml.compiled import remember_programs
from stmaml.pool.base import Draw, Forecast, GroupedRows, Member
from stmaml.pool.crossfit import FOLDS, HeldOut, cross_fit, held_out_tasks, shot_counts
from stmaml.pool.pooling import learn_pooling
from stmaml.pool.prior import Prior
from stmaml.pool.registry import usual_members
from stmaml.pool.scoring import score_with
from stmaml.tables.groups import usual_shots
from tables import SPLITS, Opened, Split, opened, read, some_groups

HALVES = {"development": {**DEVELOPMENT, **DEVELOPMENT_CLASSES}, "reporting": {**REPORTING, **REPORTING_CLASSES}}
SIZES = (0, 20, 10)  # groups to learn from; 0 for all
FIELDS = ("mean", "task_variance", "noise_variance")
QUICK = ("mixed", "mixed-slopes", "mixed-curves", "mixed-logistic", "shares")


@dataclass(frozen=True)
class Setting:
    """Groups of a table to learn from, and what is asked."""

    table: Opened
    split: Split
    train: GroupedRows
    draw: Draw
    fold: np.ndarray
    counts: tuple[int, ...]

    @staticmethod
    def of(path: Path, number: int, size: int, ordered: bool) -> "Setting":
        """One part of a table's groups, predicted from `size` of the others."""
        table = opened(path)
        split = Split.of(table, number, ordered=ordered)
        train = some_groups(split.train, size, number)
        most = usual_shots(train.counts)
        fold = np.random.default_rng(11).permutation(train.num_groups) % min(FOLDS, train.num_groups)
        return Setting(table, split, train, Draw(most, ordered=ordered), fold, shot_counts(most))


@dataclass(frozen=True)
class Answers:
    """What members say of held-out groups, by number of labelled rows, and of the groups of the test."""

    held: list[dict[str, Forecast]]
    tests: dict[int, dict[str, Forecast]]
    spent: dict[str, float]

    def joined(self, other: "Answers") -> "Answers":
        """Of the members of both."""
        held = [{**one, **more} for one, more in zip(self.held, other.held, strict=True)]
        tests = {shots: {**self.tests[shots], **other.tests[shots]} for shots in self.tests}
        return Answers(held, tests, {**self.spent, **other.spent})

    def save(self, path: Path) -> None:
        """Writes one file."""
        parts = {**{f"held {i}": one for i, one in enumerate(self.held)}, **{f"{k}": v for k, v in self.tests.items()}}
        arrays = {
            f"{part}|{name}|{field}": getattr(forecast, field)
            for part, by_name in parts.items()
            for name, forecast in by_name.items()
            for field in FIELDS
        }
        spent = np.frombuffer(json.dumps(self.spent).encode(), dtype=np.uint8)
        part = path.with_suffix(".part")
        with part.open("wb") as file:
            np.savez_compressed(file, spent=spent, **arrays)
        part.rename(path)

    @staticmethod
    def load(path: Path) -> "Answers":
        """What `save` wrote."""
        held: dict[int, dict[str, Forecast]] = {}
        tests: dict[int, dict[str, Forecast]] = {}
        with np.load(path) as file:
            for key in (key for key in file if key.endswith(FIELDS[0])):
                part, name, _ = key.split("|")
                forecast = Forecast(*(file[f"{part}|{name}|{field}"] for field in FIELDS))
                where = (
                    held.setdefault(int(part[5:]), {}) if part.startswith("held") else tests.setdefault(int(part), {})
                )
                where[name] = forecast
            return Answers([held[i] for i in sorted(held)], tests, json.loads(file["spent"].tobytes()))


def answers(members: list[Member], setting: Setting) -> Answers:
    """What members say, each fitted to the groups to learn from."""
    held: list[dict[str, Forecast]] = [{} for _ in setting.counts]
    tests: dict[int, dict[str, Forecast]] = {shots: {} for shots in setting.split.tests}
    spent = {}
    for member in members:
        begun = time.process_time()
        mine, fitted = cross_fit([member], setting.train, setting.fold, setting.draw, setting.counts)
        for by_name, one in zip(held, mine, strict=True):
            by_name |= one.forecasts
        for shots, tasks in setting.split.tests.items():
            tests[shots][member.name] = fitted[member.name].predict(tasks)
        spent[member.name] = round(time.process_time() - begun, 2)
    return Answers(held, tests, spent)


def kept_name(item: tuple[Path, int, int], ordered: bool) -> str:
    path, number, size = item
    return f"{path.stem}_{number}_{size}{'_ordered' if ordered else ''}.npz"


def answers_of_others(setting: Setting, kept: Path) -> Answers:
    """What the usual members say, but for the prior: fitted once, then kept."""
    if kept.exists():
        return Answers.load(kept)
    found = answers([one for one in usual_members(setting.train) if one.name != "prior"], setting)
    found.save(kept)
    return found


def fit_and_score(
    path: Path, number: int, size: int, ordered: bool, weights: str | None, kept: Path
) -> list[dict[str, Any]]:
    """A record for each number of labelled rows and each row of the table."""
    remember_programs()
    setting = Setting.of(path, number, size, ordered)
    table, train = setting.table, setting.train
    others = answers_of_others(setting, kept / kept_name((path, number, size), ordered))
    both = answers([prior_of(weights)], setting).joined(others)
    tasks = held_out_tasks(train, setting.draw, setting.counts)
    held = [
        HeldOut(shots, one, said, setting.fold[one.group])
        for shots, one, said in zip(setting.counts, tasks, both.held, strict=True)
        if len(one)
    ]
    without = [HeldOut(one.shots, one.tasks, _less(one.forecasts), one.fold) for one in held]
    pools = {"pool with prior": learn_pooling(held), "pool": learn_pooling(without)}
    about = {"table": table.name, "split": number, "ordered": ordered, "size": size}
    records = []
    for shots, asked_tasks in setting.split.tests.items():
        said = both.tests[shots]
        asked = {
            name: HeldOut(shots, asked_tasks, part, np.zeros(len(asked_tasks), dtype=int))
            for name, part in (("pool with prior", said), ("pool", _less(said)))
        }
        scored = {name: score_with(asked[name], pooling, table.scale) for name, pooling in pools.items()}
        rows = {**scored["pool with prior"].rows, "pool": scored["pool"].rows["pool"]}
        rows["pool with prior"] = scored["pool with prior"].rows["pool"]
        if not train.num_classes:
            rows["prior as it is"] = {"coverage90": _plain_coverage(said["prior"], asked_tasks)}
        rows["prior calibrated"] = _calibrated(held, asked["pool with prior"], table.scale)
        for row, scores in rows.items():
            values = {name: np.round(each, 7).tolist() for name, each in scores.items()}
            records.append(
                {
                    **about,
                    "shots": shots,
                    "row": row,
                    "groups": len(next(iter(scores.values()))),
                    "scores": values,
                    "seconds": both.spent.get(row, round(sum(both.spent.values()), 2)),
                }
            )
    return records


def score_directly(
    path: Path, number: int, size: int, ordered: bool, weights: str | None, only: list[str], steps: int = 0
) -> list[dict[str, Any]]:
    """The prior beside mixed models, each as it stands: nothing is calibrated or pooled. With steps, the prior
    trained further on the table is one more row."""
    table = opened(path)
    split = Split.of(table, number, ordered=ordered)
    train = some_groups(split.train, size, number)
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
            about = {"table": table.name, "split": number, "ordered": ordered, "size": size, "shots": shots}
            records.append({**about, "row": member.name, "scores": scores, "seconds": spent})
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


def _less(forecasts: dict[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in forecasts.items() if name != "prior"}


def _plain_coverage(said: Any, tasks: Any) -> np.ndarray:
    """The share of each task's rows within the 90 % interval that the prior gives by itself."""
    off = np.abs(said.mean - tasks.rows.y[tasks.asked]) / np.sqrt(said.variance)
    return np.bincount(tasks.task, off < 1.6449) / np.bincount(tasks.task)


def _calibrated(held: list[HeldOut], asked: HeldOut, scale: float) -> dict[str, np.ndarray]:
    """The scores of a pool of the prior alone, whose spread is learnt on held-out groups."""
    alone = [HeldOut(one.shots, one.tasks, {"prior": one.forecasts["prior"]}, one.fold) for one in held]
    only = HeldOut(asked.shots, asked.tasks, {"prior": asked.forecasts["prior"]}, asked.fold)
    return score_with(only, learn_pooling(alone), scale).rows["pool"]


def run(flags: argparse.Namespace) -> None:
    """Fits and scores what is not in the file yet, in several processes."""
    key = ("table", "split", "size", "ordered")
    done = {tuple(one[name] for name in key) for one in read([flags.out])} if flags.out.exists() else set()
    tables = flags.tables or HALVES[flags.half]
    wanted = [
        (flags.run / f"{name}.npz", number, size)
        for name in tables
        for size in flags.sizes
        for number in range(flags.splits)
        if (name, number, size, flags.ordered) not in done
    ]
    wanted.sort(key=lambda item: (item[1], item[0].stat().st_size, item[2]))
    until = float(os.environ.get("DEADLINE", "inf")) - 20
    if flags.direct:
        work, more = score_directly, (flags.ordered, flags.weights, flags.only, flags.steps)
    else:
        flags.others.mkdir(parents=True, exist_ok=True)
        work, more = fit_and_score, (flags.ordered, flags.weights, flags.others)
    context = get_context("spawn")
    core = context.Value("i", 0) if flags.pin else None
    with ProcessPoolExecutor(flags.jobs, context, pinned, (core,)) as pool, flags.out.open("a") as file:
        futures = {pool.submit(work, *item, *more): item for item in wanted}
        try:
            for future in as_completed(futures, timeout=max(until - time.time(), 1) if until < 1e12 else None):
                _write(future, futures[future], file)
        except TimeoutError:
            print("out of time; what is done is kept", flush=True)
            for process in list((pool._processes or {}).values()):
                process.kill()


def pinned(core: Any) -> None:
    """One core for each process: libraries then start no more threads than that."""
    if core is not None:
        with core.get_lock():
            mine, core.value = core.value, core.value + 1
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[-1 - mine % len(cores)]})


def _write(future: Any, item: tuple[Path, int, int], file: Any) -> None:
    try:
        records = future.result()
    except Exception as error:  # one table that fails must not stop the others
        print(f"{item[0].stem} {item[1:]}: {type(error).__name__}: {error}", file=sys.stderr)
        return
    file.write("".join(json.dumps(record) + "\n" for record in records))
    file.flush()
    print(item[0].stem, *item[1:], records[0]["seconds"], "s", flush=True)


def show(records: list[dict[str, Any]], base: str) -> None:
    """For each number of groups and of labelled rows: the error over that of the pool without the prior, as a geometric
    mean over tables, and the same by table for the prior and the pool with it."""
    whole = {name: found for name, found in _by_table(records)}
    for metric in ("mse", "nll", "accuracy", "coverage90"):
        for size in SIZES:
            for shots in (0, 2, 5, 10):
                here = {name: found for (name, s, k, m), found in whole.items() if (s, k, m) == (size, shots, metric)}
                if here:
                    _show_one(f"{metric}, {size or 'all'} groups, {shots} rows", here, base, metric)


def _show_one(title: str, here: dict[str, dict[str, float]], base: str, metric: str) -> None:
    print(f"\n{title} ({len(here)} tables)")
    for row in dict.fromkeys(row for found in here.values() for row in found):
        mine = {name: found for name, found in here.items() if row in found and base in found}
        if not mine:
            continue
        if metric == "mse":
            each = {name: found[row] / found[base] for name, found in mine.items()}
            mean = float(np.exp(np.mean(np.log(list(each.values())))))
        else:
            less = 0.0 if metric == "coverage90" else 1.0
            each = {name: found[row] - less * found[base] for name, found in mine.items()}
            mean = float(np.mean(list(each.values())))
        print(f"  {row:20s} {mean:7.3f}  " + " ".join(f"{name}:{value:.3f}" for name, value in each.items()))


def _by_table(records: list[dict[str, Any]]) -> Iterator[tuple[tuple[str, int, int, str], dict[str, float]]]:
    """Mean scores over groups of all splits that every row has."""
    found: dict[Any, dict[str, dict[int, list[float]]]] = {}
    for record in records:
        for metric, values in record["scores"].items():
            key = (record["table"], record["size"], record["shots"], metric)
            found.setdefault(key, {}).setdefault(record["row"], {})[record["split"]] = values
    for key, rows in found.items():
        common = set.intersection(*(set(parts) for parts in rows.values()))
        if common:
            yield (
                key,
                {
                    row: float(np.mean(np.concatenate([parts[i] for i in sorted(common)])))
                    for row, parts in rows.items()
                },
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--out", type=Path, default=Path("prior.jsonl"))
    parser.add_argument("--show", type=Path, nargs="*")
    parser.add_argument("--half", choices=list(HALVES), default="development")
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
