"""One writer at a time in the folder of a run, also where machines share it over a network.

A lock is the file `lock`, made only where there is none, that says who writes. The owner touches it at each line of the
log and each checkpoint. Who finds one takes it over if its owner has ended: on the same machine by asking the system,
from another by the file not having been touched for ten minutes. Advisory locks of the system are not used, for many
network folders ignore them.
"""

import contextlib
import json
import os
import secrets
import socket
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stmaml.border.files import read_file
from stmaml.border.json_text import parse_json
from stmaml.border.typed import from_dict
from stmaml.border.writing import PARTIAL, write_new, writing
from stmaml.errors import RunError

NAME = "lock"
SILENT_SECONDS = 600.0
LOCK_BYTES = 10_000
ENDED = "ended"  # the start of a process of which only the exit code is left


@dataclass(frozen=True)
class Owner:
    """A process that writes to a folder."""

    pid: int
    host: str
    space: str
    """Where its number is its own: containers on one machine count processes anew."""
    started: str
    """When it started, as the system counts; empty where the system does not say."""
    token: str
    """Tells this lock from any other of the same process."""

    def has_ended(self) -> bool:
        """Whether it surely runs no more; only known of processes of this machine."""
        here = me()
        if (self.host, self.space) != (here.host, here.space):
            return False
        return not _alive(self.pid) or _started(self.pid) not in ("", self.started)

    def words(self) -> str:
        """Who it is."""
        return f"process {self.pid} on {self.host}"


def me() -> Owner:
    """This process, with a new token."""
    with contextlib.suppress(OSError):
        return Owner(os.getpid(), socket.gethostname(), os.readlink("/proc/self/ns/pid"), *_birth())
    return Owner(os.getpid(), socket.gethostname(), "", *_birth())


def _birth() -> tuple[str, str]:
    return _started(os.getpid()), secrets.token_hex(8)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it is another user's
        return True
    return pid > 0


def _started(pid: int) -> str:
    """When a process started, in ticks since the machine did; empty where that is not known."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()  # a name in brackets may be anything
    except OSError:
        return ""
    return ENDED if stat[0] == b"Z" else stat[19].decode()  # fields 3 and 22


@dataclass(frozen=True)
class Locks:
    """The locks of some folders, held by this process. As an observer of training it touches them."""

    owner: Owner
    folders: tuple[Path, ...]

    def progress(self, step: int, logs: dict[str, np.ndarray]) -> None:
        """Touches the locks."""
        self._touch()

    def validated(self, step: int, scores: list[dict[str, float]], improved: list[bool], state: Any) -> None:
        """Touches the locks."""
        self._touch()

    def checkpoint(self, step: int, state: Any) -> None:
        """Touches the locks."""
        self._touch()

    def rolled_back(self, step: int, to_step: int, seed_index: int, rate: float) -> None:
        """Touches the locks."""
        self._touch()

    def noted(self, step: int, seed_index: int, note: str) -> None:
        """Touches the locks."""
        self._touch()

    def _touch(self) -> None:
        """Shows that this process still writes; RunError where another has taken over."""
        for folder in self.folders:
            holder = _holder(folder)
            if holder is not None and holder != self.owner:
                raise RunError(
                    f"{holder.words()} has taken over {folder}, since this process had been silent for ten minutes. "
                    "This one stops; go on with the other."
                )
            with contextlib.suppress(OSError):
                os.utime(folder / NAME)

    def release(self) -> None:
        """Removes those that are still this process's."""
        for folder in self.folders:
            if _holder(folder) == self.owner:
                with contextlib.suppress(OSError):
                    (folder / NAME).unlink()


_held: set[Locks] = set()


def release_held() -> None:
    """Removes all locks of this process, for who ends it without unwinding; safe in any thread."""
    for locks in list(_held):
        locks.release()


@contextlib.contextmanager
def locked(folders: Sequence[Path]) -> Iterator[Locks]:
    """Holds the locks of folders inside the block; RunError where another process has one of them."""
    owner = me()
    with contextlib.ExitStack() as held:
        for folder in folders:
            _acquire(folder, owner)
            one = Locks(owner, (folder,))
            _held.add(one)
            held.callback(_held.discard, one)
            held.callback(one.release)
        yield Locks(owner, tuple(folders))


def check_unlocked(folder: Path) -> None:
    """Raises RunError where another process writes to a folder."""
    if (folder / NAME).exists() and not _is_stale(folder, _holder(folder)):
        raise _refusal(folder, _holder(folder))


def forget(folder: Path) -> None:
    """Removes the lock of a folder whose owner is known to have ended. If it has not, it stops at its next line."""
    with contextlib.suppress(OSError):
        (folder / NAME).unlink()


def _acquire(folder: Path, owner: Owner) -> None:
    content = json.dumps(asdict(owner)).encode()
    with writing(folder / NAME):
        for _ in range(3):
            with contextlib.suppress(FileExistsError):
                return write_new(folder / NAME, content)
            holder = _holder(folder)
            if not _is_stale(folder, holder):
                break
            _put_aside(folder, holder)
    raise _refusal(folder, _holder(folder))


def _refusal(folder: Path, holder: Owner | None) -> RunError:
    who = "another process" if holder is None else holder.words()
    return RunError(
        f"{who} is writing to {folder}. Wait until it ends or stop it; if it runs no more, remove {folder / NAME}."
    )


def _holder(folder: Path) -> Owner | None:
    return _owner_in(folder / NAME)


def _owner_in(lock: Path) -> Owner | None:
    """Who a lock says it belongs to; None where there is none, or it does not say."""
    try:
        return from_dict(Owner, parse_json(read_file(lock, LOCK_BYTES)))
    except (OSError, ValueError, TypeError, RunError):
        return None


def _is_stale(folder: Path, holder: Owner | None) -> bool:
    """Whether a lock's owner has ended, or has not been heard of for long."""
    if holder is not None and holder.has_ended():
        return True
    here = me()
    if holder is not None and (holder.host, holder.space) == (here.host, here.space):
        return False  # it is alive, however long it computes
    return _silence(folder) > SILENT_SECONDS


def _silence(folder: Path) -> float:
    """Seconds since a lock was touched, by the clock of the machine that keeps the folder."""
    probe = folder / f".{NAME}.{secrets.token_hex(8)}{PARTIAL}"
    write_new(probe, b"")
    try:
        return probe.stat().st_mtime - (folder / NAME).stat().st_mtime
    except FileNotFoundError:
        return 0.0
    finally:
        probe.unlink()


def _put_aside(folder: Path, stale: Owner | None) -> None:
    """Removes a stale lock; one that another process has put in its place meanwhile is put back."""
    aside = folder / f".{NAME}.{secrets.token_hex(8)}{PARTIAL}"
    try:
        (folder / NAME).rename(aside)
    except FileNotFoundError:
        return
    try:
        if _owner_in(aside) != stale:
            with contextlib.suppress(OSError):
                os.link(aside, folder / NAME)
    finally:
        aside.unlink(missing_ok=True)
