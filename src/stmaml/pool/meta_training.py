"""Learners of many parts of a table, trained side by side as one compiled program and stopped together."""

import time
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stmaml.pool.base import Draw, GroupedRows
from stmaml.pool.meta_answers import Weights
from stmaml.pool.meta_heldout import HeldOut, Looks
from stmaml.pool.meta_learner import Plan, as_vector
from stmaml.pool.meta_tasks import Listed
from stmaml.pool.meta_wide import Wide, as_table
from stmaml.progress import tell
from stmaml.tasks import Examples, Task
from stmaml.training import optimizers
from stmaml.training.prefetch import Ahead

CLIP = 5.0


class State(eqx.Module):
    """Where training is. The linear models stay what they are."""

    weights: Weights
    average: Float[Array, "*p w"]
    """Of the latest weights: it does better than each of them."""
    memory: Any
    """What the optimizer remembers."""


class Places(eqx.Module):
    """Which rows of the table are in the tasks of each step and learner; those of weight 0 are padding."""

    support: Int[Array, "*m s"]
    given: Float[Array, "*m s"]
    query: Int[Array, "*m q"]
    asked: Float[Array, "*m q"]


Batches = tuple[Examples, Places]


@dataclass(frozen=True)
class Trained:
    """Learners of all parts, and how the number of their steps was chosen."""

    weights: Weights
    chosen_step: int
    looks: Looks


@dataclass(frozen=True)
class Training:
    """Learners of parts of a table, from the same first weights on and with the same random numbers."""

    plan: Plan
    rows: GroupedRows
    parts: tuple[Int[np.ndarray, " _"], ...]
    draw: Draw
    start: Weights
    """The first weights of each part, on its linear model."""
    wide: Wide | None = None
    """All groups of a table that stays on disk, to draw tasks from."""

    def run(self, judged: HeldOut, minutes: float) -> Trained:
        """The learners of the step that did best on held-out groups."""
        plan, looks, end = self.plan, Looks(), time.monotonic() + 60 * minutes
        ahead = Ahead(self.drawn)
        state, kept, step = self.first(), self.start, 0
        looks.add(0, judged.scores(plan, self.start))
        while step < plan.steps and looks.since_lowest < plan.patience and time.monotonic() < end:
            for _ in range(plan.strides(step)):
                state, step = self.advance(state, step, ahead), step + plan.every
            weights = eqx.tree_at(lambda w: w.vector, self.start, state.average)
            looks.add(step, judged.scores(plan, weights))
            kept = kept if looks.since_lowest else weights
            tell(f"training {plan.method}", step, plan.steps, text=f"held-out groups {looks.curve[-1]:.4f}")
        return Trained(kept if looks.best else self.start, looks.steps[looks.best], looks)

    def first(self) -> State:
        """No step taken."""
        return first_state(self.plan, self.start)

    def advance(self, state: State, step: int, ahead: Ahead[Batches] | None = None) -> State:
        """The next steps, up to a look."""
        steps = range(step, step + self.plan.every)
        table, places = self.drawn(steps) if ahead is None else ahead.take(steps, self.plan.steps)
        return run_steps(self.plan, state, table, places, jnp.asarray(steps, dtype=jnp.int32))

    def drawn(self, steps: range) -> Batches:
        """Rows, and which of them are in the tasks of these steps."""
        if self.wide is None:
            x, y = self.rows.x, self.rows.y
            drawn = Listed.of(self.rows).draw(self.parts, self.draw, steps, self.plan.tasks)
        else:
            x, y, drawn = self.wide.tasks(self.parts, self.draw, steps, self.plan.tasks)
        rows = [jnp.asarray(part, dtype=jnp.int32) for part in (drawn.support, drawn.query)]
        places = Places(rows[0], jnp.asarray(drawn.given), rows[1], jnp.asarray(drawn.asked))
        return as_table(x, y, self.plan.num_inputs, self.plan.num_classes), places


def optimizer(plan: Plan) -> optax.GradientTransformation:
    """Adam with decaying weights, on one vector of all of them; or Muon, which needs to know which are a matrix."""
    rate = optax.warmup_constant_schedule(0.0, plan.rate, plan.warmup)
    if plan.optimizer == "adam":
        return optax.chain(optax.clip_by_global_norm(CLIP), optax.adamw(rate, weight_decay=plan.decay))
    rule = optimizers.optimizer(plan.optimizer, rate, CLIP, plan.decay)

    def init(params: Any) -> Any:
        return rule.init(plan.weights(params))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        steps, state = rule.update(plan.weights(updates), state, plan.weights(params))
        return as_vector(steps), state

    return optax.GradientTransformation(init, update)


@eqx.filter_jit
def first_weights(plan: Plan) -> Float[Array, " w"]:
    """Those of a fresh method."""
    return plan.vector(key=jr.key(plan.seed))


@eqx.filter_jit
def first_state(plan: Plan, weights: Weights) -> State:
    """No step taken, by any of the learners."""
    return State(weights, weights.vector, jax.vmap(optimizer(plan).init)(weights.vector))


@eqx.filter_jit
def run_steps(plan: Plan, state: State, table: Examples, places: Places, steps: Int[Array, " n"]) -> State:
    """Every step in turn, of all learners at once."""

    def step(state: State, inputs: tuple[Int[Array, ""], Places]) -> tuple[State, None]:
        number, places = inputs
        tasks = jax.vmap(jax.vmap(lambda rows: _task(table, rows)))(places)
        key = jr.fold_in(jr.key(plan.seed), number)
        return jax.vmap(lambda one, tasks: _step(plan, one, tasks, number, key=key))(state, tasks), None

    return jax.lax.scan(step, state, (steps, places))[0]


def _task(table: Examples, places: Places) -> Task:
    support = Examples(table.x[places.support], table.y[places.support], places.given)
    return Task(support, Examples(table.x[places.query], table.y[places.query], places.asked))


def _step(plan: Plan, state: State, tasks: Task, number: Int[Array, ""], *, key: PRNGKeyArray) -> State:
    """One learner after a step; a gradient that is not finite is none."""

    def mean_loss(vector: Float[Array, " w"]) -> Float[Array, ""]:
        learner = plan.learner(vector, state.weights.prior)
        losses = jax.vmap(lambda task, key: learner.loss(task, key=key)[0])(tasks, jr.split(key, plan.tasks))
        return losses.mean()

    vector = state.weights.vector
    gradient = jax.grad(mean_loss)(vector)
    gradient = jnp.where(jnp.isfinite(gradient).all(), gradient, jnp.zeros_like(gradient))
    update, memory = optimizer(plan).update(gradient, state.memory, vector)
    vector = vector + jnp.asarray(update)
    stays = jnp.minimum(plan.averaged, (1.0 + number) / (10.0 + number))
    weights = eqx.tree_at(lambda w: w.vector, state.weights, vector)
    return State(weights, stays * state.average + (1 - stays) * vector, memory)
