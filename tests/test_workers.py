"""Jobs on a cluster: their outcomes, and what happens to those of a worker that dies."""

import importlib.util
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stmaml import workers
from stmaml.cli import search as search_command
from stmaml.cli.fleet import showing_fleet
from stmaml.cli.showing import plain_console
from stmaml.errors import SettingError, StmamlError
from stmaml.locks import forget, locked
from stmaml.progress import Told, remark, tell
from stmaml.search import Search, Searching
from stmaml.workers import Command, Job, Outcome, map_jobs

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the package ray is not installed")
PATIENCE = 400  # seconds, on a machine that does other things too


def test_without_ray_a_sentence_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SettingError, match=r"pip install '.\[ray\]'"):
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


def test_a_search_sends_each_row_to_a_worker_and_prints_what_it_chose(monkeypatch, stmaml, tmp_path):
    """Without a cluster: what is sent can be pickled, and failures are named when all else has ended."""
    sent = {}

    def here(jobs, cluster, told):
        for job in jobs:
            sent[job.name] = (cluster, pickle.loads(pickle.dumps(job.work)))
            job.folder.mkdir(parents=True)
            error = "no such thing." if job.name == "cnp" else ""
            yield Outcome(job, None if error else {"settings": {"training.outer_lr": 0.01}, "score": 1.5}, error)

    monkeypatch.setattr(search_command, "map_jobs", here)
    words = ("search", "regression2d", "--method", "cnp", "maml", "--trials", "5", "--shots", "7", "--ray", "head:1")
    code, out, err = stmaml(*words, "--out", tmp_path)
    assert code == 2
    assert json.loads(out) == {"row": "maml", "settings": {"training.outer_lr": 0.01}, "score": 1.5}
    assert "cnp failed: no such thing." in err
    assert "cnp failed, as said above. Mend it and give the same command" in err
    work = Searching(Search(trials=5), "regression2d", "maml", {"shots": 7})
    assert sent["maml"] == ("head:1", work)


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


@needs_ray
@pytest.mark.slow
def test_rows_are_searched_for_by_two_workers_of_which_one_is_killed(tmp_path):
    words = ["search", "regression2d", "--method", "maml", "cnp", "--trials", "6", "--tasks", "40000", "--rounds", "1"]
    words += ["--val-tasks", "20", "--ray", "local", "--out", str(tmp_path / "out")]
    mark = f"WORKERS_OF={tmp_path}"  # by which the workers of this command are known
    command = ["env", mark, sys.executable, "-m", "stmaml", *words]
    with (tmp_path / "said.txt").open("w") as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
    wait_until(lambda: list((tmp_path / "out").glob("*/search.json")), process)
    os.kill(workers_of(mark)[0], signal.SIGKILL)
    assert process.wait(PATIENCE) == 0, (tmp_path / "said.txt").read_text()[-3000:]
    text = (tmp_path / "said.txt").read_text()
    assert "its worker died; it is tried again" in text
    assert sum(line.endswith("done at attempt 2") for line in text.splitlines()) == 1
    printed = {one["row"]: one for line in text.splitlines() if line.startswith("{") for one in [json.loads(line)]}
    assert set(printed) == {"maml", "cnp"}
    for row, one in printed.items():
        record = json.loads((tmp_path / "out" / row / "search.json").read_text())
        tried = [(json.dumps(trial["settings"]), trial["seed"]) for trial in record["trials"]]
        assert len(tried) == len(set(tried)) == 6  # none twice, though one was begun twice
        assert record["chosen"]["settings"] == one["settings"]


def workers_of(mark: str) -> list[int]:
    """The processes that have a job of the cluster whose command had this in its environment."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if b"ray::_work" in (place / "cmdline").read_bytes() and mark.encode() in (place / "environ").read_bytes():
                found.append(int(place.name))
        except OSError:
            continue  # it has ended
    return found


def wait_until(ready: Callable[[], Any], command: subprocess.Popen) -> None:
    end = time.monotonic() + PATIENCE
    while not ready():
        assert time.monotonic() < end
        assert command.poll() is None, "the command ended before it trained"
        time.sleep(0.05)


def kill_who_writes(folder: Path, command: subprocess.Popen) -> int:
    """Kills the worker that trains in a folder, once it has saved something; its number."""
    wait_until(lambda: list(folder.rglob("checkpoints/step-*.npz")), command)
    (lock,) = folder.rglob("lock")
    pid = int(lock.read_text().split('"pid": ')[1].split(",")[0])
    assert pid != command.pid
    os.kill(pid, signal.SIGKILL)
    return pid
