"""Scoring a learner on a frozen set of tasks."""

from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from stmaml.ambiguity import NUM_ASSIGNED, assign, sample_answers, score_open
from stmaml.benchmarks.base import Showcase, TaskSet
from stmaml.methods.base import AbstractMetaLearner, predict
from stmaml.metrics import Summary, calibration_error, calibration_gaps, score_task, summarise
from stmaml.prediction import BernoulliOutcome, CategoricalOutcome, NormalOutcome, Prediction
from stmaml.tasks import Examples, Task, TaskBatch

GAPS = "gaps"
MAX_BYTES = {"cpu": 2**26, "other": 2**28}
"""Inputs adapted to at once, by the kind of device; networks for images need some dozen times as much themselves."""


@dataclass(frozen=True)
class Scores:
    """Scores of each task of a set."""

    values: dict[str, Float[np.ndarray, " m"]]
    family: Int[np.ndarray, " m"]
    task_set: str
    digest: str
    num_samples: int
    gaps: Float[np.ndarray, "m bins"] | None = None
    """Each task's part in the calibration error, which is of all tasks together; for classes alone."""

    def summary(self) -> dict[str, Summary]:
        """Each metric's mean and interval over all tasks."""
        return self._summary(np.full(len(self.family), True))

    def family_summary(self, families: tuple[str, ...]) -> dict[str, dict[str, Summary]]:
        """The same for the tasks of each family."""
        present = [(i, name) for i, name in enumerate(families) if (self.family == i).any()]
        return {family: self._summary(self.family == i) for i, family in present}

    def _summary(self, chosen: Bool[np.ndarray, " m"]) -> dict[str, Summary]:
        each = {name: summarise(values[chosen]) for name, values in self.values.items()}
        return each if self.gaps is None else {**each, "ece": calibration_error(self.gaps[chosen])}


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
    size = _within_memory(min(tasks_at_once, task_set.num_tasks), learner, task_set, num_samples)
    for index, batch in enumerate(task_set.chunks(size)):
        first = index * size
        scores = _score_batch(learner, batch, num_samples, key, jnp.asarray(first))
        count = min(size, task_set.num_tasks - first)
        parts.append({name: np.asarray(values)[:count] for name, values in scores.items()})
        on_progress(first + count)
    values = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    gaps = values.pop(GAPS, None)
    return Scores(ordered(values), task_set.family, task_set.name, task_set.digest, num_samples, gaps)


def scored(learner: AbstractMetaLearner, task_set: TaskSet) -> set[str]:
    """Names of the scores that `evaluate` would give, without computing any."""
    batch = next(task_set.chunks(1))
    shapes = eqx.filter_eval_shape(_score_batch, learner, batch, 1, jr.key(0), jnp.asarray(0))
    return {"ece" if name == GAPS else name for name in shapes}


def _within_memory(size: int, learner: AbstractMetaLearner, task_set: TaskSet, num_samples: int) -> int:
    """`size`, or as many tasks as memory is thought to bear, each held once for every predictor that adapts to it."""
    limit = MAX_BYTES["cpu" if jax.default_backend() == "cpu" else "other"]
    if task_set.task_bytes * num_samples * size <= limit:
        return size
    task = jax.tree.map(lambda leaf: leaf[0], next(task_set.chunks(1)).tasks)
    prediction = eqx.filter_eval_shape(  # a deterministic method has one predictor, however many are asked for
        predict, learner, task.support, task.query.x, num_samples=num_samples, key=jr.key(0)
    )
    return min(size, max(1, limit // (task_set.task_bytes * prediction.num_samples)))


def ordered(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Errors first, then densities, then intervals: the order people read them in."""
    known = ("accuracy", "bce", "bce_unseen", "bce_single", "mse", "mae", "mse_clean", "nll", "crps", "coverage90")
    known = (*known, "width90", "diversity")
    return {name: values[name] for name in sorted(values, key=lambda n: known.index(n) if n in known else len(known))}


@eqx.filter_jit
def _score_batch(
    learner: AbstractMetaLearner, batch: TaskBatch, num_samples: int, key: PRNGKeyArray, first: Int[Array, ""]
) -> dict[str, Float[Array, "m *bins"]]:
    def score(batch: TaskBatch, index: Int[Array, ""]) -> dict[str, Float[Array, "*bins"]]:
        task = batch.tasks
        # The key belongs to the task's place in the set: scores do not depend on how many tasks are scored at once.
        task_key = jr.fold_in(key, index)
        prediction = predict(
            learner, task.support, task.query.x, weight=task.query.weight, num_samples=num_samples, key=task_key
        )
        binary = isinstance(prediction.components, BernoulliOutcome)
        seen = among(task.query.x, task.support) if binary else None
        scores = score_task(prediction, task.query.y, task.query.weight, batch.clean, seen)
        if not isinstance(prediction.components, CategoricalOutcome):
            return scores
        return {**scores, GAPS: calibration_gaps(prediction.mean, task.query.y, task.query.weight)}

    if batch.rules is not None:
        return _score_open_batch(learner, batch, batch.rules.shape[1], num_samples, key, first)
    return jax.vmap(score)(batch, first + jnp.arange(batch.family.shape[0]))


def _score_open_batch(
    learner: AbstractMetaLearner,
    batch: TaskBatch,
    num_rules: int,
    num_samples: int,
    key: PRNGKeyArray,
    first: Int[Array, ""],
) -> dict[str, Float[Array, " m"]]:
    """Scores of tasks with several open rules, one task after the other: each has many models to hold."""

    def score(inputs: tuple[Task, Int[Array, ""]]) -> dict[str, Float[Array, ""]]:
        task, index = inputs
        return score_open(learner, task, num_rules, num_samples=num_samples, key=jr.fold_in(key, index))

    return jax.lax.map(score, (batch.tasks, first + jnp.arange(batch.family.shape[0])))


def among(x: Float[Array, "n *dx"], support: Examples) -> Float[Array, " n"]:
    """1 for inputs that are among the support's, else 0."""
    same = (x[:, None] == support.x[None]).reshape(x.shape[0], support.weight.shape[0], -1).all(-1)
    return (same & (support.weight > 0)[None]).any(1).astype(float)


def trace(
    learner: AbstractMetaLearner, showcase: Showcase, *, num_curves: int = 10, num_samples: int = 100, key: PRNGKeyArray
) -> dict[str, np.ndarray]:
    """What a figure of one task needs: its points, the truth, sampled curves and the predictive band."""
    if showcase.rules:
        return _trace_rules(learner, showcase, key=key)
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


def _trace_rules(learner: AbstractMetaLearner, showcase: Showcase, *, key: PRNGKeyArray) -> dict[str, np.ndarray]:
    """What a figure of an ambiguous task needs: its pictures as bytes, and what each model makes of each rule's set."""
    num_rules = len(showcase.rules)
    true = showcase.truth.reshape(num_rules, -1).astype(int)
    log_p = _true_log_probabilities(learner, showcase.support, showcase.x, true, key)
    x = showcase.x.reshape(*true.shape, *showcase.x.shape[1:])
    return {
        "rules": np.array(showcase.rules),
        "support_x": np.rint(np.asarray(showcase.support.x) * 255).astype(np.uint8),
        "support_y": np.asarray(showcase.support.y),
        "query_x": np.rint(np.asarray(x) * 255).astype(np.uint8),
        "query_y": np.asarray(true),
        "probability": np.exp(np.asarray(log_p)),
        "assigned": np.asarray(assign(log_p)),
    }


@eqx.filter_jit
def _true_log_probabilities(
    learner: AbstractMetaLearner,
    support: Examples,
    x: Float[Array, "n *dx"],
    true: Int[Array, "r q"],
    key: PRNGKeyArray,
) -> Float[Array, "s r q"]:
    sets = x.reshape(*true.shape, *x.shape[1:])
    logits = sample_answers(learner, support, sets, num_samples=NUM_ASSIGNED, key=key)
    return CategoricalOutcome(logits).log_prob(jnp.broadcast_to(true, logits.shape[:-1]))


@eqx.filter_jit
def _predict_curve(
    learner: AbstractMetaLearner, support: Examples, x: Float[Array, "n *dx"], num_samples: int, key: PRNGKeyArray
) -> Prediction:
    return predict(learner, support, x, num_samples=num_samples, key=key)


@eqx.filter_jit
def _quantiles(prediction: Prediction, levels: Float[Array, " l"]) -> Float[Array, "l n dy"]:
    return prediction.quantiles(levels)
