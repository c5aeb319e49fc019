"""The part of `stmaml evaluate` that is for pools."""

import dataclasses
import json
from pathlib import Path

from rich.console import Console

from stmaml.cli.pools import show_pool
from stmaml.cli.progress import showing
from stmaml.cli.showing import without_nan
from stmaml.errors import SettingError
from stmaml.experiments import EvaluateConfig
from stmaml.pool.evaluating import evaluate_elsewhere
from stmaml.pool.store import PoolRun
from stmaml.runs import Run
from stmaml.tables.parts import Reading
from stmaml.tables.reading import read_table


def evaluate_pool(run: Run, config: EvaluateConfig, console: Console, *, as_json: bool) -> None:
    """Prints the scores that a pool was fitted with, or those on the groups of another table."""
    _refuse_others(config)
    store = PoolRun(run)
    model = store.load()
    found = store.result()
    if config.data is not None:
        with showing(console, "reading"):
            reading = Reading(model.config.delimiter, known=model.schema.names, sheet=model.config.sheet)
            elsewhere = evaluate_elsewhere(model, read_table([Path(config.data)], reading))
        for note in elsewhere.notes:
            console.print(f"note: {note}")
        found = elsewhere.result
    if as_json:
        print(json.dumps(without_nan(found), indent=2, allow_nan=False))
    else:
        show_pool(found)


def _refuse_others(config: EvaluateConfig) -> None:
    """Raises SettingError for a flag that a pool has no use for."""
    usual = EvaluateConfig()
    for field in dataclasses.fields(config):
        if field.name != "data" and getattr(config, field.name) != getattr(usual, field.name):
            flag = field.name.replace("_", "-")
            raise SettingError(f"--{flag} is for a single method; a pool is evaluated with --data alone, or nothing.")
