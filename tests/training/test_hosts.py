"""Several processes: what they ask each other, who writes, and how a job ends that has lost one of them."""

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from stmaml.cli import together
from stmaml.errors import SettingError
from stmaml.runs import Run
from stmaml.training import hosts

WORDS = ["train", "regression2d", "--method", "maml", "--hidden", "8", "--inner-steps", "1", "--steps", "400"]
WORDS += ["--steps-per-call", "10", "--checkpoint-every", "10", "--val-every", "200", "--tasks-per-batch", "4"]
WORDS += ["--val-tasks", "4", "--outer-lr", "0.01"]
PATIENCE = 300  # seconds, on a machine that does other things too


def test_one_process_agrees_with_itself(tmp_path):
    assert hosts.writes()
    assert hosts.most(15) == 15
    assert hosts.least(2**40) == 2**40
    assert hosts.least(None) is None
    runs = [Run(tmp_path)]
    assert hosts.shared_runs(lambda: runs, tmp_path / "scratch") is runs
    assert not hosts.means_lost(RuntimeError("Gloo AllGather failed"))


def test_a_copy_of_runs_has_what_training_needs_and_no_more(tmp_path):
    runs = [Run(tmp_path / f"seed-{seed}") for seed in (3, 4)]
    for run in runs:
        run.create({"seed": int(run.folder.name[-1])})
        run.save_learner({"w": np.ones(2)})
        run.save_checkpoint(10, {"w": np.zeros(2)})
        run.append_log({"step": 10})
        (run.folder / "lock").write_text("{}")
    copies = hosts.unpack(hosts.pack(runs), tmp_path / "copy")
    assert [copy.config()["seed"] for copy in copies] == [3, 4]
    assert [copy.checkpoint_steps() for copy in copies] == [[10], [10]]
    held = sorted(str(path.relative_to(copies[0].folder)) for path in copies[0].folder.rglob("*") if path.is_file())
    assert held == ["checkpoints/step-000000010.npz", "config.json", "learner.npz"]


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (("somewhere", 2, 0), "--coordinator must be HOST:PORT or auto; got 'somewhere'."),
        (("host:1", None, 0), "--coordinator HOST:PORT needs --processes and --process as well."),
        (("host:1", 2, 2), "--process must be from 0 to 1, below --processes; got 2."),
    ],
)
def test_flags_that_name_no_job_are_refused(place, words):
    with pytest.raises(SettingError, match=words.replace(".", r"\.")):
        hosts.join(*place)


def test_places_need_a_coordinator(stmaml, tmp_path):
    code, _, err = stmaml(*WORDS, "--run", tmp_path / "run", "--processes", "2", "--process", "0")
    assert code == 2
    assert "--processes and --process need --coordinator HOST:PORT." in err


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def start(run: Path, *words: str) -> subprocess.Popen:
    """A process of the command, with what it says in a file beside the run."""
    command = [sys.executable, "-m", "stmaml", *words]
    with run.with_name(f"{run.name}-{Path(words[-1]).name}.txt").open("w") as said:
        return subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)


def start_pair(run: Path) -> list[subprocess.Popen]:
    place = ["--run", str(run), "--coordinator", f"127.0.0.1:{free_port()}", "--processes", "2", "--process"]
    return [start(run, *WORDS, *place, index) for index in "01"]


def wait_for_checkpoint(run: Path, processes: list[subprocess.Popen]) -> None:
    end = time.monotonic() + PATIENCE
    while not list((run / "checkpoints").glob("step-*.npz")):
        assert time.monotonic() < end
        assert all(process.poll() is None for process in processes), "a process ended before the first checkpoint"
        time.sleep(0.1)


def losses(run: Path) -> dict[int, float]:
    entries = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return {entry["step"]: entry["loss"] for entry in entries if "loss" in entry}


@pytest.mark.sockets
@pytest.mark.slow
def test_a_job_that_loses_a_process_ends_with_a_sentence_and_goes_on_with_one(tmp_path):
    run, alone = tmp_path / "run", tmp_path / "alone"
    pair = start_pair(run)
    wait_for_checkpoint(run, pair)
    pair[1].kill()
    pair[1].wait()
    assert pair[0].wait(PATIENCE) == together.LOST_CODE
    assert together.LOST in (tmp_path / "run-0.txt").read_text()
    reached = Run(run).checkpoint_steps()[-1]
    assert reached < 400
    assert not (run / "lock").exists()
    assert start(run, "train", "--resume", str(run)).wait(PATIENCE) == 0
    assert start(alone, *WORDS, "--run", str(alone)).wait(PATIENCE) == 0
    assert list(losses(run)) == list(losses(alone)) == list(range(10, 401, 10))
    assert list(losses(run).values()) == pytest.approx(list(losses(alone).values()), rel=1e-3)


@pytest.mark.sockets
@pytest.mark.slow
def test_a_job_that_loses_its_writer_ends_too(tmp_path):
    pair = start_pair(tmp_path / "run")
    wait_for_checkpoint(tmp_path / "run", pair)
    pair[0].kill()
    pair[0].wait()
    assert pair[1].wait(PATIENCE) == together.LOST_CODE
    assert together.LOST in (tmp_path / "run-1.txt").read_text()


@pytest.mark.sockets
@pytest.mark.slow
def test_a_process_that_is_asked_to_stop_stops_all_at_the_same_step(tmp_path):
    pair = start_pair(tmp_path / "run")
    wait_for_checkpoint(tmp_path / "run", pair)
    pair[1].terminate()
    codes = [process.wait(PATIENCE) for process in pair]
    assert codes[1] == 143
    assert codes[0] in (143, together.LOST_CODE)  # where the other had nothing to save, it left at once
    assert Run(tmp_path / "run").checkpoint_steps()
