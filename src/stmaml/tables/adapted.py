"""The adapted predictor of one group, in one file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import polars as pl

from stmaml.border.json_text import parse_json
from stmaml.border.typed import need
from stmaml.errors import RunError, SourceError
from stmaml.experiments import describe, experiment_of, fresh
from stmaml.legacy.settings import table_experiment
from stmaml.methods.base import AbstractPredictor
from stmaml.recipes import Experiment
from stmaml.runs import json_bytes, load_arrays, read_arrays, save_arrays
from stmaml.tables.answers import QUERY_SIZES, Collected, Item, answer_groups, beside, fitting
from stmaml.tables.benchmark import target_scaling, task_spec
from stmaml.tables.calibration import Calibration
from stmaml.tables.schema import Schema, table_keys
from stmaml.tasks import Examples, TaskSpec

MOST = 10_000_000  # labelled rows, or sampled predictors
_ODD = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, ZeroDivisionError, RunError)
"""What settings that nobody wrote raise on the way to predictors."""
DEFAULT_LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)


@dataclass(frozen=True)
class Answer:
    """Predictions for the rows of a table, in their order, and what had to be assumed on the way."""

    frame: pl.DataFrame
    notes: list[str]


@dataclass(frozen=True)
class AdaptedModel:
    """The predictors of one group: its labelled rows are worked in and not needed any more."""

    schema: Schema
    experiment: Experiment
    calibration: Calibration
    group: str
    shots: int
    """Labelled rows it has learnt from."""
    num_samples: int
    novelty: float | None
    """Share of held-out groups that look less unusual."""
    predictors: AbstractPredictor

    def predict(
        self, query: pl.DataFrame, *, levels: tuple[float, ...] = DEFAULT_LEVELS, coverage: float = 0.9
    ) -> Answer:
        """A prediction for each row of `query`, all of this group; a table may leave out the column that says so."""
        notes: list[str] = []
        self._refuse_others(query)
        x = self.schema.encode(query, "the query table", notes)
        table = Collected(self.schema, self.calibration, levels, query.height, False, coverage)
        stacked = jax.tree.map(lambda leaf: leaf[None], self.predictors)
        shots = np.array([self.shots])
        recalibration, at = self.calibration.at(shots), jnp.array(levels)
        about = {"shots": shots, "novelty": np.array([np.nan if self.novelty is None else self.novelty])}
        for first in range(0, query.height, QUERY_SIZES[-1]):
            rows = np.arange(first, min(first + QUERY_SIZES[-1], query.height))
            size = fitting(len(rows), QUERY_SIZES)
            values = answer_groups(stacked, jnp.asarray(x[np.resize(rows, size)])[None], recalibration, at, False)
            item = Item(self.group, np.zeros(0, dtype=np.int64), rows, (1, size))
            table.add([item], {name: np.asarray(value) for name, value in values.items()}, about)
        return Answer(beside(query, table.frame(), notes), notes)

    def _refuse_others(self, query: pl.DataFrame) -> None:
        """Raises SourceError for rows of another group. An empty cell names none."""
        task = self.schema.task
        if task not in query.columns:
            return
        keys = table_keys(query, task, self.schema.missing)
        others = keys.filter(keys != self.group)
        if self.group and others.len():
            raise SourceError(
                f"{others.len()} rows of the query table are of other groups, such as '{others[0]}', and this file is "
                f"adapted to '{self.group}' alone. Remove them, or name the run folder with the labelled rows of all."
            )

    def save(self, path: Path) -> None:
        """Writes all of it to one file."""
        about = {
            "schema": self.schema.to_json(),
            "experiment": describe(self.experiment, 0),
            "calibration": self.calibration.to_json(),
            "group": self.group,
            "shots": self.shots,
            "num_samples": self.num_samples,
            "novelty": self.novelty,
        }
        save_arrays(path, {"about": json_bytes(about), "predictors": self.predictors})


def load_adapted(path: Path) -> AdaptedModel:
    """The predictors of one group, from the file that `AdaptedModel.save` wrote."""
    stored = read_arrays(path).get("about")
    if stored is None:
        raise RunError(f"{path} is not an adapted model. 'stmaml predict --save-adapted' writes such files.")
    try:
        about = need(dict, parse_json(stored.tobytes()), "about")
        schema, experiment = Schema.from_json(about["schema"]), experiment_of(_settings(about))
        calibration = Calibration.from_json(about["calibration"])
        shots, num_samples = (_count(about, name, least) for name, least in (("shots", 0), ("num_samples", 1)))
        group = need(str, about.get("group", ""), "group")  # a file without a name serves any group
        novelty = need(float | None, about.get("novelty"), "novelty")
        like = {"about": stored, "predictors": _blank_predictors(schema, experiment, num_samples)}
    except _ODD as error:
        why = str(error).partition("\n")[0]
        raise RunError(
            f"{path} lacks or misnames {why}. Write it again with 'stmaml predict --save-adapted'."
        ) from error
    predictors = load_arrays(path, like)["predictors"]
    return AdaptedModel(schema, experiment, calibration, group, shots, num_samples, novelty, predictors)


def _count(about: dict[str, Any], name: str, least: int) -> int:
    count = need(int, about[name], name)
    if not least <= count <= MOST:
        raise RunError(f"'{name}', which must be from {least} to {MOST:,} and is {count}")
    return count


def _settings(about: dict[str, Any]) -> dict[str, Any]:
    """The settings of the experiment behind a file, whichever version wrote it."""
    if "settings" not in about:
        return about["experiment"]
    roles = {"task": about["schema"]["task"], "target": about["schema"]["target"]["name"]}
    return table_experiment(about["settings"], {"table": roles, "schema": about["schema"]})


def _blank_predictors(schema: Schema, experiment: Experiment, num_samples: int) -> AbstractPredictor:
    """Predictors of the right shapes, found without computing any."""
    spec = task_spec(schema)

    def adapted() -> AbstractPredictor:
        learner = fresh(experiment, spec, target_scaling(schema))
        return learner.adapt(_blank(spec), num_samples=num_samples, key=jr.key(0))

    return eqx.filter_eval_shape(adapted)


def _blank(spec: TaskSpec) -> Examples:
    y = jnp.zeros(1, dtype=int) if spec.target == "class" else jnp.zeros((1, spec.y_size))
    return Examples(jnp.zeros((1, *spec.x_shape)), y, jnp.zeros(1))
