"""Training images turned left to right: twice as many, where that leaves the answer as it is."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import PRNGKeyArray

from stmaml.tasks import Examples, Task, TaskBatch


def mirrored(batch: TaskBatch, *, key: PRNGKeyArray) -> TaskBatch:
    """The tasks with about half of their images turned, each by a toss of its own."""
    support_key, query_key = jr.split(key)
    tasks = Task(_half(batch.tasks.support, key=support_key), _half(batch.tasks.query, key=query_key))
    return eqx.tree_at(lambda b: b.tasks, batch, tasks)


def _half(examples: Examples, *, key: PRNGKeyArray) -> Examples:
    turn = jr.bernoulli(key, shape=examples.weight.shape)[..., None, None, None]
    return eqx.tree_at(lambda e: e.x, examples, jnp.where(turn, examples.x[..., ::-1, :], examples.x))
