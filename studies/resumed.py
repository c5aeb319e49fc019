"""Trainings that several processes share and that go on where they were stopped: for a device lent by the minute."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import equinox as eqx

Kept = TypeVar("Kept")


class OutOfTime(Exception):
    """The time that was given is up; what is done is kept."""


def claimed(rows: Sequence[str], folder: Path) -> Iterator[str]:
    """Rows that no other process has taken, one after the other."""
    folder.mkdir(parents=True, exist_ok=True)
    for row in rows:
        try:
            (folder / row).mkdir()
        except FileExistsError:
            continue
        yield row


def keep(states: object, row: str, folder: Path, step: int, seconds: float) -> None:
    """The arrays of `states` and, in the name of the file, how far they are."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{row}.part"
    eqx.tree_serialise_leaves(part, states)
    for old in files_of(row, folder):
        old.unlink()
    part.replace(folder / f"{row}@{step}@{seconds:.0f}.eqx")


def files_of(row: str, folder: Path) -> list[Path]:
    """What was kept of a row, the latest last."""
    return sorted(folder.glob(f"{row}@*.eqx"), key=lambda path: int(path.name.split("@")[1]))


def kept(states: Kept, row: str, folder: Path) -> tuple[Kept, int, float]:
    """The states that were kept last, their steps and seconds; else those given."""
    files = files_of(row, folder)
    if not files:
        return states, 0, 0.0
    _, step, seconds = files[-1].name.removesuffix(".eqx").split("@")
    return eqx.tree_deserialise_leaves(files[-1], states), int(step), float(seconds)
