"""Scoring a learner on a frozen set of tasks."""

from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stmaml.benchmarks.base import Showcase, TaskSet
from stmaml.methods.base import AbstractMetaLearner, predict
from stmaml.metrics import Summary, score_task, summarise
from stmaml.prediction import BernoulliOutcome, NormalOutcome, Prediction
from stmaml.tasks import Examples, TaskBatch


@dataclass(frozen=True)
class Scores:
    """Scores of each task of a set."""

    values: dict[str, Float[np.ndarray, " m"]]
    family: Int[np.ndarray, " m"]
    task_set: str
    digest: str
    num_samples: int

    def summary(self) -> dict[str, Summary]:
        """Each metric's mean and interval over all tasks."""
        return {name: summarise(values) for name, values in self.values.items()}

    def family_summary(self, families: tuple[str, ...]) -> dict[str, dict[str, Summary]]:
        """The same for the tasks of each family."""
        present = [(i, name) for i, name in enumerate(families) if (self.family == i).any()]
        return {
            family: {name: summarise(values[self.family == i]) for name, values in self.values.items()}
            for i, family in present
        }


def evaluate(
    learner: AbstractMetaLearner,
    task_set: TaskSet,
    *,
    num_samples: int,
    key: PRNGKeyArray,
    tasks_at_once: int = 100,
    on_progress: Callable[[int], None] = lambda done: None,
) -> Scores:
    """Adapts to each task's support alone, then scores the mixture of `num_samples` predictors on its query."""
    parts: list[dict[str, np.ndarray]] = []
    size = min(tasks_at_once, task_set.num_tasks)
    for index, batch in enumerate(task_set.chunks(size)):
        first = index * size
        scores = _score_batch(learner, batch, num_samples, key, jnp.asarray(first))
        count = min(size, task_set.num_tasks - first)
        parts.append({name: np.asarray(values)[:count] for name, values in scores.items()})
        on_progress(first + count)
    values = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return Scores(ordered(values), np.asarray(task_set.batch.family), task_set.name, task_set.digest, num_samples)


def ordered(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Errors first, then densities, then intervals: the order people read them in."""
    known = ("accuracy", "bce", "bce_unseen", "bce_single", "mse", "mae", "mse_clean", "nll", "crps", "coverage90")
    known = (*known, "width90", "diversity")
    return {name: values[name] for name in sorted(values, key=lambda n: known.index(n) if n in known else len(known))}


@eqx.filter_jit
def _score_batch(
    learner: AbstractMetaLearner, batch: TaskBatch, num_samples: int, key: PRNGKeyArray, first: Int[Array, ""]
) -> dict[str, Float[Array, " m"]]:
    def score(batch: TaskBatch, index: Int[Array, ""]) -> dict[str, Float[Array, ""]]:
        task = batch.tasks
        # The key belongs to the task's place in the set: scores do not depend on how many tasks are scored at once.
        task_key = jr.fold_in(key, index)
        prediction = predict(learner, task.support, task.query.x, num_samples=num_samples, key=task_key)
        binary = isinstance(prediction.components, BernoulliOutcome)
        seen = among(task.query.x, task.support) if binary else None
        return score_task(prediction, task.query.y, task.query.weight, batch.clean, seen)

    return jax.vmap(score)(batch, first + jnp.arange(batch.family.shape[0]))


def among(x: Float[Array, "n *dx"], support: Examples) -> Float[Array, " n"]:
    """1 for inputs that are among the support's, else 0."""
    same = (x[:, None] == support.x[None]).reshape(x.shape[0], support.weight.shape[0], -1).all(-1)
    return (same & (support.weight > 0)[None]).any(1).astype(float)


def trace(
    learner: AbstractMetaLearner, showcase: Showcase, *, num_curves: int = 10, num_samples: int = 100, key: PRNGKeyArray
) -> dict[str, np.ndarray]:
    """What a figure of one task needs: its points, the truth, sampled curves and the predictive band."""
    prediction = _predict_curve(learner, showcase.support, showcase.x, num_samples, key)
    real = np.asarray(showcase.support.weight) > 0
    arrays = {
        "axis": np.asarray(showcase.axis),
        "truth": np.asarray(showcase.truth),
        "support_x": np.asarray(showcase.support.x)[real],
        "support_y": np.asarray(showcase.support.y)[real],
        "curves": np.asarray(prediction.components.mean()[:num_curves]),
    }
    if isinstance(prediction.components, NormalOutcome):
        bands = np.asarray(_quantiles(prediction, jnp.array([0.05, 0.5, 0.95])))
        arrays |= dict(zip(("low", "median", "high"), bands, strict=True))
    return arrays


@eqx.filter_jit
def _predict_curve(
    learner: AbstractMetaLearner, support: Examples, x: Float[Array, "n *dx"], num_samples: int, key: PRNGKeyArray
) -> Prediction:
    return predict(learner, support, x, num_samples=num_samples, key=key)


@eqx.filter_jit
def _quantiles(prediction: Prediction, levels: Float[Array, " l"]) -> Float[Array, "l n dy"]:
    return prediction.quantiles(levels)
