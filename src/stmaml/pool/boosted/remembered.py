"""What several members begin with, so that two of them need not grow the same trees."""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
from jaxtyping import Shaped

from stmaml.pool.base import Draw, GroupedRows

T = TypeVar("T")


@dataclass(frozen=True)
class Kept(Generic[T]):
    """What was made of a table, which need not live on for it."""

    y: "weakref.ref[np.ndarray]"
    parts: list[np.ndarray]
    draw: Draw
    made: list[T]

    def serves(self, rows: GroupedRows, parts: Sequence[Shaped[np.ndarray, " _"]], draw: Draw) -> bool:
        """Whether the very same is asked for again."""
        if self.y() is not rows.y or self.draw != draw or len(parts) != len(self.parts):
            return False
        return all(np.array_equal(a, b) for a, b in zip(parts, self.parts, strict=True))


@dataclass
class Remembered(Generic[T]):
    """What `make` made of the parts of the table that was asked for last."""

    make: Callable[[GroupedRows, Draw], T]
    _kept: Kept[T] | None = field(init=False, default=None)

    def of_each(self, rows: GroupedRows, parts: Sequence[Shaped[np.ndarray, " _"]], draw: Draw) -> list[T]:
        """One for each part of the groups."""
        if self._kept is None or not self._kept.serves(rows, parts, draw):
            made = [self.make(rows.of_groups(part), draw) for part in parts]
            self._kept = Kept(weakref.ref(rows.y), [np.array(part) for part in parts], draw, made)
        return self._kept.made
