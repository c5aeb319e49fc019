"""Ctrl-C and SIGTERM as requests that training answers at its next safe point."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class StopRequest:
    """Remembers that the user or the system asked to stop."""

    signal = 0

    def requested(self) -> bool:
        """Whether a stop was asked for."""
        return self.signal != 0


@contextmanager
def stop_requests(stop: StopRequest) -> Iterator[None]:
    """Ctrl-C and SIGTERM ask for a stop at the next safe point; a second one ends the program at once."""

    def handle(number: int, frame: object) -> None:
        if stop.requested():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        stop.signal = number

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
