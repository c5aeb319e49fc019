"""Short trainings that must beat a named baseline by more than chance."""

import jax.random as jr
import numpy as np
import pytest

from stmaml.benchmarks.sources import freeze
from stmaml.evaluation import evaluate
from stmaml.experiments import create_runs, train_runs
from stmaml.metrics import paired_difference
from stmaml.recipes import recipe
from stmaml.reproduction import Budget, Cell, cells

pytestmark = pytest.mark.slow


def test_st_maml_beats_maml_and_the_support_mean_on_six_families(tmp_path):
    """On 300 new tasks, after 3,000 steps each: by more than two standard errors of the paired difference."""
    benchmark = recipe("regression2d", "maml").benchmark_settings.open()
    tasks = freeze(benchmark.test, 300, seed=9)
    errors = {}
    for cell in cells("regression2d", benchmark, Budget(3000, 1, 300), only=("maml", "st-maml")):
        assert isinstance(cell, Cell)
        runs = create_runs(cell.experiment, benchmark, tmp_path / cell.name, [0])
        (learner,) = train_runs(runs, cell.experiment, benchmark)
        errors[cell.name] = evaluate(learner, tasks, num_samples=5, key=jr.key(0)).values["mse"]
    batch = tasks.batch.tasks
    mean = np.asarray(batch.support.y).mean(1, keepdims=True)
    errors["support mean"] = np.square(np.asarray(batch.query.y) - mean).mean((1, 2))
    for baseline in ("maml", "support mean"):
        gain = paired_difference(errors[baseline], errors["st-maml"])
        assert gain["mean"] > 2 * gain["ci95"] / 1.96
