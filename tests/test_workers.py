"""Jobs on a cluster: their outcomes, and what happens to those of a worker that dies."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from stmaml import workers
from stmaml.cli.fleet import showing_fleet
from stmaml.cli.showing import plain_console
from stmaml.errors import SettingError, StmamlError
from stmaml.locks import forget, locked
from stmaml.progress import Told, remark, tell
from stmaml.workers import Command, Job, Outcome, map_jobs

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the package ray is not installed")
PATIENCE = 400  # seconds, on a machine that does other things too


def test_without_ray_a_sentence_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SettingError, match=r"pip install 'stmaml\[ray\]'"):
        list(map_jobs([Job("one", tmp_path, str)], "local", lambda name, told: None))


def work(job: Job, told: list) -> tuple:
    """What a worker makes of a job; `told` gets what it tells."""
    board = SimpleNamespace(tell=SimpleNamespace(remote=lambda name, what: told.append((name, what))))
    return workers._work(job, board, {}, os.getcwd())


def test_a_worker_gives_the_result_or_why_there_is_none(tmp_path):
    def good(folder: Path) -> str:
        remark("reading")
        for done in range(1000):
            tell("counting", done + 1, 1000)
        return folder.name

    def bad(folder: Path) -> None:
        raise SettingError("no such thing.")

    told: list = []
    assert work(Job("good", tmp_path / "here", good), told) == ("here", "")
    assert told[0] == ("good", Told("reading"))
    assert told[-1] == ("good", Told("counting", 1000, 1000))
    assert len(told) < 10
    assert work(Job("bad", tmp_path, bad), told) == (None, "no such thing.")
    assert "ZeroDivisionError" in work(Job("worse", tmp_path, lambda folder: 1 / 0), told)[1]


def test_a_command_is_a_job(tmp_path):
    assert Command(("--version",))(tmp_path).count(".") >= 2
    with pytest.raises(StmamlError, match=r"stmaml lst ended with exit code 2: .*Did you mean list"):
        Command(("lst",))(tmp_path)


def test_the_lock_of_a_dead_worker_is_forgotten(tmp_path):
    with locked([tmp_path]):
        forget(tmp_path)
        forget(tmp_path)
        with locked([tmp_path]):
            pass


def test_one_view_shows_all_jobs(capsys, tmp_path):
    with showing_fleet(plain_console(stderr=True), 2) as fleet:
        fleet("maml", Told("training", 10, 100, "loss 1.5"))
        fleet("maml", Told("training", 20, 100))
        fleet("cnp", Told("needs about 1 GB"))
        fleet("cnp", Told("needs about 1 GB"))
        fleet.ended(Outcome(Job("maml", tmp_path, str), "done", attempts=2))
        fleet.ended(Outcome(Job("cnp", tmp_path, str), None, "no such thing."))
    lines = capsys.readouterr().err.splitlines()
    first = ["maml  training  loss 1.5  10/100", "cnp: needs about 1 GB"]
    assert lines == [*first, "maml done at attempt 2", "cnp failed: no such thing."]


@needs_ray
@pytest.mark.slow
def test_rows_of_a_table_are_filled_by_two_workers_of_which_one_is_killed(tmp_path):
    words = ["reproduce", "regression2d", "--rows", "maml", "cnp", "--steps", "3000", "--seeds", "1"]
    words += ["--ray", "local", "--out", str(tmp_path / "out")]
    command = [sys.executable, "-m", "stmaml", *words]
    with (tmp_path / "said.txt").open("w") as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
    killed = kill_who_writes(tmp_path / "out" / "maml", process)
    assert process.wait(PATIENCE) == 0, (tmp_path / "said.txt").read_text()[-3000:]
    text = (tmp_path / "said.txt").read_text()
    assert killed
    assert "maml: its worker died; it is tried again" in text
    assert "maml done at attempt 2" in text
    assert "cnp done" in text
    assert (tmp_path / "out" / "report").is_dir()
    assert not list((tmp_path / "out").rglob("lock"))


def kill_who_writes(folder: Path, command: subprocess.Popen) -> int:
    """Kills the worker that trains in a folder, once it has saved something; its number."""
    end = time.monotonic() + PATIENCE
    while not list(folder.rglob("checkpoints/step-*.npz")):
        assert time.monotonic() < end
        assert command.poll() is None, "the command ended before it trained"
        time.sleep(0.05)
    (lock,) = folder.rglob("lock")
    pid = int(lock.read_text().split('"pid": ')[1].split(",")[0])
    assert pid != command.pid
    os.kill(pid, signal.SIGKILL)
    return pid
