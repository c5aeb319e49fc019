"""`stmaml fit`."""

import ctypes
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

from stmaml.benchmarks.base import Benchmark
from stmaml.cli import fail, nearest
from stmaml.cli.folders import check_folder
from stmaml.cli.parsing import parse
from stmaml.cli.pool_fit import begin_pool, resume_pool, show_columns, table_of, usual_folder
from stmaml.cli.pools import show_pool
from stmaml.cli.progress import open_benchmark, showing
from stmaml.cli.results import show_result
from stmaml.cli.showing import plain_console, without_nan
from stmaml.cli.stopping import StopRequest, leave_stopped, stop_requests
from stmaml.errors import SettingError
from stmaml.experiments import create_runs, train_runs
from stmaml.methods import METHODS
from stmaml.pool.store import POOL, is_pool
from stmaml.recipes import Experiment
from stmaml.runs import Run
from stmaml.tables.aftercare import is_finished
from stmaml.tables.benchmark import TableConfig
from stmaml.tables.model import load_table
from stmaml.tables.schema import Schema
from stmaml.tables.scoring import saved_result, score_table
from stmaml.tables.settings import Preset, for_target, table_recipe
from stmaml.training import Diverged, Interrupted


@dataclass(frozen=True)
class Fit:
    """Learn across the groups of a table, so that a few labelled rows of a new group suffice to predict it.

    Shows what each column holds, trains, and scores held-out groups beside simpler models. 'stmaml fit --resume RUN'
    goes on with a run that was stopped."""

    files: tyro.conf.Positional[tuple[Path, ...]]
    """Files with the same columns (CSV, TSV, Parquet, Feather, JSON lines, Excel), folders or archives of them."""
    config: TableConfig
    run: Path | None = None
    """Folder for the run; below runs/ if not given."""
    delimiter: str | None = None
    """What separates the columns of CSV files; found out if not given."""
    sheet: str | None = None
    """Sheet of Excel files; the first if not given."""
    on_disk: bool = False
    """Leave the rows of Parquet and CSV files on disk and hold a bounded part of them in memory, as is done with two
    million rows and more anyway."""
    method: str = POOL
    """A pool of models (pool), or one meta-learning method alone, such as st-maml."""
    members: tuple[str, ...] = ()
    """Models of the pool; all that suit the table if none is named."""
    minutes: float | None = None
    """Time for the pool's meta-learned member; by the size of the table if not given."""
    preset: Preset = "default"
    """For a single method: sizes of networks and batches, `default` for two cores, `large` for a GPU and tables of
    thousands of groups."""
    linear: bool = True
    """For a single method: put a Bayesian linear regression with a learnt prior before the method."""
    noise_model: str = "predicted"
    """For a single method: the spread of a numeric target about its mean: normal (predicted), with heavy tails
    (student), of any shape (mixture), or normal with one spread for all rows (learned)."""
    steps: int | None = None
    """For a single method: meta-steps of training; those of the preset if not given."""
    seed: int = 0
    """Seed of weights and tasks."""
    baselines: bool = True
    """For a single method: score ridge regression, gradient boosting and others on the same groups."""
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
        if is_pool(run):
            _tell(resume_pool(run, console), run, flags.json)
            return
        found = saved_result(run) if is_finished(run) else None
        if found is None:
            experiment = load_table(run)
            found = _fit(run, experiment, open_benchmark(experiment.benchmark_settings, console), flags, console)
    else:
        flags = parse(Fit, with_outer_groups(arguments), "stmaml fit", config=(tyro.conf.OmitArgPrefixes,))
        if flags.method == POOL:
            run, result = begin_pool(flags, console)
            _tell(result, run, flags.json)
            return
        run, experiment, benchmark = _begin(flags, console)
        found = _fit(run, experiment, benchmark, flags, console)
    if flags.json:
        print(json.dumps(without_nan(found), indent=2, allow_nan=False))
    else:
        show_result(found)
        print(f"\nNext: stmaml predict {run.folder} --support LABELLED --query ASK")


def _tell(result: dict[str, Any], run: Run, as_json: bool) -> None:
    if as_json:
        print(json.dumps(without_nan(result), indent=2, allow_nan=False))
    else:
        show_pool(result)
        print(f"\nThe pool is in {run.folder}. Next:\n  stmaml predict {run.folder} --support LABELLED --query ASK")
        print(f"  stmaml report {run.folder}   (tables and figures)")
        if result["kind"] == "number":
            print(f"  stmaml effects {run.folder}   (how groups differ)")


def with_outer_groups(arguments: list[str]) -> list[str]:
    """`--task district school` as it is stored: groups by the last column, within the others."""
    if "--task" not in arguments:
        return arguments
    first = arguments.index("--task") + 1
    last = next((i for i in range(first, len(arguments)) if arguments[i].startswith("-")), len(arguments))
    if last - first < 2:
        return arguments
    *outer, inner = arguments[first:last]
    return [*arguments[: first - 1], "--task", inner, "--within", *outer, *arguments[last:]]


def _begin(flags: Fit, console: Console) -> tuple[Run, Experiment, Benchmark]:
    if flags.method not in METHODS:
        fail(f"there is no method '{flags.method}'. {nearest(flags.method, [POOL, *METHODS])}")
    if flags.members or flags.minutes is not None:
        raise SettingError("--members and --minutes are for a pool; leave out --method, or leave out those two.")
    table = table_of(flags)
    experiment = table_recipe(
        table, flags.method, steps=flags.steps, preset=flags.preset, linear=flags.linear, noise_model=flags.noise_model
    )
    folder = flags.run or usual_folder(flags.files, flags.config)
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
    stop = StopRequest(f"stmaml fit --resume {run.folder}")
    console.print(f"{experiment.method} -> {run.folder}")
    try:
        with stop_requests(stop), showing(console, "compiling"):
            train_runs([run], experiment, benchmark, observers=(stop,), should_stop=stop.requested)
        if stop.requested():  # while the last steps ran
            leave_stopped(stop)
    except Interrupted:
        leave_stopped(stop)
    except Diverged as error:
        fail(f"{error}. Look for columns with wild values in the list above, and drop or correct them.", code=3)
    _hand_back_memory()
    with stop_requests(stop), showing(console, "scoring"):
        return score_table(run, benchmark, baselines=None if flags.baselines else ())


def _hand_back_memory() -> None:
    """Gives what compiling has used and freed, over half a gigabyte, back to the system, where the C library can."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl has not
        if trim is not None:
            trim(0)


def _show_schema(benchmark: Benchmark, console: Console) -> None:
    settings: Any = benchmark.settings
    show_columns(Schema.from_json(settings.schema), benchmark.notes, console)
