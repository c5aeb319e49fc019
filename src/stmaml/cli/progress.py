"""Progress in the terminal: a live bar where there is one, a line now and then where there is not."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from stmaml.benchmarks.base import Benchmark, BenchmarkConfig
from stmaml.progress import Told, listening

SECONDS_BETWEEN_LINES = 15.0


def open_benchmark(settings: BenchmarkConfig, console: Console) -> Benchmark:
    """The benchmark, with a bar while its files are read, and a line for each thing worth knowing about them."""
    with showing(console, "opening the benchmark"):
        benchmark = settings.open()
    for note in benchmark.notes:
        console.print(note, highlight=False)
    return benchmark


@contextmanager
def showing(console: Console, first: str = "") -> Iterator[None]:
    """Shows all that is told inside the block; `first` stands on the bar until something is."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    bar = Progress(*columns, *times, console=console, transient=True, disable=not console.is_terminal)
    with bar, listening(_Shown(console, bar, first)):
        yield


class _Shown:
    """One bar for whatever goes on; in a file, a line at the start of each thing and now and then as it goes on."""

    def __init__(self, console: Console, bar: Progress, first: str):
        self._console, self._bar = console, bar
        self._task = bar.add_task(first, total=None)
        self._said: set[str] = set()
        self._what, self._last, self._line, self._rate = "", (0.0, 0), 0.0, 0.0

    def __call__(self, told: Told) -> None:
        if not told.total:
            self._once(told.what)
            return
        now = time.monotonic()
        if told.what != self._what:
            self._begin(told, now)
        self._measure(told, now)
        speed = f"{self._rate * told.tasks:,.0f} tasks/s" if told.tasks and self._rate else ""
        text = "  ".join(part for part in (told.what, told.text, speed) if part)
        self._bar.update(self._task, description=text, completed=told.done, total=told.total)
        if not self._console.is_terminal and self._due(told, now):
            self._line = now
            left = f"{(told.total - told.done) / self._rate:,.0f} s left"
            self._console.print(f"{text}  {told.done:,}/{told.total:,}  {left}", highlight=False)

    def _once(self, what: str) -> None:
        if what not in self._said:
            self._console.print(what, highlight=False, soft_wrap=True)
        self._said.add(what)

    def _begin(self, told: Told, now: float) -> None:
        self._what, self._last, self._line, self._rate = told.what, (now, told.done), now, 0.0
        self._bar.reset(self._task)
        if not self._console.is_terminal:
            self._once(told.what)

    def _measure(self, told: Told, now: float) -> None:
        """Parts a second, of late rather than at first: compiling is over soon."""
        then, before = self._last
        if told.done > before:
            rate = (told.done - before) / max(now - then, 1e-9)
            self._rate = rate if self._rate == 0 else 0.8 * self._rate + 0.2 * rate
            self._last = (now, told.done)

    def _due(self, told: Told, now: float) -> bool:
        ends = told.tasks > 0 and told.done == told.total
        return self._rate > 0 and (now - self._line > SECONDS_BETWEEN_LINES or ends)
