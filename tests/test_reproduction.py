"""Whole tables: rows are trained, scored, skipped when done, and refused when they do not belong."""

import dataclasses
import sys

import pytest

from stmaml import cli, reproduction
from stmaml.errors import RunError, SettingError
from stmaml.reproduction import BUDGETS, Budget, cells

TINY = Budget(steps=20, seeds=1, tasks=20)


def test_a_table_has_every_method_and_the_ablations():
    names = [cell.name for cell in cells("regression2d", BUDGETS["paper"], task={})]
    assert {"maml", "meta-sgd", "bmaml", "platipus", "mmaml", "hsml", "arml", "cnp", "np", "anp", "st-maml"} < set(
        names
    )
    assert {"st-maml-without-augmentation", "st-maml-without-tailoring", "st-maml-deterministic"} < set(names)


def test_a_budget_and_changed_tasks_reach_every_row():
    for cell in cells("regression2d", BUDGETS["cpu"], task={"input_range": (-5.0, 5.0)}):
        assert cell.experiment.training.steps == 5_000
        assert dataclasses.asdict(cell.experiment.task)["input_range"] == (-5.0, 5.0)


def test_an_unknown_row_is_named_with_those_there_are():
    with pytest.raises(SettingError, match="no row 'mamml'; choose among: anp"):
        cells("regression2d", TINY, task={}, only=("mamml",))


def test_a_table_is_filled_once_and_written_beside_the_papers(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(reproduction.BUDGETS, "smoke", TINY)
    command = ["stmaml", "reproduce", "regression2d", "--rows", "maml", "cnp", "--samples", "1", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", command)
    cli.main()
    report = (tmp_path / "report" / "report.md").read_text()
    assert "| maml" in report
    assert "| cnp" in report
    assert "Bayes limit" in report
    trained = {name: (tmp_path / name / "learner.npz").stat().st_mtime_ns for name in ("maml", "cnp")}
    cli.main()
    assert trained == {name: (tmp_path / name / "learner.npz").stat().st_mtime_ns for name in ("maml", "cnp")}
    assert "wrote" in capsys.readouterr().out


def test_a_folder_with_other_settings_is_not_overwritten(tmp_path):
    cell = cells("regression2d", TINY, task={}, only=("cnp",))[0]
    other = cells("regression2d", dataclasses.replace(TINY, steps=21), task={}, only=("cnp",))[0]
    reproduction.create_runs(other.experiment, tmp_path / "cnp", [0])
    with pytest.raises(RunError, match="other settings"):
        reproduction.run_cell(cell, tmp_path / "cnp", TINY, samples=1)


def test_another_number_of_seeds_overwrites_nothing(tmp_path):
    cell = cells("regression2d", TINY, task={}, only=("cnp",))[0]
    reproduction.create_runs(cell.experiment, tmp_path, [0])
    with pytest.raises(RunError, match="Choose another --out"):
        reproduction.run_cell(cell, tmp_path, dataclasses.replace(TINY, seeds=2), samples=1)
