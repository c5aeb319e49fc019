"""What the learners of several runs score when they answer as one."""

from collections.abc import Sequence
from dataclasses import replace

import jax
import numpy as np

from stmaml.benchmarks.base import Benchmark
from stmaml.errors import SettingError
from stmaml.experiments.scoring import Scored, Test, learner_in_test, score_on, tests_of
from stmaml.experiments.settings import EvaluateConfig, load_experiment
from stmaml.methods.committee import Committee
from stmaml.runs import Run

OF_ONE = ("seed", "preset", "inner_steps")  # what a summary says of a single run


def score_together(runs: Sequence[Run], config: EvaluateConfig, benchmark: Benchmark) -> Scored:
    """Scores a committee of several runs' learners on the tasks of the first. Nothing is saved: these are scores of no
    single run."""
    if benchmark.labelled:
        raise SettingError("runs of a table answer together in a pool: stmaml fit TABLE --members NAME NAME.")
    experiments = [load_experiment(run) for run in runs]
    name = experiments[0].benchmark
    (test,) = tests_of(benchmark, name, config)
    learners = []
    for run, experiment in zip(runs, experiments, strict=True):
        own = benchmark.vary(config.of(experiment)) if experiment.benchmark == name else None
        if own is None or not _alike(test, tests_of(own, name, config)[0]):
            raise SettingError(
                f"{run.folder} and {runs[0].folder} are not tested on the same tasks, shown in the same way, so they "
                "cannot answer together. Give runs of one benchmark with the same inputs."
            )
        learners.append(learner_in_test(run, experiment, config, own))
    scored = score_on(runs[0], test, config, benchmark, Committee(tuple(learners)))
    told = {key: value for key, value in scored.summary.items() if key not in OF_ONE}
    methods = " + ".join(experiment.method for experiment in experiments)
    return replace(scored, summary={**told, "method": methods, "runs": [str(run.folder) for run in runs]})


def _alike(test: Test, other: Test) -> bool:
    """Whether two tests have the same tasks and show them in the same way."""
    if (test.conditions, test.tasks.digest) != (other.conditions, other.tasks.digest):
        return False
    one, two = (jax.tree.leaves(next(each.tasks.chunks(1))) for each in (test, other))
    return len(one) == len(two) and all(map(np.array_equal, one, two))
