"""The search behind the recipes: step sizes and KL weights of a method, all trained side by side as one program.

python studies/search.py regression2d --method maml [--preset paper] [--inner-steps 5] [--inner-lr 1e-3 1e-2]
    [--outer-lr 1e-3 3e-3] [--kl-weight 0.003 0.025] [--input-range 0 5 --input-range -5 5] [--steps 8000]
    [--set method_settings.encoder.z_size=64 benchmark_settings.query_size=10 training.tasks_per_batch=200]
    [--shots 10 5 2] [--samples 1] [--json FILE]

Scores are on validation tasks; test tasks are never drawn. All combinations share one initialisation and the same
tasks. The schedule runs to its end within `--steps`, so a short search says which step sizes learn fast.
"""

import argparse
import copy
import dataclasses
import itertools
import json
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from stmaml.benchmarks.base import VAL_SEED
from stmaml.benchmarks.sources import TaskSource
from stmaml.evaluation import evaluate
from stmaml.experiments import fresh, scaling_for
from stmaml.inner import InnerLoop
from stmaml.methods.base import AbstractMetaLearner
from stmaml.methods.meta_sgd import MetaSGD
from stmaml.methods.wrapper import with_settings
from stmaml.recipes import Experiment, recipe
from stmaml.tasks import Task, TaskBatch
from stmaml.training import State, initial_state, run_steps, unbundle

CHUNK = 500


class TracedInner(InnerLoop):
    """An inner loop that does not compare its step size, which may be traced, with numbers."""

    def __post_init__(self):
        pass


class Varied(AbstractMetaLearner):
    """A learner whose inner step size and KL weight are numbers of the compiled program, not settings."""

    learner: AbstractMetaLearner
    inner_lr: jax.Array | None
    kl_weight: jax.Array | None

    def loss(self, task: Task, *, key):
        return with_settings(self.learner, self._vary).loss(task, key=key)

    def adapt(self, support, *, num_samples, key):
        return with_settings(self.learner, self._vary).adapt(support, num_samples=num_samples, key=key)

    def _vary(self, settings: Any) -> Any:
        if self.inner_lr is not None:
            inner = unchecked(TracedInner(), **vars(settings.inner))
            inner = unchecked(inner, inner_lr=jax.lax.stop_gradient(self.inner_lr))
            settings = unchecked(settings, inner=inner)
        if self.kl_weight is not None:
            settings = unchecked(settings, kl_weight=jax.lax.stop_gradient(self.kl_weight))
        return settings


class AnyRange(eqx.Module):
    """A source of regression2d whose input range is a number of the compiled program."""

    source: Any
    low: jax.Array
    high: jax.Array

    @property
    def spec(self):
        return self.source.spec

    def sample(self, num_tasks: int, *, key) -> TaskBatch:
        settings = unchecked(self.source.settings, input_range=(self.low, self.high))
        return dataclasses.replace(self.source, settings=settings).sample(num_tasks, key=key)


def unchecked(settings: Any, **changes: Any) -> Any:
    """A copy of frozen settings with traced values in it, which its own checks could not compare."""
    changed = copy.copy(settings)
    for name, value in changes.items():
        object.__setattr__(changed, name, value)
    return changed


def main() -> None:
    flags = parse()
    base = changed(recipe(flags.benchmark, flags.method, flags.preset), flags)
    grid = combinations(base, flags)
    started = time.monotonic()
    tasks = {one["range"]: in_range(base, one["range"]).benchmark_settings for one in grid}
    benchmarks: dict[Any, Any] = {extent: task.open() for extent, task in tasks.items()}
    first = benchmarks[grid[0]["range"]]
    states, sources, keys = [], [], []
    for one in grid:
        benchmark = benchmarks[one["range"]]
        learner = fresh(base, benchmark.train.spec, scaling_for(base, benchmark), key=jr.key(flags.seed))
        state = initial_state(vary(learner, one, base), base.training)
        states.append(eqx.tree_at(lambda s: s.rate, state, jnp.asarray(one["outer_lr"] / base.training.outer_lr)))
        sources.append(ranged(benchmark.train, one["range"]))
        keys.append(jr.key(flags.seed))
    bundle = stack(states)
    source = first.train if grid[0]["range"] is None else stack(sources)
    run = compiled(base, shared=grid[0]["range"] is None)
    for start in range(0, base.training.steps, CHUNK):
        steps = jnp.arange(start, min(start + CHUNK, base.training.steps))
        bundle, _ = run(bundle, source, jnp.stack(keys), steps)
    jax.block_until_ready(bundle.rate)
    trained = time.monotonic() - started
    print(f"trained {len(grid)} x {base.training.steps} steps in {trained:.0f} s", flush=True)
    results = [
        {**one, "method": flags.method, "name": flags.name, "inner_steps": steps_of(base), "shots": shots, **scores}
        for shots in flags.shots or [None]
        for one, scores in zip(grid, score(unbundle(bundle, len(grid)), grid, tasks, shots, flags), strict=True)
    ]
    for row in sorted(results, key=lambda row: (str(row["range"]), str(row["shots"]), row.get("mse", 0.0))):
        print(json.dumps(row))
    if flags.json is not None:
        flags.json.write_text(json.dumps({"seconds": trained, "settings": str(base), "results": results}, indent=1))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark")
    parser.add_argument("--method", default="st-maml")
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--name", default="", help="what to call this search in its results")
    parser.add_argument("--inner-steps", type=int)
    for name in ("--inner-lr", "--outer-lr", "--kl-weight"):
        parser.add_argument(name, type=float, nargs="+", default=[])
    parser.add_argument("--input-range", type=float, nargs=2, action="append", default=[])
    parser.add_argument("--set", nargs="+", default=[], metavar="PATH.NAME=JSON")
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--shots", type=int, nargs="+")
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--val-tasks", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def changed(experiment: Any, flags: argparse.Namespace) -> Experiment:
    """The recipe with what the command line changes."""
    for setting in flags.set:
        path, value = setting.split("=", 1)
        parsed = json.loads(value)
        experiment = replaced(experiment, path.split("."), tuple(parsed) if isinstance(parsed, list) else parsed)
    if flags.inner_steps is not None:
        experiment = replaced(experiment, ["method_settings", "inner", "inner_steps"], flags.inner_steps)
    return replaced(experiment, ["training", "steps"], flags.steps)


def replaced(settings: Any, path: list[str], value: Any) -> Any:
    """Settings with one of them changed, however deep it lies."""
    name, *rest = path
    return dataclasses.replace(settings, **{name: replaced(getattr(settings, name), rest, value) if rest else value})


def combinations(base: Any, flags: argparse.Namespace) -> list[dict[str, Any]]:
    """Every combination asked for; what a method does not have stays None."""
    inner = flags.inner_lr if hasattr(base.method_settings, "inner") else []
    kl = flags.kl_weight if hasattr(base.method_settings, "kl_weight") else []
    ranges = [tuple(extent) for extent in flags.input_range]
    return [
        {"inner_lr": inner_lr, "outer_lr": outer_lr, "kl_weight": weight, "range": extent}
        for inner_lr, outer_lr, weight, extent in itertools.product(
            inner or [None], flags.outer_lr or [base.training.outer_lr], kl or [None], ranges or [None]
        )
    ]


def in_range(base: Any, extent: tuple[float, float] | None) -> Any:
    if extent is None:
        return base
    return dataclasses.replace(
        base, benchmark_settings=dataclasses.replace(base.benchmark_settings, input_range=extent)
    )


def ranged(source: TaskSource, extent: tuple[float, float] | None) -> Any:
    if extent is None:
        return source
    return AnyRange(source, jnp.asarray(extent[0]), jnp.asarray(extent[1]))


def vary(learner: Any, one: dict[str, Any], base: Any) -> Varied:
    if isinstance(learner, MetaSGD) and one["inner_lr"] is not None:  # its rates start from inner_lr, then are learnt
        factor = one["inner_lr"] / base.method_settings.inner.inner_lr
        return Varied(dataclasses.replace(learner, alpha=jax.tree.map(lambda a: a * factor, learner.alpha)), None, None)
    number = {name: None if one[name] is None else jnp.asarray(one[name]) for name in ("inner_lr", "kl_weight")}
    return Varied(learner, number["inner_lr"], number["kl_weight"])


def stack(parts: list[Any]) -> Any:
    """Same-shaped trees as one with a leading axis; statics as in the first."""
    arrays = [eqx.filter(part, eqx.is_array) for part in parts]
    stacked = [jnp.stack(leaves) for leaves in zip(*(jax.tree.leaves(part) for part in arrays), strict=True)]
    return eqx.combine(
        jax.tree.unflatten(jax.tree.structure(arrays[0]), stacked),
        eqx.filter(parts[0], lambda leaf: not eqx.is_array(leaf)),
    )


def compiled(base: Experiment, *, shared: bool) -> Any:
    def run(state: State, source: Any, key, steps):
        state, (_, _, finite) = run_steps(state, source, key, steps, base.training)
        return state, finite

    return eqx.filter_jit(eqx.filter_vmap(run, in_axes=(eqx.if_array(0), None if shared else eqx.if_array(0), 0, None)))


def score(states: list[State], grid: list, tasks: dict, shots: int | None, flags: argparse.Namespace) -> list[dict]:
    """Validation scores of each combination."""
    tests = {extent: task.at_test(flags.benchmark, shots=shots).open() for extent, task in tasks.items()}
    sets = {extent: benchmark.val_set(flags.val_tasks) for extent, benchmark in tests.items()}
    scores = []
    for one, state in zip(grid, states, strict=True):
        result = evaluate(
            state.learner,
            sets[one["range"]],
            num_samples=flags.samples,
            key=jr.key(VAL_SEED),
            tasks_at_once=flags.val_tasks,
        )
        means = {name: round(float(values.mean()), 4) for name, values in result.values.items()}
        median = {
            f"{name}_median": round(float(np.median(result.values[name])), 4) for name in ("mse",) if name in means
        }
        scores.append({**means, **median})
    return scores


def steps_of(base: Any) -> int | None:
    return base.method_settings.inner.inner_steps if hasattr(base.method_settings, "inner") else None


if __name__ == "__main__":
    main()
