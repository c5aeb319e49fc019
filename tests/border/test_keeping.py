"""What is somebody else's stays: files that a run, an export or predictions would replace, and what links lead to."""

import asyncio
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import pytest

from stmaml import locks
from stmaml.benchmarks import regression2d
from stmaml.cli.evaluate import _copied
from stmaml.cli.predict import file_name
from stmaml.errors import RunError, SettingError
from stmaml.experiments import create_runs
from stmaml.exporting.files import READER, _refuse_others
from stmaml.methods import maml
from stmaml.pool.store import PoolRun, PoolSettings
from stmaml.recipes import Experiment
from stmaml.runs import Run
from stmaml.serving.app import MOST_BYTES, _bounded
from stmaml.serving.schema import Refused
from stmaml.tables.benchmark import Config, TableConfig

LONGEST_NAME = 255
FULL = Path("/dev/full")


@pytest.fixture
def run(tmp_path) -> Run:
    benchmark = regression2d.Config().open()
    experiment = Experiment("regression2d", "maml", "paper", benchmark.settings, maml.Config(hidden=(4,)))
    (made,) = create_runs(experiment, benchmark, tmp_path / "run", [0])
    return made


def others(folder: Path, name: str, content: str = "mine") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


ABOUT = {"seed": 0, "benchmark": {"name": "regression2d"}, "method": {"name": "maml"}}


@pytest.mark.parametrize("name", ["log.jsonl", "learner.npz", "calibration.json", "scores/own.json", "curves/own.npz"])
@pytest.mark.parametrize("force", [False, True])
def test_a_run_is_not_made_over_files_that_are_not_of_a_run(tmp_path, name, force):
    mine = others(tmp_path, name)
    with pytest.raises(RunError, match=f"is no run, but has a file {name}, which would be lost"):
        Run(tmp_path).create(ABOUT, force=force)
    assert mine.read_text() == "mine"
    assert not (tmp_path / "config.json").exists()


def test_a_run_that_is_replaced_leaves_what_it_did_not_write(run):
    mine, old = others(run.folder, "scores/thesis.xlsx"), others(run.folder, "scores/old.json", "{}")
    run.create(ABOUT, force=True)
    assert mine.read_text() == "mine"
    assert not old.exists()


def test_settings_of_another_program_are_not_replaced_but_damaged_ones_are(tmp_path):
    path = others(tmp_path, "config.json", '{"editor": {"theme": "dark"}}')
    with pytest.raises(RunError, match=r"has a file config\.json, which would be lost"):
        Run(tmp_path).create(ABOUT, force=True)
    path.write_text('{"seed": 0, "bench')
    Run(tmp_path).create(ABOUT, force=True)
    assert json.loads(path.read_text())["method"] == {"name": "maml"}


def pool_in(folder: Path, *, force: bool = False) -> None:
    PoolRun(Run(folder)).create(Config(TableConfig("shop", "y"), ("t.csv",)), PoolSettings(), 0, force=force)


@pytest.mark.parametrize("name", ["result.json", "known.parquet", "members/mean.npz"])
def test_a_pool_is_not_made_over_files_that_are_not_of_a_run(tmp_path, name):
    mine = others(tmp_path, name)
    with pytest.raises(RunError, match=f"has a file {name}"):
        pool_in(tmp_path, force=True)
    assert mine.read_text() == "mine"


def test_a_pool_that_another_process_fits_is_not_replaced(tmp_path):
    pool_in(tmp_path)
    pid = os.getppid()
    first = dataclasses.replace(locks.me(), pid=pid, started=locks._started(pid))
    (tmp_path / locks.NAME).write_text(json.dumps(dataclasses.asdict(first)))
    mine = others(tmp_path, "members/mean.npz")
    with pytest.raises(RunError, match=f"process {pid} on .* is writing to"):
        pool_in(tmp_path, force=True)
    assert mine.exists()


@pytest.mark.parametrize("part", ["checkpoints", "scores", "curves"])
def test_a_linked_part_of_a_run_leads_no_write_and_no_removal_elsewhere(run, tmp_path, part):
    victim = tmp_path / "victim"
    kept = [others(victim, f"step-00000000{i}.npz") for i in (1, 2, 3)] + [others(victim, "a.partial")]
    (run.folder / part).symlink_to(victim)
    act = {
        "checkpoints": run.sweep,
        "scores": lambda: run.save_scores("one", {}, {}),
        "curves": lambda: run.save_arrays(Path("curves") / "one.npz", {}),
    }
    with pytest.raises(RunError, match=f"{part} is a link; expected a folder"):
        act[part]()
    with pytest.raises(RunError, match=f"{part} is a link"):
        run.create(ABOUT, force=True)
    assert sorted(victim.iterdir()) == sorted(kept)


def test_a_run_folder_may_be_a_link_itself(run, tmp_path):
    (tmp_path / "short").symlink_to(run.folder)
    Run(tmp_path / "short").save_checkpoint(5, {"weight": jnp.ones(2)})
    assert run.checkpoint_steps() == [5]


def test_of_a_run_that_cannot_be_written_to_only_its_own_files_are_copied(run, tmp_path):
    run.save_learner({"weight": jnp.ones(2)})
    os.mkfifo(run.folder / "pipe")
    (run.folder / "endless").symlink_to("/dev/zero")
    (run.folder / "everything").symlink_to("/")
    copy = _copied(run, tmp_path / "copy")
    assert sorted(path.name for path in copy.folder.iterdir()) == ["config.json", "learner.npz"]


@pytest.mark.parametrize("letter", ["名", "\U0001d49c", "a", "é"])
def test_groups_with_long_names_have_files_that_the_system_allows(letter):
    names = [file_name(letter * count) for count in (30, 100, 101, 4000)]
    partial = len(".") + len(".npz") + len(".0123456789abcdef.partial")
    assert max(len(name.encode()) for name in names) + partial <= LONGEST_NAME
    assert len(set(names)) == 4
    assert names[0] == letter * 30


def test_an_export_replaces_exports_alone(tmp_path):
    about, reader = tmp_path / "shops.json", tmp_path / READER
    _refuse_others(about, b'"made_by": "stmaml ')
    about.write_text('{\n "format": 1,\n "made_by": "stmaml 0.1.0"}')
    _refuse_others(about, b'"made_by": "stmaml ')
    about.write_text('{"prices": [1, 2]}')
    with pytest.raises(SettingError, match=r"shops\.json is there and was not written by an export"):
        _refuse_others(about, b'"made_by": "stmaml ')
    reader.mkdir()
    with pytest.raises(SettingError, match="was not written by an export"):
        _refuse_others(reader, b"Reads")


@pytest.mark.parametrize("flag", ["query", "support", "train"])
def test_predictions_do_not_replace_what_they_are_made_from(stmaml, tmp_path, flag):
    tables = {name: others(tmp_path, f"{name}.csv", "shop,y\na,1\n") for name in ("query", "support", "train")}
    (tmp_path / "out.csv").hardlink_to(tables[flag])
    words = [word for name, path in tables.items() for word in (f"--{name}", path)]
    code, _, err = stmaml("predict", *words, "--task", "shop", "--target", "y", "--out", tmp_path / "out.csv")
    assert code == 2
    assert f"is the file that --{flag} reads, which would be lost" in " ".join(err.split())
    assert tables[flag].read_text() == "shop,y\na,1\n"


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("command", [["list"], ["--version"]])
def test_output_that_cannot_be_written_is_said_in_a_sentence(command):
    with FULL.open("w") as full:
        words = [sys.executable, "-m", "stmaml", *command]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "No space left on device" in done.stderr


def test_letters_that_the_output_cannot_have_are_said_in_a_sentence():
    code = "from stmaml.cli.stopping import listening; listening(lambda: print('caf\\xe9'))"
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], env=ascii_only, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr == r"stmaml: the output is to be in ascii, which has no '\xe9'. Set PYTHONIOENCODING=utf-8." + "\n"
    )


@pytest.mark.parametrize("stated", ["²", "9" * 5000, "-1", "1e3", "0x10", str(MOST_BYTES + 1)])
def test_a_length_that_is_no_number_is_refused_like_one_that_is_too_large(stated):
    async def stream():
        yield b"{}"

    request = SimpleNamespace(headers={"content-length": stated}, stream=stream)
    with pytest.raises(Refused, match="too large"):
        asyncio.run(_bounded(request))  # type: ignore[arg-type]
