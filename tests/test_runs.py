"""The run folder: what a crash, a full disk or a wrong file does to it."""

import contextlib
import dataclasses
import errno
import json
import os
import re
from pathlib import Path

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stmaml import runs
from stmaml.benchmarks import BENCHMARKS, regression2d
from stmaml.benchmarks.base import TEST_SEED, VAL_SEED
from stmaml.errors import RunError
from stmaml.experiments import RUN_WORD, create_runs, load_experiment, load_run, run_keys, train_runs
from stmaml.inner import InnerLoop
from stmaml.legacy.settings import OLD_KEYS
from stmaml.methods import METHODS, maml
from stmaml.methods.standardised import Standardised
from stmaml.recipes import RECIPES, Experiment, Modelling, measured_scaling
from stmaml.runs import Run, find_runs, from_dict, newest_common_checkpoint, write_bytes
from stmaml.training import TrainConfig

BENCHMARK = regression2d.Config().open()
TREE = {"weight": jnp.arange(6.0).reshape(2, 3), "step": jnp.array(7), "parts": [jnp.ones(2), None]}


def zeros_like_tree():
    return {"weight": jnp.zeros((2, 3)), "step": jnp.array(0), "parts": [jnp.zeros(2), None]}


def tiny_experiment() -> Experiment:
    return Experiment("regression2d", "maml", "paper", BENCHMARK.settings, maml.Config(hidden=(4,)))


@pytest.fixture
def run(tmp_path) -> Run:
    run = Run(tmp_path / "run")
    run.create({"seed": 0})
    return run


def fail_with_full_disk(*args, **kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("call", ["fsync", "open", "replace"])
def test_a_failing_write_leaves_the_old_file(call, tmp_path, monkeypatch):
    path = tmp_path / "file.json"
    write_bytes(path, b"old")
    target = {"fsync": (os, "fsync"), "open": (os, "open"), "replace": (Path, "replace")}[call]
    monkeypatch.setattr(*target, fail_with_full_disk)
    with pytest.raises(RunError, match=rf"could not write .*{path.name}: No space left on device"):
        write_bytes(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file.json"]


def test_a_write_goes_through_a_file_beside_it(tmp_path, monkeypatch):
    """While the content is flushed, the old file is still whole under its name."""
    path, seen = tmp_path / "file", []
    write_bytes(path, b"old")
    fsync = os.fsync

    def spy(number):
        seen.append((path.read_bytes(), sorted(os.listdir(tmp_path))))
        fsync(number)

    monkeypatch.setattr(os, "fsync", spy)
    write_bytes(path, b"new")
    content, (partial, name) = seen[0]
    assert (content, name) == (b"old", "file")
    assert re.fullmatch(r"\.file\.[0-9a-f]{16}\.partial", partial)
    assert seen[-1] == (b"new", ["file"])


def test_a_full_disk_in_training_names_the_checkpoint(run, monkeypatch):
    run.save_checkpoint(10, TREE)
    monkeypatch.setattr(os, "fsync", fail_with_full_disk)
    with pytest.raises(RunError, match=r"step-000000020\.npz: No space left on device.*then try again"):
        run.save_checkpoint(20, TREE)
    monkeypatch.undo()
    assert run.checkpoint_steps() == [10]
    np.testing.assert_array_equal(run.load_checkpoint(10, zeros_like_tree())["weight"], TREE["weight"])


def test_a_log_that_cannot_be_written_is_a_run_error(run, monkeypatch):
    monkeypatch.setattr(Path, "open", fail_with_full_disk)
    with pytest.raises(RunError, match=r"log\.jsonl: No space left"):
        run.append_log({"step": 1})


def test_arrays_come_back_with_values_and_types(run):
    run.save_learner(TREE)
    back = run.load_learner(zeros_like_tree())
    np.testing.assert_array_equal(back["weight"], TREE["weight"])
    assert (back["step"], back["step"].dtype) == (7, TREE["step"].dtype)
    assert back["parts"][1] is None


def test_files_hold_no_pickle_and_are_named_by_leaf(run):
    run.save_learner(TREE)
    with np.load(run.learner_path, allow_pickle=False) as file:
        assert sorted(file.files) == ["parts.0", "step", "weight"]
        assert all(file[name].dtype != object for name in file.files)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(RunError, match=r"there is no run folder .*nowhere"):
        load_run(tmp_path / "nowhere")


def test_a_folder_without_settings_is_no_run(tmp_path):
    with pytest.raises(RunError, match=r"has no config\.json, so it is not a run folder"):
        Run(tmp_path).config()


def test_another_format_is_refused(run):
    run.config_path.write_text('{"format": 99}')
    with pytest.raises(RunError, match="has format 99; this version of stmaml reads formats 1 and 2"):
        run.config()


@pytest.mark.parametrize(
    ("text", "message"), [("{", r"config\.json cannot be read"), ("[1]", "holds list, not an object")]
)
def test_damaged_settings_are_named(text, message, run):
    run.config_path.write_text(text)
    with pytest.raises(RunError, match=message):
        run.config()


def test_settings_of_another_version_are_named(tmp_path):
    (run,) = create_runs(tiny_experiment(), BENCHMARK, tmp_path, [0])
    config = json.loads(run.config_path.read_text())
    config["training"]["momentum"] = 1
    run.config_path.write_text(json.dumps(config))
    with pytest.raises(RunError, match=r"config\.json: the run has a setting 'momentum' that this"):
        load_experiment(run)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("training"), "lacks or misnames 'training'"),
        (lambda c: c.pop("seed"), "lacks or misnames 'seed'"),
        (lambda c: c["method"].update(name="mmml"), "lacks or misnames 'mmml'"),
        (lambda c: c["training"].update(steps=0), "--steps must be at least 1; got 0"),
        (lambda c: c["training"].update(steps="many"), r"'steps' must be a whole number; it is \"many\""),
    ],
)
def test_settings_that_do_not_fit_are_named(change, message, tmp_path):
    (run,) = create_runs(tiny_experiment(), BENCHMARK, tmp_path, [0])
    config = json.loads(run.config_path.read_text())
    change(config)
    run.config_path.write_text(json.dumps(config))
    with pytest.raises(RunError, match=message):
        load_experiment(run)


def test_a_run_without_weights_says_so(tmp_path):
    create_runs(tiny_experiment(), BENCHMARK, tmp_path, [0])
    with pytest.raises(RunError, match=r"has no learner\.npz.*--resume"):
        load_run(tmp_path)


def test_a_file_cut_short_is_named(run):
    run.save_learner(TREE)
    content = run.learner_path.read_bytes()
    run.learner_path.write_bytes(content[: len(content) // 2])
    with pytest.raises(RunError, match=r"learner\.npz is damaged or cut short"):
        run.load_learner(zeros_like_tree())


@pytest.mark.parametrize("read", [runs.read_json, runs.read_npz])
def test_a_file_that_may_not_be_read_is_not_to_be_restored(read, tmp_path, monkeypatch):
    path = tmp_path / "pool.json"
    path.write_text("{}")

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(RunError, match=r"pool.json may not be read: permission denied. Change its permissions"):
        read(path)


def test_weights_of_another_size_name_the_leaf(run):
    run.save_learner(TREE)
    like = {**zeros_like_tree(), "weight": jnp.zeros((2, 4))}
    with pytest.raises(RunError, match=r"weight is float32\[2, 3\] there, float32\[2, 4\] here"):
        run.load_learner(like)


def test_weights_of_another_type_name_the_leaf(run):
    run.save_learner(TREE)
    with pytest.raises(RunError, match=r"step is int32\[\] there, float32\[\] here"):
        run.load_learner({**zeros_like_tree(), "step": jnp.array(0.0)})


def test_weights_of_another_network_name_the_leaf(tmp_path, key):
    (run,) = create_runs(tiny_experiment(), BENCHMARK, tmp_path, [0])
    spec = regression2d.Curves(regression2d.Config()).spec
    run.save_learner(maml.Config(hidden=(4, 4)).build(spec, key=key))
    with pytest.raises(RunError, match=r"theta\.body\.1\.bias is in only one of them"):
        load_run(tmp_path)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "learner.npz"
    runs.save_arrays(path, TREE)
    return path, path.read_bytes()


@settings(max_examples=300, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), value=st.integers(1, 255), cut=st.booleans())
def test_a_damaged_file_is_refused_or_harmless(saved, place, value, cut):
    """Whatever byte changes, and wherever the file ends: a RunError, or the numbers as saved."""
    path, content = saved
    at = int(place * len(content))
    path.write_bytes(content[:at] if cut else content[:at] + bytes([content[at] ^ value]) + content[at + 1 :])
    with contextlib.suppress(RunError):
        back = runs.load_arrays(path, zeros_like_tree())
        np.testing.assert_array_equal(back["weight"], TREE["weight"])
        np.testing.assert_array_equal(back["step"], TREE["step"])
        np.testing.assert_array_equal(back["parts"][0], TREE["parts"][0])


def test_a_half_written_last_line_is_left_out_of_the_log(run):
    run.append_log({"step": 1, "loss": 0.5})
    with run.log_path.open("a") as file:
        file.write('{"step": 2, "lo')
    assert run.log() == [{"step": 1, "loss": 0.5}]
    run.trim_log(1)
    run.append_log({"step": 2, "loss": 0.25})
    assert [entry["step"] for entry in run.log()] == [1, 2]


def test_trimming_drops_what_a_resumed_run_writes_again(run):
    for step in (10, 20, 30):
        run.append_log({"step": step})
    run.trim_log(20)
    assert [entry["step"] for entry in run.log()] == [10, 20]


def test_an_existing_run_is_refused_and_untouched(run):
    run.save_learner(TREE)
    before = {path.name: path.read_bytes() for path in run.folder.iterdir()}
    with pytest.raises(RunError, match=r"already holds a run.*--resume.*--force"):
        run.create({"seed": 1})
    assert {path.name: path.read_bytes() for path in run.folder.iterdir()} == before


def test_force_leaves_nothing_of_the_old_run(run):
    run.save_learner(TREE)
    run.save_checkpoint(10, TREE)
    run.append_log({"step": 10})
    run.save_scores("test", {"tasks": 1}, {"mse": np.zeros(1)})
    run.save_arrays(Path("curves") / "line.npz", {"axis": np.zeros(1)})
    run.create({"seed": 1}, force=True)
    assert run.config() == {"format": 2, "seed": 1}
    assert run.log() == run.checkpoint_steps() == []
    assert run.scores() == run.curves() == {}
    assert not run.learner_path.exists()


def test_no_seed_is_begun_where_one_is_taken(tmp_path):
    create_runs(tiny_experiment(), BENCHMARK, tmp_path / "seed-1", [1])
    with pytest.raises(RunError, match="seed-1 already holds a run"):
        create_runs(tiny_experiment(), BENCHMARK, tmp_path, [0, 1])
    assert not (tmp_path / "seed-0").exists()


@pytest.mark.parametrize(("first", "second"), [([0], [0, 1]), ([0, 1], [0]), ([0, 1, 2], [0, 1])])
def test_a_folder_never_holds_old_runs_beside_new_ones(first, second, tmp_path):
    create_runs(tiny_experiment(), BENCHMARK, tmp_path, first)
    with pytest.raises(RunError, match="already holds a run"):
        create_runs(tiny_experiment(), BENCHMARK, tmp_path, second)
    made = create_runs(tiny_experiment(), BENCHMARK, tmp_path, second, force=True)
    assert find_runs(tmp_path) == made


def test_a_file_is_no_run_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="is a file, not a folder"):
        Run(tmp_path / "file").create({})


def test_only_the_newest_checkpoints_are_kept(run):
    for step in (10, 20, 100):
        run.save_checkpoint(step, TREE)
    assert run.checkpoint_steps() == [20, 100]


def damage(run: Run, step: int):
    path = run.folder / "checkpoints" / f"step-{step:09d}.npz"
    path.write_bytes(path.read_bytes()[:-30])


def test_a_damaged_newest_checkpoint_falls_back_to_the_older(run):
    run.save_checkpoint(10, TREE)
    run.save_checkpoint(20, {**TREE, "step": jnp.array(8)})
    damage(run, 20)
    found = newest_common_checkpoint([run], [zeros_like_tree()])
    assert found is not None
    assert found[0] == 10
    assert found[1][0]["step"] == 7
    damage(run, 10)
    with pytest.raises(RunError, match=r"step-000000010\.npz is damaged"):
        newest_common_checkpoint([run], [zeros_like_tree()])


def test_runs_side_by_side_go_on_from_a_step_all_have(tmp_path):
    first, second = (Run(tmp_path / name) for name in ("seed-0", "seed-1"))
    for run in (first, second):
        run.create({})
        run.save_checkpoint(10, TREE)
    first.save_checkpoint(20, TREE)
    found = newest_common_checkpoint([first, second], [zeros_like_tree()] * 2)
    assert found is not None
    assert found[0] == 10
    assert newest_common_checkpoint([Run(tmp_path / "none")], [TREE]) is None


def test_seeds_are_found_in_their_order(tmp_path):
    for seed in (10, 2, "old"):
        Run(tmp_path / f"seed-{seed}").create({})
    assert [run.folder.name for run in find_runs(tmp_path)] == ["seed-2", "seed-10"]
    assert find_runs(tmp_path / "seed-2") == [Run(tmp_path / "seed-2")]


def through_json(config):
    return from_dict(type(config), json.loads(json.dumps(dataclasses.asdict(config))))


@pytest.mark.parametrize("config", [*METHODS.values(), *BENCHMARKS.values(), TrainConfig, Modelling])
def test_default_settings_survive_json(config):
    back = through_json(config())
    assert back == config()
    assert hash(back) == hash(config())


@pytest.mark.parametrize("name", [name for name in RECIPES if name[0] == "regression2d"])
def test_recipes_survive_a_run_folder(name, tmp_path):
    (run,) = create_runs(RECIPES[name], RECIPES[name].benchmark_settings.open(), tmp_path, [4])
    assert load_experiment(run) == RECIPES[name]
    assert run.config()["seed"] == 4


@pytest.mark.parametrize("name", list(RECIPES))
def test_recipes_survive_json(name):
    for part in (
        RECIPES[name].benchmark_settings,
        RECIPES[name].method_settings,
        RECIPES[name].modelling,
        RECIPES[name].training,
    ):
        assert through_json(part) == part


def test_the_scaling_of_the_training_tasks_is_kept_in_the_run(tmp_path):
    """Measured anew when a run is loaded, it would differ where the benchmark's files have changed since."""
    experiment = dataclasses.replace(
        tiny_experiment(), modelling=Modelling(standardise=True), training=TrainConfig(steps=2, val_tasks=5)
    )
    (run,) = create_runs(experiment, BENCHMARK, tmp_path, [0])
    kept = run.config()["scaling"]
    assert kept["y_mean"] == list(measured_scaling(experiment.modelling, BENCHMARK.train).y_mean)
    run.config_path.write_text(json.dumps({**run.config(), "scaling": {**kept, "y_mean": [123.0]}}))
    train_runs([run], experiment, BENCHMARK)
    learner = load_run(tmp_path)[1]
    assert isinstance(learner, Standardised)
    assert learner.scaling.y_mean == (123.0,)


def frozen_keys() -> set[tuple[int, ...]]:
    """The keys of frozen validation and test sets, and those of the first tasks and draws made of them."""
    keys = [jr.key(seed) for seed in (VAL_SEED, TEST_SEED)]
    return {numbers(one) for key in keys for one in (key, *jr.split(key, 50))}


def numbers(key) -> tuple[int, ...]:
    return tuple(jr.key_data(key).tolist())


@pytest.mark.parametrize("seed", range(4))
def test_a_run_has_no_key_of_a_frozen_set(seed):
    keys = run_keys(seed)
    assert not {numbers(jr.fold_in(jr.key(seed), RUN_WORD)), *map(numbers, keys)} & frozen_keys()
    old = run_keys(seed, as_in=OLD_KEYS)
    assert [*map(numbers, old)] == [*map(numbers, jr.split(jr.key(seed)))]
    assert bool({*map(numbers, old)} & frozen_keys()) == (seed in (VAL_SEED, TEST_SEED))


def test_runs_of_other_seeds_have_other_keys(tmp_path):
    keys = [numbers(key) for seed in range(4) for key in run_keys(seed)]
    assert len(set(keys)) == 8
    (run,) = create_runs(tiny_experiment(), BENCHMARK, tmp_path, [1])
    assert "keys" not in run.config()


def test_settings_off_their_defaults_survive_json():
    assert through_json(regression2d.Config(input_range=(-1.0, 2.0), min_shots=3, pool=7)).input_range == (-1.0, 2.0)
    changed = maml.Config(hidden=(3, 4, 5), inner=InnerLoop(inner_clamp=None, order="first"))
    assert through_json(changed) == changed


def test_scores_come_back(run):
    run.save_scores("test-10", {"tasks": 2}, {"mse": np.array([1.0, 2.0])})
    assert run.scores() == {"test-10": {"tasks": 2}}
    np.testing.assert_array_equal(run.score_arrays("test-10")["mse"], [1.0, 2.0])
    with pytest.raises(RunError, match=r"other\.npz is missing"):
        run.score_arrays("other")


def test_a_learner_comes_back_from_its_folder(tmp_path):
    (run,) = create_runs(tiny_experiment(), BENCHMARK, tmp_path, [0])
    spec = regression2d.Curves(regression2d.Config()).spec
    learner = maml.Config(hidden=(4,)).build(spec, key=jr.key(5))
    run.save_learner(learner)
    _, back = load_run(tmp_path)
    assert isinstance(back, maml.MAML)
    np.testing.assert_array_equal(back.theta.head.weight, learner.theta.head.weight)
    assert back.settings == learner.settings
