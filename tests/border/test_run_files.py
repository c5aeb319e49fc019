"""Files of a run that somebody changed: refused in a sentence where they are needed, passed over where not."""

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from stmaml.benchmarks import regression2d
from stmaml.border import writing
from stmaml.border.json_text import parse_json
from stmaml.border.writing import NotWritten, check_writable, write_bytes
from stmaml.errors import RunError
from stmaml.experiments import create_runs, load_experiment, load_run
from stmaml.methods import maml
from stmaml.progress import listening
from stmaml.recipes import Experiment
from stmaml.runs import Run, load_arrays, newest_common_checkpoint, read_json, read_npz, save_arrays
from stmaml.tables.aftercare import load_calibration, load_reference, save_care
from stmaml.tables.calibration import LEVELS, SET_LEVELS, Calibration, normal_score
from stmaml.tables.novelty import Reference
from stmaml.tables.schema import Schema

TREE = {"weight": jnp.arange(6.0).reshape(2, 3), "step": jnp.array(7)}
SCORES = tuple(normal_score(np.array(LEVELS)).tolist())
CALIBRATION = Calibration((0, 5), (1.0, 2.0), (SCORES, SCORES), 20)
COLUMN = {"name": "size", "fill": 1.0, "mean": 0.0, "std": 1.0, "low": 0.0, "high": 2.0, "has_missing": False}
SCHEMA = {
    "task": "shop",
    "target": {"name": "sales", "mean": 0.0, "std": 1.0, "low": 0.0, "high": 1.0, "classes": []},
    "columns": [{**COLUMN, "kind": "numeric"}],
    "missing": [],
}


@pytest.fixture
def run(tmp_path) -> Run:
    benchmark = regression2d.Config().open()
    experiment = Experiment("regression2d", "maml", "paper", benchmark.settings, maml.Config(hidden=(4,)))
    (made,) = create_runs(experiment, benchmark, tmp_path / "run", [0])
    return made


def change(path: Path, alter: Callable[[dict[str, Any]], Any]) -> None:
    content = json.loads(path.read_text())
    alter(content)
    path.write_text(json.dumps(content))


def remarks(work: Callable[[], Any]) -> list[str]:
    said: list[str] = []
    with listening(lambda told: said.append(told.what)):
        work()
    return said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"1" * 5000, "a number of 400 digits or more"),
        (b"[" * 100_000, "brackets within each other"),
        (b'{"a": ' * 100 + b"1" + b"}" * 100, "brackets within each other"),
        (b"99999999999999999999", "beyond 64 bits"),
        (b"\xff", "codec"),
        (b"", "Expecting value"),
    ],
)
def test_json_that_python_chokes_on_is_refused_in_a_sentence(text, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        parse_json(text)
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(RunError, match=r"config\.json cannot be read .*Restore it from a copy"):
        read_json(tmp_path / "config.json")


def test_brackets_and_digits_inside_text_count_for_nothing():
    text = {"a": "[" * 100, "b": "7" * 1000, "c": 'x"[', "d": "\\"}
    assert parse_json(json.dumps(text).encode()) == text


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (lambda c: c.update(seed="x"), "'seed' must be a whole number"),
        (lambda c: c.update(seed=True), "'seed' must be a whole number"),
        (lambda c: c["training"].update(outer_lr=float("nan")), "'outer_lr' must be a number"),
        (lambda c: c["training"].update(optimizer="sgd"), "'optimizer' must be one of 'adam', 'muon'"),
        (lambda c: c["method"]["settings"].update(hidden=[40, "x"]), r"'hidden\[1\]' must be a whole number"),
        (lambda c: c["method"]["settings"].update(hidden=40), "'hidden' must be a list"),
        (lambda c: c["method"].update(settings=None), "'method.settings' must be an object"),
        (lambda c: c["method"]["settings"]["inner"].update(inner_lr="0.1"), "'inner.inner_lr' must be a number"),
        (lambda c: c.update(benchmark=[1]), "'benchmark' must be an object"),
        (lambda c: c["method"].update(preset=None), "'method.preset' must be text"),
    ],
)
def test_every_setting_is_of_its_type(alter, message, run):
    change(run.config_path, alter)
    with pytest.raises(RunError, match=rf"config\.json.*{message}"):
        load_experiment(run)


@pytest.mark.parametrize(
    "alter",
    [lambda s: s.update(y_std=[0.0]), lambda s: s.update(x_mean=[float("inf")] * 2), lambda s: s.update(x_std="no")],
)
def test_a_scaling_that_cannot_be_divided_by_is_refused(alter, run):
    scaling = {"x_mean": [0.0] * 2, "x_std": [1.0] * 2, "y_mean": [0.0], "y_std": [1.0]}
    alter(scaling)
    change(run.config_path, lambda c: c.update(scaling=scaling))
    with pytest.raises(RunError, match=r"config\.json: .*scaling"):
        load_run(run.folder)


def test_settings_that_ask_for_a_trillion_weights_are_refused_without_making_them(run):
    save_arrays(run.learner_path, TREE)
    change(run.config_path, lambda c: c["method"]["settings"].update(hidden=[2**20, 2**20]))
    with pytest.raises(RunError, match="does not fit these settings"):
        load_run(run.folder)


@pytest.mark.parametrize(("value", "word"), [(np.nan, "not a number"), (np.inf, "infinite")])
def test_a_weight_that_is_no_number_is_refused(value, word, tmp_path):
    save_arrays(tmp_path / "learner.npz", {**TREE, "weight": TREE["weight"].at[0, 1].set(value)})
    with pytest.raises(RunError, match=rf"learner\.npz is damaged: weight holds a value that is {word}"):
        load_arrays(tmp_path / "learner.npz", TREE)


def test_weights_are_known_by_their_digest_and_older_ones_open(tmp_path):
    path = tmp_path / "learner.npz"
    save_arrays(path, TREE)
    content = path.read_bytes()
    at = content.rindex(b"sha256:") + 10
    path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    with pytest.raises(RunError, match=r"learner\.npz is damaged.*digest"):
        load_arrays(path, TREE)
    np.savez(path, weight=np.asarray(TREE["weight"]), step=np.asarray(TREE["step"]))  # as 0.1.0 wrote them
    np.testing.assert_array_equal(load_arrays(path, TREE)["weight"], TREE["weight"])


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (lambda c: c.update(temperature=[-1.0, 1.0]), "a 'temperature' above 0"),
        (lambda c: c.update(temperature=[1.0]), "a 'temperature' above 0 for each of 'shots'"),
        (lambda c: c.update(scores=[SCORES[::-1]] * 2), "'scores' that rise"),
        (lambda c: c.update(scores=[[float("inf")] * len(LEVELS)] * 2), "finite 'scores'"),
        (lambda c: c.update(scores=[SCORES]), "25 'scores' for each"),
        (lambda c: c.update(floors=[[2.0] * len(SET_LEVELS)] * 2), "'floors' from 0 to 1"),
        (lambda c: c.update(shots=[5, 0]), "'shots' that rise"),
        (lambda c: c.update(shots=[]), "'shots' that rise"),
        (lambda c: c.update(groups=None), "'groups' must be a whole number"),
        (lambda c: c.pop("temperature"), "temperature"),
        (lambda c: c.update(more=1), "a setting 'more'"),
    ],
)
def test_a_calibration_that_was_never_fitted_is_refused(alter, message, tmp_path):
    save_care(tmp_path, CALIBRATION, reference())
    assert load_calibration(tmp_path) == CALIBRATION
    change(tmp_path / "calibration.json", alter)
    with pytest.raises(RunError, match=rf"calibration\.json: .*{message}"):
        load_calibration(tmp_path)


def reference() -> Reference:
    eye = np.stack([np.eye(3)] * 2)
    return Reference(np.array([1, 5]), np.zeros((2, 3)), eye, np.array([[0.5, 1.0]] * 2), np.full(2, np.nan))


@pytest.mark.parametrize(
    "alter",
    [
        {"shots": np.array([5, 1])},
        {"shots": np.array([1.0, 5.0])},
        {"mean": np.zeros((2, 4))},
        {"mean": np.full((2, 3), np.nan)},
        {"precision": np.zeros((2, 3))},
        {"distance": np.array([[1.0, 0.5]] * 2)},
        {"entropy": np.zeros(3)},
        {"more": np.zeros(2)},
    ],
)
def test_a_reference_of_wrong_shapes_or_numbers_is_refused(alter, tmp_path):
    save_care(tmp_path, CALIBRATION, reference())
    np.testing.assert_array_equal(load_reference(tmp_path).distance, reference().distance)
    save_arrays(tmp_path / "reference.npz", {**dataclasses.asdict(reference()), **alter})
    with pytest.raises(RunError, match=r"reference\.npz does not say what groups look like"):
        load_reference(tmp_path)


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (lambda s: s["columns"][0].update(std=0.0), "'size' must have a std above 0"),
        (lambda s: s["target"].update(std=-1.0), "'sales' must have a std above 0"),
        (lambda s: s["columns"][0].update(mean=float("inf")), "'size' has the mean inf"),
        (lambda s: s["columns"][0].update(name=7), "'schema.name' must be text"),
        (lambda s: s.update(task=None), "'task' must be text"),
        (lambda s: s["columns"][0].update(low=3.0), "'size' reaches from 3.0 down to 2.0"),
    ],
)
def test_a_schema_that_was_never_found_out_is_refused(alter, message):
    content = json.loads(json.dumps(SCHEMA))
    assert Schema.from_json(content).target.name == "sales"
    alter(content)
    with pytest.raises(RunError, match=message):
        Schema.from_json(content)


def test_a_damaged_log_stops_nothing_and_is_said_once(run):
    run.append_log({"step": 1, "loss": 0.5})
    with run.log_path.open("ab") as file:
        file.write(b'\xff\nnull\n{"step": "x"}\n[1]\n{"step": 2, "validation": 3}\n{"step": 1e999}\n')
    run.append_log({"step": 2, "loss": 0.25})
    run.append_log({"step": 2, "note": "in words"})
    with run.log_path.open("ab") as file:
        file.write(b'{"step": 3, "lo')
    assert [entry["step"] for entry in run.log()] == [1, 2, 2]
    (said,) = remarks(lambda: run.trim_log(1))
    assert "6 lines that cannot be read" in said
    assert run.log() == [{"step": 1, "loss": 0.5}]


def test_a_stray_checkpoint_is_passed_over(run):
    run.save_checkpoint(400, TREE)
    for name in ("step-000000400 (copy).npz", "step-.npz", "step-1e9.npz", "step-000000500.npz.bak"):
        (run.folder / "checkpoints" / name).write_bytes(b"")
    assert run.checkpoint_steps() == [400]
    found = newest_common_checkpoint([run], [TREE])
    assert found is not None
    assert found[0] == 400
    run.save_checkpoint(500, TREE)
    run.save_checkpoint(600, TREE)
    assert run.checkpoint_steps() == [500, 600]


def test_scores_and_traces_that_cannot_be_read_are_left_out_and_said(run):
    metrics = {"mse": {"mean": 1.0, "ci95": 0.1}}
    run.save_scores("good", {"tasks": 1, "metrics": metrics}, {"mse": np.zeros(1)})
    for name, content in {"bad": "{", "list": "[]", "odd": '{"metrics": 3}', "half": '{"tasks": "x"}'}.items():
        (run.scores_folder / f"{name}.json").write_text(content)
    run.save_arrays(Path("curves") / "good.npz", {"about": np.frombuffer(b'{"figure": "years"}', np.uint8)})
    run.save_arrays(Path("curves") / "odd.npz", {"about": np.frombuffer(b"[" * 9999, np.uint8)})
    found: dict[str, Any] = {}
    said = remarks(lambda: found.update(scores=list(run.scores()), curves=list(run.curves())))
    assert found == {"scores": ["good"], "curves": ["good"]}
    assert len(said) == 5
    assert all(text.startswith("left out: ") for text in said)


def test_a_file_of_a_run_that_is_a_pipe_is_refused_at_once(run):
    run.log_path.unlink(missing_ok=True)
    os.mkfifo(run.log_path)
    assert len(remarks(run.log)) == 1
    os.mkfifo(run.learner_path)
    with pytest.raises(RunError, match="is a named pipe"):
        read_npz(run.learner_path)
    run.config_path.unlink()
    os.mkfifo(run.config_path)
    with pytest.raises(RunError, match="is a named pipe"):
        run.config()


def test_no_link_leads_a_write_astray(tmp_path, monkeypatch):
    monkeypatch.setattr(writing.secrets, "token_hex", lambda size: "0" * 2 * size)
    victim = tmp_path / "victim"
    victim.write_text("safe")
    (tmp_path / f".file.{'0' * 16}.partial").symlink_to(victim)
    with pytest.raises(NotWritten, match="File exists"):
        write_bytes(tmp_path / "file", b"new")
    assert victim.read_text() == "safe"


def test_the_log_is_on_disk_before_the_checkpoint_that_goes_with_it(run, monkeypatch):
    run.append_log({"step": 10})
    synced: list[str] = []
    fsync = os.fsync

    def spy(number: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{number}"))
        fsync(number)

    monkeypatch.setattr(os, "fsync", spy)
    run.save_checkpoint(10, TREE)
    assert synced[0] == str(run.log_path.resolve())
    assert "step-000000010" in synced[1]


def test_what_a_killed_writer_left_is_swept(run):
    run.save_checkpoint(10, TREE)
    left = [run.folder / ".learner.npz.0a.partial", run.folder / "checkpoints" / "step-000000020.npz.partial"]
    for path in left:
        path.write_bytes(b"")
    run.sweep()
    assert not any(path.exists() for path in left)
    assert run.checkpoint_steps() == [10]


def test_a_folder_that_cannot_be_written_to_is_known_before_work(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotWritten, match="could not write"):
        check_writable(tmp_path / "file" / "report")
    check_writable(tmp_path / "new")
    assert os.listdir(tmp_path / "new") == []
