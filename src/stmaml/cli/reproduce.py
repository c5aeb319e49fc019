"""`stmaml reproduce`."""

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from stmaml.benchmarks import BENCHMARKS
from stmaml.benchmarks.base import Benchmark, Budget, BudgetName
from stmaml.cli import check_name, fail
from stmaml.cli.fleet import showing_fleet
from stmaml.cli.parsing import benchmark_first, flags_of, named, option, parse
from stmaml.cli.progress import open_benchmark, showing
from stmaml.cli.reproduce_all import ALL, reproduce_all
from stmaml.cli.showing import plain_console, without_nan
from stmaml.cli.stopping import StopRequest, leave_stopped, stop_requests
from stmaml.compiled import quick_compilation
from stmaml.errors import at_least
from stmaml.reproduction import Filling, Row, cells, given
from stmaml.training import Diverged, Interrupted
from stmaml.workers import Job, map_jobs

USAGE = """usage: stmaml reproduce BENCHMARK [--budget smoke|cpu|paper] [--rows NAME ...] [--out DIR] ...
                        [--ray ADDRESS|local]
       stmaml reproduce all [--budget smoke|cpu|paper] [--plan] [--yes]

Train and evaluate every method of a table of the paper, and write the table beside the paper's figures. Stops and goes
on: finished rows are skipped, an unfinished one continues from its checkpoint.

Benchmarks: {benchmarks}. With one named, --help lists its settings too, which then hold for every row.
"""


def main(arguments: list[str]) -> None:
    """Fills the table and writes the report."""
    arguments = benchmark_first(arguments, (*BENCHMARKS, ALL))
    if arguments and arguments[0] == ALL:
        reproduce_all(arguments, main)
        return
    if not arguments or arguments[0].startswith("-"):
        print(USAGE.format(benchmarks=", ".join(BENCHMARKS)))
        sys.exit(0 if {"-h", "--help"} & set(arguments) else 2)
    name = arguments[0]
    check_name("benchmark", name, (*BENCHMARKS, ALL))
    if "--plan" in arguments:  # rows, seeds and steps of its own would make another plan
        fail("--plan goes with 'all'. 'stmaml reproduce all --plan' says what each table takes, and begins nothing.")
    told = f"Train and evaluate every method of the paper's table for {name}."
    flags: Any = parse(_flags_for(name), arguments, "stmaml reproduce", description=told)
    at_least(1, seeds=flags.seeds, samples=flags.samples)
    usual = BENCHMARKS[name].budgets.named(flags.budget)
    budget = dataclasses.replace(usual, **given(seeds=flags.seeds, samples=flags.samples))
    if budget.quick:
        os.environ.setdefault("XLA_FLAGS", quick_compilation())  # read when the first program is compiled
    changes = named(flags.tasks, arguments)
    out = flags.out or Path("runs") / "-".join([name, flags.budget, *(_short(*change) for change in changes.items())])
    console = plain_console(stderr=True)
    if flags.ray is not None:
        jax.config.update("jax_platforms", "cpu")  # workers need the GPUs
    benchmark = open_benchmark(flags.tasks, console)  # files are read, or found missing, before anything is trained
    rows = cells(name, benchmark, budget, only=flags.rows, **changes)
    table = [row.trained_by(**given(steps=flags.steps, memory=flags.memory)) for row in rows]
    if flags.ray is None:
        filled = _fill(table, out, budget, benchmark, console, as_json=flags.json)
    else:
        filled = _fill_on(flags.ray, table, out.resolve(), budget, console)
        for row in filled if flags.json else ():
            told = row.told(out / row.name, budget, benchmark.vary(row.settings))
            print(json.dumps(without_nan(told)), flush=True)
    if not filled:
        fail("every row diverged, so there is no table.", code=3)
    if flags.json:
        return
    from stmaml.reports import PAGE, write_report  # matplotlib and scikit-learn come with it

    text, *pictures = write_report([out / row.name for row in filled], out / "report")
    print(f"wrote {text.with_name(PAGE)}, and {text.name} with {len(pictures)} figures beside it")


def _fill(
    table: list[Row], out: Path, budget: Budget, benchmark: Benchmark, console: Console, *, as_json: bool
) -> list[Row]:
    """Trains and scores row by row, and gives those that did not diverge."""
    filled = []
    for number, row in enumerate(table, start=1):
        console.print(f"row {number} of {len(table)}: {row.name}")
        stop = StopRequest("the same command")
        try:
            with stop_requests(stop), showing(console, row.name):
                row.fill(out / row.name, budget, benchmark.vary(row.settings), stop.requested, (stop,))
            filled.append(row)
            if as_json:
                told = row.told(out / row.name, budget, benchmark.vary(row.settings))
                print(json.dumps(without_nan(told)), flush=True)
        except Interrupted:
            pass  # it was requested, which is answered below
        except Diverged as error:
            console.print(f"{row.name}: {error}; left out of the table")
        if stop.requested():
            leave_stopped(stop)
    return filled


def _fill_on(cluster: str, table: list[Row], out: Path, budget: Budget, console: Console) -> list[Row]:
    """Trains and scores the rows on a Ray cluster, and gives those that did not diverge or fail."""
    jobs = [Job(row.name, out / row.name, Filling(row, budget)) for row in table]
    left_out, failed = set(), []
    with stop_requests(StopRequest("the same command")), showing_fleet(console, len(jobs)) as fleet:
        for outcome in map_jobs(jobs, cluster, fleet):
            fleet.ended(outcome)
            if outcome.error:
                failed.append(outcome.job.name)
            elif outcome.result:
                console.print(f"{outcome.job.name}: {outcome.result}; left out of the table")
                left_out.add(outcome.job.name)
            elif not outcome.job.folder.exists():
                fail(f"{outcome.job.folder} is not there, though a worker filled it: --out must be on a shared disk.")
    if failed:
        fail(f"{', '.join(failed)} failed, as said above. Mend it and give the same command: what is done stays.")
    return [row for row in table if row.name not in left_out]


def _flags_for(benchmark: str) -> type:
    """A dataclass of the command's flags, with the benchmark's own settings among them."""
    settings: Any = BENCHMARKS[benchmark]
    how_much = "How much: a few minutes to see it work, under an hour on two cores, or the full training, for a GPU."
    memory = "Memory that a training step may take, such as 8GB, or auto; see stmaml train --help."
    samples = "Predictors sampled for each test task; as the budget says if not given."
    return flags_of(
        budget=option("smoke", how_much, BudgetName),
        rows=option((), "Only these rows; a wrong name lists all there are.", tuple[str, ...]),
        steps=option(None, "Meta-steps of each row; as the budget says if not given.", int | None),
        seeds=option(None, "Seeds of each row; as the budget says if not given.", int | None),
        samples=option(None, samples, int | None),
        memory=option(None, memory, str | None),
        ray=option(None, "Fill rows side by side on a Ray cluster: its address, or local.", str | None),
        json=option(False, "Print a JSON object for each row as it is done, and write no report.", bool),
        out=option(None, "Folder for runs and report; below runs/ if not given.", Path | None),
        tasks=(settings, dataclasses.field(default=settings())),
    )


def _short(name: str, value: Any) -> str:
    """A changed setting as part of a folder's name."""
    if name == "data":
        return Path(value).name.split(".")[0]
    parts = value if isinstance(value, tuple) else (value,)
    return name + "..".join(f"{part:g}" if isinstance(part, float) else str(part) for part in parts)
