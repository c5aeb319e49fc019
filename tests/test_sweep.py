"""Tables that also test with fewer and more examples: which rows, and with how many."""

import dataclasses
from pathlib import Path

import pytest

from stmaml import reproduction
from stmaml.benchmarks.base import Budget
from stmaml.benchmarks.completion import Config
from stmaml.reproduction import Cell, cells
from tests.idx_files import write_digits

TINY = Budget(steps=4, seeds=2, tasks=6, tasks_per_batch=4)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> str:
    """Images of 36 pixels."""
    return str(write_digits(tmp_path_factory.mktemp("digits"), height=6, width=6))


@pytest.fixture
def evaluated(monkeypatch) -> list[tuple[str, int | None]]:
    """Which seed was tested with how many pixels; nothing is trained or scored, but it is noted what was."""
    found: list[tuple[str, int | None]] = []

    def evaluate_run(run, config, benchmark, tests):
        found.append((run.folder.name, config.shots))
        for test in tests:
            run.save_scores(test.name(), {"conditions": test.conditions.to_json(), "digest": test.tasks.digest}, {})

    monkeypatch.setattr(reproduction, "train_runs", lambda runs, experiment, benchmark, **more: None)
    monkeypatch.setattr(reproduction, "evaluate_run", evaluate_run)
    return found


def fill(name: str, data: str, budget: Budget, folder: Path) -> None:
    benchmark = Config(data=data, shots=10).open()
    (cell,) = cells("completion", benchmark, budget, only=(name,), data=data, shots=10)
    assert isinstance(cell, Cell)
    cell.fill(folder, budget, benchmark.vary(cell.settings))


def test_images_are_tested_with_as_many_pixels_as_they_have(data):
    sweep = Config(data=data, shots=10).open().sweep
    assert sweep is not None
    assert sweep.shots == (4, 8, 20)


@pytest.mark.parametrize("name", ["st-maml", "st-maml-best"])
def test_st_maml_is_tested_with_several_numbers_of_pixels(name, data, evaluated, tmp_path):
    budget = dataclasses.replace(TINY, sweep=True)
    fill(name, data, budget, tmp_path)
    assert evaluated == [(f"seed-{seed}", shots) for shots in (None, 4, 8, 20) for seed in (0, 1)]


@pytest.mark.parametrize(("name", "sweep"), [("cnp", True), ("st-maml-deterministic", True), ("st-maml", False)])
def test_other_rows_and_small_budgets_have_one_number(name, sweep, data, evaluated, tmp_path):
    budget = dataclasses.replace(TINY, sweep=sweep)
    fill(name, data, budget, tmp_path)
    assert evaluated == [("seed-0", None), ("seed-1", None)]


def test_what_was_tested_is_not_tested_again(data, evaluated, tmp_path):
    for sweep in (False, True, True):
        fill("st-maml", data, dataclasses.replace(TINY, sweep=sweep, seeds=1), tmp_path / "one")
    assert evaluated == [("one", shots) for shots in (None, 4, 8, 20)]


def test_the_full_table_of_completion_has_the_sweep():
    assert Config.budgets.paper.sweep
    assert not Config.budgets.smoke.sweep
