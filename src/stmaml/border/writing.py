"""Files written so that a crash leaves the old one or the new, and no link leads the writing astray."""

import contextlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stmaml.errors import RunError

PARTIAL = ".partial"


class NotWritten(RunError):
    """The system refused to write."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns the system's refusal to write into an error with advice."""
    try:
        yield
    except OSError as error:
        advice = "Free some space or choose a folder you may write to, then try again."
        what = f"could not write {path}: {error.strerror or error}. What was saved before is whole."
        raise NotWritten(f"{what} {advice}") from error


def write_bytes(path: Path, content: bytes) -> None:
    """Replaces a file in one step: write beside it, flush to disk, rename. A crash leaves the old file or the new."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}{PARTIAL}")
        try:
            write_new(partial, content)
            partial.replace(path)
            sync(path.parent)
        except OSError:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            raise


def write_new(path: Path, content: bytes) -> None:
    """A file that was not there, on disk when this returns; FileExistsError where anything has its name."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Has the system put a file or the list of a folder on disk now."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """A JSON file people can read."""
    write_bytes(path, (json.dumps(content, indent=2) + "\n").encode())


def check_writable(folder: Path) -> None:
    """Raises `NotWritten` where no file can be made in a folder, which is made if it is not there."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".{secrets.token_hex(8)}{PARTIAL}"
        write_new(probe, b"")
        probe.unlink()


def sweep_partials(folder: Path) -> None:
    """Removes what writers that were killed left unfinished; only for a folder that nobody else writes to."""
    for left in folder.glob(f"*{PARTIAL}"):
        with contextlib.suppress(OSError):
            left.unlink()
