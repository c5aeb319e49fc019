"""Scoring a learner on a frozen set of tasks."""

from collections.abc import Callable
from dataclasses import dataclass, field

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from stmaml.ambiguity import NUM_ASSIGNED, assign, sample_answers, score_open
from stmaml.benchmarks.base import Showcase
from stmaml.benchmarks.sources import TaskSet
from stmaml.limits import EVALUATED_BYTES
from stmaml.methods.base import AbstractMetaLearner, predict
from stmaml.methods.wrapper import in_use
from stmaml.metric_table import METRICS, metric, ordered
from stmaml.metrics import Summary, calibration_gaps, score_task, summarise
from stmaml.prediction import Prediction
from stmaml.progress import tell
from stmaml.runs import json_bytes
from stmaml.tasks import Examples, Scalar, Task, TaskBatch

LEAST_HELD = 0.8  # of a group's rows by its 90 % interval or set; a group with fewer counts as missed
Judge = Callable[[Prediction, Examples], dict[str, Float[Array, "..."]]]


@dataclass(frozen=True)
class Scores:
    """Scores of each task of a set."""

    values: dict[str, Float[np.ndarray, "m *part"]]
    """A number for each task, or its part in a score that is of all tasks together."""
    family: Int[np.ndarray, " m"]
    digest: str
    num_samples: int
    extra: dict[str, Float[np.ndarray, "m k"]] = field(default_factory=dict)
    """What else a judge tells of each task."""

    def summary(self) -> dict[str, Summary]:
        """Each metric's mean and interval over all tasks."""
        return self._summary(np.full(len(self.family), True))

    def family_summary(self, families: tuple[str, ...]) -> dict[str, dict[str, Summary]]:
        """The same for the tasks of each family."""
        present = [(i, name) for i, name in enumerate(families) if (self.family == i).any()]
        return {family: self._summary(self.family == i) for i, family in present}

    def extra_summary(self) -> dict[str, dict[str, list[float]]]:
        """Mean and interval of each number of `extra`."""
        each = {name: [summarise(column) for column in values.T] for name, values in self.extra.items()}
        parts = ("mean", "ci95")
        return {name: {part: [summary[part] for summary in some] for part in parts} for name, some in each.items()}

    def _summary(self, chosen: Bool[np.ndarray, " m"]) -> dict[str, Summary]:
        return {name: metric(name).pool(values[chosen]) for name, values in self.values.items()}


def evaluate(
    learner: AbstractMetaLearner,
    task_set: TaskSet,
    *,
    num_samples: int,
    key: PRNGKeyArray,
    tasks_at_once: int = 100,
    judge: Judge | None = None,
    what: str = "",
) -> Scores:
    """Adapts to each task's support alone, then scores the mixture of `num_samples` predictors on its query: by
    `judge`, if not by `score_task`, unless rules are open. Progress is told under `what`, if that is given."""
    learner = in_use(learner)
    parts: list[dict[str, np.ndarray]] = []
    size = _within_memory(min(tasks_at_once, task_set.num_tasks), learner, task_set, num_samples)
    for index, batch in enumerate(task_set.chunks(size)):
        first, count = index * size, min(size, task_set.num_tasks - index * size)
        scores = score_batch(learner, batch, num_samples, key, jnp.asarray(first), judge)
        parts.append({name: np.asarray(values)[:count] for name, values in scores.items()})
        if what:
            tell(what, first + count, task_set.num_tasks)
    values = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return scores_of(values, task_set, num_samples)


def scores_of(values: dict[str, Float[np.ndarray, "m *part"]], task_set: TaskSet, num_samples: int) -> Scores:
    """The scores of a set's tasks; of its groups, where several tasks are of one."""
    family = task_set.family
    if count := task_set.num_groups:
        values = {name: each.reshape(-1, count, *each.shape[1:]).mean(0) for name, each in values.items()}
        family = family[:count]
        for name in {"coverage90", "sets90"} & values.keys():
            values["missed90"] = (values[name] < LEAST_HELD).astype(float)
    known = {name: each for name, each in values.items() if name in METRICS}
    others = {name: each for name, each in values.items() if name not in METRICS}
    return Scores(ordered(known), family, task_set.digest, num_samples, others)


def scored(learner: AbstractMetaLearner, task_set: TaskSet) -> set[str]:
    """Names of the scores that `evaluate` would give, without computing any."""
    batch = next(task_set.chunks(1))
    return set(eqx.filter_eval_shape(score_batch, learner, batch, 1, jr.key(0), jnp.asarray(0), None))


def _within_memory(size: int, learner: AbstractMetaLearner, task_set: TaskSet, num_samples: int) -> int:
    """`size`, or as many tasks as memory is thought to bear, each held once for every predictor that adapts to it."""
    limit = EVALUATED_BYTES["cpu" if jax.default_backend() == "cpu" else "other"]
    if task_set.task_bytes * num_samples * size <= limit:
        return size
    task = jax.tree.map(lambda leaf: leaf[0], next(task_set.chunks(1)).tasks)
    prediction = eqx.filter_eval_shape(  # a deterministic method has one predictor, however many are asked for
        predict, learner, task.support, task.query.x, num_samples=num_samples, key=jr.key(0)
    )
    return min(size, max(1, limit // (task_set.task_bytes * prediction.num_samples)))


@eqx.filter_jit
def score_batch(
    learner: AbstractMetaLearner,
    batch: TaskBatch,
    num_samples: int,
    key: PRNGKeyArray,
    first: Int[Array, ""],
    judge: Judge | None = None,
) -> dict[str, Float[Array, "m *bins"]]:
    """`evaluate` for some tasks of a set, the first of which has this place in it."""

    def score(batch: TaskBatch, index: Int[Array, ""]) -> dict[str, Float[Array, "*bins"]]:
        support, query = batch.tasks.support, batch.tasks.query
        # The key belongs to the task's place in the set: scores do not depend on how many tasks are scored at once.
        task_key = jr.fold_in(key, index)
        prediction = predict(learner, support, query.x, weight=query.weight, num_samples=num_samples, key=task_key)
        if judge is not None:
            return judge(prediction, query)
        seen = among(query.x, support) if prediction.target == "binary" else None
        scores = score_task(prediction, query.y, query.weight, batch.clean, seen)
        if prediction.target != "class":
            return scores
        return {**scores, "ece": calibration_gaps(prediction.mean, query.y, query.weight)}

    def score_rules(inputs: tuple[Task, Int[Array, ""]]) -> dict[str, Scalar]:
        task, index = inputs
        return score_open(learner, task, num_rules, num_samples=num_samples, key=jr.fold_in(key, index))

    places = first + jnp.arange(batch.family.shape[0])
    if batch.rules is None:
        return jax.vmap(score)(batch, places)
    num_rules = batch.rules.shape[1]
    return jax.lax.map(score_rules, (batch.tasks, places))  # one after the other: each has many models to hold


def among(x: Float[Array, "n *dx"], support: Examples) -> Float[Array, " n"]:
    """1 for inputs that are among the support's, else 0."""
    same = (x[:, None] == support.x[None]).reshape(x.shape[0], support.weight.shape[0], -1).all(-1)
    return (same & (support.weight > 0)[None]).any(1).astype(float)


def trace(
    learner: AbstractMetaLearner, showcase: Showcase, *, num_curves: int = 10, num_samples: int = 100, key: PRNGKeyArray
) -> dict[str, np.ndarray]:
    """What a figure of one task needs: what it is, its points, the truth, sampled curves and the predictive band."""
    about = {"about": json_bytes({"figure": showcase.figure, **showcase.labels})}
    if showcase.rules:
        return about | _trace_rules(learner, showcase, key=key)
    prediction = _predict_curve(learner, showcase.support, showcase.x, num_samples=num_samples, key=key)
    real = np.asarray(showcase.support.weight) > 0
    arrays = {
        "axis": np.asarray(showcase.axis),
        "truth": np.asarray(showcase.truth),
        "support_x": np.asarray(showcase.support.x)[real],
        "support_y": np.asarray(showcase.support.y)[real],
        "curves": np.asarray(prediction.components.mean()[:num_curves]),
    }
    if showcase.support_axis is not None:
        arrays["support_axis"] = np.asarray(showcase.support_axis)[real]
    if prediction.target == "real":
        bands = np.asarray(_quantiles(prediction, jnp.array([0.05, 0.5, 0.95])))
        arrays |= dict(zip(("low", "median", "high"), bands, strict=True))
    limit = {} if showcase.limit is None else showcase.limit()
    return about | arrays | {f"limit_{name}": np.asarray(values) for name, values in limit.items()}


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
    answers = sample_answers(learner, support, sets, num_samples=NUM_ASSIGNED, key=key)
    return answers.log_prob(jnp.broadcast_to(true, answers.mean().shape[:-1]))


_predict_curve = eqx.filter_jit(predict)
_quantiles = eqx.filter_jit(Prediction.quantiles)
