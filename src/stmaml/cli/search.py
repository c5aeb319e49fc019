"""`stmaml search`."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from stmaml.benchmarks import BENCHMARKS
from stmaml.border.writing import write_json
from stmaml.cli import check_name, fail
from stmaml.cli.fleet import showing_fleet
from stmaml.cli.parsing import benchmark_first, flags_of, named, option, parse
from stmaml.cli.progress import showing
from stmaml.cli.showing import plain_console, without_nan
from stmaml.cli.stopping import StopRequest, stop_requests
from stmaml.search import Search, Searching, collect
from stmaml.workers import Job, map_jobs

USAGE = """usage: stmaml search BENCHMARK --method NAME ... [--trials N] [--tasks N] [--rounds N] [--out DIR]
                     [--ray ADDRESS|local]
       stmaml search BENCHMARK --out DIR --collect FILE

Search for the settings of rows of a table, on equal terms: one grid, one budget, validation tasks alone. Stops and goes
on: finished trials are not run again. --collect puts what all searches below DIR chose into one file, from which
'stmaml reproduce' takes it once it lies in the package, as recipes/searched/BENCHMARK.json.

Benchmarks: {benchmarks}. With one named, --help lists its settings too.
"""


def main(arguments: list[str]) -> None:
    """Searches for each row named, and prints what was chosen, one JSON object a line."""
    arguments = benchmark_first(arguments, BENCHMARKS)
    if not arguments or arguments[0].startswith("-"):
        print(USAGE.format(benchmarks=", ".join(BENCHMARKS)))
        sys.exit(0 if {"-h", "--help"} & set(arguments) else 2)
    name = arguments[0]
    check_name("benchmark", name, BENCHMARKS)
    flags: Any = parse(_flags_for(name), arguments, "stmaml search", description=f"Search for settings on {name}.")
    out = flags.out or Path("runs") / "search" / name
    if flags.collect is not None:
        write_json(flags.collect, collect(out))
        print(f"wrote {flags.collect}")
        return
    if not flags.method:
        fail("search needs --method: one or more rows of the table, such as maml st-maml-deterministic.")
    console, changes = plain_console(stderr=True), named(flags.settings, arguments)
    searches = {row: Searching(flags.search, name, row, changes) for row in flags.method}
    if flags.ray is not None:
        _search_on(flags.ray, searches, out.resolve(), console)
        return
    for row, search in searches.items():
        with showing(console, f"searching for {row}"):
            _print_chosen(row, search(out / row))


def _search_on(cluster: str, searches: dict[str, Searching], out: Path, console: Console) -> None:
    """Searches for the rows on a Ray cluster, and prints what was chosen as each ends."""
    jax.config.update("jax_platforms", "cpu")  # workers need the GPUs
    jobs = [Job(row, out / row, search) for row, search in searches.items()]
    failed = []
    with stop_requests(StopRequest("the same command")), showing_fleet(console, len(jobs)) as fleet:
        for outcome in map_jobs(jobs, cluster, fleet):
            fleet.ended(outcome)
            if outcome.error:
                failed.append(outcome.job.name)
            elif not outcome.job.folder.exists():
                fail(f"{outcome.job.folder} is not there, though a worker filled it: --out must be on a shared disk.")
            else:
                _print_chosen(outcome.job.name, outcome.result)
    if failed:
        fail(f"{', '.join(failed)} failed, as said above. Mend it and give the same command: what is done stays.")


def _print_chosen(row: str, chosen: dict[str, Any]) -> None:
    print(json.dumps(without_nan({"row": row, **chosen})), flush=True)


def _flags_for(benchmark: str) -> type:
    settings: Any = BENCHMARKS[benchmark]
    return flags_of(
        method=option((), "Rows to search for: methods, or ablations of ST-MAML.", tuple[str, ...]),
        out=option(None, "Folder for the searches; below runs/search/ if not given.", Path | None),
        ray=option(None, "Search for rows side by side on a Ray cluster: its address, or local.", str | None),
        collect=option(None, "Write what the searches in --out chose to this file, and search no more.", Path | None),
        search=(Search, dataclasses.field(default=Search())),
        settings=(settings, dataclasses.field(default=settings())),
    )
