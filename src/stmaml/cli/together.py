"""The flags of several devices and processes, and how a process ends that has lost the others."""

import contextlib
import ctypes
import dataclasses
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from stmaml.cli.parsing import option
from stmaml.cli.stopping import end
from stmaml.errors import SettingError, StmamlError
from stmaml.training import hosts

LOST_CODE = 4
LOST = (
    "stmaml: another process of this job has ended or cannot be reached, so this one ends too. What process 0 saved is "
    "whole: go on with 'stmaml train --resume RUN', with any number of processes."
)
MEETING = (
    f"stmaml: the processes did not all meet at --coordinator within {hosts.PATIENCE_SECONDS} s. Start as many as "
    "--processes says, with an address of process 0 that the others can reach."
)
DEVICES = "Devices that share the work: a number, or all; 1 if not given, and all where there are several processes."
COORDINATOR = "Where the processes of a job meet: HOST:PORT of process 0, or auto under SLURM, Kubernetes or MPI."


@dataclasses.dataclass(frozen=True)
class Place:
    """Where this process stands among those that train together."""

    coordinator: str | None
    processes: int | None
    process: int | None


def flags() -> dict[str, tuple[Any, Any]]:
    """The flags that say what a training runs on."""
    return {
        "devices": option(None, DEVICES, str | None),
        "coordinator": option(None, COORDINATOR, str | None),
        "processes": option(None, "Processes of the job, with --coordinator HOST:PORT.", int | None),
        "process": option(None, "Which of them this is, from 0 on.", int | None),
    }


@contextlib.contextmanager
def together(place: Place) -> Iterator[Path]:
    """Joins the other processes inside the block, if there are any, and gives a folder for what is not kept. With
    others, no error waits for them: the process ends with a sentence and its exit code."""
    if place.coordinator is None:
        if place.processes is not None or place.process is not None:
            raise SettingError("--processes and --process need --coordinator HOST:PORT.")
        yield Path()
        return
    _answer_aborts(MEETING)
    try:
        hosts.join(place.coordinator, place.processes, place.process)
        _answer_aborts(LOST)
        with tempfile.TemporaryDirectory(prefix="stmaml-") as scratch:
            yield Path(scratch)
        jax.distributed.shutdown()
    except BaseException as error:
        sys.stdout.flush()
        _end(error)


def _end(error: BaseException) -> None:
    """Ends the process for a reason, without waiting for the others to come to the same end."""
    if isinstance(error, SystemExit):
        end(error.code if isinstance(error.code, int) else 0)
    if isinstance(error, StmamlError):
        end(2, f"stmaml: {error}")
    if hosts.means_lost(error):
        end(LOST_CODE, LOST)
    end(1, "".join(traceback.format_exception(error)).rstrip())


_last_words = [LOST]


@ctypes.CFUNCTYPE(None, ctypes.c_int)
def _aborted(number: int) -> None:
    end(LOST_CODE, _last_words[0])


def _answer_aborts(words: str) -> None:
    """Has the last word where JAX's runtime aborts the process, which is its way to end when others are lost.

    Only a handler of the C library is asked then: those of Python wait for a main thread that may wait for the lost."""
    _last_words[0] = words
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        library.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
        library.signal.restype = ctypes.c_void_p
        library.signal(signal.SIGABRT, ctypes.cast(_aborted, ctypes.c_void_p))
