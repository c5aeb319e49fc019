"""Ambiguous faces from files to a table and a figure, and what is drawn where."""

import io
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from stmaml import cli
from stmaml.benchmarks import celeba
from stmaml.benchmarks.base import Budget, Budgets
from stmaml.inner import InnerLoop
from stmaml.nets.conv import Conv
from stmaml.recipes import RECIPES, Experiment
from stmaml.reports import rules
from stmaml.reports.rules import RIGHT, WRONG, answers, rules_figure
from stmaml.reproduction import cells
from stmaml.runs import Trace
from tests.face_files import faces


def task(models: int = 5) -> dict[str, np.ndarray]:
    """Three rules of four pictures; the first two models chose the first rule, all others the third."""
    probability = np.full((models, 3, 4), 0.8)
    probability[:2, 0] = [0.9, 0.3, 0.7, 0.6]
    probability[2:, 0] = 0.1
    probability[:, 1] = 0.2
    return {
        "rules": np.array(["hat and beard", "hat and young", "beard and young"]),
        "support_x": np.arange(4 * 2 * 2 * 3, dtype=np.uint8).reshape(4, 2, 2, 3),
        "support_y": np.array([1, 1, 0, 0]),
        "query_x": 100 + np.arange(12 * 2 * 2 * 3, dtype=np.uint8).reshape(3, 4, 2, 2, 3),
        "query_y": np.array([[1, 1, 0, 0]] * 3),
        "probability": probability,
        "assigned": np.array([0, 0, *[2] * (models - 2)]),
    }


@pytest.fixture
def figures(monkeypatch) -> list[Figure]:
    """The figures drawn, caught on their way to a file."""
    caught: list[Figure] = []
    to_png = rules.png
    monkeypatch.setattr(rules, "png", lambda figure: caught.append(figure) or to_png(figure))
    return caught


def test_answers_are_those_of_the_models_that_chose_the_rule():
    np.testing.assert_allclose(answers(task(), 0), [0.9, 0.3, 0.7, 0.6])
    np.testing.assert_allclose(answers(task(), 1), 0.2)  # nobody chose it: all models are asked
    np.testing.assert_allclose(answers(task(), 2), 0.8)


def test_the_figure_shows_support_rules_counts_and_answers(figures):
    drawn = rules_figure([Trace(task(), {"figure": "rules", "number": 1})], "st-maml")
    assert drawn is not None
    assert Image.open(io.BytesIO(drawn)).size[0] > 1000
    axes = figures[0].axes
    pictures = [np.asarray(ax.get_images()[0].get_array()) for ax in axes if ax.get_images()]
    wanted = [*task()["support_x"], *task()["query_x"].reshape(12, 2, 2, 3)]
    assert len(pictures) == 16
    for found, picture in zip(pictures, wanted, strict=True):
        np.testing.assert_array_equal(found, picture)
    said = [text.get_text() for ax in axes for text in ax.texts]
    assert said == [
        *("support", "hat and beard", "2 of 5 models", "hat and young", "0 of 5 models"),
        *("beard and young", "3 of 5 models"),
    ]
    frames = [patch.get_edgecolor() for ax in axes if ax.get_images() for patch in ax.patches]
    right, wrong = to_rgba(RIGHT), to_rgba(WRONG)
    assert frames == [right, wrong, right, right, *[wrong] * 4, *[right] * 4]
    bars = [patch.get_width() for ax in axes if not ax.get_images() for patch in ax.patches]
    assert bars == [5, 2, 5, 0, 5, 3]
    assert all(isinstance(patch, Rectangle) for ax in axes for patch in ax.patches)
    assert [ax.get_xlabel() for ax in axes if ax.get_xlabel()][:4] == ["0.90", "0.30", "0.70", "0.60"]


def test_there_is_no_figure_without_ambiguous_tasks():
    assert rules_figure([], "t") is None


def test_tasks_stand_in_the_order_of_their_numbers(figures):
    traces = [Trace(task(models), {"figure": "rules", "number": number}) for number, models in ((10, 4), (9, 5))]
    rules_figure(traces, "t")
    said = [text.get_text() for ax in figures[0].axes for text in ax.texts]
    assert [text for text in said if "models" in text][::3] == ["2 of 5 models", "2 of 4 models"]


def test_the_table_has_the_papers_methods_and_the_ablations(tmp_path, monkeypatch):
    monkeypatch.setenv("STMAML_CACHE", str(tmp_path / "cache"))
    faces().write(tmp_path / "faces")
    benchmark = celeba.Config(data=str(tmp_path / "faces"), image_size=16, shots=2, query_per_class=2).open()
    names = {row.name for row in cells("celeba", benchmark, celeba.Config.budgets.paper)}
    assert {"maml", "platipus", "bmaml", "st-maml", "st-maml-without-augmentation"} <= names


def test_the_full_budget_has_the_benchmarks_number_of_models_and_tasks():
    budget = celeba.Config.budgets.paper
    assert (budget.samples, budget.tasks) == (100, 1000)


def light(method: str) -> Experiment:
    """The recipe with a network that compiles quickly."""
    usual: Any = RECIPES["celeba", method, "paper"]
    inner = InnerLoop(inner_lr=0.01, inner_steps=1)
    return replace(
        usual, method_settings=replace(usual.method_settings, conv=Conv(channels=2, conv_blocks=1), inner=inner)
    )


def test_faces_from_files_to_a_table(tmp_path, monkeypatch, capsys):
    files = faces()
    del files.pictures["000004.jpg"]
    files.write(tmp_path / "faces")
    monkeypatch.setenv("STMAML_CACHE", str(tmp_path / "cache"))
    tiny = Budget(steps=1, tasks_per_batch=1, seeds=1, tasks=2, samples=3, val_tasks=1, steps_per_call=1)
    monkeypatch.setattr(celeba.Config, "budgets", Budgets(smoke=tiny))
    monkeypatch.setattr(celeba, "NUM_SHOWCASES", 1)
    monkeypatch.setitem(RECIPES, ("celeba", "st-maml", "paper"), light("st-maml"))
    words = ("celeba", "--data", tmp_path / "faces", "--image-size", "16", "--shots", "2", "--query-per-class", "2")
    rows = ("--rows", "st-maml", "--out", tmp_path / "out")
    monkeypatch.setattr(sys, "argv", ["stmaml", "reproduce", *map(str, (*words, *rows))])
    cli.main()
    assert "missing or unreadable: 1, such as 000004.jpg" in " ".join(capsys.readouterr().err.split())
    report = (tmp_path / "out" / "report" / "report.md").read_text()
    for said in ("| st-maml", "coverage", "accuracy_all", "optimistic"):
        assert said in report
    assert len(list((tmp_path / "out" / "report").glob("rules*.png"))) == 1
    assert list((tmp_path / "out" / "st-maml" / "scores").glob("celeba-*-samples3-tasks2-*.json"))


def test_bad_faces_are_one_sentence_and_no_run(tmp_path, stmaml, monkeypatch):
    monkeypatch.setenv("STMAML_CACHE", str(tmp_path / "cache"))
    files = faces((6, 4, 4))
    files.count = 15
    files.write(tmp_path / "faces")
    code, _, said = stmaml("reproduce", "celeba", "--data", tmp_path / "faces", "--out", tmp_path / "out")
    assert code == 2
    assert "promises 15 pictures in its first line but describes 14" in " ".join(said.split())
    assert not (tmp_path / "out").exists()
