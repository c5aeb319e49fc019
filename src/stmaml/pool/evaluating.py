"""A fitted pool on the groups of another table."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from stmaml.errors import SourceError
from stmaml.pool.base import Draw
from stmaml.pool.crossfit import HeldOut, held_out_tasks
from stmaml.pool.model import PoolModel
from stmaml.pool.result import result_on
from stmaml.pool.rows import group_places, grouped_rows, in_order, nested
from stmaml.pool.scoring import score_with
from stmaml.progress import tell
from stmaml.tables.benchmark import with_targets
from stmaml.tables.parts import check_has
from stmaml.tables.reading import group_rows


@dataclass(frozen=True)
class Elsewhere:
    """What the scores on another table say, and what there is to say of the table."""

    result: dict[str, Any]
    notes: list[str]


def evaluate_elsewhere(model: PoolModel, frame: pl.DataFrame, *, seed: int = 0) -> Elsewhere:
    """Scores of a pool and its members on all groups of a table, each taken as new, with as many labelled rows as it
    was weighed at."""
    notes: list[str] = []
    table, counts = model.config.table, model.pooling.counts
    check_has(frame.columns, [table.task, table.target], "the table")
    frame, keys = with_targets(in_order(nested(frame, table), table), table, notes)
    rows = grouped_rows(model.schema, model.factors, frame, group_places(group_rows(keys), frame.height), notes=notes)
    draw = Draw(counts[-1], ordered=table.order is not None, seed=seed)
    held = []
    for number, (shots, tasks) in enumerate(zip(counts, held_out_tasks(rows, draw, counts), strict=True)):
        tell("predicting groups", number, len(counts))
        if len(tasks):
            held.append(HeldOut(shots, tasks, model.forecasts(tasks), np.zeros(len(tasks), dtype=int)))
    if not held:
        raise SourceError(f"no group of '{table.task}' has a row to predict. Bring a table with targets.")
    if held[-1].shots < counts[-1]:
        notes.append(f"no group has a row to predict beside {counts[len(held)]} labelled ones or more")
    scale = 1.0 if model.schema.target.is_class else model.schema.target.std
    scored = [score_with(one, model.pooling, scale) for one in held]
    return Elsewhere({**result_on(model.schema.target, model.pooling, scored), "worth": {}, "notes": []}, notes)
