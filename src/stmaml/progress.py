"""How far long work has come, told to whoever listens: the one channel for reading, training, scoring and predicting.

Whoever works calls `tell` and prints nothing; whoever talks to people listens. Without a listener all is silent.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Told:
    """What is being done and how far it is."""

    what: str
    done: int = 0
    total: int = 0
    """0 for a remark, which is about nothing that goes on."""
    text: str = ""
    """How it goes, such as the loss."""
    tasks: int = 0
    """Tasks in one part, where they are worth counting."""


Listener = Callable[[Told], None]
_listener: ContextVar[Listener] = ContextVar("listener", default=lambda told: None)


def tell(what: str, done: int, total: int, *, text: str = "", tasks: int = 0) -> None:
    """Says that `done` of `total` parts of `what` are done."""
    _listener.get()(Told(what, done, total, text, tasks))


def remark(what: str) -> None:
    """Says something that is worth a line of its own."""
    _listener.get()(Told(what))


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Has `listener` told of all progress inside the block."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
