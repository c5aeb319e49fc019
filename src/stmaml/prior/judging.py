"""Validation tables: what a learner says of them, beside their linear models and, where it is known, the best possible
prediction."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from stmaml.benchmarks.hierarchies import Shape, bayes_limit, linear_tables, one_of, sample_tables, table_key
from stmaml.prior.learner import Learner
from stmaml.prior.training import Batch, answer, batch_of, log_normal, losses, table_means, with_strays

VALIDATION = 777
WITHIN = 1.6449  # spreads: 90 % of a normal distribution


class Scores(eqx.Module):
    """Of each table: the loss, the squared error, and the share of rows within the 90 % interval."""

    loss: Float[Array, " b"]
    error: Float[Array, " b"]
    holds: Float[Array, " b"]


class Judge:
    """Fixed tables of all kinds, and linear ones, with what is known of them without the learner."""

    def __init__(self, shape: Shape, count: int, *, seed: int = VALIDATION):
        key, other = jr.split(table_key(seed))
        prepare = jax.jit(batch_of)
        self.tables = prepare(jax.jit(partial(sample_tables, shape, count))(key=key))
        linear, truth = jax.jit(partial(linear_tables, shape, count))(key=other)
        self.linear = prepare(linear)
        limits = [bayes_limit(one_of(linear, i), one_of(truth, i)) for i in range(count)]
        mean, variance = (jnp.asarray(np.stack(part)[:, shape.groups :]) for part in zip(*limits, strict=True))
        self.limit = of_normal(self.linear, mean, jnp.where(variance > 0, variance, 1.0))
        self.anchors = [of_anchor(batch) for batch in (self.tables, self.linear)]
        self.work = eqx.filter_jit(of_learner)

    def __call__(self, learner: Learner) -> dict[str, float]:
        """Means over tables; errors as geometric means over those of the linear model (`error`) or the best possible
        (`linear_error`)."""
        made, line = (self.work(learner, batch) for batch in (self.tables, self.linear))
        anchor, linear_anchor = self.anchors
        classes = np.asarray(self.tables.table.is_class)
        found = {
            "numbers": _mean(made.loss, ~classes),
            "anchor": _mean(anchor.loss, ~classes),
            "error": _ratio(made.error, anchor.error, ~classes),
            "holds": _mean(made.holds, ~classes),
            "classes": _mean(made.loss, classes),
            "linear": _mean(line.loss),
            "linear_anchor": _mean(linear_anchor.loss),
            "linear_limit": _mean(self.limit.loss),
            "linear_error": _ratio(line.error, self.limit.error),
            "linear_anchor_error": _ratio(linear_anchor.error, self.limit.error),
            "linear_holds": _mean(line.holds),
        }
        return {name: round(value, 4) for name, value in found.items()}


def of_learner(learner: Learner, batch: Batch) -> Scores:
    """Of what a learner says."""
    said = answer(learner, batch)
    normal = of_normal(batch, said.expected, said.variance)
    return Scores(losses(said, batch.table)[0], normal.error, normal.holds)


def of_anchor(batch: Batch) -> Scores:
    """Of the linear model that a learner begins with."""
    anchor = batch.begun.anchor.at(slice(batch.begun.count, None))
    return of_normal(batch, anchor.mean, jnp.square(anchor.std))


def of_normal(batch: Batch, mean: Float[Array, "b g s"], variance: Float[Array, "b g s"]) -> Scores:
    """Of normal distributions for the rows of new groups."""
    table, spread = batch.table, jnp.sqrt(variance)
    y = table.y[:, table.num_train :]
    off = y - mean
    loss = -with_strays(log_normal(y, mean, spread), y)
    inside = (jnp.abs(off) < WITHIN * spread).astype(jnp.float32)
    return Scores(*(table_means(values, table) for values in (loss, jnp.square(off), inside)))


def _mean(values: Float[Array, " b"], where: np.ndarray | slice = slice(None)) -> float:
    return float(np.mean(np.asarray(values)[where]))


def _ratio(one: Float[Array, " b"], other: Float[Array, " b"], where: np.ndarray | slice = slice(None)) -> float:
    return float(np.exp(np.mean((np.log(np.asarray(one) + 1e-6) - np.log(np.asarray(other) + 1e-6))[where])))
