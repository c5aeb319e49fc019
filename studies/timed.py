"""Trains a recipe for a given time, with a step size that follows the clock, and scores what came of it.

    python studies/timed.py weather st-maml years --run runs/years --seconds 300 --data gsod.npz \
      --set benchmark_settings.years=(2019,) training.tasks_per_batch=128 --score weather
    python studies/timed.py regression2d st-maml best --run runs/best --seconds 300 --score shots --samples 20 100

    python studies/timed.py weather tnp years ... --programs PROGRAMS --ahead      for a GPU that is not here

For a machine that is lent by the minute: the step size goes down to zero along a half cosine of the time that is left,
whatever a step takes there. The learner that does best on validation tasks, its weights as they are or as a running
mean, is kept in a run folder like any other. Every result is a line of JSON as soon as it is there."""

import argparse
import ast
import json
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from ahead import Programs
from clock import falling, parameters
from timed_steps import Fewer, Steps, name_of
from training_rows import here, on_host

from stmaml.benchmarks.base import TEST_SEED, Benchmark
from stmaml.benchmarks.regression2d import RANGES
from stmaml.benchmarks.sources import TaskSet
from stmaml.evaluation import evaluate
from stmaml.experiments import EvaluateConfig, create_runs, fresh, run_keys, scaling_for, tests_of
from stmaml.methods.base import AbstractMetaLearner
from stmaml.recipes import Experiment, recipe
from stmaml.recipes.base import with_changes
from stmaml.run_files import read_arrays, read_json
from stmaml.runs import Run, write_json
from stmaml.tasks import Task, pad
from stmaml.training import State, initial_state

SHOTS = (2, 5, 10, 20, 40)  # labelled days of weather
FEW = (10, 2, 5, 1, 20)  # examples of 2D regression
SCORES = ("mse", "nll", "crps", "coverage90", "bce", "bce_single", "bce_unseen", "diversity", "accuracy")
MEAN_OF = 40  # chunks of steps that a running mean of the weights is of, about
LOOKS = np.arange(1, 10) / 10  # parts of the time after which validation tasks are looked at, and at the end


def main() -> None:
    flags = parsed()
    began = time.time()
    experiment = timed(with_changes(recipe(flags.benchmark, flags.method, flags.preset), flags.set))
    with on_host():
        benchmark = experiment.benchmark_settings.open()
        if flags.weeks:
            benchmark = with_weeks_held_out(benchmark)
    if flags.ahead:
        return compile_ahead(flags, experiment, benchmark)
    (run,) = create_runs(experiment, benchmark, flags.run, [flags.seed], force=True)
    end = flags.until if flags.until else began + flags.seconds
    tell(flags, event="open", seconds=time.time() - began)
    learner, steps = train(flags, run, experiment, benchmark, end)
    config = read_json(run.config_path)
    config["training"] |= {"steps": steps, "schedule": "cosine"}
    write_json(run.config_path, config)
    for name, tasks in tests(flags, experiment, benchmark):
        for draws in flags.samples:
            result = evaluate(learner, tasks, num_samples=draws, key=jr.key(TEST_SEED)).summary()
            shown = {k: rounded(v) for k, v in result.items() if k in SCORES}
            tell(flags, event="score", test=name if draws == flags.samples[0] else f"{name}, {draws} draws", **shown)


def parsed() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("benchmark", "method", "preset"):
        parser.add_argument(name)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60.0, help="of opening, compiling and training together")
    parser.add_argument("--until", type=float, default=0.0, help="when training ends, in seconds since 1970, instead")
    parser.add_argument("--steps", type=int, default=0, help="most steps, if the time allows more")
    parser.add_argument("--start", type=Path, help="weights to begin with, of a learner of the same settings")
    parser.add_argument("--set", nargs="*", default=[], help="settings by their path: training.outer_lr=0.002")
    parser.add_argument("--data")
    parser.add_argument("--score", choices=["none", "weather", "shots", "test"], default="test")
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--samples", type=int, nargs="+", default=[20])
    parser.add_argument("--chunk", type=int, default=50, help="steps in one compiled call")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--programs", type=Path, help="folder of compiled programs")
    parser.add_argument("--ahead", action="store_true", help="compile them for a GPU that is not here, and end")
    parser.add_argument("--few", type=float, default=0.0, help="share of training tasks with five examples or fewer")
    parser.add_argument("--weeks", action="store_true", help="weather: validation tasks are of weeks not trained on")
    flags = parser.parse_args()
    flags.set = {name: ast.literal_eval(value) for name, _, value in (each.partition("=") for each in flags.set)}
    if flags.data:
        flags.set["benchmark_settings.data"] = flags.data
    return flags


def timed(experiment: Experiment) -> Experiment:
    """The experiment with a step size that is level but for its warm-up: the clock lowers it."""
    return replace(experiment, training=replace(experiment.training, schedule="constant", steps=1_000_000_000))


def train(
    flags: Any, run: Run, experiment: Experiment, benchmark: Benchmark, end: float
) -> tuple[AbstractMetaLearner, int]:
    """The learner that did best on validation tasks, saved whenever it improves, and how many steps were taken."""
    metric = experiment.training.val_metric
    state, steps = begun(flags, experiment, benchmark)
    tell(flags, event="built", parameters=parameters(state.learner))
    step, best, kept, mean, looks, start = 0, math.inf, state.learner, state.learner, list(LOOKS), 0.0
    while True:
        part = 0.0 if not start else 1.0 if time.time() >= end else (time.time() - start) / (end - start)
        part = max(part, min(step / flags.steps, 1.0)) if flags.steps else part
        due = bool(looks) and part >= looks[0]
        if due or part >= 1.0:
            looks = [look for look in looks if look > part]
            for name, one in (("last", state.learner), ("mean", mean)):
                scores = steps.judged(one)
                shown = {k: rounded(v) for k, v in scores.items() if k in SCORES}
                tell(flags, event="validation", step=step, weights=name, **shown)
                if scores[metric]["mean"] < best:
                    best, kept = scores[metric]["mean"], one
                    run.save_learner(kept)
        if part >= 1.0:
            return kept, step
        share = 1 / min(step // flags.chunk + 1, MEAN_OF)
        state, mean, told = steps.moved(state, mean, falling(part), share, step)
        step += flags.chunk
        if not start:
            steps.judged(mean)  # so that it is compiled
            start = time.time()
            tell(flags, event="compiled", until=end - start)
        if step % (flags.chunk * 40) == 0:
            pace = (step - flags.chunk) / (time.time() - start)
            tell(flags, event="step", step=step, pace=round(pace, 1), **told)
        if not told["finite"]:
            raise SystemExit(f"{flags.run}: the loss is not finite at step {step}")


def begun(flags: Any, experiment: Experiment, benchmark: Benchmark) -> tuple[State, Steps]:
    """Where training starts, and the programs that it is made of."""
    config, (init_key, train_key) = experiment.training, run_keys(flags.seed)
    with on_host():
        learner = fresh(experiment, benchmark.train.spec, scaling_for(experiment, benchmark), key=init_key)
        learner = with_weights(learner, read_arrays(flags.start)) if flags.start else learner
        state = initial_state(learner, config)
        keys = train_key, jr.fold_in(train_key, 1)
    name = f"{name_of(experiment)}-{flags.chunk}" + (f"-{flags.few}" if flags.few else "")
    source = Fewer(benchmark.train, flags.few) if flags.few else benchmark.train
    there = replace(benchmark, train=here(source))
    return here(state), Steps(name, Programs(flags.programs), config, there, here(keys[0]), here(keys[1]), flags.chunk)


def compile_ahead(flags: Any, experiment: Experiment, benchmark: Benchmark) -> None:
    """The programs of a training, for a GPU that is not here."""
    state, steps = begun(flags, experiment, benchmark)
    steps.programs.ahead(*steps.stepping(state, state.learner, 1.0, 1.0, 0))
    steps.programs.ahead(*steps.judging(state.learner, 0))


def with_weights(learner: AbstractMetaLearner, arrays: Mapping[str, np.ndarray]) -> AbstractMetaLearner:
    """The learner with saved weights, of whatever precision."""

    def pick(path: jax.tree_util.KeyPath, leaf: jax.Array) -> jax.Array:
        return jnp.asarray(arrays[jax.tree_util.keystr(path, simple=True, separator=".")], dtype=leaf.dtype)

    weights, rest = eqx.partition(learner, eqx.is_inexact_array)
    return eqx.combine(jax.tree_util.tree_map_with_path(pick, weights), rest)


def tests(flags: Any, experiment: Experiment, benchmark: Benchmark) -> list[tuple[str, TaskSet]]:
    """Test tasks by name. Of weather: in both years and for all numbers of labelled days, as sets of one shape. Of 2D
    regression, with `shots`: on both ranges and for several numbers of examples."""
    if flags.score == "none":
        return []
    if flags.score == "shots":
        return [one for extent in RANGES for one in at_few_shots(flags, experiment, extent)]
    if flags.score == "test":
        return [("test", benchmark.test_set(flags.tasks))]
    found = []
    for year in (2022, 2019):
        settings: Any = replace(experiment.benchmark_settings, shots=max(SHOTS), test_years=(year,))
        whole = settings.open(benchmark.shelf).test_set(flags.tasks)
        found += [(f"{year}-{shots}", whole.with_shots(shots)) for shots in SHOTS]
    return sorted(found, key=lambda each: not each[0].endswith("-10"))


def at_few_shots(flags: Any, experiment: Experiment, extent: tuple[float, float]) -> list[tuple[str, TaskSet]]:
    """Test tasks on one range, with each number of examples padded to the largest: one program scores them all."""
    found = []
    for shots in FEW:
        config = EvaluateConfig(tasks=flags.tasks, shots=shots)
        settings = config.of(with_changes(experiment, {"benchmark_settings.input_range": extent}))
        (test,) = tests_of(settings.open(), experiment.benchmark, config)
        given = test.tasks.batch.tasks
        support = jax.tree.map(np.asarray, jax.vmap(lambda one: pad(one, max(FEW)))(given.support))
        stored = eqx.tree_at(lambda b: b.tasks, test.tasks.stored, Task(support, given.query))
        found.append((f"{extent[0]:g} to {extent[1]:g}, {shots} examples", replace(test.tasks, stored=stored)))
    return found


def with_weeks_held_out(benchmark: Any) -> Any:
    """Weather whose training tasks leave out every sixth fortnight, of which validation tasks are made: as of another
    year, no training station has had their weather."""
    train = eqx.tree_at(lambda source: source.days, benchmark.train, fortnights(benchmark.train, held_out=False))
    val = eqx.tree_at(lambda source: source.days, benchmark.val, fortnights(benchmark.val, held_out=True))
    return replace(benchmark, train=train, val=val)


def fortnights(source: Any, *, held_out: bool) -> Any:
    """The days of a source in every sixth fortnight, or in the others; files with few of them are left out."""
    days, fewest = source.days, source.sizes.shots + 20
    chosen = ((np.asarray(days.day) // 14) % 6 == 5) == held_out
    first, count = np.asarray(days.first), np.asarray(days.count)
    left = np.add.reduceat(chosen.astype(np.int32), first)
    files = np.flatnonzero(left >= fewest)
    rows = np.concatenate([first[f] + np.flatnonzero(chosen[first[f] : first[f] + count[f]]) for f in files])
    left = left[files].astype(np.int32)
    by_row = {name: getattr(days, name)[rows] for name in ("readings", "day", "flags")}
    by_file = {name: getattr(days, name)[files] for name in ("elevation", "last_day", "band", "file")}
    starts = (np.cumsum(left) - left).astype(np.int32)
    return replace(days, **by_row, **by_file, first=jnp.asarray(starts), count=jnp.asarray(left))


def rounded(summary: Any) -> list[float]:
    return [round(float(summary["mean"]), 4), round(float(summary["ci95"]), 4)]


def tell(flags: Any, **what: Any) -> None:
    plain = {k: round(v, 4) if isinstance(v, float) else v for k, v in what.items()}
    print(json.dumps({"run": flags.run.name, "t": int(time.time()) % 10_000, **plain}), flush=True)


if __name__ == "__main__":
    main()
