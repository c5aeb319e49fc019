"""Training on made-up tables, in pieces: one begins with the weights that the last one left, and with a fresh
optimizer. What a piece leaves is the running mean of its weights, in half precision."""

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.benchmarks.hierarchies import Shape, Table, sample_tables, table_key
from stmaml.prior.learner import About, Begun, Groups, Learner, Said, begin
from stmaml.prior.steps import Memory, begin_steps, length, moved

STRAY, STRAY_STD = 2e-3, 4.0
"""Training takes so many rows for strays that lie anywhere about the mean of the table, in spreads of its target: an
outlier then loses no more than it must, and gradients stay small. With it the loss is still that of a density."""
TASK_SHARE = 0.1
AHEAD = 4
"""Steps whose tables are drawn together, with their linear models: hundreds of small parts, which take as long for few
tables as for many."""
SHAPES = ((Shape(40, 8, 12, 6), 128), (Shape(14, 6, 24, 14), 64))
"""What tables are like that are trained on side by side, and how many of them at a step."""


@dataclass(frozen=True)
class Piece:
    """One stretch of training."""

    seconds: float
    """By the clock, without what compiling takes."""
    rate: float = 1e-3
    warm_up: int = 100
    """Steps."""
    fall: float = 0.0
    """The share of the time, at its end, in which the rate falls to 0."""
    keep: float = 0.998
    """Of the running mean, at each step."""
    look: int = 16
    """Steps from one look at the loss to the next; a multiple of AHEAD."""
    seed: int = 0
    half: bool = True
    """Activations in bfloat16."""

    def rate_at(self, step: int, spent: float) -> float:
        """The rate of a step, by its number and the seconds spent."""
        left = 1 - spent / self.seconds
        falling = min(1.0, max(left, 0.0) / self.fall) if self.fall else 1.0
        return self.rate * min(1.0, (step + 1) / self.warm_up) * falling


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
    static: Any, piece: Piece, state: State, batch: Batch, rate: Float[Array, ""]
) -> tuple[State, Float[Array, ""]]:
    """The state after a step, and the loss before it. A step whose numbers have run away is not taken."""
    slopes, main = jax.grad(train_loss, has_aux=True)(state.weights, static, batch, piece.half)
    weights, memory = moved(state.weights, slopes, state.memory, rate)
    mean = jax.tree.map(lambda old, new: piece.keep * old + (1 - piece.keep) * new, state.mean, weights)
    finite = jnp.isfinite(length(slopes))
    kept = jax.tree.map(lambda new, old: jnp.where(finite, new, old), State(weights, mean, memory), state)
    return kept, jnp.where(finite, main, jnp.nan)


def draw_batches(shape: Shape, tables: int, key: PRNGKeyArray) -> Batch:
    """Tables of AHEAD steps, on a leading axis."""
    batch = batch_of(sample_tables(shape, AHEAD * tables, key=key))
    return jax.tree.map(lambda leaf: leaf.reshape(AHEAD, tables, *leaf.shape[1:]), batch)


def train_piece(
    learner: Learner,
    piece: Piece,
    shapes: tuple[tuple[Shape, int], ...] = SHAPES,
    *,
    time_left: Callable[[], float] = lambda: math.inf,
) -> Iterator[tuple[int, float, float, Learner]]:
    """Steps so far, seconds, loss and the running mean of the weights, at each look. Where less time is left once a
    program is compiled, the piece is that short. Shapes whose programs are not ready yet join later."""
    weights, static = eqx.partition(learner, eqx.is_array)
    weights = jax.tree.map(jnp.copy, weights)  # what is given is not to be overwritten
    state = State(weights, jax.tree.map(jnp.copy, weights), begin_steps(weights))
    like = jax.eval_shape(lambda state: state, state)
    with ThreadPoolExecutor(2 * len(shapes)) as pool:
        jobs = [_compiling(pool, static, piece, like, *item) for item in shapes]
        wait([future for job in jobs[:1] for future in job])
        piece = replace(piece, seconds=min(piece.seconds, time_left()))
        key, step, begun, found = table_key(piece.seed), 0, time.monotonic(), []
        while (spent := time.monotonic() - begun) < piece.seconds:
            ready = [job for job in jobs if all(future.done() for future in job)]
            draw, work = (future.result() for future in ready[step // AHEAD % len(ready)])
            rates = [piece.rate_at(step + i, spent) for i in range(AHEAD)]
            state, loss = work(state, draw(jr.fold_in(key, step)), jnp.asarray(rates, dtype=jnp.float32))
            found, step = [*found, loss], step + AHEAD
            if step % piece.look == 0:
                mean = float(jnp.nanmean(jnp.concatenate(found)))
                found = []
                yield step, time.monotonic() - begun, mean, eqx.combine(jax.tree.map(jnp.copy, state.mean), static)
        yield step, time.monotonic() - begun, math.nan, eqx.combine(state.mean, static)


def _compiling(
    pool: ThreadPoolExecutor, static: Any, piece: Piece, state: Any, shape: Shape, tables: int
) -> tuple[Future[Any], Future[Any]]:
    """What draws tables and what takes steps, as soon as they are compiled."""
    draw = jax.jit(partial(draw_batches, shape, tables))

    def steps(state: State, batches: Batch, rates: Float[Array, " n"]) -> tuple[State, Float[Array, " n"]]:
        return jax.lax.scan(lambda state, item: one_step(static, piece, state, *item), state, (batches, rates))

    work = jax.jit(steps, donate_argnums=0)
    batches, rates = jax.eval_shape(draw, table_key(0)), jax.ShapeDtypeStruct((AHEAD,), jnp.float32)
    return pool.submit(lambda: draw.lower(table_key(0)).compile()), pool.submit(
        lambda: work.lower(state, batches, rates).compile()
    )
