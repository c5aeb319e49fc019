"""The figures of docs/performance.md, and the page itself.

    python studies/bench.py --part cpu --out cpu.json [--sections training images ...] [--seconds 2] [--repeats 5]
    python studies/bench.py --part gpu --out gpu.json
    python studies/bench.py --page cpu.json gpu.json

`make bench` runs the part of the device at hand and writes the page, with the parts that are kept in docs/bench/ of
others. Sections: `training` is second-order MAML on a 2-40-40-1 network beside other libraries; `images` is the same
with four convolutional blocks; `recipes` has every method's own recipe; `use` is what a trained learner costs; `growth`
is how the cost of a step grows; `start` is how long commands take to begin; `tables` has `fit` and `predict` beside
what else one would take. Contenders take turns; one that is not installed is named and left out. All libraries have as
many threads as there are cores, but for torch on the small network, which is faster with one.
"""

import argparse
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
import speed
from bench_commands import run_start, run_tables
from bench_page import write_page
from libraries import installed

from stmaml.benchmarks import regression2d
from stmaml.benchmarks.sources import freeze
from stmaml.evaluation import evaluate
from stmaml.inner import InnerLoop
from stmaml.methods import maml
from stmaml.methods.base import predict
from stmaml.recipes import presets, recipe
from stmaml.training import TrainConfig

KEPT = Path(__file__).parent.parent / "docs" / "bench"
PAGE = KEPT.parent / "performance.md"
OTHERS = ("torch", "torchopt", "learn2learn", "jax_meta", "lightgbm", "gpboost", "statsmodels")
SECTIONS = {
    "cpu": ("training", "images", "recipes", "use", "growth", "start", "tables"),
    "gpu": ("training", "images", "recipes", "use", "growth"),
}
GROWTH = {
    "tasks": (5, 10, 25, 50, 100),
    "inner steps": (1, 2, 5, 10, 20),
    "shots": (5, 10, 20, 40, 80),
    "width": (20, 40, 80, 160),
    "draws": (1, 4, 16, 64),
}
EVALUATED, DRAWS = 200, 20  # tasks that are scored, and predictors drawn for each
LARGE_BATCH = 64  # tasks in a step of images on a GPU


def run_training(seconds: float, repeats: int) -> list[dict[str, Any]]:
    return [asdict(row) for row in speed.run_mlp(5, seconds=seconds, repeats=repeats)]


def run_images(seconds: float, repeats: int, *, size: str = "full") -> dict[str, Any]:
    """Tasks a second of the convolutional network; on a GPU with its kernels, and in larger steps."""
    at_cpu = jax.default_backend() == "cpu"
    found: dict[str, Any] = {}
    for tasks in (4,) if at_cpu else (32, LARGE_BATCH):
        contenders = speed.conv_contenders(speed.CONV_SIZES[size], tasks, "" if at_cpu or tasks == 32 else "bfloat16")
        contenders = [each for each in contenders if at_cpu or "recomputed" not in each.contender.name]
        found[str(tasks)] = speed.measure_images(contenders, tasks, seconds=seconds, repeats=repeats)
        if not at_cpu and tasks == LARGE_BATCH:
            found["kernels"] = [asdict(kernel) for kernel in speed.profile(contenders[0].contender.advance)]
    return found


def run_recipes(seconds: float, repeats: int) -> list[dict[str, Any]]:
    return [asdict(row) for row in speed.run_methods(sorted(speed.METHODS), seconds=seconds, repeats=repeats)]


def run_use(seconds: float, repeats: int) -> list[dict[str, Any]]:
    """What a new task and a round of scoring cost, for MAML and for ST-MAML with 20 draws."""
    rows = []
    for name in ("maml", "st-maml"):
        experiment = recipe("regression2d", name, presets("regression2d", name)[0])
        benchmark = experiment.benchmark_settings.open()
        learner = experiment.method_settings.build(benchmark.train.spec, key=jr.key(0))
        task = jax.tree.map(lambda leaf: leaf[0], benchmark.train.sample(1, key=jr.key(1)).tasks)
        ask = eqx.filter_jit(partial(predict, learner, task.support, task.query.x, num_samples=DRAWS))
        adapting = timed(partial(ask, key=jr.key(0)), seconds, repeats)
        score = partial(evaluate, learner, freeze(benchmark.train, EVALUATED, seed=0), num_samples=DRAWS, key=jr.key(0))
        scoring = timed(score, seconds, repeats)
        rows.append({"name": name, "adapt_ms": 1e3 * adapting, "evaluated_per_s": EVALUATED / scoring})
    return rows


def timed(call: Callable[[], Any], seconds: float, repeats: int) -> float:
    """Seconds of one call, the median of some rounds after a first that compiles."""

    def finished() -> None:
        jax.block_until_ready(jax.tree.leaves(eqx.filter(call(), eqx.is_array)))

    finished()
    rounds = []
    for _ in range(repeats):
        start, calls = time.perf_counter(), 0
        while calls == 0 or time.perf_counter() - start < seconds / 2:
            finished()
            calls += 1
        rounds.append((time.perf_counter() - start) / calls)
    return median(rounds)


def run_growth(seconds: float, repeats: int) -> dict[str, list[tuple[int, float]]]:
    """Milliseconds of a step, of a prediction for `draws`, one thing changed at a time; sizes take turns."""
    found: dict[str, list[tuple[int, float]]] = {}
    for what, values in GROWTH.items():
        contenders = [_drawing(value) if what == "draws" else _step_of(what, value) for value in values]
        for contender in contenders:
            contender.warm_up()
        rows = speed.measure(contenders, contenders[0].name, seconds=seconds / 2, repeats=repeats)
        found[what] = [(value, row.ms_per_step) for value, row in zip(values, rows, strict=True)]
    return found


def _step_of(what: str, value: int) -> speed.Contender:
    sizes = {"tasks": speed.TASKS, "inner steps": 5, "shots": speed.SHOTS, "width": 40} | {what: value}
    source = regression2d.Config(shots=sizes["shots"], query_size=speed.QUERIES).open().train
    settings = maml.Config(hidden=(sizes["width"],) * 2, inner=InnerLoop(inner_steps=sizes["inner steps"]))
    config = TrainConfig(tasks_per_batch=sizes["tasks"])
    return speed.library(str(value), settings.build(source.spec, key=jr.key(0)), source, config)


def _drawing(draws: int) -> speed.Contender:
    """Predictions of ST-MAML from so many draws, as if each were a step."""
    experiment = recipe("regression2d", "st-maml")
    train = experiment.benchmark_settings.open().train
    learner = experiment.method_settings.build(train.spec, key=jr.key(0))
    task = jax.tree.map(lambda leaf: leaf[0], train.sample(1, key=jr.key(1)).tasks)

    @eqx.filter_jit
    def ask(key: jax.Array) -> Any:
        return predict(learner, task.support, task.query.x, key=key, num_samples=draws)

    keys = map(jr.key, itertools.count())

    def advance() -> np.ndarray:
        jax.block_until_ready(jax.tree.leaves(eqx.filter(ask(next(keys)), eqx.is_array)))
        return np.zeros(1)

    return speed.Contender(str(draws), advance, comparable=False)


def sections(names: list[str], *, seconds: float, repeats: int, largest: int) -> dict[str, Any]:
    """What was measured, by section."""
    each: dict[str, Callable[[], Any]] = {
        "training": lambda: run_training(seconds, repeats),
        "images": lambda: run_images(seconds, min(repeats, 3)),
        "recipes": lambda: run_recipes(seconds / 2, min(repeats, 3)),
        "use": lambda: run_use(seconds, min(repeats, 3)),
        "growth": lambda: run_growth(seconds, min(repeats, 3)),
        "start": run_start,
        "tables": lambda: run_tables(largest),
    }
    found = {}
    for name in names:
        start = time.perf_counter()
        found[name] = each[name]()
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
    return found


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The figures of docs/performance.md.")
    parser.add_argument("--part", choices=sorted(SECTIONS), default="cpu" if jax.default_backend() == "cpu" else "gpu")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS["cpu"], help="all of the part if not given")
    parser.add_argument("--out", type=Path, help="file for the figures; one of docs/bench/ if not given")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one turn of one contender")
    parser.add_argument("--repeats", type=int, default=5, help="rounds")
    parser.add_argument("--rows", type=int, default=10**6, help="of the largest table")
    parser.add_argument("--page", type=Path, nargs="*", help="write the page from these files, or those kept")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    if arguments.page is not None:
        write_page(arguments.page or sorted(KEPT.glob("*.json")), PAGE)
        return
    left_out = [name for name in OTHERS if not installed(name)]
    print(f"not installed, so left out: {', '.join(left_out) or 'nothing'}", flush=True)
    names = arguments.sections or SECTIONS[arguments.part]
    out = arguments.out or KEPT / f"{arguments.part}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    before = json.loads(out.read_text()) if out.exists() else {}
    options = f"--seconds {arguments.seconds:g} --repeats {arguments.repeats}"
    for name in names:  # one after the other, so that what is there is kept whatever comes
        found = sections([name], seconds=arguments.seconds, repeats=arguments.repeats, largest=arguments.rows)
        command = f"python studies/bench.py --part {arguments.part} --sections {name} {options}"
        about = {"command": command, "left_out": left_out, **speed.environment()}
        before |= {"part": arguments.part, name: {"about": about, "found": found[name]}}
        out.write_text(json.dumps(before, indent=1) + "\n")


if __name__ == "__main__":
    main()
