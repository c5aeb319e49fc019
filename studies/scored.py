"""What learners score alone and together, for all numbers of labelled examples.

    python studies/scored.py weather weather runs/tnp --together --data gsod.npz [--validation]
    python studies/scored.py regression2d regression2d runs/best --tasks 20000 --samples 20 100 [--keep FOLDER]

A learner is a run folder or the name of one that comes with the package. Weather is scored in both years; with
--validation on validation stations in the weeks of 2019 that `studies/timed.py --weeks` trains nobody on, by which to
choose. 2D regression is scored on both ranges of inputs. FOLDER gets the scores of each task, so that differences can
be paired."""

import argparse
import json
import re
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.random as jr
import numpy as np
from timed import rounded, tests, with_weeks_held_out

from stmaml import load_pretrained, pretrained_names
from stmaml.benchmarks.base import TEST_SEED, Benchmark
from stmaml.benchmarks.sources import TaskSet
from stmaml.evaluation import Scores, evaluate
from stmaml.experiments import load_experiment, load_learner
from stmaml.methods.base import AbstractMetaLearner
from stmaml.methods.committee import Committee
from stmaml.recipes import Experiment, recipe
from stmaml.recipes.base import with_changes
from stmaml.runs import Run

SHOWN = ("mse", "nll", "crps", "coverage90")
PRESETS = {"weather": "years", "regression2d": "best"}


def main() -> None:
    flags = parsed()
    experiment = recipe(flags.benchmark, "st-maml", PRESETS[flags.benchmark])
    if flags.benchmark == "weather":
        chosen: dict[str, Any] = {"years": (2019,), "val_shift": 0, "data": flags.data}
        experiment = with_changes(experiment, {f"benchmark_settings.{name}": value for name, value in chosen.items()})
    benchmark = experiment.benchmark_settings.open()
    learners = {name: opened(name, benchmark) for name in flags.learners}
    if flags.together:
        learners["together"] = Committee(tuple(learners.values()))
    for place, whole in sets(flags, experiment, benchmark):
        if flags.examples and int(re.findall(r"(\d+)(?: examples)?$", place)[0]) not in flags.examples:
            continue
        tasks = replace(whole, stored=jax.tree.map(lambda leaf: leaf[: flags.first], whole.stored))
        for name, learner in learners.items():
            for draws in flags.samples:
                found = evaluate(learner, tasks, num_samples=draws, key=jr.key(TEST_SEED))
                tell(place, tasks, name, draws, found)
                if flags.keep:
                    keep(flags.keep, f"{place} {Path(name).name} {draws}", found)


def sets(flags: Any, experiment: Experiment, benchmark: Benchmark) -> list[tuple[str, TaskSet]]:
    """The tasks to be scored on, by name."""
    if flags.validation:
        return [("validation weeks", with_weeks_held_out(benchmark).val_set(flags.tasks))]
    score = "weather" if flags.benchmark == "weather" else "shots"
    return tests(Namespace(score=score, tasks=flags.tasks), experiment, benchmark)


def opened(name: str, benchmark: Benchmark) -> AbstractMetaLearner:
    """A learner that comes with the package, or that of a run."""
    if name in pretrained_names():
        return load_pretrained(name)
    run = Run(Path(name))
    return load_learner(run, load_experiment(run), benchmark.train.spec)


def tell(place: str, tasks: TaskSet, name: str, draws: int, found: Scores) -> None:
    """A line of JSON."""
    scores = found.summary()
    about = {"event": "score", "test": place, "digest": tasks.digest, "learner": name, "draws": draws}
    print(json.dumps({**about, **{key: rounded(scores[key]) for key in SHOWN}}), flush=True)


def keep(folder: Path, name: str, found: Scores) -> None:
    """The scores of each task."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / f"{name}.npz", allow_pickle=False, **{key: found.values[key] for key in SHOWN})


def parsed() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", choices=list(PRESETS))
    parser.add_argument("learners", nargs="+")
    parser.add_argument("--together", action="store_true", help="and what they score as one")
    parser.add_argument("--data", help="gsod.npz, or where NOAA's files lie")
    parser.add_argument("--validation", action="store_true")
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--first", type=int, help="score this many of the tasks alone, the first ones")
    parser.add_argument("--examples", type=int, nargs="+", help="numbers of labelled examples, if not all")
    parser.add_argument("--samples", type=int, nargs="+", default=[20])
    parser.add_argument("--keep", type=Path)
    flags = parser.parse_args()
    if flags.validation and flags.benchmark != "weather":
        parser.error("--validation is of weather.")
    return flags


if __name__ == "__main__":
    main()
