"""`stmaml fit`."""

import ctypes
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from stmaml.benchmarks.base import Benchmark
from stmaml.cli import fail, nearest
from stmaml.cli.folders import check_folder
from stmaml.cli.parsing import parse
from stmaml.cli.progress import open_benchmark, showing
from stmaml.cli.results import show_result
from stmaml.cli.showing import plain_console, without_nan
from stmaml.cli.stopping import StopRequest, stop_requests
from stmaml.experiments import create_runs, train_runs
from stmaml.methods import METHODS
from stmaml.recipes import Experiment
from stmaml.runs import Run
from stmaml.tables.aftercare import is_finished
from stmaml.tables.benchmark import Config, TableConfig
from stmaml.tables.model import load_table
from stmaml.tables.schema import Schema
from stmaml.tables.scoring import saved_result, score_table
from stmaml.tables.settings import Preset, for_target, table_recipe
from stmaml.training import Diverged, Interrupted


@dataclass(frozen=True)
class Fit:
    """Learn across the groups of a table, so that a few labelled rows of a new group suffice to predict it.

    Shows what each column holds, trains, and scores held-out groups beside simpler models."""

    files: tyro.conf.Positional[tuple[Path, ...]]
    """CSV or Parquet files with the same columns, folders or archives of them."""
    config: TableConfig
    run: Path | None = None
    """Folder for the run; below runs/ if not given."""
    delimiter: str | None = None
    """What separates the columns of CSV files; found out if not given."""
    method: str = "st-maml"
    """Method to train."""
    preset: Preset = "default"
    """Sizes of networks and batches: `default` for two cores, `large` for a GPU and tables of thousands of groups."""
    linear: bool = True
    """Put a Bayesian linear regression with a learnt prior before the method."""
    noise_model: str = "predicted"
    """The spread of a numeric target about its mean: normal (predicted), with heavy tails (student), of any shape
    (mixture), or normal with one spread for all rows (learned)."""
    steps: int | None = None
    """Meta-steps of training; those of the preset if not given."""
    seed: int = 0
    """Seed of weights and tasks."""
    baselines: bool = True
    """Score ridge regression, gradient boosting and others on the same groups."""
    force: bool = False
    """Replace a run that is already there."""
    json: bool = False
    """Print one JSON object instead of tables."""


@dataclass(frozen=True)
class Resume:
    """Go on with a run from its newest checkpoint, to the same end as if it had never stopped."""

    resume: Path
    """Folder of the run."""
    baselines: bool = True
    """Score ridge regression, gradient boosting and others on the same groups; a run that was scored without them stays
    so."""
    json: bool = False
    """Print one JSON object instead of tables."""


def main(arguments: list[str]) -> None:
    """Fits a new run, or goes on with one, and prints its scores."""
    console = plain_console(stderr=True)
    if any(word == "--resume" or word.startswith("--resume=") for word in arguments):
        flags = parse(Resume, arguments, "stmaml fit")
        check_folder(flags.resume)
        run = Run(flags.resume)
        found = saved_result(run) if is_finished(run) else None
        if found is None:
            experiment = load_table(run)
            found = _fit(run, experiment, open_benchmark(experiment.benchmark_settings, console), flags, console)
    else:
        flags = parse(Fit, arguments, "stmaml fit", config=(tyro.conf.OmitArgPrefixes,))
        run, experiment, benchmark = _begin(flags, console)
        found = _fit(run, experiment, benchmark, flags, console)
    if flags.json:
        print(json.dumps(without_nan(found), indent=2, allow_nan=False))
    else:
        show_result(found)
        print(f"\nNext: stmaml predict {run.folder} --support LABELLED --query ASK")


def _begin(flags: Fit, console: Console) -> tuple[Run, Experiment, Benchmark]:
    if flags.method not in METHODS:
        fail(f"there is no method '{flags.method}'. {nearest(flags.method, list(METHODS))}")
    if not flags.files:
        fail("fit needs a table: a CSV or Parquet file, a folder or an archive of them.")
    table = Config(flags.config, tuple(str(path.resolve()) for path in flags.files), flags.delimiter)
    experiment = table_recipe(
        table, flags.method, steps=flags.steps, preset=flags.preset, linear=flags.linear, noise_model=flags.noise_model
    )
    folder = flags.run or Path("runs") / f"{flags.files[0].name.split('.')[0]}-{flags.config.target}"
    if not flags.force:
        Run(folder).check_free("fit")
    with showing(console, "reading"):
        benchmark = table.open()
    experiment = for_target(experiment, benchmark)
    (run,) = create_runs(experiment, benchmark, folder, [flags.seed], force=flags.force)
    _show_schema(benchmark, console)
    return run, experiment, benchmark


def _fit(
    run: Run, experiment: Experiment, benchmark: Benchmark, flags: Fit | Resume, console: Console
) -> dict[str, Any]:
    stop = StopRequest()
    console.print(f"{experiment.method} -> {run.folder}")
    try:
        with stop_requests(stop), showing(console, "compiling"):
            train_runs([run], experiment, benchmark, should_stop=stop.requested)
    except Interrupted as error:
        console.print(f"stopped at step {error.step}, state saved. Go on with: stmaml fit --resume {run.folder}")
        sys.exit(128 + stop.signal)
    except Diverged as error:
        fail(f"{error}. Look for columns with wild values in the list above, and drop or correct them.", code=3)
    _hand_back_memory()
    with showing(console, "scoring"):
        return score_table(run, benchmark, baselines=None if flags.baselines else ())


def _hand_back_memory() -> None:
    """Gives what compiling has used and freed, over half a gigabyte, back to the system, where the C library can."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl has not
        if trim is not None:
            trim(0)


def _show_schema(benchmark: Benchmark, console: Console) -> None:
    settings: Any = benchmark.settings
    schema = Schema.from_json(settings.schema)
    table = Table("column", "kind", "missing", "what it holds", box=SIMPLE, padding=(0, 1))
    for column in schema.columns:
        table.add_row(column.name, column.kind, "some" if column.has_missing else "", column.describe())
    target = schema.target
    table.add_section()
    table.add_row(target.name, "target: " + ("class" if target.is_class else "number"), "", target.describe())
    table.caption = "numbers: range without the lowest and the highest 0.1 % of the training rows"
    console.print(table)
    groups, *notes = benchmark.notes
    console.print(groups)
    for note in notes:
        console.print(f"note: {note}")
