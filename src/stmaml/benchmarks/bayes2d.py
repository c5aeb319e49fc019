"""The Bayes limit of 2D regression: the optimal predictor under the true generative model.

Self-normalised importance sampling with the prior as proposal: coefficients are drawn from each family's ranges and
weighted by the likelihood of the support set. As any learner can, it reads off the inputs whether x2 is used, which
tells the four one-dimensional families from the two others. Noise that it is not told is drawn beside the coefficients.
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.benchmarks.families2d import FAMILIES, Family
from stmaml.limits import DRAWS_AT_ONCE
from stmaml.tasks import Examples, Task, TaskBatch


@dataclass(frozen=True)
class BayesScores:
    """Scores of the optimal predictor, one number a task."""

    mse: Float[np.ndarray, " m"]
    mse_clean: Float[np.ndarray, " m"]
    nll: Float[np.ndarray, " m"]
    effective_draws: Float[np.ndarray, " m"]
    """How many equally weighted draws the weighted ones are worth; below about 30 a score is unreliable."""


Noise = float | tuple[float, float]
"""The standard deviation of the noise, or the range from which a task's was drawn evenly where it is not told."""


class _Sums(eqx.Module):
    """Running sums over weighted draws, all relative to exp(`top`), of one task or of a batch of them."""

    top: Float[Array, "*m"]
    weight: Float[Array, "*m"]
    squared_weight: Float[Array, "*m"]
    mean: Float[Array, "*m q"]
    density: Float[Array, "*m q"]


def bayes_scores(
    batch: TaskBatch, *, noise: Noise, num_draws: int, key: PRNGKeyArray, tasks_at_once: int = 32
) -> BayesScores:
    """The optimal predictor's scores on each task of `batch`, with `num_draws` draws for each family it might be of."""
    one_dimensional = np.asarray((batch.tasks.query.x[:, :, 1] == 1.0).all(1))
    scores = np.zeros((4, len(one_dimensional)))
    for uses_x2 in (False, True):
        families = [f for f in FAMILIES if f.uses_x2 == uses_x2]
        rows = np.flatnonzero(one_dimensional != uses_x2)
        for start in range(0, len(rows), tasks_at_once):
            chosen = rows[start : start + tasks_at_once]
            padded = np.resize(chosen, tasks_at_once)  # one shape, one compilation
            part = jax.tree.map(lambda leaf, padded=padded: jnp.asarray(leaf)[padded], batch)
            sums = _weigh(part, families, noise=noise, num_draws=num_draws, key=key)
            scores[:, chosen] = np.stack(_score(part, sums))[:, : len(chosen)]
    return BayesScores(*scores)


def _weigh(batch: TaskBatch, families: list[Family], *, noise: Noise, num_draws: int, key: PRNGKeyArray) -> _Sums:
    num_tasks, num_query = batch.tasks.query.weight.shape
    none, nowhere = jnp.zeros(num_tasks), jnp.zeros((num_tasks, num_query))
    sums = _Sums(jnp.full(num_tasks, -jnp.inf), none, none, mean=nowhere, density=nowhere)
    for index, family in enumerate(families):
        sums = _add_family(sums, batch, family, noise, -(-num_draws // DRAWS_AT_ONCE), jr.fold_in(key, index))
    return sums


@eqx.filter_jit
def _add_family(
    sums: _Sums, batch: TaskBatch, family: Family, noise: Noise, num_chunks: int, key: PRNGKeyArray
) -> _Sums:
    def add(sums: _Sums, key: PRNGKeyArray) -> tuple[_Sums, None]:
        coefficients, sigma = draw(family, noise, DRAWS_AT_ONCE, key=key)
        every_task = jax.vmap(_add_draws, in_axes=(0, 0, None, None, None))
        return every_task(sums, batch.tasks, family, coefficients, sigma), None

    return jax.lax.scan(add, sums, jr.split(key, num_chunks))[0]


def draw(
    family: Family, noise: Noise, count: int, *, key: PRNGKeyArray
) -> tuple[Float[Array, "k d 1"], Float[Array, "d 1"]]:
    """Coefficients from a family's ranges, and the noise that goes with each draw."""
    low, high = jnp.array(family.low), jnp.array(family.high)
    unit = jr.uniform(key, (len(family.low), count, 1))
    coefficients = low[:, None, None] + (high - low)[:, None, None] * unit
    least, most = noise if isinstance(noise, tuple) else (noise, noise)
    sigma = jr.uniform(jr.fold_in(key, 1), (count, 1), minval=least, maxval=most)
    return coefficients, sigma


def _add_draws(
    sums: _Sums, task: Task, family: Family, coefficients: Float[Array, "k d 1"], sigma: Float[Array, "d 1"]
) -> _Sums:
    """One task's sums with a chunk of draws added."""
    log_weight, query = support_log_density(task.support, family, coefficients, sigma), task.query
    top = jnp.maximum(sums.top, log_weight.max())
    keep, weight = jnp.exp(sums.top - top), jnp.exp(log_weight - top)
    values = values_of(family, coefficients, query)
    density = jnp.exp(-0.5 * jnp.square((values - query.y[:, 0][None]) / sigma)) / (sigma * (2 * jnp.pi) ** 0.5)
    return _Sums(
        top=top,
        weight=keep * sums.weight + weight.sum(),
        squared_weight=keep**2 * sums.squared_weight + jnp.square(weight).sum(),
        mean=keep * sums.mean + weight @ values,
        density=keep * sums.density + weight @ density,
    )


def support_log_density(
    support: Examples, family: Family, coefficients: Float[Array, "k d 1"], sigma: Float[Array, "d 1"]
) -> Float[Array, " d"]:
    """The log-density of a support set under each draw, but for a constant."""
    residual = (values_of(family, coefficients, support) - support.y[:, 0][None]) / jnp.broadcast_to(
        sigma, (sigma.shape[0], support.weight.shape[0])
    )
    return -0.5 * (jnp.square(residual) @ support.weight) - jnp.log(sigma[:, 0]) * support.weight.sum()


def values_of(family: Family, coefficients: Float[Array, "k d 1"], examples: Examples) -> Float[Array, "d n"]:
    """Each drawn function at each input."""
    x1, x2 = examples.x[None, :, 0], examples.x[None, :, 1]
    return family.function(coefficients, *jnp.broadcast_arrays(x1, x2))


def _score(batch: TaskBatch, sums: _Sums) -> list[np.ndarray]:
    assert batch.clean is not None
    mean = sums.mean / sums.weight[:, None]
    density = jnp.maximum(sums.density / sums.weight[:, None], jnp.finfo(mean.dtype).tiny)
    return [
        np.asarray(jnp.square(mean - batch.tasks.query.y[:, :, 0]).mean(1)),
        np.asarray(jnp.square(mean - batch.clean[:, :, 0]).mean(1)),
        np.asarray(-jnp.log(density).mean(1)),
        np.asarray(jnp.square(sums.weight) / sums.squared_weight),
    ]
