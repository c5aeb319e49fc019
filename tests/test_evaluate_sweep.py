"""`evaluate --sweep`: which numbers of examples, and what is printed of them."""

import dataclasses

import pytest

from stmaml.benchmarks import regression2d
from stmaml.cli.sweep import show_sweep, swept
from stmaml.errors import SettingError
from stmaml.experiments import EvaluateConfig


def summary(shots: int, *, floor: bool = True) -> dict:
    """Scores as `evaluate_run` gives them, as far as they are shown."""
    scores = {"mse": 0.2 * shots, "crps": 0.1, "nll": 0.5, "coverage90": 0.875}
    metrics = {name: {"mean": value, "ci95": 0.01} for name, value in scores.items()}
    limit = {"name": "Bayes limit", "metrics": {"mse": {"mean": 0.1}, "nll": {"mean": 0.25}}}
    about = {"method": "st-maml", "benchmark": "regression2d", "tasks": 1000, "samples": 20}
    return {
        **about,
        "conditions": {"tasks": {"shots": shots}},
        "metrics": metrics,
        **({"floor": limit} if floor else {}),
    }


def test_the_number_of_training_is_tested_as_if_none_was_given():
    """Since figures are drawn of that test alone."""
    benchmark = regression2d.Config(shots=5).open()
    assert [config.shots for config in swept(EvaluateConfig(tasks=7), benchmark)] == [1, 2, None, 10]
    assert {config.tasks for config in swept(EvaluateConfig(tasks=7), benchmark)} == {7}


def test_scores_stand_beside_their_limits(capsys):
    show_sweep([summary(1), summary(10)], as_json=False)
    said = capsys.readouterr().out
    lines = [line.split() for line in said.splitlines()]
    assert ["1", "0.200", "0.100", "0.500", "0.250", "87.5", "%"] in lines
    assert ["10", "2.000", "0.100", "0.500", "0.250", "87.5", "%"] in lines
    assert "crps" not in said
    assert "Bayes limit" in said


def test_without_limits_all_scores_are_shown(capsys):
    show_sweep([summary(1, floor=False)], as_json=False)
    said = capsys.readouterr().out
    assert "crps" in said
    assert "at best" not in said.lower()


def test_a_sweep_needs_a_benchmark_that_names_numbers_and_no_other_number():
    benchmark = regression2d.Config().open()
    with pytest.raises(SettingError, match="leave --shots 3 out"):
        swept(EvaluateConfig(shots=3), benchmark)
    with pytest.raises(SettingError, match="use --shots here"):
        swept(EvaluateConfig(), dataclasses.replace(benchmark, sweep=None))
