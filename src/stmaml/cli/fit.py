"""`stmaml fit`."""

import ctypes
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import tyro
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from stmaml.cli import fail, nearest
from stmaml.cli.evaluate import without_nan
from stmaml.cli.folders import check_folder
from stmaml.cli.parsing import parse
from stmaml.cli.progress import TrainingBar
from stmaml.cli.showing import plain_console
from stmaml.cli.stopping import StopRequest, stop_requests
from stmaml.cli.telling import telling
from stmaml.methods import METHODS
from stmaml.tables.calibration import caution
from stmaml.tables.fitting import Prepared, TableConfig, finish, prepare, train
from stmaml.tables.folder import RESULT, Files, TableRun, check_free, create, reopen
from stmaml.tables.reading import read_table
from stmaml.tables.scoring import NOMINAL, score
from stmaml.tables.settings import Preset, build, default_settings
from stmaml.training import Diverged, Interrupted

SHOWN = ("accuracy", "mse", "nll", "crps", "coverage90", "width90")


@dataclass(frozen=True)
class Fit:
    """Learn across the groups of a table, so that a few labelled rows of a new group suffice to predict it.

    Shows what each column holds, trains, and scores held-out groups beside simpler models.
    """

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
        table_run = reopen(flags.resume)
        result = table_run.result() or _go_on(table_run, console, baselines=flags.baselines)
    else:
        flags = parse(Fit, arguments, "stmaml fit", config=(tyro.conf.OmitArgPrefixes,))
        table_run, prepared = _begin(flags, console)
        result = _fit(table_run, prepared, console, baselines=flags.baselines)
    if flags.json:
        print(json.dumps(without_nan(result), indent=2, allow_nan=False))
    else:
        _show(result)
        print(f"\nNext: stmaml predict {table_run.run.folder} --support LABELLED --query ASK")


def _begin(flags: Fit, console: Console) -> tuple[TableRun, Prepared]:
    if flags.method not in METHODS:
        fail(f"there is no method '{flags.method}'. {nearest(flags.method, list(METHODS))}")
    if not flags.files:
        fail("fit needs a table: a CSV or Parquet file, a folder or an archive of them.")
    settings = default_settings(
        flags.method, steps=flags.steps, seed=flags.seed, preset=flags.preset, linear=flags.linear
    )
    folder = flags.run or Path("runs") / f"{flags.files[0].name.split('.')[0]}-{flags.config.target}"
    if not flags.force:
        check_free(folder)
    files = Files(flags.files, flags.delimiter)
    with telling(console, "reading"):
        frame = read_table(files.paths, files.reading(flags.config))
        prepared = prepare(frame, flags.config, settings)
    eqx.filter_eval_shape(build, prepared.schema, settings)  # refuses a method that does not suit the target
    _show_schema(prepared, console)
    return create(folder, files, flags.config, settings, prepared, force=flags.force), prepared


def _go_on(table_run: TableRun, console: Console, *, baselines: bool) -> dict[str, Any]:
    """The scores of a run that was begun earlier, once it is finished."""
    with telling(console, "reading"):
        frame = read_table(table_run.files.paths, table_run.files.reading(table_run.table))
        prepared = prepare(frame, table_run.table, table_run.settings, table_run.schema)
    table_run.check_same(prepared)
    return _fit(table_run, prepared, console, baselines=baselines)


def _fit(table_run: TableRun, prepared: Prepared, console: Console, *, baselines: bool) -> dict[str, Any]:
    run, settings = table_run.run, table_run.settings
    stop = StopRequest()
    title = f"{settings.method} on {len(prepared.split.train)} groups -> {run.folder}"
    try:
        with stop_requests(stop), TrainingBar(console, settings.training, title) as bar:
            learner = train(prepared, settings, run=run, observers=(bar,), should_stop=stop.requested)
    except Interrupted as error:
        console.print(f"stopped at step {error.step}, state saved. Go on with: stmaml fit --resume {run.folder}")
        sys.exit(128 + stop.signal)
    except Diverged as error:
        fail(f"{error}. Look for columns with wild values in the list above, and drop or correct them.", code=3)
    _hand_back_memory()
    with telling(console, "calibrating") as tell:
        model = finish(prepared, settings, learner, tell)
        model.save(run)
        _hand_back_memory()
        result = score(model, prepared, baselines=None if baselines else (), tell=tell)
    run.save_scores(RESULT, result, {})
    return result


def _hand_back_memory() -> None:
    """Gives what compiling has used and freed, over half a gigabyte, back to the system, where the C library can."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl has not
        if trim is not None:
            trim(0)


def _show_schema(prepared: Prepared, console: Console) -> None:
    table = Table("column", "kind", "missing", "what it holds", box=SIMPLE, padding=(0, 1))
    for column in prepared.schema.columns:
        table.add_row(
            column.name, column.kind, "some" if getattr(column, "has_missing", False) else "", column.describe()
        )
    target = prepared.schema.target
    table.add_section()
    table.add_row(target.name, "target: " + ("class" if target.is_class else "number"), "", target.describe())
    table.caption = "numbers: range without the lowest and the highest 0.1 % of the training rows"
    console.print(table)
    split = prepared.split
    console.print(
        f"{prepared.num_rows:,} rows; groups by '{prepared.schema.task}': {len(split.train):,} to train, "
        f"{len(split.val):,} to validate and calibrate, {len(split.test):,} to test"
        + (f"; {len(split.skipped):,} skipped, too small" if split.skipped else ""),
    )
    for note in [*prepared.notes, *caution(len(split.val), target.is_class)]:
        console.print(f"note: {note}")


def _show(result: dict[str, Any]) -> None:
    console = plain_console()
    for shots, rows in result["scores"].items():
        names = [name for name in SHOWN if name in next(iter(rows.values()))]
        head = "1 labelled row" if shots == "1" else f"{shots} labelled rows"
        table = Table(head, *names, box=SIMPLE, padding=(0, 1))
        for row, metrics in rows.items():
            table.add_row(row, *(f"{metrics[name]['mean']:.4g}" for name in names))
        console.print(table)
    console.print(_calibration_table(result["calibration"]))
    console.print(f"Scores are means over {result['test_groups']} test groups. {_sentence(result['verdict'])}")


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _calibration_table(calibration: dict[str, Any]) -> Table:
    """Before and after, by number of labelled rows."""
    levels = [f"{nominal:.0%}" for nominal in NOMINAL]
    if levels[0] not in next(iter(calibration.values())):
        heads = [f"{level} set holds (classes)" for level in levels[1:]]
        table = Table("labelled rows", "temperature", "nll before -> after", *heads, box=SIMPLE, padding=(0, 1))
        for shots, row in calibration.items():
            sets = [row["sets"][level] for level in levels[1:]]
            cells = [f"{100 * one['holds']['mean']:.0f} % ({one['size']['mean']:.2f})" for one in sets]
            table.add_row(shots, f"{row['temperature']:.2f}", f"{row['before']:.4g} -> {row['after']:.4g}", *cells)
        return table
    table = Table("labelled rows", *(f"{level} interval holds" for level in levels), box=SIMPLE, padding=(0, 1))
    for shots, row in calibration.items():
        cells = [f"{100 * row[le]['before']['mean']:.0f} -> {100 * row[le]['after']['mean']:.0f} %" for le in levels]
        table.add_row(shots, *cells)
    table.caption = "before -> after recalibration on validation groups; the truth of test groups"
    return table
