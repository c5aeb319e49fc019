"""The part of `stmaml fit` that makes a pool, or goes on with one."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from stmaml.cli import fail
from stmaml.cli.progress import showing
from stmaml.cli.stopping import StopRequest, stop_requests
from stmaml.compiled import free_programs, run_in_one_thread
from stmaml.errors import SettingError, above
from stmaml.locks import locked
from stmaml.pool.fitting import PoolStopped, fit_pool
from stmaml.pool.meta import SMALL
from stmaml.pool.on_disk import open_pool_on_disk
from stmaml.pool.opening import PoolTable, open_pool_table
from stmaml.pool.registry import members_named
from stmaml.pool.store import PoolRun, PoolSettings
from stmaml.runs import Run
from stmaml.tables.benchmark import Config, TableConfig
from stmaml.tables.reading import read_table
from stmaml.tables.schema import Schema

USUAL = {"steps": None, "preset": "default", "linear": True, "noise_model": "predicted", "baselines": True}
"""Flags of a single method, which a pool has no use for."""


def begin_pool(flags: Any, console: Console) -> tuple[Run, dict[str, Any]]:
    """A new run folder with a pool in it, and what its scores say."""
    _check(flags)
    config = table_of(flags)
    run = Run(flags.run or usual_folder(flags.files, flags.config))
    if not flags.force:
        run.check_free("fit")
    settings = PoolSettings(flags.members, flags.config.sizes.shots, flags.minutes)
    table = _open(config, settings, flags.seed, console)
    members_named(settings.members, table.rows)  # those that it refuses, before a run is made
    store = PoolRun(run)
    store.create(table.config, settings, flags.seed, force=flags.force)
    show_columns(table.schema, table.notes, console)
    return run, _fit(store, table, settings, console)


def resume_pool(run: Run, console: Console) -> dict[str, Any]:
    """What the scores of a pool say, after fitting what was missing of it."""
    store = PoolRun(run)
    if store.is_finished():
        return store.result()
    seed = run.config()["seed"]
    return _fit(store, _open(store.table(), store.settings(), seed, console), store.settings(), console)


def table_of(flags: Any) -> Config:
    """Where a table lies and what is asked of it."""
    if not flags.files:
        fail("fit needs a table: a CSV, Parquet or Excel file, a folder or an archive of them.")
    files = tuple(str(path.resolve()) for path in flags.files)
    return Config(flags.config, files, flags.delimiter, flags.sheet, on_disk=flags.on_disk or None)


def usual_folder(files: tuple[Path, ...], config: TableConfig) -> Path:
    """Where a run goes if nobody says."""
    return Path("runs") / f"{files[0].name.split('.')[0]}-{config.target}"


def _check(flags: Any) -> None:
    for name, usual in USUAL.items():
        if getattr(flags, name) != usual:
            flag = name.replace("_", "-")
            raise SettingError(f"--{flag} is for a single method; name it with --method, or leave --{flag} out.")
    above(0, minutes=flags.minutes)


def _open(config: Config, settings: PoolSettings, seed: int, console: Console) -> PoolTable:
    config.table.check()
    with showing(console, "reading"):
        if config.stays_on_disk:
            return open_pool_on_disk(config, shots=settings.shots, seed=seed)
        return open_pool_table(read_table(config.paths, config.reading), config, shots=settings.shots, seed=seed)


def _fit(store: PoolRun, table: PoolTable, settings: PoolSettings, console: Console) -> dict[str, Any]:
    small = len(table.rows.y) < SMALL
    if small:
        run_in_one_thread()
    stop = StopRequest(f"stmaml fit --resume {store.folder}")
    console.print(f"pool -> {store.folder}")
    try:
        threads = threadpool_limits(1 if small else None, "blas")
        with locked([store.folder]), stop_requests(stop), showing(console, "fitting"), threads:
            return fit_pool(table, settings, store=store, should_stop=stop.requested, free=free_programs).result
    except PoolStopped:
        console.print(f"stopped, members that were done are kept. Go on with: stmaml fit --resume {store.folder}")
        sys.exit(128 + stop.signal)


def show_columns(schema: Schema, notes: Iterable[str], console: Console) -> None:
    """Prints what was made of each column, and what else there is to say of the table."""
    table = Table("column", "kind", "missing", "what it holds", box=SIMPLE, padding=(0, 1))
    for column in schema.columns:
        table.add_row(column.name, column.kind, "some" if column.has_missing else "", column.describe())
    target = schema.target
    table.add_section()
    table.add_row(target.name, "target: " + ("class" if target.is_class else "number"), "", target.describe())
    table.caption = "numbers: range without the lowest and the highest 0.1 % of the training rows"
    console.print(table)
    groups, *others = notes
    console.print(groups)
    for note in others:
        console.print(f"note: {note}")
