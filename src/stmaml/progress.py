"""How far reading has come, told to whoever listens; readers themselves print nothing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and of how much."""

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


def tell(what: str, done: int, total: int) -> None:
    """Says that `done` of `total` parts of `what` are done; silent if nobody listens."""
    listener = _listener.get()
    if listener is not None:
        listener(what, done, total)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Has `listener` told of all progress inside the block."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
