"""Rows of the table of 2D regression on equal terms, both ranges of inputs and all seeds as one compiled program.

    python studies/equal_rows.py OUT ROW ... [--tasks 5000000] [--batch 200] [--seeds 3] [--until UNIX_SECONDS]

Every row has what `stmaml search` chose for it (its recipe where nothing was chosen), the same number of training
tasks, and the weights of its last step. OUT/rows.jsonl gets a line for each row, range and number of draws, with
intervals over seeds and test tasks; OUT/RANGE/ROW the run of seed 0, where its weights are few. A row that is not
ready in time leaves its state in OUT/states, from which --resume FOLDER goes on."""

import argparse
import json
import math
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from stmaml.benchmarks.base import TEST_SEED, Benchmark
from stmaml.benchmarks.regression2d import RANGES
from stmaml.evaluation import evaluate
from stmaml.experiments import create_runs, fresh, run_keys, scaling_for
from stmaml.metrics import of_each_task, summarise_crossed
from stmaml.recipes import RECIPES, Experiment
from stmaml.recipes.base import setting, with_changes
from stmaml.recipes.rows import row_recipe, searched
from stmaml.search.grid import TEST_STEPS, space_of
from stmaml.training import initial_state
from stmaml.training.state import bundle, unbundle
from stmaml.training.steps import run_each

CHUNK = 100  # steps in one call, over which the step size stays level
AT_ONCE, DRAWS = 1000, (20, 1)  # tasks scored at once; predictors sampled for each
FEW = 120_000  # weights of a run that is kept
TOLD = ("mse", "mse_clean", "nll", "crps", "coverage90")
Learners = list[tuple[tuple[float, float], int, Any]]


def main() -> None:
    flags = parsed()
    flags.out.mkdir(parents=True, exist_ok=True)
    for row in flags.rows:
        experiment = with_changes(
            searched(RECIPES, "regression2d", row) or row_recipe(RECIPES, "regression2d", row),
            {"training.tasks_per_batch": flags.batch, "training.steps": max(1, -(-flags.tasks // flags.batch))},
        )
        opened = {extent: _on(experiment, extent).benchmark_settings.open() for extent in RANGES}
        began = time.time()
        learners, steps, seconds = train(row, experiment, opened, flags)
        if flags.tasks and steps < experiment.training.steps:
            print(f"{row}: stopped at step {steps} of {experiment.training.steps}", flush=True)
            continue
        about = {"row": row, "seeds": flags.seeds, "trained_on": steps * flags.batch, "seconds": round(seconds, 1)}
        about |= {"parameters": _size(learners[0][2]), "settings": _told(experiment)}
        keep(row, experiment, opened, learners, flags.out)
        for draws in DRAWS:
            for line in scored(opened, learners, draws, flags):
                told = about | line | {"all_seconds": round(time.time() - began, 1)}
                with (flags.out / "rows.jsonl").open("a") as lines:
                    lines.write(json.dumps(told) + "\n")
                short = " ".join(f"{name} {one['mean']:.3f}±{one['ci95']:.3f}" for name, one in line["metrics"].items())
                print(f"{row} {line['range']} {draws} draws, {told['trained_on']:,} tasks: {short}", flush=True)


def _on(experiment: Experiment, extent: tuple[float, float]) -> Experiment:
    return with_changes(experiment, {"benchmark_settings.input_range": extent})


def begun(experiment: Experiment, opened: dict[Any, Benchmark], level: Any, places: list[Any]) -> tuple[Any, ...]:
    """Fresh learners of each range and seed, their states as one, where their tasks come from, and their keys."""
    made = []
    for extent, seed in places:
        scaling = scaling_for(_on(experiment, extent), opened[extent])
        made.append(fresh(experiment, opened[extent].train.spec, scaling, key=run_keys(seed)[0]))
    states = bundle([initial_state(learner, level) for learner in made])
    sources = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[opened[extent].movable for extent, _ in places])
    return made, states, sources, jnp.stack([run_keys(seed)[1] for _, seed in places])


def train(row: str, experiment: Experiment, opened: dict[Any, Benchmark], flags: Any) -> tuple[Learners, int, float]:
    """The learners of each range and seed, the steps they took and the seconds."""
    training = experiment.training
    level = replace(training, schedule="constant", warmup=0, outer_lr=1.0)
    places = [(extent, seed) for extent in RANGES for seed in range(flags.seeds)]
    made, states, sources, keys = begun(experiment, opened, level, places)
    states, step = resumed(states, row, flags)
    began, told, first, warming = time.time(), time.time(), step, None
    while (step < training.steps or not flags.tasks) and time.time() < flags.until:
        share = (step + CHUNK / 2) / training.steps if flags.tasks else (time.time() - began) / (flags.until - began)
        falling = 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))
        rates = jnp.full(len(places), training.outer_lr * falling)
        states = eqx.tree_at(lambda s: s.rate, states, rates)
        states, (losses, _, _) = run_each(states, sources, keys, step + jnp.arange(CHUNK), level)
        jax.block_until_ready(losses)  # else the clock would run ahead of the device
        if step == first:
            print(f"{row}: compiled in {time.time() - began:.0f} s", flush=True)
            began = time.time()
            ready = initial_state(made[0], level).learner
            warming = threading.Thread(target=warm, args=(ready, opened[RANGES[0]], flags))
            warming.start()
        step += CHUNK
        if time.time() - told > 20:
            told = time.time()
            each = ", ".join(f"{loss:.3f}" for loss in np.asarray(losses).mean(1))
            pace = (step - first) * training.tasks_per_batch * len(places) / (told - began)
            print(f"{row}: step {step} of {training.steps}, {pace:,.0f} tasks/s, losses {each}", flush=True)
    if warming is not None:
        warming.join()
    if flags.tasks and step < training.steps:
        path = flags.out / "states" / f"{row}-{step}.eqx"
        path.parent.mkdir(exist_ok=True)
        eqx.tree_serialise_leaves(path, eqx.filter(states, eqx.is_array))
    learners = [state.learner for state in unbundle(states, len(places))]
    trees = [eqx.combine(eqx.filter(new, eqx.is_array), old) for new, old in zip(learners, made, strict=True)]
    return [(*place, one) for place, one in zip(places, trees, strict=True)], step, time.time() - began


def warm(learner: Any, benchmark: Benchmark, flags: Any) -> None:
    """Compiles what will score, while others train."""
    some = benchmark.test_set(min(AT_ONCE, flags.test_tasks))
    for draws in DRAWS:
        evaluate(learner, some, num_samples=draws, key=jr.key(TEST_SEED), tasks_at_once=some.num_tasks)


def resumed(states: Any, row: str, flags: Any) -> tuple[Any, int]:
    """The states that an earlier attempt left, and its steps; else those given."""
    found = sorted(flags.resume.glob(f"{row}-[0-9]*.eqx")) if flags.resume else []
    if not found:
        return states, 0
    kept = eqx.tree_deserialise_leaves(found[-1], eqx.filter(states, eqx.is_array))
    return eqx.combine(kept, states), int(found[-1].stem.rpartition("-")[2])


def _told(experiment: Experiment) -> dict[str, Any]:
    """The settings that the search is about."""
    paths = [path for path in space_of(experiment) if path != TEST_STEPS]
    inner = getattr(experiment.method_settings, "inner", None)
    return {path: setting(experiment, path) for path in paths} | ({"test_steps": inner.test_steps} if inner else {})


def _size(learner: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(learner, eqx.is_inexact_array)))


def keep(row: str, experiment: Experiment, opened: dict[Any, Benchmark], learners: Learners, out: Path) -> None:
    """Runs of seed 0, where weights are few."""
    for extent, seed, learner in learners:
        if seed == 0 and _size(learner) <= FEW:
            folder = out / f"{extent[0]:g}..{extent[1]:g}" / row
            (run,) = create_runs(_on(experiment, extent), opened[extent], folder, [seed], force=True)
            run.save_learner(learner)


def scored(opened: dict[Any, Benchmark], learners: Learners, draws: int, flags: Any) -> Any:
    """A line for each range."""
    for extent, benchmark in opened.items():
        tests, values = benchmark.test_set(flags.test_tasks), []
        for place, _, learner in learners:
            if place == extent:
                key, at_once = jr.key(TEST_SEED), min(AT_ONCE, flags.test_tasks)
                values.append(evaluate(learner, tests, num_samples=draws, key=key, tasks_at_once=at_once).values)
        each = {name: np.stack([of_each_task(one[name]) for one in values]) for name in TOLD}
        yield {
            "range": extent,
            "draws": draws,
            "tasks": flags.test_tasks,
            "digest": tests.digest,
            "metrics": {name: summarise_crossed(one) for name, one in each.items()},
            "medians": {name: float(np.median(one.mean(0))) for name, one in each.items()},
            "by_seed": {name: one.mean(1).tolist() for name, one in each.items()},
        }


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("rows", nargs="+")
    parser.add_argument("--tasks", type=int, default=5_000_000, help="of each learner; 0: as many as --until allows")
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--test-tasks", type=int, default=20_000)
    parser.add_argument("--resume", type=Path, help="folder of states that an earlier attempt left")
    parser.add_argument("--until", type=float, default=math.inf)
    return parser.parse_args()


if __name__ == "__main__":
    main()
