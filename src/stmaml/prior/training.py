"""A step of training on made-up tables: what is drawn for it, what it lowers, and what it leaves."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stmaml.benchmarks.hierarchies import Table, sample_tables, table_key
from stmaml.benchmarks.hierarchy_rows import Shape
from stmaml.prior.learner import About, Begun, Groups, Learner, Said, begin
from stmaml.prior.steps import Memory, length, moved

STRAY, STRAY_STD = 2e-3, 4.0
"""Training takes so many rows for strays that lie anywhere about the mean of the table, in spreads of its target: an
outlier then loses no more than it must, and gradients stay small. With it the loss is still that of a density."""
TASK_SHARE = 0.1
AHEAD = 4
"""Steps whose tables are drawn together, with their linear models: hundreds of small parts, which take as long for few
tables as for many."""
LINEAR = 0.2
"""The share of linear tables among those of a step: there the best possible prediction is a mixed model's."""


class State(eqx.Module):
    """Weights, their running mean, and the optimizer's memory."""

    weights: Any
    mean: Any
    memory: Memory


class Batch(eqx.Module):
    """Tables of one step, or of several on a leading axis, and what their linear models say."""

    table: Table
    begun: Begun


def batch_of(table: Table) -> Batch:
    """Made-up tables as the learner begins with them."""
    count = table.num_train
    parts = (table.x, table.y, table.labelled)
    train, new = Groups(*(part[:, :count] for part in parts)), Groups(*(part[:, count:] for part in parts))
    return Batch(table, begin(train, new, About(table.column, table.kind, table.is_class.astype(jnp.float32))))


def answer(learner: Learner, batch: Batch, *, half: bool = False) -> Said:
    """What a learner says of the new groups of made-up tables."""
    return learner.say(batch.begun, dtype=jnp.bfloat16 if half else jnp.float32)


def losses(said: Said, table: Table) -> tuple[Float[Array, " b"], Float[Array, " b"]]:
    """For each table the negative log-density of its asked rows (or log-loss), and of what they are without noise."""
    y, clean = (part[:, table.num_train :] for part in (table.y, table.clean))
    # No bound that moves with the prediction may touch y: training would shrink the spread until y lies inside.
    parts = log_normal(y[..., None], said.mean, said.std) + jnp.log(said.weight + 1e-9)
    main = -with_strays(jax.nn.logsumexp(parts, axis=-1), y)
    off = clean - jax.lax.stop_gradient(said.expected)
    task = -with_strays(log_normal(off, jnp.zeros_like(off), said.task_std), off)
    is_class = table.is_class[:, None, None]
    main = jnp.where(is_class, optax.sigmoid_binary_cross_entropy(said.odds, y), main)
    return table_means(main, table), table_means(jnp.where(is_class, 0.0, task), table)


def log_normal(y: Float[Array, "*n"], mean: Float[Array, "*m"], std: Float[Array, "*m"]) -> Float[Array, "*m"]:
    """The log-density of a normal distribution."""
    return -0.5 * jnp.square((y - mean) / std) - jnp.log(std) - 0.5 * jnp.log(2 * jnp.pi)


def with_strays(log_density: Float[Array, "*n"], y: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """The log-density where a few rows may lie anywhere."""
    stray = jnp.log(STRAY) + log_normal(y, jnp.zeros_like(y), jnp.full_like(y, STRAY_STD))
    return jnp.logaddexp(jnp.log1p(-STRAY) + log_density, stray)


def table_means(values: Float[Array, "b g s"], table: Table) -> Float[Array, " b"]:
    """Means over the asked rows of the new groups of each table."""
    asked = table.asked[:, table.num_train :]
    return (values * asked).sum((1, 2)) / jnp.maximum(asked.sum((1, 2)), 1.0)


def train_loss(weights: Any, static: Any, batch: Batch, half: bool) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """What training lowers, and the part of it that is asked for."""
    learner: Learner = eqx.combine(weights, static)
    main, task = losses(answer(learner, batch, half=half), batch.table)
    return main.mean() + TASK_SHARE * task.mean(), main.mean()


def one_step(
    static: Any, half: bool, state: State, batch: Batch, rate: Float[Array, ""], keep: Float[Array, ""]
) -> tuple[State, Float[Array, ""]]:
    """The state after a step, and the loss before it; `keep` is what stays of the running mean. A step whose numbers
    have run away is not taken."""
    slopes, main = jax.grad(train_loss, has_aux=True)(state.weights, static, batch, half)
    weights, memory = moved(state.weights, slopes, state.memory, rate)
    mean = jax.tree.map(lambda old, new: jnp.where(keep > 0, keep * old + (1 - keep) * new, new), state.mean, weights)
    finite = jnp.isfinite(length(slopes))
    kept = jax.tree.map(lambda new, old: jnp.where(finite, new, old), State(weights, mean, memory), state)
    return kept, jnp.where(finite, main, jnp.nan)


def draw_batches(shape: Shape, tables: int, key: PRNGKeyArray) -> Batch:
    """Tables of AHEAD steps, on a leading axis; some of each step are linear."""
    drawn = sample_tables(shape, AHEAD * tables, linear=AHEAD * round(LINEAR * tables), key=key)
    batch = batch_of(drawn)
    return jax.tree.map(lambda leaf: leaf.reshape(tables, AHEAD, *leaf.shape[1:]).swapaxes(0, 1), batch)


def draw_numbered(shape: Shape, tables: int, seed: Int[Array, ""], step: Int[Array, ""]) -> Batch:
    """Those of a step's number: the same seed and number give the same ones."""
    return draw_batches(shape, tables, jr.fold_in(table_key(seed), step))
