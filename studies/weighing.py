"""Rules of weighing members, tried in seconds on what members said once.

    python studies/tables.py --open FOLDER                                  read the public tables
    python studies/weighing.py keep FOLDER KEPT --kinds random first halved [--half development] [--jobs 8]
    python studies/weighing.py keep FOLDER KEPT --sizes 0 20 10             pools for few groups too
    python studies/weighing.py score FOLDER KEPT --out FILE.jsonl           records as of `studies/tables.py --run`
    python studies/weighing.py pack FOLDER KEPT --out FILE.npz              a few files of all, in steps of a thousandth
    python studies/weighing.py unpack FOLDER KEPT --out FILE.npz

`keep` fits all members to each of the five parts of `studies/tables.py` and keeps what they say of held-out groups and
of those tested. `score` learns weights from the former and scores the latter, with the pool's rule. Labelled rows are
random or the first ones; `halved`: the target of a table of numbers is whether it is above its median, which makes more
tables to choose rules for classes on.
"""

import argparse
import io
import json
import lzma
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from public_tables import SETS

from stmaml.pool.averaging import whole_of
from stmaml.pool.base import Draw, Forecast, GroupedRows, Member, Tasks
from stmaml.pool.crossfit import FOLDS, HeldOut, cross_fit, held_out_tasks, shot_counts
from stmaml.pool.pooling import Pooling, learn_pooling
from stmaml.pool.registry import all_members, usual_members
from stmaml.pool.scoring import POOL, score_with
from stmaml.tables.groups import usual_shots
from tables import AVERAGED, SPLITS, Opened, Split, opened, some_groups

HALVED = "-halved"
PARTS = ("mean", "variance")
STEP = 0.002  # of means in a packed file
MOST_FILES, MOST_BYTES = 4, 15_500_000  # of packed files


@dataclass(frozen=True)
class Case:
    """One part of one table."""

    path: Path
    number: int
    ordered: bool = False
    halved: bool = False
    size: int = 0
    """Groups to learn from; 0 for all that are not tested."""

    @property
    def name(self) -> str:
        """Of its file, without the suffix."""
        few = f".{self.size}" if self.size else ""
        return f"{self.table}.{'first' if self.ordered else 'random'}.{self.number}{few}"

    @property
    def table(self) -> str:
        """The table's name."""
        return self.path.stem + (HALVED if self.halved else "")

    def split(self) -> Split:
        """Its groups."""
        table = opened(self.path)
        split = Split.of(halved(table) if self.halved else table, self.number, ordered=self.ordered)
        return replace(split, train=some_groups(split.train, self.size, self.number))


def halved(table: Opened) -> Opened:
    """Is the target above its median?"""
    rows = table.rows
    if rows.num_classes:
        return table
    y = (rows.y > np.median(rows.y)).astype(float)
    return Opened(table.name + HALVED, replace(rows, y=y, num_classes=2), 1.0, table.has_order)


def questions(split: Split, ordered: bool) -> tuple[Draw, np.ndarray, tuple[int, ...], list[Tasks]]:
    """How tasks of the training part are drawn, its folds, its numbers of labelled rows, and its held-out tasks."""
    train = split.train
    draw = Draw(usual_shots(train.counts), ordered=ordered)
    fold = np.random.default_rng(11).permutation(train.num_groups) % min(FOLDS, train.num_groups)
    counts = shot_counts(draw.shots)
    return draw, fold, counts, held_out_tasks(train, draw, counts)


def keep(case: Case, folder: Path, names: tuple[str, ...], also: tuple[str, ...] = ()) -> str:
    """Fits the members and writes what they say."""
    from stmaml.compiled import remember_programs

    remember_programs()
    split, part = case.split(), folder / f"{case.name}.part"
    arrays = _read(part) if part.exists() else {}  # of a run that was ended
    draw, fold, counts, _ = questions(split, case.ordered)
    begun = time.process_time()
    for member in _members(names, also, split.train):
        if f"seconds|{member.name}" in arrays:
            continue
        start = time.process_time()
        held, fitted = cross_fit([member], split.train, fold, draw, counts)
        for one in held:
            arrays |= _packed(f"held|{one.shots}|{member.name}", one.forecasts[member.name])
        for shots, tasks in split.tests.items():
            arrays |= _packed(f"test|{shots}|{member.name}", fitted[member.name].predict(tasks))
            arrays |= _packed(f"alone|{shots}|{member.name}", whole_of(fitted[member.name]).predict(tasks))
        arrays[f"seconds|{member.name}"] = np.array(time.process_time() - start)
        _write(part, arrays)
    part.rename(folder / f"{case.name}.npz")
    return f"{case.name} {time.process_time() - begun:.1f} s"


def _read(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def _write(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """All of it or nothing, whenever the run is ended."""
    new = path.with_suffix(".new")
    with new.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    new.rename(path)


def _members(names: tuple[str, ...], also: tuple[str, ...], rows: GroupedRows) -> list[Member]:
    """Those named, as far as they suit the rows, else the usual ones; and `also` those."""
    known = all_members()
    members = [known[name] for name in names] if names else usual_members(rows)
    return [one for one in (*members, *(known[name] for name in also)) if one.suits(rows)]


def _packed(name: str, said: Forecast) -> dict[str, np.ndarray]:
    """Means and variances; of two classes the second's probability."""
    mean = said.mean[:, 1] if said.mean.ndim == 2 and said.mean.shape[1] == 2 else said.mean
    return {f"{name}|mean": mean.astype(np.float32), f"{name}|variance": said.variance.astype(np.float32)}


@dataclass(frozen=True)
class Known:
    """What all members said of one part of a table."""

    case: Case
    table: Opened
    held: list[HeldOut]
    tests: dict[int, tuple[HeldOut, HeldOut]]
    """By number of labelled rows: all fits of a member together, and the one to all groups."""
    seconds: dict[str, float]

    @staticmethod
    def read(case: Case, folder: Path) -> "Known":
        """From its file."""
        with np.load(folder / f"{case.name}.npz") as file:
            arrays = {name: file[name] for name in file.files}
        split = case.split()
        _, fold, counts, tasks = questions(split, case.ordered)
        members = [name.split("|")[1] for name in arrays if name.startswith("seconds|")]
        classes = split.train.num_classes

        def said(kind: str, shots: int) -> dict[str, Forecast]:
            return {m: _unpacked(arrays, f"{kind}|{shots}|{m}", classes) for m in members}

        held = [HeldOut(s, one, said("held", s), fold[one.group]) for s, one in zip(counts, tasks, strict=True)]
        tests = {}
        for shots, one in split.tests.items():
            none = np.zeros(len(one), dtype=int)
            together, alone = (HeldOut(shots, one, said(kind, shots), none) for kind in ("test", "alone"))
            tests[shots] = together, alone
        seconds = {member: float(arrays[f"seconds|{member}"]) for member in members}
        return Known(case, split.table, [one for one in held if len(one.tasks)], tests, seconds)

    def only(self, keep: Callable[[str], bool]) -> "Known":
        """Of some members."""
        return replace(
            self,
            held=[_only(one, keep) for one in self.held],
            tests={shots: (_only(some, keep), _only(one, keep)) for shots, (some, one) in self.tests.items()},
        )

    def with_member(self, member: Member) -> "Known":
        """With one more member, or another of the same name, fitted now."""
        split, begun = self.case.split(), time.process_time()
        draw, fold, counts, _ = questions(split, self.case.ordered)
        mine, fitted = cross_fit([member], split.train, fold, draw, counts)
        said = {one.shots: one.forecasts for one in mine}
        tests = {}
        for shots, (some, one) in self.tests.items():
            alone = whole_of(fitted[member.name]).predict(one.tasks)
            tests[shots] = (
                _and(some, {member.name: fitted[member.name].predict(some.tasks)}),
                _and(one, {member.name: alone}),
            )
        seconds = {**self.seconds, member.name: time.process_time() - begun}
        return replace(self, held=[_and(one, said[one.shots]) for one in self.held], tests=tests, seconds=seconds)

    def usual(self) -> "Known":
        """Of the members that a pool has by itself."""
        names = {member.name for member in usual_members(self.held[0].tasks.rows)}
        return self.only(lambda name: name in names)

    def pooling(self) -> Pooling:
        """By the pool's own rule."""
        return learn_pooling(self.held)

    def records(self, pooling: Pooling) -> list[dict[str, Any]]:
        """Scores as of `studies/tables.py`."""
        found = []
        case = self.case
        about = {"table": case.table, "split": case.number, "ordered": case.ordered, "size": case.size}
        for shots, (together, alone) in self.tests.items():
            several, single = (score_with(one, pooling, self.table.scale) for one in (together, alone))
            rows = {POOL: several.rows[POOL]}
            rows |= {f"{AVERAGED}{name}": scores for name, scores in several.rows.items() if name != POOL}
            rows |= {name: scores for name, scores in single.rows.items() if name != POOL}
            for row, scores in rows.items():
                each = {name: np.round(values, 7).tolist() for name, values in scores.items()}
                spent = self.seconds.get(row, sum(self.seconds.values()))
                line = {"shots": shots, "row": row, "groups": several.groups.tolist(), "scores": each}
                found.append({**about, **line, "seconds": round(spent, 2), "megabytes": 0})
        return found


def _and(one: HeldOut, more: dict[str, Forecast]) -> HeldOut:
    return HeldOut(one.shots, one.tasks, {**one.forecasts, **more}, one.fold)


def _only(one: HeldOut, keep: Callable[[str], bool]) -> HeldOut:
    said = {name: forecast for name, forecast in one.forecasts.items() if keep(name)}
    return HeldOut(one.shots, one.tasks, said, one.fold)


def _unpacked(arrays: dict[str, np.ndarray], name: str, classes: int) -> Forecast:
    mean, variance = (arrays[f"{name}|{part}"].astype(float) for part in ("mean", "variance"))
    if classes == 2:
        mean = np.stack([1.0 - mean, mean], axis=1)
    return Forecast(mean, variance, np.zeros(len(variance)))


def cases_of(
    folder: Path,
    half: str,
    tables: list[str],
    kinds: list[str],
    sizes: Sequence[int] = (0,),
    splits: Sequence[int] = range(SPLITS),
) -> list[Case]:
    """All parts of all tables, kind by kind and half by half: every table's first part, then every table's second. With
    fewer groups to learn from where there are more."""
    found = []
    for path in sorted(folder.glob("*.npz"), key=lambda path: -path.stat().st_size):  # the longest are begun first
        mine = next(name for name, its in SETS.items() if path.stem in its)
        if (half and half != mine) or (tables and path.stem not in tables):
            continue
        table = opened(path)
        can = {"random": True, "first": table.has_order, "halved": not table.rows.num_classes}
        most = table.rows.num_groups - -(-table.rows.num_groups // SPLITS)
        found += [(kind, mine, path, size) for kind in kinds if can[kind] for size in sizes if size < most]
    known = [*product(kinds, SETS)]
    return [
        Case(path, i, kind == "first", kind == "halved", size)
        for one in known
        for i in splits
        for kind, mine, path, size in found
        if (kind, mine) == one
    ]


def pinned(core: Any) -> None:
    """One core for each process: libraries then start no more threads than that."""
    if core is not None:
        with core.get_lock():
            mine, core.value = core.value, core.value + 1
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[-1 - mine % len(cores)]})


def keep_all(
    cases: list[Case],
    folder: Path,
    names: tuple[str, ...],
    also: tuple[str, ...],
    jobs: int,
    minutes: float,
    pin: bool = False,
) -> None:
    """What is not there yet, in several processes, until time is up; what is under way then is given up."""
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * minutes
    wanted = [case for case in cases if not (folder / f"{case.name}.npz").exists()]
    context = get_context("spawn")
    pool = ProcessPoolExecutor(jobs, context, pinned, (context.Value("i", 0) if pin else None,))
    futures = {pool.submit(keep, case, folder, names, also): case for case in wanted}
    try:
        for future in as_completed(futures, timeout=max(1.0, end - time.monotonic())):
            try:
                print(future.result(), flush=True)
            except Exception as error:  # one that fails must not stop a study of hours
                print(f"{futures[future].name}: {type(error).__name__}: {error}", flush=True)
    except TimeoutError:
        print(f"time is up: {sum(one.done() for one in futures)} of {len(futures)} done", flush=True)
        workers = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for one in workers:
            one.terminate()


def score(cases: list[Case], folder: Path, out: Path) -> None:
    """Records of all that is there."""
    with out.open("w") as file:
        for case in cases:
            if (folder / f"{case.name}.npz").exists():
                known = Known.read(case, folder).usual()
                file.write("".join(json.dumps(record) + "\n" for record in known.records(known.pooling())))
                print(case.name, flush=True)


def pack(cases: list[Case], folder: Path, out: Path) -> None:
    """A few files of all that is there, each of a size that is easily sent; what comes last is left out."""
    there = [case.name for case in cases if (folder / f"{case.name}.npz").exists()]
    with get_context("spawn").Pool(min(8, os.cpu_count() or 1)) as pool:
        small = pool.imap(squeezed, [folder / f"{name}.npz" for name in there])
        files: list[dict[str, np.ndarray]] = [{}]
        for name, content in zip(there, small, strict=True):
            held = sum(len(one) for one in files[-1].values())
            if held + len(content) > MOST_BYTES:
                files.append({})
            files[-1][name] = np.frombuffer(content, dtype=np.uint8)
    for number, one in enumerate(files[:MOST_FILES]):
        path = out.with_name(f"{out.stem}.{number}.npz")
        np.savez(path, allow_pickle=False, **one)
        print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB of {len(one)} cases")
    print(f"left out: {sum(len(one) for one in files[MOST_FILES:])} cases")


def squeezed(path: Path) -> bytes:
    """What members say, in steps of a thousandth or two, as distances from their median."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    places = dict.fromkeys(tuple(name.split("|")[:2]) for name in arrays if not name.startswith("seconds"))
    members = [name.split("|")[1] for name in arrays if name.startswith("seconds")]
    found = {"members": np.array(members), "seconds": np.array([float(arrays[f"seconds|{one}"]) for one in members])}
    for kind, shots in places:
        means, logs = (np.stack([arrays[f"{kind}|{shots}|{m}|{part}"] for m in members]) for part in PARTS)
        step = STEP / 10 if means.size and means.min() >= 0 and means.max() <= 1 else STEP  # probabilities: finer
        steps = np.rint(np.clip(means / step, -30_000, 30_000)).astype(np.int32)
        middle = np.median(steps, axis=0).astype(np.int32)
        logs = np.log(np.maximum(logs, 1e-12))
        low, wide = logs.min(initial=0.0), max(np.ptp(logs) if logs.size else 0.0, 1e-9)
        found[f"{kind}|{shots}|middle"] = middle.astype(np.int16)
        found[f"{kind}|{shots}|mean"] = np.clip(steps - middle, -32_000, 32_000).astype(np.int16)
        found[f"{kind}|{shots}|variance"] = np.rint((logs - low) / wide * 255).astype(np.uint8)
        found[f"{kind}|{shots}|range"] = np.array([low, wide, step])
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **found)
    return lzma.compress(file.getvalue(), preset=5)


def restored(content: bytes) -> dict[str, np.ndarray]:
    """Back from `squeezed`."""
    with np.load(io.BytesIO(lzma.decompress(content))) as file:
        arrays = {name: file[name] for name in file.files}
    members = arrays["members"].tolist()
    found = {f"seconds|{name}": value for name, value in zip(members, arrays["seconds"], strict=True)}
    for kind, shots, part in (name.split("|") for name in arrays if "|" in name):
        if part == "middle":
            at = f"{kind}|{shots}"
            low, wide, step = arrays[f"{at}|range"]
            mean = (step * (arrays[f"{at}|mean"].astype(float) + arrays[f"{at}|middle"])).astype(np.float32)
            variance = np.exp(low + wide / 255 * arrays[f"{at}|variance"]).astype(np.float32)
            for i, name in enumerate(members):
                found |= {f"{at}|{name}|mean": mean[i], f"{at}|{name}|variance": variance[i]}
    return found


def unpack(folder: Path, packed: Path) -> None:
    """A file for each case again."""
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for path in sorted(packed.parent.glob(f"{packed.stem}.*.npz")):
        with np.load(path) as file:
            for case in file.files:
                np.savez(folder / f"{case}.npz", allow_pickle=False, **restored(file[case].tobytes()))
                count += 1
    print(f"{count} cases")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("keep", "score", "pack", "unpack"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("kept", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--half", choices=("", *SETS), default="")
    parser.add_argument("--kinds", nargs="*", choices=("random", "first", "halved"), default=["random"])
    parser.add_argument("--tables", nargs="*", default=[])
    parser.add_argument("--members", nargs="*", default=[])
    parser.add_argument("--also", nargs="*", default=[], help="members beside the usual ones")
    parser.add_argument("--sizes", type=int, nargs="*", default=[0], help="groups to learn from; 0 for all")
    parser.add_argument("--splits", type=int, nargs="*", default=list(range(SPLITS)), help="numbers of the parts")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--pin", action="store_true", help="each process on a core of its own")
    flags = parser.parse_args()
    cases = cases_of(flags.folder, flags.half, flags.tables, flags.kinds, flags.sizes, flags.splits)
    if flags.what == "keep":
        keep_all(cases, flags.kept, tuple(flags.members), tuple(flags.also), flags.jobs, flags.minutes, flags.pin)
    elif flags.what == "score":
        score(cases, flags.kept, flags.out)
    elif flags.what == "pack":
        pack(cases, flags.kept, flags.out)
    else:
        unpack(flags.kept, flags.out)


if __name__ == "__main__":
    main()
