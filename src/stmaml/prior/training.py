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
from jaxtyping import Array, Float

from stmaml.benchmarks.hierarchies import Shape, Table, sample_tables, table_key
from stmaml.prior.learner import About, Groups, Learner, Said
from stmaml.prior.steps import Memory, begin, length, moved

OVERFLOW = 1e4  # of spreads: what is so far off loses, but does not make numbers run away
TASK_SHARE = 0.1
SHAPES = ((Shape(20, 8, 14, 6), 64), (Shape(12, 5, 24, 14), 28))
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
    look: int = 20
    """Steps from one look at the loss to the next."""
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


def answer(learner: Learner, table: Table, *, half: bool = False) -> Said:
    """What a learner says of the new groups of made-up tables."""
    count = table.num_train
    parts = (table.x, table.y, table.labelled)
    train, new = Groups(*(part[:, :count] for part in parts)), Groups(*(part[:, count:] for part in parts))
    about = About(table.column, table.kind, table.is_class.astype(jnp.float32))
    return learner(train, new, about, dtype=jnp.bfloat16 if half else jnp.float32)


def losses(said: Said, table: Table) -> tuple[Float[Array, " b"], Float[Array, " b"]]:
    """For each table the negative log-density of its asked rows (or log-loss), and of what they are without noise."""
    y, clean, asked = (part[:, table.num_train :] for part in (table.y, table.clean, table.asked))
    odds = optax.sigmoid_binary_cross_entropy(said.odds, y)
    # No bound that moves with the prediction may touch y: training would shrink the spread until y lies inside.
    score = jnp.clip((y[..., None] - said.mean) / said.std, -OVERFLOW, OVERFLOW)
    each = -0.5 * jnp.square(score) - jnp.log(said.std)
    density = jax.nn.logsumexp(each + jnp.log(said.weight + 1e-9), axis=-1) - 0.5 * jnp.log(2 * jnp.pi)
    is_class = table.is_class[:, None, None]
    off = jnp.clip((clean - jax.lax.stop_gradient(said.expected)) / said.task_std, -OVERFLOW, OVERFLOW)
    task = jnp.where(is_class, 0.0, 0.5 * jnp.square(off) + jnp.log(said.task_std))
    total = jnp.maximum(asked.sum((1, 2)), 1.0)
    return (jnp.where(is_class, odds, -density) * asked).sum((1, 2)) / total, (task * asked).sum((1, 2)) / total


def train_loss(weights: Any, static: Any, table: Table, half: bool) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """What training lowers, and the part of it that is asked for."""
    learner: Learner = eqx.combine(weights, static)
    main, task = losses(answer(learner, table, half=half), table)
    return main.mean() + TASK_SHARE * task.mean(), main.mean()


def one_step(
    static: Any, piece: Piece, state: State, table: Table, rate: Float[Array, ""]
) -> tuple[State, Float[Array, ""]]:
    """The state after a step, and the loss before it. A step whose numbers have run away is not taken."""
    slopes, main = jax.grad(train_loss, has_aux=True)(state.weights, static, table, piece.half)
    weights, memory = moved(state.weights, slopes, state.memory, rate)
    mean = jax.tree.map(lambda old, new: piece.keep * old + (1 - piece.keep) * new, state.mean, weights)
    finite = jnp.isfinite(length(slopes))
    kept = jax.tree.map(lambda new, old: jnp.where(finite, new, old), State(weights, mean, memory), state)
    return kept, jnp.where(finite, main, jnp.nan)


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
    state = State(weights, jax.tree.map(jnp.copy, weights), begin(weights))
    like = jax.eval_shape(lambda state: state, state)
    with ThreadPoolExecutor(2) as pool:  # the first shape has all cores
        jobs = [_compiling(pool, static, piece, like, *item) for item in shapes]
        wait([future for job in jobs[:1] for future in job])
        piece = replace(piece, seconds=min(piece.seconds, time_left()))
        key, step, begun, found = table_key(piece.seed), 0, time.monotonic(), []
        while (spent := time.monotonic() - begun) < piece.seconds:
            ready = [job for job in jobs if all(future.done() for future in job)]
            draw, work = (future.result() for future in ready[step % len(ready)])
            rate = jnp.asarray(piece.rate_at(step, spent), dtype=jnp.float32)
            state, loss = work(state, draw(jr.fold_in(key, step)), rate)
            found, step = [*found, loss], step + 1
            if step % piece.look == 0:
                mean = float(jnp.nanmean(jnp.stack(found)))
                found = []
                yield step, time.monotonic() - begun, mean, eqx.combine(state.mean, static)
        yield step, time.monotonic() - begun, math.nan, eqx.combine(state.mean, static)


def _compiling(
    pool: ThreadPoolExecutor, static: Any, piece: Piece, state: Any, shape: Shape, tables: int
) -> tuple[Future[Any], Future[Any]]:
    """What draws tables and what takes a step, as soon as they are compiled."""
    draw = jax.jit(lambda key: sample_tables(shape, tables, key=key))
    work = jax.jit(partial(one_step, static, piece), donate_argnums=0)
    table, rate = jax.eval_shape(draw, table_key(0)), jax.ShapeDtypeStruct((), jnp.float32)
    return pool.submit(draw.lower(table_key(0)).compile), pool.submit(work.lower(state, table, rate).compile)
