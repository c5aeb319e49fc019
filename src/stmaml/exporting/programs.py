"""What is exported: functions of plain arrays that adapt a learner to labelled rows and answer for others.

Sets have a fixed number of rows; fewer are padded with rows of weight 0, which change nothing."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.exporting.columns import columns_of
from stmaml.exporting.convert import Program
from stmaml.methods.base import AbstractMetaLearner, AbstractPredictor, predict_with
from stmaml.prediction import Prediction
from stmaml.tables.adapted import DEFAULT_LEVELS, AdaptedModel
from stmaml.tables.answers import answer_group
from stmaml.tables.benchmark import task_spec
from stmaml.tables.calibration import LEVELS, SET_LEVELS, Calibration, Recalibration, class_sets, normal_score
from stmaml.tables.model import FewShotModel
from stmaml.tasks import Examples, Scalar, TaskSpec

Answers = dict[str, Array]


@dataclass(frozen=True)
class Wanted:
    """How large the sets of a graph are, and what it is to say."""

    labelled: int = 64
    """Most labelled rows; a reader thins out more."""
    asked: int = 256
    """Rows answered at once; a reader asks for more in turns."""
    draws: int = 20
    """Predictors sampled for each answer."""
    levels: tuple[float, ...] = DEFAULT_LEVELS
    """Of quantiles."""
    coverage: float = 0.9
    """Of sets of classes."""


@dataclass(frozen=True)
class Exportable:
    """A function of named arrays and a key, arrays like those it is called with, and what its reader must know."""

    program: Program
    examples: dict[str, Array]
    about: dict[str, Any]
    noise: Float[np.ndarray, " k"] | None = None
    """The noise to build in; an input of the graph if not given."""
    notes: tuple[str, ...] = field(default=())


def of_learner(learner: AbstractMetaLearner, spec: TaskSpec, wanted: Wanted) -> Exportable:
    """A learner of tasks like `spec`."""
    levels = jnp.array(wanted.levels)

    def program(*, key: PRNGKeyArray, query_x: Array, query_weight: Array | None = None, **support: Array) -> Answers:
        predictors = learner.adapt(_examples(support), num_samples=wanted.draws, key=key)
        return _plain_answer(predict_with(predictors, query_x, weight=query_weight), levels)

    inputs = {**support_like(spec, wanted), **query_like(spec, wanted)}
    if spec.is_image:  # a network may normalise images by what it sees of the whole set
        inputs["query_weight"] = jnp.zeros(wanted.asked)
    return Exportable(program, inputs, about_task(spec, wanted))


def of_table(model: FewShotModel, wanted: Wanted) -> Exportable:
    """A model of a table, with its calibration: labelled rows are counted in the graph."""
    levels = jnp.array(wanted.levels)

    def program(*, key: PRNGKeyArray, query_x: Array, **support: Array) -> Answers:
        predictors = model.learner.adapt(_examples(support), num_samples=wanted.draws, key=key)
        recalibration = recalibration_at(model.calibration, support["support_weight"].sum())
        return _table_answer(predictors, query_x, recalibration, levels, wanted.coverage)

    about = {**about_task(model.spec, wanted), "schema": model.schema.to_json(), **columns_of(model.schema)}
    return Exportable(program, {**support_like(model.spec, wanted), **query_like(model.spec, wanted)}, about)


def of_adapted(adapted: AdaptedModel, wanted: Wanted) -> Exportable:
    """The predictors of one group, which need no labelled rows any more."""
    levels, spec = jnp.array(wanted.levels), task_spec(adapted.schema)
    recalibration = adapted.calibration.at(adapted.shots)

    def program(*, key: PRNGKeyArray, query_x: Array) -> Answers:
        del key  # drawn already
        return _table_answer(adapted.predictors, query_x, recalibration, levels, wanted.coverage)

    own = {"labelled": 0, "draws": adapted.num_samples, "group": adapted.group, "shots": adapted.shots}
    about = {**about_task(spec, wanted), **own, "schema": adapted.schema.to_json(), **columns_of(adapted.schema)}
    return Exportable(program, query_like(spec, wanted), about)


def recalibration_at(calibration: Calibration, shots: Scalar) -> Recalibration:
    """`calibration.at` for a number of labelled rows that is not known yet: linear in log(1 + shots)."""
    at, count = jnp.log1p(shots), len(calibration.shots)
    with jax.ensure_compile_time_eval():  # these are constants
        plain = [normal_score(np.array(LEVELS))] * count
    nothing = [(0.0,) * len(SET_LEVELS)] * count
    temperature = _between(calibration.shots, np.log(np.array(calibration.temperature))[:, None], at)
    scores = _between(calibration.shots, np.array(calibration.scores or plain), at)
    floors = _between(calibration.shots, np.array(calibration.floors or nothing), at)
    return Recalibration(jnp.exp(temperature[0]), scores, floors, fitted=bool(calibration.floors))


def _between(shots: tuple[int, ...], table: Float[np.ndarray, "k l"], at: Scalar) -> Float[Array, " l"]:
    """The first row and as much of each step from row to row as lies below `at`."""
    knots = np.log1p(np.array(shots, dtype=float))
    start = jnp.asarray(table[0], dtype=jnp.float32)
    if len(knots) == 1:
        return start
    low, width = (jnp.asarray(each, dtype=jnp.float32) for each in (knots[:-1], np.diff(knots)))
    shares = jnp.clip((jnp.broadcast_to(at, low.shape) - low) / width, 0.0, 1.0)
    return start + shares @ jnp.asarray(np.diff(table, axis=0), dtype=jnp.float32)


def _examples(support: dict[str, Array]) -> Examples:
    return Examples(support["support_x"], support["support_y"], support["support_weight"])


def _plain_answer(prediction: Prediction, levels: Float[Array, " l"]) -> Answers:
    if prediction.target == "class":
        return {"probabilities": prediction.mean, "task_std": prediction.task_std}
    values = {"mean": prediction.mean, "std": prediction.std, "task_std": prediction.task_std}
    return values if prediction.target == "binary" else {**values, "quantiles": prediction.quantiles(levels)}


def _table_answer(
    predictors: AbstractPredictor, x: Array, recalibration: Recalibration, levels: Float[Array, " l"], coverage: float
) -> Answers:
    values = answer_group(predictors, x, recalibration, levels)
    if "probabilities" not in values:
        return values
    floor = jnp.broadcast_to(recalibration.floor(coverage), x.shape[:1])
    return {**values, "in_set": jnp.asarray(class_sets(values["probabilities"], floor))}


def support_like(spec: TaskSpec, wanted: Wanted) -> dict[str, Array]:
    """Blank labelled rows, by the names of the inputs that they are."""
    rows = wanted.labelled
    y = jnp.zeros(rows, dtype=jnp.int32) if spec.target == "class" else jnp.zeros((rows, spec.y_size))
    return {"support_x": jnp.zeros((rows, *spec.x_shape)), "support_y": y, "support_weight": jnp.zeros(rows)}


def query_like(spec: TaskSpec, wanted: Wanted) -> dict[str, Array]:
    """Blank rows to ask for."""
    return {"query_x": jnp.zeros((wanted.asked, *spec.x_shape))}


def about_task(spec: TaskSpec, wanted: Wanted) -> dict[str, Any]:
    """What a reader must know, whatever is exported."""
    sizes = {"labelled": wanted.labelled, "asked": wanted.asked, "draws": wanted.draws}
    kind = {"target": spec.target, "x_shape": list(spec.x_shape), "y_size": spec.y_size}
    return {**kind, **sizes, "levels": list(wanted.levels), "coverage": wanted.coverage}
