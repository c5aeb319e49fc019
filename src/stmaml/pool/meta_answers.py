"""The compiled part of a meta-learned member's predictions: tasks of many sizes, padded to a few."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int

from stmaml.methods.base import predict_with
from stmaml.methods.on_linear import Posterior, Prior
from stmaml.pool.base import Forecast, GroupedRows, Tasks
from stmaml.pool.meta_learner import Plan, within
from stmaml.prediction import Prediction
from stmaml.tasks import Examples

SUPPORT_SIZES = (16, 64, 256)
QUERY_SIZES = (8, 32, 256)
FEW_SIZES = (64, 256)  # where one call answers all tasks: most questions then need the same program
FINE_SIZES = (8, 32, 64, 128, 256)
MANY = 20_000  # asked rows, from which on it pays to compile programs for more sizes
AT_ONCE = 16


class Weights(eqx.Module):
    """The weights of a learner, and the linear model that it is on; those of several have a leading axis."""

    vector: Float[Array, "*p w"]
    mean: Float[Array, "*p k c"]
    log_std: Float[Array, "*p k"]
    log_noise: Float[Array, "*p"]

    def at(self, which: Int[np.ndarray, " m"]) -> "Weights":
        """Those of some learners."""
        return jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)[which]), self)

    @property
    def prior(self) -> Prior:
        """Of the linear model of one learner."""
        like = Prior(self.mean.shape[0] - 1, self.mean.shape[1])
        fields = (self.mean, self.log_std, self.log_noise)
        return eqx.tree_at(lambda prior: (prior.mean, prior.log_std, prior.log_noise), like, fields)


@dataclass(frozen=True)
class Item:
    """Some asked rows of a task, and where they stand in the answer."""

    task: int
    support: Int[np.ndarray, " k"]
    query: Int[np.ndarray, " q"]
    place: int
    sizes: tuple[int, int]
    """What both are padded to."""


def forecast(
    plan: Plan, weights: Weights, part: Int[np.ndarray, " t"], tasks: Tasks, *, trained: bool = True
) -> Forecast:
    """What the learners say, that of place `part` for each task. Those that are not trained say what their linear model
    says, and need not be asked."""
    total, columns = len(tasks.asked), plan.num_classes
    found = Forecast(np.zeros((total, columns) if columns else total), np.zeros(total), np.zeros(total))
    items = _items(tasks)
    for sizes in sorted({item.sizes for item in items}):
        alike = [item for item in items if item.sizes == sizes]
        for first in range(0, len(alike), AT_ONCE):
            _answer_some(plan, weights, part, tasks.rows, alike[first : first + AT_ONCE], found, trained=trained)
    return found


def _items(tasks: Tasks) -> list[Item]:
    few = FEW_SIZES if len(tasks) <= AT_ONCE else QUERY_SIZES
    items, place, sizes = [], 0, FINE_SIZES if len(tasks.asked) >= MANY else few
    for task, (support, query) in enumerate(zip(tasks.support, tasks.query, strict=True)):
        labelled = support[np.isfinite(tasks.rows.y[support])]
        if len(labelled) > SUPPORT_SIZES[-1]:
            labelled = labelled[np.linspace(0, len(labelled) - 1, SUPPORT_SIZES[-1]).round().astype(int)]
        for first in range(0, len(query), sizes[-1]):
            some = query[first : first + sizes[-1]]
            padded = _fitting(len(labelled), SUPPORT_SIZES), _fitting(len(some), sizes)
            items.append(Item(task, labelled, some, place, padded))
            place += len(some)
    return items


def _answer_some(
    plan: Plan,
    weights: Weights,
    part: Int[np.ndarray, " t"],
    rows: GroupedRows,
    items: list[Item],
    found: Forecast,
    *,
    trained: bool,
) -> None:
    shots, asked = items[0].sizes
    x = np.zeros((AT_ONCE, shots, plan.num_inputs), dtype=np.float32)
    y = np.zeros((AT_ONCE, shots), dtype=np.int32) if plan.num_classes else np.zeros((AT_ONCE, shots, 1), np.float32)
    weight = np.zeros((AT_ONCE, shots), dtype=np.float32)
    query = np.zeros((AT_ONCE, asked, plan.num_inputs), dtype=np.float32)
    for i, item in enumerate(items):
        count, width = len(item.support), rows.x.shape[1]
        x[i, :count, :width], weight[i, :count] = rows.x[item.support], 1
        y[i, :count] = rows.y[item.support].reshape(count, *y.shape[2:])
        query[i, : len(item.query), :width] = rows.x[item.query]
    if len(weights.vector) > 1:
        which = np.zeros(AT_ONCE, dtype=int)
        which[: len(items)] = part[[item.task for item in items]]
        weights = weights.at(which)
    labelled, query = jax.device_put(((x, y, weight), query))  # jnp.asarray would compile a program for each shape
    ask = answer if trained or plan.num_classes else answer_of_line
    values = [np.asarray(value, float) for value in ask(plan, weights, labelled, query)]
    for i, item in enumerate(items):
        there = slice(item.place, item.place + len(item.query))
        for array, value in zip((found.mean, found.task_variance, found.noise_variance), values, strict=True):
            array[there] = value[i, : len(item.query)]


@eqx.filter_jit
def answer(
    plan: Plan, weights: Weights, labelled: tuple[Array, Array, Array], query: Float[Array, "m q d"]
) -> tuple[Float[Array, "m q *c"], Float[Array, "m q"], Float[Array, "m q"]]:
    """Mean, variance since the group is little known, and variance of the noise at each asked row of each task.

    `weights` are those of each task's learner, or of the one that answers all. `labelled` are inputs, targets and
    weights of the labelled rows of each."""

    def one(
        weights: Weights, labelled: tuple[Array, Array, Array], query: Float[Array, "q d"]
    ) -> tuple[Array, Array, Array]:
        learner = plan.learner(weights.vector, weights.prior)
        key = jr.key(plan.seed)  # the same draws for every task: its answer depends on itself alone
        predictors = learner.adapt(Examples(*labelled), num_samples=plan.num_samples, key=key)
        prediction = predict_with(predictors, query)
        if plan.num_classes:
            return _of_classes(prediction)
        line: Posterior = jax.tree.map(lambda leaf: leaf[0], predictors.posterior)
        doubt = 1 - line.noise / jnp.square(line(query)[1][:, 0])  # the line's own, as a share of its variance
        each = prediction.components.variance().mean(0)[:, 0]
        return prediction.mean[:, 0], jnp.square(prediction.task_std[:, 0]) + doubt * each, (1 - doubt) * each

    return _of_each(one, weights, labelled, query)


def _of_each(
    one: Callable[..., Any], weights: Weights, labelled: tuple[Array, ...], query: Float[Array, "m q d"]
) -> Any:
    """For all tasks. Weights that they share are not copied, and products with them are one."""
    if weights.vector.shape[0] == 1:
        return jax.vmap(partial(one, jax.tree.map(lambda leaf: leaf[0], weights)))(labelled, query)
    return jax.vmap(one)(weights, labelled, query)


@eqx.filter_jit
def answer_of_line(
    plan: Plan, weights: Weights, labelled: tuple[Array, Array, Array], query: Float[Array, "m q d"]
) -> tuple[Float[Array, "m q"], Float[Array, "m q"], Float[Array, "m q"]]:
    """`answer` of learners whose network counts for nothing yet, for numbers: all draws are the linear model."""

    def one(
        weights: Weights, labelled: tuple[Array, Array, Array], query: Float[Array, "q d"]
    ) -> tuple[Array, Array, Array]:
        learner: Any = plan.learner(weights.vector, weights.prior)
        line, _, _ = learner.prior.learn(*labelled)
        mean, spread = line(query)
        silent = within(learner.learner).likelihood.outcome(jnp.zeros((query.shape[0], plan.raw_size)))
        each = silent.as_real().affine(mean, spread).variance()[:, 0]
        doubt = 1 - line.noise / jnp.square(spread[:, 0])
        return mean[:, 0], doubt * each, (1 - doubt) * each

    return _of_each(one, weights, labelled, query)


def _of_classes(prediction: Prediction) -> tuple[Float[Array, "q c"], Float[Array, " q"], Float[Array, " q"]]:
    """Probabilities, and the variance of that of the likeliest class."""
    likeliest = prediction.mean.argmax(-1)[:, None]
    spread = jnp.take_along_axis(prediction.task_std, likeliest, axis=1)[:, 0]
    return prediction.mean, jnp.square(spread), jnp.zeros_like(spread)


def _fitting(count: int, sizes: tuple[int, ...]) -> int:
    return next(size for size in sizes if size >= count)
