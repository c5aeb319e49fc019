"""Progress of many jobs at once: a bar for each that is under way; where there is no terminal, a line now and then."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from stmaml.progress import Told
from stmaml.workers import Outcome

SECONDS_BETWEEN_LINES = 15.0


class Fleet:
    """What is shown of jobs: one view, whichever worker they are on."""

    def __init__(self, console: Console, bars: Progress, total: int):
        self._console, self._bars = console, bars
        self._all = bars.add_task("done", total=total)
        self._tasks: dict[str, TaskID] = {}
        self._said: set[tuple[str, str]] = set()
        self._lines: dict[str, float] = {}

    def __call__(self, name: str, told: Told) -> None:
        """Shows what a job tells."""
        if not told.total:
            self._remark(name, told.what)
            return
        text = "  ".join(part for part in (name, told.what, told.text) if part)
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(text, total=told.total)
        self._bars.update(self._tasks[name], description=text, completed=told.done, total=told.total)
        if not self._console.is_terminal and time.monotonic() - self._lines.get(name, 0.0) > SECONDS_BETWEEN_LINES:
            self._lines[name] = time.monotonic()
            self._console.print(f"{text}  {told.done:,}/{told.total:,}", highlight=False)

    def ended(self, outcome: Outcome) -> None:
        """Shows that a job has ended, and how."""
        name = outcome.job.name
        self._bars.advance(self._all)
        if name in self._tasks:
            self._bars.remove_task(self._tasks.pop(name))
        tries = f" at attempt {outcome.attempts}" if outcome.attempts > 1 else ""
        how = f": {outcome.error}" if outcome.error else ""
        self._console.print(f"{name} {'failed' if how else 'done'}{tries}{how}", highlight=False, soft_wrap=True)

    def _remark(self, name: str, what: str) -> None:
        if (name, what) not in self._said:
            self._said.add((name, what))
            self._console.print(what if what.startswith(name) else f"{name}: {what}", highlight=False, soft_wrap=True)


@contextmanager
def showing_fleet(console: Console, total: int) -> Iterator[Fleet]:
    """Shows so many jobs inside the block."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        yield Fleet(console, bars, total)
