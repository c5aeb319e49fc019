"""Training on made-up tables, in pieces: one begins with the weights that the last one left, and with a fresh
optimizer. What a piece leaves is the running mean of its weights, in half precision."""

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Float, PRNGKeyArray
from optax.contrib import MuonDimensionNumbers, muon

from stmaml.benchmarks.hierarchies import Shape, Table, sample_tables, table_key
from stmaml.prior.learner import About, Groups, Learner, Said

FAR = 30.0  # spreads of the linear model: beyond, a target says only that it is an outlier
TASK_SHARE = 0.1
SHAPES = ((Shape(12, 6, 20, 4), 128), (Shape(24, 6, 12, 8), 96), (Shape(48, 8, 8, 4), 128), (Shape(12, 4, 32, 12), 48))
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
    steps_a_call: int = 10
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
    memory: Any


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
    centre, spread = said.expected, said.std[..., 1]
    odds = optax.sigmoid_binary_cross_entropy(said.odds, y)
    y = centre + spread * jnp.clip((y - centre) / spread, -FAR, FAR)
    each = -0.5 * jnp.square((y[..., None] - said.mean) / said.std) - jnp.log(said.std)
    density = jax.nn.logsumexp(each + jnp.log(said.weight + 1e-9), axis=-1) - 0.5 * jnp.log(2 * jnp.pi)
    is_class = table.is_class[:, None, None]
    off = jnp.clip((clean - jax.lax.stop_gradient(centre)) / said.task_std, -FAR, FAR)
    task = jnp.where(is_class, 0.0, 0.5 * jnp.square(off) + jnp.log(said.task_std))
    total = jnp.maximum(asked.sum((1, 2)), 1.0)
    return (jnp.where(is_class, odds, -density) * asked).sum((1, 2)) / total, (task * asked).sum((1, 2)) / total


def train_loss(weights: Any, static: Any, table: Table, half: bool) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """What training lowers, and the part of it that is asked for."""
    learner: Learner = eqx.combine(weights, static)
    main, task = losses(answer(learner, table, half=half), table)
    return main.mean() + TASK_SHARE * task.mean(), main.mean()


def optimizer() -> optax.GradientTransformation:
    """Muon for the matrices of layers, AdamW for all else, at a rate of 1: the step's own comes later."""

    def numbers(weights: Any) -> Any:
        return jax.tree.map(lambda leaf: MuonDimensionNumbers(1, 2) if leaf.ndim == 3 else None, weights)

    return optax.chain(
        optax.clip_by_global_norm(1.0),
        muon(1.0, weight_decay=0.01, muon_weight_dimension_numbers=numbers, consistent_rms=0.2, adam_b2=0.99),
    )


def many_steps(
    static: Any, shape: Shape, tables: int, piece: Piece, state: State, key: PRNGKeyArray, rate: Float[Array, ""]
) -> tuple[State, Float[Array, ""]]:
    """The state some steps later, and the mean loss on the way."""
    rule = optimizer()

    def step(state: State, key: PRNGKeyArray) -> tuple[State, Float[Array, ""]]:
        table = sample_tables(shape, tables, key=key)
        slopes, main = jax.grad(train_loss, has_aux=True)(state.weights, static, table, piece.half)
        moves, memory = rule.update(slopes, state.memory, state.weights)
        weights = jax.tree.map(lambda weight, move: weight + rate * move, state.weights, moves)
        mean = jax.tree.map(lambda old, new: piece.keep * old + (1 - piece.keep) * new, state.mean, weights)
        return State(weights, mean, memory), main

    state, found = jax.lax.scan(step, state, jr.split(key, piece.steps_a_call))
    return state, found.mean()


def train_piece(
    learner: Learner,
    piece: Piece,
    shapes: tuple[tuple[Shape, int], ...] = SHAPES,
    *,
    time_left: Callable[[], float] = lambda: math.inf,
) -> Iterator[tuple[int, float, float, Learner]]:
    """Steps so far, seconds, loss and the running mean of the weights, after each call of the compiled program. Where
    less time is left once all is compiled, the piece is that short."""
    weights, static = eqx.partition(learner, eqx.is_array)
    state = State(weights, jax.tree.map(jnp.copy, weights), optimizer().init(weights))
    programs = _compiled(static, shapes, piece, state)
    piece = replace(piece, seconds=min(piece.seconds, time_left()))
    key, step, begun = table_key(piece.seed), 0, time.monotonic()
    while (spent := time.monotonic() - begun) < piece.seconds:
        program = programs[step // piece.steps_a_call % len(programs)]
        rate = jnp.asarray(piece.rate_at(step, spent), dtype=jnp.float32)
        state, loss = program(state, jr.fold_in(key, step), rate)
        loss, step = float(loss), step + piece.steps_a_call
        yield step, time.monotonic() - begun, loss, eqx.combine(state.mean, static)


def _compiled(static: Any, shapes: tuple[tuple[Shape, int], ...], piece: Piece, state: State) -> list[Any]:
    """A program for each shape, compiled side by side."""

    def one(item: tuple[Shape, int]) -> Any:
        work = jax.jit(partial(many_steps, static, *item, piece), donate_argnums=0)
        return work.lower(state, table_key(0), jnp.zeros(())).compile()

    with ThreadPoolExecutor(len(shapes)) as pool:
        return list(pool.map(one, shapes))
