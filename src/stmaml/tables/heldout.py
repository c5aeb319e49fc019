"""Predictions for frozen tasks of held-out groups, as calibration and scores need them."""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Key, PRNGKeyArray

from stmaml.benchmarks.sources import TaskSet
from stmaml.limits import TASKS_AT_ONCE
from stmaml.methods.base import AbstractMetaLearner, predict
from stmaml.prediction import Prediction
from stmaml.tables.calibration import TEMPERATURES
from stmaml.tasks import Examples, Task, weighted_mean


@dataclass(frozen=True)
class Raw:
    """What a learner predicts for the queries of tasks, before any recalibration."""

    prediction: Prediction
    """A mixture for each task, on a leading axis; for classes, its averaged probabilities alone."""
    query: Examples

    def nll(self) -> Float[np.ndarray, "m t"]:
        """The negative log-likelihood of each task at each of TEMPERATURES."""
        return np.asarray(_nll(self.prediction, self.query))

    def normal_scores(self, temperature: float) -> Float[np.ndarray, "m q"]:
        """Where each target lies in its prediction, as a normal score."""
        return np.asarray(_normal_scores(self.prediction, self.query, jnp.float32(temperature)), dtype=float)

    def probabilities(self, temperature: float) -> Float[np.ndarray, "m q c"]:
        """Each class's probability for each query row, at that temperature."""
        return np.asarray(jax.vmap(lambda one: one.tempered(jnp.float32(temperature)).mean)(self.prediction), float)

    def of_truth(self, temperature: float) -> Float[np.ndarray, "m q"]:
        """The probability of the true class of each query row, at that temperature."""
        truth = np.asarray(self.query.y)[..., None]
        return np.take_along_axis(self.probabilities(temperature), truth, axis=-1)[..., 0]


def raw_predictions(learner: AbstractMetaLearner, tasks: TaskSet, num_samples: int, seed: int) -> Raw:
    """What the learner predicts for each task from its support alone."""
    size = min(TASKS_AT_ONCE, tasks.num_tasks)
    parts: list[Prediction] = []
    for index, batch in enumerate(tasks.chunks(size)):
        keys = jax.vmap(lambda i: jr.fold_in(jr.key(seed), i))(index * size + jnp.arange(size))
        parts.append(_predict(learner, batch.tasks, num_samples, keys))
    prediction = jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[: tasks.num_tasks], *parts)
    return Raw(prediction, jax.tree.map(jnp.asarray, tasks.batch.tasks.query))


@eqx.filter_jit
def _predict(learner: AbstractMetaLearner, tasks: Task, num_samples: int, keys: Key[Array, " m"]) -> Prediction:
    def one(task: Task, key: PRNGKeyArray) -> Prediction:
        return predict(learner, task.support, task.query.x, num_samples=num_samples, key=key).pooled()

    return jax.vmap(one)(tasks, keys)


@eqx.filter_jit
def _nll(prediction: Prediction, query: Examples) -> Float[Array, "m t"]:
    def one(inputs: tuple[Prediction, Examples]) -> Float[Array, " t"]:
        prediction, query = inputs
        grid = jnp.asarray(TEMPERATURES, dtype=jnp.float32)
        return jax.vmap(lambda t: -weighted_mean(prediction.tempered(t).log_prob(query.y), query.weight))(grid)

    return jax.lax.map(one, (prediction, query))  # one task after the other: all at once would take much memory


@eqx.filter_jit
def _normal_scores(prediction: Prediction, query: Examples, temperature: Float[Array, ""]) -> Float[Array, "m q"]:
    return jax.vmap(lambda one, y: one.tempered(temperature).normal_scores(y)[..., 0])(prediction, query.y)
