"""A bar for whatever takes a while and is not training: reading, calibrating, scoring, predicting."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from stmaml.benchmarks.base import Benchmark, BenchmarkConfig
from stmaml.progress import Listener, listening


def open_benchmark(task: BenchmarkConfig, console: Console) -> Benchmark:
    """The benchmark, with a bar while its files are read, and a line for each thing worth knowing about them."""
    with telling(console, "opening the benchmark"):
        benchmark = task.open()
    for note in benchmark.notes:
        console.print(note, highlight=False)
    return benchmark


@contextmanager
def telling(console: Console, first: str) -> Iterator[Listener]:
    """Shows what is being done and how far it is; in a file, a line for each thing done."""
    said: set[str] = set()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(first, total=None)

        def tell(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)
            if not console.is_terminal and what not in said:
                console.print(what)
            said.add(what)

        with listening(tell):
            yield tell
