"""Tables that also test with fewer and more examples: which rows, and with how many."""

import dataclasses

import pytest

from stmaml import reproduction
from stmaml.benchmarks.completion import Config
from stmaml.reproduction import BUDGETS, Budget, Cell, cells, run_cell
from tests.idx_files import write_digits

TINY = Budget(steps=4, seeds=2, tasks=6, tasks_per_batch=4)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> str:
    """Images of 36 pixels."""
    return str(write_digits(tmp_path_factory.mktemp("digits"), height=6, width=6))


@pytest.fixture
def evaluated(monkeypatch) -> list[tuple[str, int | None]]:
    """Which seed was tested with how many pixels; nothing is trained or scored."""
    found: list[tuple[str, int | None]] = []
    monkeypatch.setattr(reproduction, "train_runs", lambda runs, **more: None)
    monkeypatch.setattr(reproduction, "evaluate_run", lambda run, config: found.append((run.folder.name, config.shots)))
    return found


def row(name: str, data: str, budget: Budget) -> Cell:
    (cell,) = cells("completion", budget, task={"data": data, "shots": 10}, only=(name,))
    assert isinstance(cell, Cell)
    return cell


def test_images_are_tested_with_as_many_pixels_as_they_have(data):
    assert Config(data=data, shots=10).sweep() == (4, 8, 20)


@pytest.mark.parametrize("name", ["st-maml", "st-maml-best"])
def test_st_maml_is_tested_with_several_numbers_of_pixels(name, data, evaluated, tmp_path):
    budget = dataclasses.replace(TINY, sweep=True)
    run_cell(row(name, data, budget), tmp_path, budget)
    assert evaluated == [(f"seed-{seed}", shots) for shots in (None, 4, 8, 20) for seed in (0, 1)]


@pytest.mark.parametrize(("name", "sweep"), [("cnp", True), ("st-maml-deterministic", True), ("st-maml", False)])
def test_other_rows_and_small_budgets_have_one_number(name, sweep, data, evaluated, tmp_path):
    budget = dataclasses.replace(TINY, sweep=sweep)
    run_cell(row(name, data, budget), tmp_path, budget)
    assert evaluated == [("seed-0", None), ("seed-1", None)]


def test_what_was_tested_is_not_tested_again(data, evaluated, tmp_path, monkeypatch):
    budget = dataclasses.replace(TINY, sweep=True, seeds=1)
    monkeypatch.setattr(reproduction, "is_evaluated", lambda run, config: config.shots in (None, 8))
    run_cell(row("st-maml", data, budget), tmp_path / "one", budget)
    assert evaluated == [("one", 4), ("one", 20)]


def test_the_full_table_of_completion_has_the_sweep():
    assert BUDGETS["completion"]["paper"].sweep
    assert not BUDGETS["completion"]["smoke"].sweep
