"""The adapted predictor of one group, in one file."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import polars as pl
from jaxtyping import UInt8

from stmaml.errors import RunError, SourceError
from stmaml.methods.base import AbstractPredictor
from stmaml.runs import load_arrays, read_npz, save_arrays
from stmaml.tables.answers import QUERY_SIZES, Collected, Item, adapt_one, answer_groups, beside, fitting
from stmaml.tables.calibration import Calibration
from stmaml.tables.schema import Schema, table_keys
from stmaml.tables.settings import Settings, build, task_spec
from stmaml.tasks import Examples, TaskSpec

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
    settings: Settings
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
        temperature = jnp.asarray(self.calibration.temperature_at(shots))
        scores = jnp.asarray(self.calibration.scores_at(shots, np.array(levels)))
        about = {"shots": shots, "novelty": np.array([np.nan if self.novelty is None else self.novelty])}
        for first in range(0, query.height, QUERY_SIZES[-1]):
            rows = np.arange(first, min(first + QUERY_SIZES[-1], query.height))
            size = fitting(len(rows), QUERY_SIZES)
            values = answer_groups(stacked, jnp.asarray(x[np.resize(rows, size)])[None], temperature, scores, False)
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
            "settings": self.settings.to_json(),
            "calibration": self.calibration.to_json(),
            "group": self.group,
            "shots": self.shots,
            "num_samples": self.num_samples,
            "novelty": self.novelty,
        }
        save_arrays(path, {"about": _as_bytes(about), "predictors": self.predictors})


def load_adapted(path: Path) -> AdaptedModel:
    """The predictors of one group, from the file that `AdaptedModel.save` wrote."""
    stored = read_npz(path).get("['about']")
    if stored is None:
        raise RunError(f"{path} is not an adapted model. 'stmaml predict --save-adapted' writes such files.")
    try:
        about = json.loads(stored.tobytes())
        schema, settings = Schema.from_json(about["schema"]), Settings.from_json(about["settings"])
        calibration = Calibration.from_json(about["calibration"])
        shots, num_samples = about["shots"], about["num_samples"]
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(
            f"{path} lacks or misnames {error}. Write it again with 'stmaml predict --save-adapted'."
        ) from error
    like = {"about": stored, "predictors": _blank_predictors(schema, settings, num_samples)}
    predictors = load_arrays(path, like)["predictors"]
    group = about.get("group", "")  # a file without a name serves any group
    return AdaptedModel(schema, settings, calibration, group, shots, num_samples, about.get("novelty"), predictors)


def _as_bytes(content: dict[str, Any]) -> UInt8[np.ndarray, " n"]:
    return np.frombuffer(json.dumps(content).encode(), dtype=np.uint8)


def _blank_predictors(schema: Schema, settings: Settings, num_samples: int) -> AbstractPredictor:
    """Predictors of the right shapes, found without computing any."""
    support = _blank(task_spec(schema, settings.noise_model))
    shapes = eqx.filter_eval_shape(
        lambda learner: adapt_one(learner, support, num_samples, jr.key(0)), build(schema, settings)
    )
    return jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf, shapes
    )


def _blank(spec: TaskSpec) -> Examples:
    y = jnp.zeros(1, dtype=int) if spec.target == "class" else jnp.zeros((1, spec.y_size))
    return Examples(jnp.zeros((1, *spec.x_shape)), y, jnp.zeros(1))
