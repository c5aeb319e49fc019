"""Seconds and memory of commands, each in a process of its own: how long they take to begin, what training holds, and
what `fit` and `predict` take on tables of some sizes, beside other ways to the same predictions.

    python studies/bench_commands.py NAME [tiny]    trains by one contender of `run_memory`, for its memory
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from table_rivals import KNOWN, RIVALS

TABLE_SIZES = (10**4, 10**5, 10**6)
A_GROUP = 50  # rows of a group
MINUTES = "1"
HERE = Path(__file__).parent


def run_start(options: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """Seconds of short commands on an empty cache, and when the same command has been run before."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder)
        for name, (command, run) in _commands(room, 500 if options.tiny else 2_000).items():
            turns = [_run(_stmaml(command), room / "cache", run) for _ in range(2 if options.tiny else 3)]
            again = min(turns[1:], key=lambda turn: turn["seconds"])
            found.append({"name": name, "first": turns[0], "again": again})
            yield found


def _commands(room: Path, rows: int) -> dict[str, tuple[list[str] | None, Path | None]]:
    """Short commands, in an order in which each finds what it needs; with the run whose first step is waited for."""
    table, asked, known = write_table(room, rows)
    asked = asked.drop("truth")
    asked.head(10).write_csv(room / "ten.csv")
    asked.filter(pl.col("group") == asked["group"][0]).write_csv(room / "one.csv")
    known.write_csv(room / "known.csv")
    step = ["--method", "st-maml", "--steps", "1", "--force"]
    fit = ["fit", str(table), "--task", "group", "--target", "y", "--run"]

    def predict(run: str, rows: str) -> tuple[list[str], None]:
        paths = (str(room / name) for name in (run, f"{rows}.csv", "known.csv", "out.csv"))
        pairs = zip(("predict", "--query", "--support", "--out"), paths, strict=True)
        return [word for pair in pairs for word in pair], None

    train = ["train", "regression2d", *step, "--run", str(room / "run")]
    return {
        "import": (None, None),
        "train of one step": (train, room / "run"),
        "fit of one method and one step": ([*fit, str(room / "fit"), *step], room / "fit"),
        "fit of the usual pool": ([*fit, str(room / "pool"), "--force"], None),
        "predict of one method, ten rows": predict("fit", "ten"),
        "predict of one method, one group": predict("fit", "one"),
        "predict of the pool, ten rows": predict("pool", "ten"),
        "predict of the pool, one group": predict("pool", "one"),
    }


def run_memory(options: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """The most memory of processes that train, from their start to some steps after the first."""
    found = []
    for name, package in TRAINED.items():
        if importlib.util.find_spec(package):
            turn = _run([sys.executable, __file__, name, *(["tiny"] if options.tiny else [])], None)
            found.append({"name": name, "memory_gb": turn["memory_gb"], "code": turn["code"]})
            yield found


TRAINED = {
    "small network: plain JAX, 64 steps a call": "jax",
    "small network: stmaml, tasks sampled": "jax",
    "small network: torch.func, vmap over tasks": "torch",
    "small network: learn2learn": "learn2learn",
    "images: stmaml, float32": "jax",
    "images: torch, loop over tasks": "torch",
    "images: learn2learn": "learn2learn",
    "recipe: st-maml": "jax",
}
"""What is trained for its memory, and the package it needs."""


def train_a_little(name: str, tiny: bool) -> None:
    """Some steps of one contender."""
    from bench_learners import recipe_contender
    from picture_tasks import CONV_SIZES
    from pictures import conv_makers
    from small_network import contenders_of

    kind, name = name.split(": ")
    if kind == "small network":
        contender = next(each for each in contenders_of(5, only=name))
    elif kind == "recipe":
        contender = recipe_contender(name)
    else:
        contender = conv_makers(CONV_SIZES["tiny" if tiny else "full"], 4, ("float32",))[name]().contender
    for _ in range(3):
        contender.advance()


def _stmaml(command: list[str] | None) -> list[str]:
    return (
        [sys.executable, "-c", "import stmaml.cli.fit"]
        if command is None
        else [sys.executable, "-m", "stmaml", *command]
    )


def run_tables(options: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """`fit` and `predict` beside rivals on the same made-up table: seconds, memory, and the error on new groups."""
    found = []
    for size in TABLE_SIZES[:1] if options.tiny else options.rows:
        with tempfile.TemporaryDirectory() as folder:
            room = Path(folder)
            table, asked, known = write_table(room, size)
            asked.write_parquet(room / "ask.parquet")
            known.write_parquet(room / "known.parquet")
            found.append({"rows": size, "name": "stmaml"} | _own(table, room))
            there = [name for name, package in RIVALS.items() if importlib.util.find_spec(package)]
            found += [{"rows": size, "name": name} | _rival(name, room) for name in there]
        yield found


def _own(table: Path, room: Path) -> dict[str, Any]:
    fit = ["fit", str(table), "--task", "group", "--target", "y", "--run", str(room / "fit"), "--minutes", MINUTES]
    pl.read_parquet(room / "ask.parquet").drop("truth").write_parquet(room / "query.parquet")
    ask = ["--query", str(room / "query.parquet"), "--support", str(room / "known.parquet")]
    fitted = _run(_stmaml(fit), None)
    asked = _run(_stmaml(["predict", str(room / "fit"), *ask, "--out", str(room / "out.csv")]), None)
    error = float("nan")
    if asked["code"] == 0:
        found, truth = pl.read_csv(room / "out.csv"), pl.read_parquet(room / "ask.parquet")["truth"].to_numpy()
        error = float(np.sqrt(np.mean((found["prediction"].to_numpy() - truth) ** 2)))
    return {"fit": fitted, "predict": asked, "error": error}


def _rival(name: str, room: Path) -> dict[str, Any]:
    turn = _run([sys.executable, str(HERE / "table_rivals.py"), name, str(room)], None)
    answer = json.loads(turn.pop("out").strip().splitlines()[-1]) if turn["code"] == 0 else {}
    none = float("nan")
    fitted, asked = (
        turn | {"seconds": answer.get(what, none), "processor_s": answer.get(f"{what}_processor", none)}
        for what in ("fit", "ask")
    )
    return {"fit": fitted, "predict": asked, "error": answer.get("error", none)}


def _run(command: list[str], cache: Path | None, run: Path | None = None) -> dict[str, Any]:
    """Seconds by the clock, of processors, and the most memory of a command; and seconds to the first step of a run."""
    environment, step = os.environ | ({"STMAML_CACHE": str(cache)} if cache else {}), {}
    if run is not None:
        (run / "log.jsonl").unlink(missing_ok=True)
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)
        if run is not None:
            step = _first_step(run / "log.jsonl", process.pid, start)
        _, status, used = os.wait4(process.pid, 0)
        seconds, _ = time.perf_counter() - start, out.seek(0)
        text = out.read()[-400:]
    code = os.waitstatus_to_exitcode(status)
    processor, memory = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e9
    return {"seconds": seconds, "processor_s": processor, "memory_gb": memory, "code": code, "out": text, **step}


def _first_step(log: Path, pid: int, start: float) -> dict[str, float]:
    """When a process has written that it took a step, and of processors till then; nothing where it ends without."""
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if log.exists() and '"loss"' in log.read_text():
            ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            used = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
            return {"step_s": time.perf_counter() - start, "step_processor_s": used}
        time.sleep(0.02)
    return {}


def write_table(room: Path, rows: int) -> tuple[Path, pl.DataFrame, pl.DataFrame]:
    """Groups with a level and a slope of their own: the table, and of new groups the rows asked for and those known."""
    draw = np.random.default_rng(0)
    groups = rows // A_GROUP + 20
    level, slope = draw.normal(0, 2, groups), draw.normal(1, 0.5, groups)
    group = np.repeat(np.arange(groups), A_GROUP)
    x1, x2 = draw.normal(size=(2, len(group)))
    kind = draw.integers(0, 4, len(group))
    clean = level[group] + slope[group] * x1 + np.sin(2 * x2) + 0.3 * kind
    y = clean + 0.5 * draw.normal(size=len(group))
    data = {"group": group, "x1": x1, "x2": x2, "kind": [f"k{k}" for k in kind], "y": y, "truth": clean}
    table = pl.DataFrame(data).with_columns(pl.format("g{}", "group").alias("group"))
    table[:rows].drop("truth").write_parquet(room / "table.parquet")
    new = table[rows:].with_columns(pl.int_range(pl.len()).over("group").alias("place"))
    known = new.filter(pl.col("place") < KNOWN).drop("truth", "place")
    return room / "table.parquet", new.filter(pl.col("place") >= KNOWN).drop("y", "place"), known


if __name__ == "__main__":
    train_a_little(sys.argv[1], tiny=sys.argv[2:] == ["tiny"])
