"""Predictions for frozen tasks of held-out groups, as calibration and scores need them."""

from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Key, PRNGKeyArray

from stmaml.benchmarks.base import TaskSet
from stmaml.methods.base import predict
from stmaml.methods.standardised import Standardised
from stmaml.metrics import score_task
from stmaml.prediction import AbstractOutcome, CategoricalOutcome, NormalOutcome, Prediction
from stmaml.tables.calibration import (
    TEMPERATURES,
    class_nll,
    mixture_quantile,
    mixture_score,
    real_nll,
    soften,
    spread_by,
)
from stmaml.tasks import Examples, Task

TASKS_AT_ONCE = 50


@dataclass(frozen=True)
class Raw:
    """What a learner predicts for the queries of tasks, before any recalibration."""

    outcome: AbstractOutcome
    """Normals of each sampled predictor; for classes, their mixture as one."""
    query: Examples

    def nll(self) -> Float[np.ndarray, "m t"]:
        """The negative log-likelihood of each task at each of TEMPERATURES."""
        return np.asarray(_nll(self.outcome, self.query))

    def normal_scores(self, temperature: float) -> Float[np.ndarray, "m q"]:
        """Where each target lies in its prediction, as a normal score."""
        return np.asarray(_normal_scores(self._normals(), self.query, jnp.float32(temperature)), dtype=float)

    def interval(self, temperature: float, low: float, high: float) -> Float[np.ndarray, "m q"]:
        """How wide the interval between two normal scores is, for each query row."""
        return np.asarray(_widths(self._normals(), jnp.float32(temperature), jnp.array([low, high], dtype=jnp.float32)))

    def probabilities(self, temperature: float) -> Float[np.ndarray, "m q c"]:
        """Each class's probability for each query row, at that temperature."""
        return np.asarray(jax.vmap(soften, in_axes=(0, None))(self.outcome.mean(), jnp.float32(temperature)), float)

    def of_truth(self, temperature: float) -> Float[np.ndarray, "m q"]:
        """The probability of the true class of each query row, at that temperature."""
        truth = np.asarray(self.query.y)[..., None]
        return np.take_along_axis(self.probabilities(temperature), truth, axis=-1)[..., 0]

    def scores(self, temperature: float) -> dict[str, Float[np.ndarray, " m"]]:
        """Every score of each task, at that temperature."""
        return {n: np.asarray(v) for n, v in _scores(self.outcome, self.query, jnp.float32(temperature)).items()}

    def _normals(self) -> NormalOutcome:
        if not isinstance(self.outcome, NormalOutcome):
            raise TypeError("intervals are for real-valued targets; these are classes")
        return self.outcome


def raw_predictions(
    learner: Standardised,
    tasks: TaskSet,
    num_samples: int,
    seed: int,
    on_progress: Callable[[int], None] = lambda done: None,
) -> Raw:
    """What the learner predicts for each task from its support alone."""
    size = min(TASKS_AT_ONCE, tasks.num_tasks)
    parts: list[AbstractOutcome] = []
    for index, batch in enumerate(tasks.chunks(size)):
        keys = jax.vmap(lambda i: jr.fold_in(jr.key(seed), i))(index * size + jnp.arange(size))
        parts.append(_predict(learner, batch.tasks, num_samples, keys))
        on_progress(min((index + 1) * size, tasks.num_tasks))
    outcome = jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[: tasks.num_tasks], *parts)
    return Raw(outcome, jax.tree.map(jnp.asarray, tasks.batch.tasks.query))


@eqx.filter_jit
def _predict(learner: Standardised, tasks: Task, num_samples: int, keys: Key[Array, " m"]) -> AbstractOutcome:
    def one(task: Task, key: PRNGKeyArray) -> AbstractOutcome:
        prediction = predict(learner, task.support, task.query.x, num_samples=num_samples, key=key)
        if isinstance(prediction.components, NormalOutcome):
            return prediction.components
        return CategoricalOutcome(jnp.log(jnp.maximum(prediction.mean, 1e-12)))

    return jax.vmap(one)(tasks, keys)


@eqx.filter_jit
def _nll(outcome: AbstractOutcome, query: Examples) -> Float[Array, "m t"]:
    def one(inputs: tuple[AbstractOutcome, Examples]) -> Float[Array, " t"]:
        outcome, query = inputs
        grid = jnp.asarray(TEMPERATURES, dtype=jnp.float32)
        if isinstance(outcome, NormalOutcome):
            loc, scale, y = outcome.loc[..., 0], outcome.scale[..., 0], query.y[..., 0]
            return jax.vmap(lambda t: real_nll(loc, scale, y, query.weight, t))(grid)
        return jax.vmap(lambda t: class_nll(outcome.mean(), query.y, query.weight, t))(grid)

    return jax.lax.map(one, (outcome, query))  # one task after the other: all at once would take much memory


@eqx.filter_jit
def _normal_scores(outcome: NormalOutcome, query: Examples, temperature: Float[Array, ""]) -> Float[Array, "m q"]:
    def one(outcome: NormalOutcome, y: Float[Array, "q 1"]) -> Float[Array, " q"]:
        return mixture_score(*_spread(outcome, temperature), y[..., 0])

    return jax.vmap(one)(outcome, query.y)


@eqx.filter_jit
def _widths(outcome: NormalOutcome, temperature: Float[Array, ""], ends: Float[Array, " 2"]) -> Float[Array, "m q"]:
    def one(outcome: NormalOutcome) -> Float[Array, " q"]:
        low, high = (mixture_quantile(*_spread(outcome, temperature), end) for end in ends)
        return high - low

    return jax.vmap(one)(outcome)


def _spread(outcome: NormalOutcome, temperature: Float[Array, ""]) -> tuple[Float[Array, "s q"], Float[Array, "s q"]]:
    return spread_by(outcome.loc[..., 0], outcome.scale[..., 0], temperature)


@eqx.filter_jit
def _scores(outcome: AbstractOutcome, query: Examples, temperature: Float[Array, ""]) -> dict[str, Float[Array, " m"]]:
    def one(outcome: AbstractOutcome, query: Examples) -> dict[str, Float[Array, ""]]:
        if isinstance(outcome, NormalOutcome):
            loc, scale = _spread(outcome, temperature)
            return score_task(Prediction(NormalOutcome(loc[..., None], scale[..., None])), query.y, query.weight)
        softened = CategoricalOutcome(jnp.log(soften(outcome.mean(), temperature))[None])
        return score_task(Prediction(softened), query.y, query.weight)

    return jax.vmap(one)(outcome, query)
