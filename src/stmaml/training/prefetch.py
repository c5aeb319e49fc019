"""Batches made on the host for the coming steps, while the device still takes the present ones."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Generic, TypeVar

T = TypeVar("T")


class Ahead(Generic[T]):
    """What `make` gives for steps, which is begun for the next ones as soon as some are taken.

    `make` depends on the steps alone: what was begun and is not asked for, as after a step back, is made again."""

    def __init__(self, make: Callable[[range], T]):
        self._make = make
        self._next: tuple[range, Future[T]] | None = None

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, "batches")

    def take(self, steps: range, end: int) -> T:
        """What is made for these steps; the following ones are begun, up to `end`."""
        known = self._next
        found = known[1].result() if known is not None and known[0] == steps else self._make(steps)
        following = range(steps.stop, min(steps.stop + len(steps), end))
        self._next = (following, self._thread.submit(self._make, following)) if len(following) else None
        return found
