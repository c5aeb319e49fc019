"""The study of pictures on equal terms: trainings that are stopped go on as if they had not been."""

import importlib
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from stmaml.methods import protonet
from stmaml.nets.conv import Conv
from stmaml.recipes import recipe
from tests import study_modules
from tests.picture_files import write_dataset

TINY = ["--image-size", "8", "--test-tasks", "12", "--val-tasks", "6", "--tasks", "1200"]


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    module = study_modules.opened("equal_pictures", monkeypatch, tmp_path / "cache")
    small = replace(
        recipe("plain-multi", "protonet", "paper"),
        method_settings=protonet.Config(conv=Conv(channels=4, conv_blocks=1)),
    )
    monkeypatch.setattr(module, "experiments", lambda: {"protonet": small})
    return module


def run(study: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path, *flags: str, job: str = "protonet") -> None:
    data = folder.parent / "pictures"
    if not data.exists():
        for index, name in enumerate(("birds", "planes")):
            write_dataset(data / name, images=12, first=1000 * index)
    words = ["train", str(folder), job, "--data", str(data), *TINY, *flags]
    monkeypatch.setattr(sys, "argv", ["equal_pictures", *words])
    study.main()


def test_a_training_that_was_stopped_goes_on_as_if_it_had_not_been(study, monkeypatch, tmp_path, capsys):
    run(study, monkeypatch, tmp_path / "whole", "--claim", "a")
    training = importlib.import_module("training_rows").Training
    steps, moved = [], training.moved

    def stopped_after_one(row, state, start):
        if steps:
            raise importlib.import_module("resumed").OutOfTime
        steps.append(start)
        return moved(row, state, start)

    with monkeypatch.context() as patch:
        patch.setattr(training, "moved", stopped_after_one)
        run(study, patch, tmp_path / "parts", "--claim", "a")
    assert "out of time" in capsys.readouterr().out
    assert not (tmp_path / "parts" / "rows").exists()
    run(study, monkeypatch, tmp_path / "parts", "--claim", "b")
    whole, parts = (read(tmp_path / name / "rows" / "protonet-seed-0.json") for name in ("whole", "parts"))
    assert whole["metrics"] == parts["metrics"]
    assert whole["trained_on"] == parts["trained_on"] == 1200
    assert whole["digest"] == parts["digest"]
    assert set(whole["metrics"]) == {"all", "birds", "planes"}
    scores = np.load(tmp_path / "whole" / "scores" / "protonet-seed-0.npz")
    assert scores["accuracy"].shape == (12,)
    assert whole["metrics"]["all"]["accuracy"]["mean"] == pytest.approx(float(scores["accuracy"].mean()))


@pytest.mark.slow  # a whole training with its scores
def test_with_little_time_a_row_has_fewer_tasks(study, monkeypatch, tmp_path):
    run(study, monkeypatch, tmp_path / "first", "--claim", "a")  # compiles
    rows = importlib.import_module("training_rows")
    monkeypatch.setattr(rows, "RESERVED", 590.0)
    monkeypatch.setattr(rows, "LEAST", 0.0)
    soon = ("--fit", "--until", str(time.time() + 591.5))
    run(study, monkeypatch, tmp_path / "second", "--claim", "a", *soon, job="protonet:0:4000000")
    assert 200 <= read(tmp_path / "second" / "rows" / "protonet-seed-0.json")["trained_on"] < 4_000_000


def read(path: Path) -> dict:
    return json.loads(path.read_text())


def test_rows_are_taken_once_among_all_who_share_a_folder(study, tmp_path):
    resumed = importlib.import_module("resumed")
    first, second = (resumed.claimed(["a", "b", "c"], tmp_path) for _ in range(2))
    assert [next(first), next(second), next(first), list(second)] == ["a", "b", "c", []]


def test_a_job_names_its_row_its_seed_and_its_tasks(study):
    jobs = [study.Job.of(text, 150) for text in ("arml", "arml:1", "cnp:0:50")]
    assert [(job.row, job.seed, job.tasks) for job in jobs] == [("arml", 0, 150), ("arml", 1, 150), ("cnp", 0, 50)]


def test_a_row_may_be_changed(study, monkeypatch):
    rows = {"st-maml-best": recipe("plain-multi", "st-maml", "best"), "maml": recipe("plain-multi", "maml", "paper")}
    monkeypatch.setattr(study, "experiments", lambda: rows)
    plain, other = (
        study.changed(study.Job.of(text, 150), size)
        for text, size in (("maml", 84), ("maml@augmented,training.clip_norm=3.5", 20))
    )
    assert plain == rows["maml"]
    assert other.benchmark_settings == replace(rows["st-maml-best"].benchmark_settings, image_size=20)
    assert other.modelling.both_ways
    assert other.method_settings == plain.method_settings
    assert other.training == replace(plain.training, clip_norm=3.5)
