"""Run folders of an experiment: created, trained, resumed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
from jaxtyping import PRNGKeyArray

from stmaml.benchmarks.base import Benchmark
from stmaml.errors import RunError
from stmaml.experiments.learners import fresh, run_keys, scaling_for, scaling_of
from stmaml.experiments.settings import describe, load_experiment
from stmaml.locks import check_unlocked, locked
from stmaml.methods.base import AbstractMetaLearner
from stmaml.provenance import provenance
from stmaml.recipes import Experiment
from stmaml.runs import Run, as_json, held_runs, newest_common_checkpoint
from stmaml.training import Observer, Recorder, initial_state, train_learners
from stmaml.training.devices import ONE_DEVICE, Layout


def run_folders(folder: Path, seeds: list[int]) -> list[Run]:
    """Where the runs go: the folder itself for one seed, a folder below it for each of several."""
    return [Run(folder)] if len(seeds) == 1 else [Run(folder / f"seed-{seed}") for seed in seeds]


def create_runs(
    experiment: Experiment, benchmark: Benchmark, folder: Path, seeds: list[int], *, force: bool = False
) -> list[Run]:
    """The run folders of an experiment, with their settings written."""
    runs = run_folders(folder, seeds)
    held = held_runs(folder)
    for run in () if force else held:  # all or none
        run.check_free()
    for run in held:
        check_unlocked(run.folder)
    scaling = scaling_for(experiment, benchmark)
    eqx.filter_eval_shape(lambda: fresh(experiment, benchmark.train.spec, scaling))  # refuses what cannot be
    for run in held:
        if run not in runs:  # else the folder would be read as those seeds, or as that one run
            run.remove()
    opened = replace(experiment, benchmark_settings=benchmark.settings)  # a table then knows its columns
    for run, seed in zip(runs, seeds, strict=True):
        about = {**provenance(), **describe(opened, seed), "scaling": None if scaling is None else as_json(scaling)}
        run.create(about, force=force)
    return runs


def train_runs(
    runs: list[Run],
    experiment: Experiment,
    benchmark: Benchmark,
    *,
    observers: Sequence[Observer] = (),
    should_stop: Callable[[], bool] = lambda: False,
    layout: Layout = ONE_DEVICE,
) -> list[AbstractMetaLearner]:
    """Trains the runs side by side, from their newest checkpoint if they have one, and saves as it goes. While it does,
    the folders are locked: a second writer is refused. What a run was trained on so far, it need not go on with."""
    with locked([run.folder for run in runs]) as locks:
        seen = (locks, Recorder(runs), *observers)  # the locks first: who has lost them writes no more
        return _train_locked(runs, experiment, benchmark, seen, should_stop, layout)


def _train_locked(
    runs: list[Run],
    experiment: Experiment,
    benchmark: Benchmark,
    observers: Sequence[Observer],
    should_stop: Callable[[], bool],
    layout: Layout,
) -> list[AbstractMetaLearner]:
    for run in runs:
        _check_same(run, experiment)
    training, scaling = experiment.training, scaling_of(runs[0], benchmark.own_scaling)
    keys = [_keys_of(run) for run in runs]
    learners = [fresh(experiment, benchmark.train.spec, scaling, key=init_key) for init_key, _ in keys]
    start = newest_common_checkpoint(runs, [initial_state(learner, training) for learner in learners])
    for run in runs:
        run.sweep()
        run.trim_log(start[0] if start else -1)
    if start is None or start[0] < training.steps:
        source, val = benchmark.train, benchmark.val_set(training.val_tasks)
        train_keys = [train_key for _, train_key in keys]
        how: Any = {"observers": observers, "start": start, "should_stop": should_stop, "layout": layout}
        train_learners(learners, source, val, training, keys=train_keys, **how)
    trained = [run.load_learner(learner) for run, learner in zip(runs, learners, strict=True)]
    if benchmark.aftercare is not None:
        for run, learner in zip(runs, trained, strict=True):
            benchmark.aftercare.finish(learner, run.folder)
    return trained


def _check_same(run: Run, experiment: Experiment) -> None:
    """Raises RunError where the folder, locked by now, holds the settings of another learner than is to be trained."""
    held = load_experiment(run)
    pairs = zip(
        (held.method, held.method_settings, held.modelling),
        (experiment.method, experiment.method_settings, experiment.modelling),
        strict=True,
    )
    if any(one != other for one, other in pairs):
        raise RunError(
            f"{run.folder} holds other settings by now: another process has made it anew. Choose another --run."
        )


def _keys_of(run: Run) -> tuple[PRNGKeyArray, PRNGKeyArray]:
    """Those a run began with, so that it goes on with them."""
    config = run.config()
    return run_keys(config["seed"], as_in=config.get("keys"))
