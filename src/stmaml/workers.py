"""Many jobs on a Ray cluster: each on a worker, tried again where the worker dies, their progress told in one place.

Every job writes to a folder of its own, which all machines share. What a dead worker left there, the next one goes on
with."""

import contextlib
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from stmaml.compiled import remember_programs
from stmaml.errors import SettingError, StmamlError
from stmaml.locks import forget
from stmaml.progress import Told, listening
from stmaml.runs import held_runs

LOCAL = "local"
ATTEMPTS = 3
GLANCE = 0.5  # seconds between looks at what the workers tell
CARRIED = ("XLA_FLAGS", "STMAML_CACHE", "STMAML_DATA", "TF_CPP_MIN_LOG_LEVEL")  # what workers take from this process
ALONG = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()
sys.argv[0] = "stmaml"
from stmaml.__main__ import main
main()
"""  # a command that ends when its input does
Listener = Callable[[str, Told], None]


@dataclass(frozen=True)
class Job:
    """Something to be done on a worker."""

    name: str
    folder: Path
    """Where it writes."""
    work: Callable[[Path], Any]
    """What does it, given the folder; it travels by pickle, as does what it gives."""


@dataclass(frozen=True)
class Command:
    """A command line of `stmaml` as the work of a job; it ends when its worker does."""

    words: tuple[str, ...]

    def __call__(self, folder: Path) -> str:
        """What the command printed; StmamlError where it failed."""
        del folder  # the words name it
        ours, its = os.pipe()[::-1]  # whose other end its input is: that is at its end when this process is
        try:
            done = subprocess.run(
                [sys.executable, "-c", ALONG, *self.words], stdin=its, capture_output=True, text=True, check=False
            )
        finally:
            os.close(ours)
            os.close(its)
        if done.returncode:
            said = done.stderr.strip()[-500:]
            raise StmamlError(f"stmaml {' '.join(self.words)} ended with exit code {done.returncode}: {said}")
        return done.stdout


@dataclass(frozen=True)
class Outcome:
    """How a job has ended."""

    job: Job
    result: Any = None
    error: str = ""
    """Why there is no result."""
    attempts: int = 1
    """How often it was tried."""


def map_jobs(jobs: Iterable[Job], cluster: str, told: Listener, *, attempts: int = ATTEMPTS) -> Iterator[Outcome]:
    """The outcomes of jobs on a Ray cluster, in the order in which they end. `cluster` is its address, or `local` for
    one on this machine that ends with this process. `told` hears the progress of each job under its name."""
    with _connected(cluster) as ray:
        fleet = _Fleet(ray, told, attempts)
        for job in jobs:
            fleet.send(job)
        while fleet.under_way:
            yield from fleet.ended()


@contextlib.contextmanager
def _connected(cluster: str) -> Iterator[Any]:
    try:
        ray: Any = import_module("ray")
    except ModuleNotFoundError as error:
        raise SettingError("--ray needs the package ray: pip install '.[ray]' in the folder of the package.") from error
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        ray.init(address=cluster, log_to_driver=False, logging_level="ERROR", **_local(cluster))
    except (ConnectionError, ValueError, RuntimeError) as error:
        why = str(error).partition("\n")[0][:200]
        raise SettingError(f"there is no Ray cluster at '{cluster}' ({why}). Start one, or use --ray local.") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _local(cluster: str) -> dict[str, Any]:
    return {"include_dashboard": False} if cluster == LOCAL else {}


@dataclass
class _Fleet:
    """Jobs under way on a cluster, each with how often it was tried."""

    ray: Any
    told: Listener
    attempts: int
    under_way: dict[Any, tuple[Job, int]] = field(default_factory=dict)

    def __post_init__(self):
        self._board = self.ray.remote(_Board).options(num_cpus=0, max_restarts=-1).remote()
        gpus = {"num_gpus": 1} if self.ray.cluster_resources().get("GPU") else {}
        # A process for each job: what a job has compiled fills memory that the next one needs.
        self._run = self.ray.remote(num_cpus=1, max_retries=0, max_calls=1, **gpus)(_work)
        self._carried = {name: os.environ[name] for name in CARRIED if name in os.environ}

    def send(self, job: Job, attempt: int = 1) -> None:
        """Has a worker begin a job as soon as one is free."""
        self.under_way[self._run.remote(job, self._board, self._carried, os.getcwd())] = (job, attempt)

    def ended(self) -> Iterator[Outcome]:
        """The outcomes of the jobs that have ended within a glance; those of dead workers are sent again."""
        ready, _ = self.ray.wait(list(self.under_way), timeout=GLANCE)
        with contextlib.suppress(self.ray.exceptions.RayError):
            for name, told in self.ray.get(self._board.take.remote()):
                self.told(name, told)
        for one in ready:
            job, attempt = self.under_way.pop(one)
            try:
                result, error = self.ray.get(one)
            except self.ray.exceptions.RayError as died:
                yield from self._again(job, attempt, died)
            else:
                yield Outcome(job, result, error, attempt)

    def _again(self, job: Job, attempt: int, error: Exception) -> Iterator[Outcome]:
        for run in held_runs(job.folder):
            forget(run.folder)
        if attempt == self.attempts:
            why = f"its worker died {attempt} times ({type(error).__name__}): it may need more memory than there is"
            yield Outcome(job, None, why, attempt)
        else:
            self.told(job.name, Told(f"{job.name}: its worker died; it is tried again"))
            self.send(job, attempt + 1)


class _Board:
    """What workers tell, until somebody asks; an actor of the cluster."""

    def __init__(self):
        self._told: list[tuple[str, Told]] = []

    def tell(self, name: str, told: Told) -> None:
        """Keeps it."""
        self._told.append((name, told))

    def take(self) -> list[tuple[str, Told]]:
        """All that was told since the last time."""
        told, self._told = self._told, []
        return told


def _work(job: Job, board: Any, environment: dict[str, str], folder: str) -> tuple[Any, str]:
    """What a worker makes of a job: its result, and why there is none."""
    os.environ.update(environment)
    with contextlib.suppress(OSError):
        os.chdir(folder)  # names of files are meant from there
    remember_programs()
    try:
        with listening(_Seldom(lambda told: board.tell.remote(job.name, told))):
            return job.work(job.folder), ""
    except StmamlError as error:
        return None, str(error)
    except Exception:
        return None, traceback.format_exc()


class _Seldom:
    """Passes on what is told, but no more often than anybody looks."""

    def __init__(self, told: Callable[[Told], Any]):
        self._told, self._last = told, -GLANCE

    def __call__(self, told: Told) -> None:
        now = time.monotonic()
        if told.total == 0 or told.done == told.total or now - self._last >= GLANCE:
            self._last = now
            self._told(told)
