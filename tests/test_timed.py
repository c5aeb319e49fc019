"""Trainings by the clock and rows of 2D regression, at toy size."""

import itertools
import json
import sys
from types import ModuleType, SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stmaml.benchmarks.regression2d import Config
from stmaml.recipes import recipe
from tests import study_modules

SMALL = ["training.tasks_per_batch=2", "training.val_tasks=3", "training.val_samples=2", "training.warmup=1"]
SMALL += ["method_settings.hidden=(8,)", "method_settings.h_size=4", "method_settings.inner.inner_steps=1"]


def opened(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path) -> ModuleType:
    return study_modules.opened(name, monkeypatch, tmp_path / "cache")


def said(out: str, event: str) -> list[dict]:
    return [
        told
        for told in map(json.loads, filter(lambda line: line[0] == "{", out.splitlines()))
        if told["event"] == event
    ]


def test_a_timed_training_keeps_the_best_of_last_and_mean_weights(monkeypatch, tmp_path, capsys):
    study = opened("timed", monkeypatch, tmp_path)
    words = ["timed.py", "regression2d", "st-maml", "paper", "--run", str(tmp_path / "run"), "--steps", "6"]
    words += [
        "--seconds",
        "600",
        "--chunk",
        "2",
        "--score",
        "none",
        "--programs",
        str(tmp_path / "programs"),
        "--set",
        *SMALL,
    ]
    monkeypatch.setattr(sys, "argv", words)
    study.main()
    out = capsys.readouterr().out
    seen = said(out, "validation")
    assert {one["weights"] for one in seen} == {"last", "mean"}
    assert seen[-1]["step"] == 6
    assert (tmp_path / "run" / "learner.npz").is_file()
    assert len(list((tmp_path / "programs").iterdir())) == 2  # steps and scores


def test_a_running_mean_moves_by_its_share(monkeypatch, tmp_path):
    steps = opened("timed_steps", monkeypatch, tmp_path)
    spec = Config().open().train.spec
    settings = recipe("regression2d", "maml", "paper").method_settings
    one, other = (settings.build(spec, key=jr.key(seed)) for seed in (0, 1))
    found = steps.blended(one, other, jnp.asarray(0.25))
    for a, b, c in zip(
        *(jax.tree.leaves(eqx.filter(x, eqx.is_inexact_array)) for x in (one, other, found)), strict=True
    ):
        np.testing.assert_allclose(c, 0.75 * a + 0.25 * b, rtol=1e-5, atol=1e-7)


def test_programs_are_called_alike_wherever_data_lie(monkeypatch, tmp_path):
    steps = opened("timed_steps", monkeypatch, tmp_path)
    from stmaml.recipes.base import with_changes

    base = recipe("weather", "tnp", "years")
    here, there = (with_changes(base, {"benchmark_settings.data": data}) for data in ("a.npz", "b.npz"))
    assert steps.name_of(here) == steps.name_of(there)
    assert steps.name_of(with_changes(base, {"training.outer_lr": 0.5})) != steps.name_of(base)


def test_a_share_of_tasks_keeps_few_examples(monkeypatch, tmp_path):
    steps = opened("timed_steps", monkeypatch, tmp_path)
    source = Config(shots=20).open().train
    counts = steps.Fewer(source, 0.3).sample(2000, key=jr.key(0)).tasks.support.weight.sum(1)
    few = np.asarray(counts) <= steps.FEW
    assert 0.25 < few.mean() < 0.35
    assert set(np.unique(counts[few]).astype(int)) == set(range(1, steps.FEW + 1))
    assert (np.asarray(counts)[~few] == 20).all()


def test_rows_of_one_range_end_with_the_clock_and_are_scored(monkeypatch, tmp_path):
    study = opened("equal_rows", monkeypatch, tmp_path)
    words = ["equal_rows.py", "train", str(tmp_path), "maml", "--tasks", "1000000", "--batch", "2", "--test-tasks", "6"]
    monkeypatch.setattr(sys, "argv", [*words, "--input-range", "-5", "5", "--ends", "30"])
    clock = SimpleNamespace(time=itertools.count().__next__)  # a second from one look to the next
    monkeypatch.setattr(study, "time", clock)
    study.main()
    told = json.loads((tmp_path / "rows" / "maml.json").read_text())
    assert 0 < told["trained_on"] < 1_000_000
    assert [line["range"] for line in told["lines"]] == [[-5.0, 5.0]]
    assert len(told["lines"][0]["by_seed"]["mse"]) == study.SEEDS
