"""The lock on a run folder: one writer, and none that a dead process leaves behind."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stmaml import locks
from stmaml.benchmarks import regression2d
from stmaml.errors import RunError
from stmaml.experiments import create_runs, train_runs
from stmaml.locks import NAME, Locks, Owner, check_unlocked, locked, me
from stmaml.methods import maml
from stmaml.recipes import Experiment


@pytest.fixture
def other():
    """A process that lives as long as the test."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process.pid
    process.kill()
    process.wait()


def ended() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def leave(folder: Path, owner: Owner, *, silent: float = 0.0) -> None:
    """A lock of somebody, last touched so many seconds ago."""
    (folder / NAME).write_text(json.dumps(dataclasses.asdict(owner)))
    then = time.time() - silent
    os.utime(folder / NAME, (then, then))


def of(pid: int, **changes: str) -> Owner:
    return dataclasses.replace(me(), **{"pid": pid, "started": locks._started(pid), **changes})


def test_a_folder_is_locked_inside_and_free_outside(tmp_path):
    with locked([tmp_path]):
        said = json.loads((tmp_path / NAME).read_text())
        assert (said["pid"], said["host"]) == (os.getpid(), me().host)
        assert os.listdir(tmp_path) == [NAME]
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_the_lock_goes_whatever_ends_the_work(error, tmp_path):
    with pytest.raises(error), locked([tmp_path]):
        raise error
    assert os.listdir(tmp_path) == []


def test_who_ends_a_process_at_once_can_release_its_locks(tmp_path):
    with locked([tmp_path]):
        locks.release_held()
        assert os.listdir(tmp_path) == []
    assert locks._held == set()


def test_a_second_writer_is_told_who_the_first_is(tmp_path, other):
    leave(tmp_path, of(other), silent=9999)  # alive, so that its silence does not matter
    for refused in (lambda: locked([tmp_path]).__enter__(), lambda: check_unlocked(tmp_path)):
        with pytest.raises(RunError, match=rf"process {other} on .* is writing to .*remove .*{NAME}"):
            refused()
    assert os.listdir(tmp_path) == [NAME]


def test_of_several_folders_all_are_locked_or_none(tmp_path, other):
    first, second = tmp_path / "seed-0", tmp_path / "seed-1"
    first.mkdir()
    second.mkdir()
    leave(second, of(other))
    with pytest.raises(RunError), locked([first, second]):
        pass
    assert os.listdir(first) == []


def test_the_lock_of_a_process_that_ended_is_taken_over(tmp_path):
    leave(tmp_path, of(ended(), started="1"))
    check_unlocked(tmp_path)
    with locked([tmp_path]):
        assert json.loads((tmp_path / NAME).read_text())["pid"] == os.getpid()
        assert os.listdir(tmp_path) == [NAME]


def test_a_number_that_now_belongs_to_another_process_holds_nothing(tmp_path, other):
    leave(tmp_path, of(other, started="1"))
    with locked([tmp_path]):
        pass


@pytest.mark.parametrize("elsewhere", [{"host": "another"}, {"space": "pid:[1]"}])
def test_another_machine_is_respected_until_it_has_been_silent_for_long(elsewhere, tmp_path):
    leave(tmp_path, of(ended(), **elsewhere), silent=300)
    with pytest.raises(RunError, match="is writing to"), locked([tmp_path]):
        pass
    leave(tmp_path, of(ended(), **elsewhere), silent=700)
    with locked([tmp_path]):
        assert json.loads((tmp_path / NAME).read_text())["pid"] == os.getpid()


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b'{"pid": "x"}'])
def test_a_lock_that_names_nobody_is_respected_for_a_while(content, tmp_path):
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(RunError, match="another process is writing"), locked([tmp_path]):
        pass
    os.utime(tmp_path / NAME, (1, 1))
    with locked([tmp_path]):
        pass


def test_training_touches_its_lock_and_stops_where_it_is_lost(tmp_path, other):
    with locked([tmp_path]) as held:
        os.utime(tmp_path / NAME, (1, 1))
        held.progress(1, {})
        assert time.time() - (tmp_path / NAME).stat().st_mtime < 60
        leave(tmp_path, of(other, host="another"))
        with pytest.raises(RunError, match=rf"process {other} on another has taken over"):
            held.checkpoint(2, None)
    assert json.loads((tmp_path / NAME).read_text())["host"] == "another"  # not removed with the own one


def test_a_lock_put_in_place_of_a_stale_one_is_put_back(tmp_path, other):
    stale, fresh = of(ended(), started="1"), of(other)
    leave(tmp_path, fresh)
    locks._put_aside(tmp_path, stale)
    assert locks._holder(tmp_path) == fresh
    assert os.listdir(tmp_path) == [NAME]


def test_a_killed_process_leaves_a_lock_that_the_next_takes_over(tmp_path):
    script = "import sys, time; from pathlib import Path; from stmaml.locks import locked\n"
    script += "with locked([Path(sys.argv[1])]): print('held', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    with pytest.raises(RunError, match=f"process {process.pid} "), locked([tmp_path]):
        pass
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    with locked([tmp_path]) as held:
        assert isinstance(held, Locks)


def test_a_run_that_is_being_written_is_not_replaced(tmp_path, other):
    benchmark = regression2d.Config().open()
    experiment = Experiment("regression2d", "maml", "paper", benchmark.settings, maml.Config(hidden=(4,)))
    create_runs(experiment, benchmark, tmp_path, [0])
    leave(tmp_path, of(other))
    with pytest.raises(RunError, match="is writing to"):
        create_runs(experiment, benchmark, tmp_path, [0], force=True)


def test_a_run_that_was_made_anew_before_its_training_began_is_not_trained(tmp_path):
    """Two begin in one folder: the settings that are kept are those of the second, and the first must not go on."""
    benchmark = regression2d.Config().open()
    first, second = (
        Experiment("regression2d", "maml", "paper", benchmark.settings, maml.Config(hidden=(width,)))
        for width in (4, 5)
    )
    runs = create_runs(first, benchmark, tmp_path, [0])
    create_runs(second, benchmark, tmp_path, [0], force=True)
    with pytest.raises(RunError, match="holds other settings by now: another process has made it anew"):
        train_runs(runs, first, benchmark)
    assert not (tmp_path / "learner.npz").exists()
