"""Several processes that train one learner together, on one machine or many: JAX's distributed runtime.

Process 0 alone writes to the run folders. The others train in copies of them that nobody keeps, so that all take the
same way through the same code; what they must agree on, they ask each other here."""

import io
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from stmaml.errors import SettingError
from stmaml.runs import Run

AUTO = "auto"
HEARTBEAT_SECONDS = 60  # of silence, after which a process counts as lost
SHUTDOWN_SECONDS = 60
PATIENCE_SECONDS = 300  # for all processes to be started
LARGEST = 2**63 - 1
KEPT = ("config.json", "learner.npz", "checkpoints/*.npz")  # what a training begins with or goes on from
LOST = ("gloo", "nccl", "coordination service", "heartbeat", "unavailable", "deadline_exceeded", "connection")
"""Words of the errors by which JAX says that another process does not answer."""


def join(coordinator: str, processes: int | None, process: int | None, *, patience: int = PATIENCE_SECONDS) -> None:
    """Joins the processes of a job, before anything is computed: those that JAX detects where `coordinator` is `auto`,
    else `processes` of them that meet at its address. Waits `patience` seconds for all to come."""
    how: Any = {"heartbeat_timeout_seconds": HEARTBEAT_SECONDS, "shutdown_timeout_seconds": SHUTDOWN_SECONDS}
    if coordinator != AUTO:
        _check(coordinator, processes, process)
        how |= {"coordinator_address": coordinator, "cluster_detection_method": "deactivate"}
    jax.config.update("jax_enable_preemption_service", False)  # it would keep SIGTERM to itself
    try:
        jax.distributed.initialize(num_processes=processes, process_id=process, initialization_timeout=patience, **how)
    except (ValueError, TypeError) as error:
        raise SettingError(
            f"--coordinator auto found no job of SLURM, Kubernetes or MPI ({_first_line(error)}). "
            "Give --coordinator HOST:PORT --processes N --process I instead."
        ) from error
    except RuntimeError as error:
        raise SettingError(
            f"the processes did not all meet at --coordinator within {patience} s ({_first_line(error)}). "
            "Start all of them, with an address of process 0 that the others can reach."
        ) from error


def _check(coordinator: str, processes: int | None, process: int | None) -> None:
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal():
        raise SettingError(f"--coordinator must be HOST:PORT or auto; got '{coordinator}'.")
    if processes is None or process is None:
        raise SettingError("--coordinator HOST:PORT needs --processes and --process as well.")
    if not 0 <= process < processes:
        raise SettingError(f"--process must be from 0 to {processes - 1}, below --processes; got {process}.")


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:200].rstrip(".")


def means_lost(error: BaseException) -> bool:
    """Whether an error says that another process has gone."""
    return jax.process_count() > 1 and any(word in str(error).lower() for word in LOST)


def writes() -> bool:
    """Whether this process is the one that writes and talks."""
    return jax.process_index() == 0


def most(number: int) -> int:
    """The largest number that a process has named."""
    return max(_of_all(number))


def least(number: int | None) -> int | None:
    """The smallest number that a process has named; none where nobody has."""
    found = min(_of_all(LARGEST if number is None else number))
    return None if found == LARGEST else found


def _of_all(number: int) -> list[int]:
    if jax.process_count() == 1:
        return [number]
    word = np.frombuffer(number.to_bytes(8, "little"), dtype=np.uint8)  # JAX's integers may be of 32 bits
    return [int.from_bytes(each.tobytes(), "little") for each in np.asarray(multihost_utils.process_allgather(word))]


def shared_runs(make: Callable[[], list[Run]], scratch: Path) -> list[Run]:
    """The runs that `make` gives process 0; to the others, copies of them in a folder of their own."""
    if writes():
        runs = make()
        _sent(pack(runs) if jax.process_count() > 1 else b"")
        return runs
    return unpack(_sent(b""), scratch)


def _sent(content: bytes) -> bytes:
    """What process 0 sends to all."""
    if jax.process_count() == 1:
        return content
    size = most(len(content))
    padded = np.frombuffer(content.ljust(size, b"\0"), dtype=np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(padded)).tobytes()


def pack(runs: Iterable[Run]) -> bytes:
    """What training needs of some run folders."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for number, run in enumerate(runs):
            for path in (path for name in KEPT for path in sorted(run.folder.glob(name))):
                file.writestr(f"{number}/{path.relative_to(run.folder)}", path.read_bytes())
    return buffer.getvalue()


def unpack(content: bytes, folder: Path) -> list[Run]:
    """The runs that `pack` packed, in a folder."""
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        file.extractall(folder)
        numbers = {int(name.split("/")[0]) for name in file.namelist()}
    return [Run(folder / str(number)) for number in sorted(numbers)]
