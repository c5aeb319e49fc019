"""`stmaml reproduce`."""

import sys
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console

from stmaml.benchmarks import BENCHMARKS
from stmaml.cli import fail, nearest
from stmaml.cli.progress import TrainingBar
from stmaml.cli.stopping import StopRequest, stop_requests
from stmaml.reports import write_report
from stmaml.reproduction import BUDGETS, BudgetName, Cell, cells, run_cell
from stmaml.training import Diverged, Interrupted


@dataclass(frozen=True)
class Reproduce:
    """Train and evaluate every method of a table of the paper, and write the table beside the paper's figures.

    Stops and goes on: finished rows are skipped, an unfinished one continues from its checkpoint.
    """

    benchmark: tyro.conf.Positional[str]
    """Whose table."""
    budget: BudgetName = "smoke"
    """How much: a few minutes to see it work, under an hour on two cores, or the full training, for a GPU."""
    rows: tuple[str, ...] = ()
    """Only these rows: methods, or st-maml-without-augmentation, -without-tailoring, -deterministic."""
    input_range: tuple[float, float] = (0.0, 5.0)
    """Range of the inputs of regression2d."""
    samples: int = 20
    """Predictors sampled for each test task."""
    out: Path | None = None
    """Folder for runs and report; below runs/ if not given."""


def main(arguments: list[str]) -> None:
    """Fills the table and writes the report."""
    flags = tyro.cli(Reproduce, args=arguments, prog="stmaml reproduce")
    if flags.benchmark not in BENCHMARKS:
        fail(f"there is no benchmark '{flags.benchmark}'. {nearest(flags.benchmark, list(BENCHMARKS))}")
    low, high = flags.input_range
    out = flags.out or Path("runs") / f"{flags.benchmark}-{flags.budget}-{low:g}..{high:g}"
    table = cells(flags.benchmark, BUDGETS[flags.budget], task={"input_range": flags.input_range}, only=flags.rows)
    console = Console(stderr=True)
    stop = StopRequest()
    diverged = []
    with stop_requests(stop):
        for number, cell in enumerate(table, start=1):
            console.print(f"row {number} of {len(table)}: {cell.name}", markup=False)
            try:
                _run(cell, out, flags, console, stop)
            except Interrupted as error:
                console.print(f"stopped at step {error.step} of {cell.name}; the same command goes on from there")
                sys.exit(128 + stop.signal)
            except Diverged as error:
                console.print(f"{cell.name}: {error}; left out of the table", markup=False)
                diverged.append(cell)
    report, *pictures = write_report([out / cell.name for cell in table if cell not in diverged], out / "report")
    print(f"wrote {report} and {len(pictures)} figures beside it")


def _run(cell: Cell, out: Path, flags: Reproduce, console: Console, stop: StopRequest) -> None:
    with TrainingBar(console, cell.experiment.training, str(out / cell.name)) as bar:
        run_cell(
            cell,
            out / cell.name,
            BUDGETS[flags.budget],
            samples=flags.samples,
            observers=lambda: (bar,),
            should_stop=stop.requested,
        )
