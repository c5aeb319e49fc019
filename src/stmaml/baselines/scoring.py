"""Scores of a baseline on a frozen set of tasks, by the same metrics as any method's."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from stmaml.baselines.base import Baseline, Normal, numpy_tasks
from stmaml.benchmarks.sources import TaskSet
from stmaml.errors import SettingError
from stmaml.evaluation import Scores, scores_of
from stmaml.metrics import score_task
from stmaml.outcomes import AbstractOutcome, CategoricalOutcome, NormalOutcome
from stmaml.prediction import Prediction
from stmaml.progress import tell
from stmaml.tasks import TaskBatch


def score_baseline(baseline: Baseline, task_set: TaskSet) -> Scores:
    """Shows the baseline each task's support and query inputs, and scores its answer on the query targets."""
    real = np.asarray(task_set.batch.tasks.query.weight) > 0
    is_class = np.asarray(task_set.batch.tasks.query.y).ndim == 2
    if (baseline.target == "class") != is_class:
        own, here = ("real numbers", "classes") if is_class else ("classes", "real numbers")
        raise SettingError(f"{baseline.name} predicts {own}, but the targets here are {here}; take one for those.")
    answers: list[np.ndarray] = []
    for index, task in enumerate(numpy_tasks(task_set)):
        answer = baseline.predict(task.support_x, task.support_y, task.query_x)
        answers.append(np.stack(answer, axis=1) if isinstance(answer, Normal) else np.log(answer))
        tell(f"scoring {baseline.name}", index + 1, task_set.num_tasks)
    # Padded rows keep a spread of 1, or equal classes: finite, and of no weight.
    padded = np.full((*real.shape, answers[0].shape[1]), 0.0 if is_class else 1.0, dtype=np.float32)
    padded[real] = np.concatenate(answers)

    def score(batch: TaskBatch, answer: Float[Array, "q k"]) -> dict[str, Float[Array, ""]]:
        query = batch.tasks.query
        return score_task(Prediction(_outcome(answer, is_class)), query.y, query.weight, batch.clean)

    values = jax.vmap(score)(jax.tree.map(jnp.asarray, task_set.batch), jnp.asarray(padded))
    return scores_of({name: np.asarray(value) for name, value in values.items()}, task_set, num_samples=1)


def _outcome(answer: Float[Array, "q k"], is_class: bool) -> AbstractOutcome:
    """The answer as a mixture of one component."""
    if is_class:
        return CategoricalOutcome(answer[None])
    return NormalOutcome(answer[None, :, :1], answer[None, :, 1:])
