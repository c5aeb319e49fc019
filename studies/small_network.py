"""Second-order MAML on a 2-40-40-1 network with biases: 25 tasks of 10 support and 30 query points, inner SGD, outer
Adam, squared error. All contenders but the one that samples its own tasks start from the same weights and see the same
batches, and their losses must agree."""

import itertools
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import libraries
import numpy as np
import optax
from timing import CHUNK, Contender, Row, assert_same_losses, library, measure, warm_up_together

from stmaml.benchmarks import regression2d
from stmaml.inner import InnerLoop
from stmaml.methods import maml
from stmaml.tasks import Examples, Task, TaskBatch, TaskSpec
from stmaml.training import TrainConfig

WIDTHS = (2, 40, 40, 1)
TASKS, SHOTS, QUERIES = 25, 10, 30
INNER_LR, OUTER_LR = 0.01, 1e-3
REFERENCE = f"plain JAX, {CHUNK} steps a call"

Weights = list[tuple[Any, Any]]
Sets = tuple[Any, Any, Any, Any]
"""Support inputs and targets, query inputs and targets."""


def own_sampling(inner_steps: int) -> Contender:
    """MAML as a user trains it: its own settings, tasks drawn inside the compiled call."""
    source = regression2d.Config(shots=SHOTS, query_size=QUERIES).open().train
    settings = maml.Config(inner=InnerLoop(inner_steps=inner_steps))
    return library(
        "stmaml, tasks sampled, own schedule and clamps",
        settings.build(source.spec, key=jr.key(0)),
        source,
        TrainConfig(),
    )


def plain_settings(inner_steps: int, weights: Weights, batches: Sets) -> list[Contender]:
    """MAML with nothing that plain JAX has not: no clamp, no schedule, a distant norm bound; on given batches, and with
    tasks drawn inside the compiled call."""
    learner = plain_learner(inner_steps, weights)
    config = TrainConfig(outer_lr=OUTER_LR, schedule="constant", clip_norm=1e9)
    source = regression2d.Config(shots=SHOTS, query_size=QUERIES).open().train
    return [
        library("stmaml, ready batches", learner, as_task_batch(batches), config),
        library("stmaml, tasks sampled", learner, source, config),
    ]


def plain_learner(inner_steps: int, weights: Weights) -> maml.MAML:
    """MAML with these weights and no clamp."""
    inner = InnerLoop(inner_lr=INNER_LR, inner_steps=inner_steps, inner_clamp=None)
    learner = maml.Config(inner=inner).build(TaskSpec(x_shape=(2,), y_size=1), key=jr.key(0))
    given = [jnp.asarray(array) for pair in weights for array in pair]
    return eqx.tree_at(
        lambda m: [a for la in (*m.theta.body, m.theta.head) for a in (la.weight, la.bias)], learner, given
    )


def as_task_batch(batches: Sets) -> TaskBatch:
    xs, ys, xq, yq = (jnp.asarray(array) for array in batches)
    support, query = Examples(xs, ys, jnp.ones(xs.shape[:-1])), Examples(xq, yq, jnp.ones(xq.shape[:-1]))
    return TaskBatch(Task(support, query), jnp.zeros(xs.shape[:2], dtype=int))


# Plain JAX


def forward(weights: Weights, x: jax.Array) -> jax.Array:
    for weight, bias in weights[:-1]:
        x = jax.nn.relu(x @ weight + bias)
    weight, bias = weights[-1]
    return x @ weight + bias


def squared_error(weights: Weights, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((forward(weights, x) - y) ** 2)


def batch_loss(weights: Weights, batch: Sets, inner_steps: int) -> jax.Array:
    """MAML's loss in as few lines as JAX allows."""

    def task_loss(xs: jax.Array, ys: jax.Array, xq: jax.Array, yq: jax.Array) -> jax.Array:
        tuned = weights
        for _ in range(inner_steps):
            grads = jax.grad(squared_error)(tuned, xs, ys)
            tuned = jax.tree.map(lambda w, g: w - INNER_LR * g, tuned, grads)
        return squared_error(tuned, xq, yq)

    return jax.vmap(task_loss)(*batch).mean()


def plain_step(carry: tuple[Weights, Any], batch: Sets, inner_steps: int) -> tuple[tuple[Weights, Any], jax.Array]:
    weights, opt_state = carry
    loss, grads = jax.value_and_grad(batch_loss)(weights, batch, inner_steps)
    updates, opt_state = optax.adam(OUTER_LR).update(grads, opt_state)
    return (optax.apply_updates(weights, updates), opt_state), loss


def plain_jax(inner_steps: int, weights: Weights, batches: Sets) -> Iterator[Contender]:
    """One compiled step a call, and a scan over many."""
    weights, batches = jax.tree.map(jnp.asarray, (weights, batches))
    step = partial(plain_step, inner_steps=inner_steps)
    start = (weights, optax.adam(OUTER_LR).init(weights))
    singles = itertools.cycle([tuple(array[i] for array in batches) for i in range(CHUNK)])
    one = jax.jit(step)
    many = jax.jit(partial(jax.lax.scan, step))
    for name, call, inputs in (
        ("plain JAX, 1 step a call", one, singles),
        (REFERENCE, many, itertools.repeat(batches)),
    ):
        yield Contender(name, _carrying(call, start, inputs))


def _carrying(call: Callable, carry: Any, inputs: Iterator[Sets]) -> Callable[[], np.ndarray]:
    def advance() -> np.ndarray:
        nonlocal carry
        carry, losses = call(carry, next(inputs))
        return np.atleast_1d(losses)

    return advance


def draw_workload(*, key: jax.Array) -> tuple[Weights, Sets]:
    """Weights of He's variance, and sinusoids mild enough for an inner loop without a clamp."""
    weight_key, x_key, task_key = jr.split(key, 3)
    sizes = list(itertools.pairwise(WIDTHS))
    weights = [
        (np.asarray((2 / i) ** 0.5 * jr.normal(k, (i, o))), np.zeros(o, np.float32))
        for (i, o), k in zip(sizes, jr.split(weight_key, len(sizes)), strict=True)
    ]
    x = jr.uniform(x_key, (CHUNK, TASKS, SHOTS + QUERIES, 2), minval=-2.0, maxval=2.0)
    height, phase = jr.uniform(task_key, (2, CHUNK, TASKS, 1), minval=0.2, maxval=2.0)
    y = (height * jnp.sin(x[..., 0] + phase))[..., None]
    parts = (x[:, :, :SHOTS], y[:, :, :SHOTS], x[:, :, SHOTS:], y[:, :, SHOTS:])
    return weights, tuple(np.asarray(part) for part in parts)


def contenders_of(inner_steps: int, *, without: Collection[str] = (), only: str = "") -> list[Contender]:
    """Plain JAX, the library, and others; not those with one of the words `without` in their name, nor those that are
    not called `only` where it is given."""
    weights, batches = draw_workload(key=jr.key(0))
    given = (inner_steps, weights, batches)
    own = [*plain_jax(*given), *plain_settings(*given), own_sampling(inner_steps)]
    makers = libraries.mlp_makers(*given, inner_lr=INNER_LR, outer_lr=OUTER_LR)
    wanted = [(name, make) for name, make in makers if not any(word in name for word in without)]
    if only:
        own, wanted = [each for each in own if each.name == only], [each for each in wanted if each[0] == only]
    return own + [Contender(name, make()) for name, make in wanted]


def run_small_network(
    inner_steps: int, *, seconds: float, repeats: int, without: Collection[str] = (), at_once: int = 1
) -> list[Row]:
    """MAML beside plain JAX and other libraries; so many are compiled at once."""
    contenders = contenders_of(inner_steps, without=without)
    warm_up_together(contenders, at_once)
    assert_same_losses(contenders)
    return measure(contenders, REFERENCE, seconds=seconds, repeats=repeats)
