"""What ST-MAML's recipes and every method cost to train, what a trained learner costs, and how costs grow."""

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from statistics import median
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from picture_tasks import CONV_SIZES, INNER_LR, Pictures
from pictures import completion_contender, measure_images
from small_network import QUERIES, SHOTS, TASKS
from timing import CHUNK, Contender, library, measure, warm_up_together

from stmaml.benchmarks import regression2d
from stmaml.benchmarks.sources import TaskSource, freeze
from stmaml.evaluation import evaluate
from stmaml.experiments import fresh, scaling_for
from stmaml.inner import InnerLoop
from stmaml.methods import METHODS, maml
from stmaml.methods.base import AbstractMetaLearner, predict
from stmaml.nets.conv import Conv
from stmaml.recipes import presets, recipe
from stmaml.training import TrainConfig, initial_state, run_steps

OWN, CLASSES_ONLY = "st-maml", "protonet"
GROWTH = {
    "cpu": {
        "tasks": (5, 10, 25, 50, 100),
        "inner steps": (1, 2, 5, 10, 20),
        "shots": (5, 10, 20, 40, 80),
        "width": (20, 40, 80, 160),
        "draws": (1, 4, 16, 64),
    },
    "gpu": {
        "tasks": (25, 100, 400, 1600, 6400),
        "inner steps": (1, 5, 10, 20),
        "shots": (5, 20, 80, 320),
        "width": (40, 80, 160, 320),
        "draws": (1, 16, 256, 4096),
    },
}
"""Sizes that are tried; larger ones on a GPU, which with few tasks waits."""
GROWTH_TASKS = {"cpu": TASKS, "gpu": 400}
"""Tasks of a step where something else is changed."""
CACHES = {"width": (40, 80, 160), "inner steps": (5, 10, 20)}
CACHE_TASKS = ((1, None), (5, None), (12, None), (25, None), (25, 5))
"""Tasks of a step, and how many of them are taken at a time."""
EVALUATED, DRAWS = 200, 20  # tasks that are scored, and predictors drawn for each
EVALUATED_IMAGES = 8


def run_recipes(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Steps a second: ST-MAML's presets, on a CPU every method's first one too; and ST-MAML's completion of images."""
    names = [("maml", ""), *((OWN, preset) for preset in presets("regression2d", OWN))]
    if jax.default_backend() == "cpu":
        names += [(name, "") for name in sorted(METHODS) if name not in ("maml", OWN, CLASSES_ONLY)]
    contenders = [recipe_contender(*name) for name in (names[:2] if options.tiny else names)]
    warm_up_together(contenders, options.at_once)
    timing = {"seconds": options.seconds / 2, "repeats": min(options.repeats, 3)}
    found = {"regression2d": [asdict(row) for row in measure(contenders, "maml", **timing)]}
    yield found
    tasks = 2 if options.tiny else recipe("completion", OWN).training.tasks_per_batch
    rows = measure_images([completion_contender(options.tiny, tasks)], tasks, **timing)
    yield found | {"completion": [row | {"tasks": tasks} for row in rows]}


def recipe_contender(name: str, preset: str = "") -> Contender:
    """A method on regression2d with a preset, else its first one, else its defaults; as many tasks for all."""
    known = presets("regression2d", name)
    if not known:
        source = regression2d.Config().open().train
        learner = METHODS[name]().build(source.spec, key=jr.key(0))
        return library(name, learner, source, TrainConfig(tasks_per_batch=TASKS))
    experiment = recipe("regression2d", name, preset or known[0])
    benchmark = experiment.benchmark_settings.open()
    learner = fresh(experiment, benchmark.train.spec, scaling_for(experiment, benchmark))
    training = replace(experiment.training, tasks_per_batch=TASKS)
    return library(f"{name}, {preset}" if preset else name, learner, benchmark.train, training)


def run_use(options: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """What a new task and a round of scoring cost: MAML, ST-MAML with 20 draws, and MAML on images."""
    rows, timing = [], (options.seconds, min(options.repeats, 3))
    for name in ("maml", OWN):
        experiment = recipe("regression2d", name, presets("regression2d", name)[0])
        train = experiment.benchmark_settings.open().train
        learner = experiment.method_settings.build(train.spec, key=jr.key(0))
        rows.append({"name": name} | _used(learner, train, EVALUATED, *timing))
        yield rows
    size = CONV_SIZES["tiny" if options.tiny else "full"]
    pictures = Pictures.of(size, key=jr.key(0))
    inner = InnerLoop(inner_lr=INNER_LR, inner_steps=size.inner_steps)
    settings = maml.Config(conv=Conv(channels=size.channels, conv_blocks=size.blocks), inner=inner)
    learner = settings.build(pictures.spec, key=jr.key(0))
    yield [*rows, {"name": "maml, images"} | _used(learner, pictures, EVALUATED_IMAGES, *timing)]


def _used(
    learner: AbstractMetaLearner, source: TaskSource, tasks: int, seconds: float, repeats: int
) -> dict[str, float]:
    task = jax.tree.map(lambda leaf: leaf[0], source.sample(1, key=jr.key(1)).tasks)
    # What is asked for goes in as arguments: the compiler would else work it out beforehand.
    ask = eqx.filter_jit(
        lambda learner, task, key: predict(learner, task.support, task.query.x, num_samples=DRAWS, key=key)
    )
    adapting, first = timed(partial(ask, learner, task, jr.key(0)), seconds, repeats)
    score = partial(evaluate, learner, freeze(source, tasks, seed=0), num_samples=DRAWS, key=jr.key(0))
    scoring, first_scores = timed(score, seconds, repeats)
    compiling = {"adapt_first_s": first, "score_first_s": first_scores}
    return {"adapt_ms": 1e3 * adapting, "evaluated_per_s": tasks / scoring, **compiling}


def timed(call: Callable[[], Any], seconds: float, repeats: int) -> tuple[float, float]:
    """Seconds of one call, the median of some rounds, and of the first, which compiles."""

    def finished() -> None:
        jax.block_until_ready(jax.tree.leaves(eqx.filter(call(), eqx.is_array)))

    start = time.perf_counter()
    finished()
    first, rounds = time.perf_counter() - start, []
    for _ in range(repeats):
        start, calls = time.perf_counter(), 0
        while calls == 0 or time.perf_counter() - start < seconds / 2:
            finished()
            calls += 1
        rounds.append((time.perf_counter() - start) / calls)
    return median(rounds), first


def run_growth(options: argparse.Namespace) -> Iterator[dict[str, list[list[float | None]]]]:
    """Size, milliseconds of a step (of a prediction for `draws`), and on a CPU of processors; one thing changed at a
    time, and sizes take turns. All are compiled before the first is timed."""
    part = "cpu" if jax.default_backend() == "cpu" else "gpu"
    sizes = {what: values[:2] if options.tiny else values for what, values in GROWTH[part].items()}
    contenders = {
        what: [_drawing(value) if what == "draws" else _step_of(what, value, GROWTH_TASKS[part]) for value in values]
        for what, values in sizes.items()
    }
    longest_first = sorted(contenders, key=lambda what: what != "inner steps")
    warm_up_together([each for what in longest_first for each in reversed(contenders[what])], options.at_once)
    found: dict[str, list[list[float | None]]] = {}
    timing = {"seconds": options.seconds / 2, "repeats": min(options.repeats, 3)}
    for what, values in sizes.items():
        rows = measure(contenders[what], contenders[what][0].name, **timing)
        processor = [row.processor_ms if part == "cpu" else None for row in rows]
        found[what] = [list(each) for each in zip(values, [row.ms_per_step for row in rows], processor, strict=True)]
        yield found


def run_caches(options: argparse.Namespace) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """Microseconds of processors for one task of a step, by how many tasks there are: what grows faster than its size
    with many tasks, and not with one, does not fit into a cache."""
    found: dict[str, list[dict[str, Any]]] = {}
    for what, values in CACHES.items():
        cases = [(value, *tasks) for tasks in CACHE_TASKS for value in values]
        some = cases[:2] if options.tiny else cases
        contenders = [_step_of(what, value, tasks, chunk) for value, tasks, chunk in some]
        warm_up_together(contenders, options.at_once)
        rows = measure(contenders, contenders[0].name, seconds=options.seconds / 2, repeats=min(options.repeats, 5))
        found[what] = [
            {"size": value, "tasks": tasks, "at_a_time": chunk, "us_per_task": 1e3 * row.processor_ms / tasks}
            for (value, tasks, chunk), row in zip(some, rows, strict=True)
        ]
        yield found
    sizes = CACHES["inner steps"][:1] if options.tiny else CACHES["inner steps"]
    yield found | {"counted": [counted(steps) for steps in sizes]}


def counted(inner_steps: int, tasks: int = 5) -> dict[str, float]:
    """Operations and bytes of one task of a step, as the compiler counts them."""
    source, learner, config = _sizes("inner steps", inner_steps, tasks, None)
    # The body of the loop over steps is counted once.
    program = run_steps.lower(initial_state(learner, config), source, jr.key(0), jnp.arange(CHUNK), config).compile()
    cost = program.compiled.cost_analysis()
    mega = {name: cost[key] / 1e6 / tasks for name, key in (("mflop", "flops"), ("mbytes", "bytes accessed"))}
    return {"inner_steps": inner_steps, "tasks": tasks, **mega}


def _step_of(what: str, value: int, tasks: int, chunk: int | None = None) -> Contender:
    source, learner, config = _sizes(what, value, tasks, chunk)
    return library(str(value), learner, source, config)


def _sizes(what: str, value: int, tasks: int, chunk: int | None) -> tuple[Any, AbstractMetaLearner, TrainConfig]:
    sizes = {"tasks": tasks, "inner steps": 5, "shots": SHOTS, "width": 40} | {what: value}
    source = regression2d.Config(shots=sizes["shots"], query_size=QUERIES).open().train
    settings = maml.Config(hidden=(sizes["width"],) * 2, inner=InnerLoop(inner_steps=sizes["inner steps"]))
    config = TrainConfig(tasks_per_batch=sizes["tasks"], task_chunk=chunk)
    return source, settings.build(source.spec, key=jr.key(0)), config


def _drawing(draws: int) -> Contender:
    """Predictions of ST-MAML from so many draws, as if each were a step."""
    experiment = recipe("regression2d", OWN)
    train = experiment.benchmark_settings.open().train
    learner = experiment.method_settings.build(train.spec, key=jr.key(0))
    task = jax.tree.map(lambda leaf: leaf[0], train.sample(1, key=jr.key(1)).tasks)

    @eqx.filter_jit
    def ask(learner: Any, task: Any, key: jax.Array) -> Any:
        return predict(learner, task.support, task.query.x, key=key, num_samples=draws)

    keys = map(jr.key, itertools.count())

    def advance() -> np.ndarray:
        jax.block_until_ready(jax.tree.leaves(eqx.filter(ask(learner, task, next(keys)), eqx.is_array)))
        return np.zeros(1)

    return Contender(str(draws), advance, comparable=False)
