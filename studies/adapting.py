"""What a new task costs by this package and by others, in turns: adapting to its examples and predicting its queries,
for one task and for many at once. All have the same network and inner loop. On the small network they have the same
weights and tasks too, and their errors must agree."""

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import libraries
import numpy as np
from libraries import Advance, Maker, installed
from library_pictures import learn2learn_conv, torch_conv
from picture_tasks import CONV_SIZES, INNER_LR, ConvSize, Pictures
from small_network import INNER_LR as SMALL_LR
from small_network import Sets, Weights, as_task_batch, batch_loss, draw_workload, plain_learner
from timing import Contender, assert_same_losses, measure, warm_up_together

from stmaml.inner import InnerLoop
from stmaml.methods import maml
from stmaml.methods.base import AbstractMetaLearner, predict
from stmaml.nets.conv import Conv
from stmaml.tasks import Task

OWN = "stmaml"
MANY, MANY_IMAGES = 200, 8
INNER_STEPS = 5


def run_adapting(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Milliseconds of a task, one at a time and many at once."""
    timing = {"seconds": options.seconds / 2, "repeats": min(options.repeats, 5)}
    found: dict[str, Any] = {}
    for tasks in (1, 2 if options.tiny else MANY):
        contenders = [Contender(name, make()) for name, make in _wanted(small_makers(tasks), options.without)]
        warm_up_together(contenders, 1)
        assert_same_losses(contenders)
        found |= {f"small network, {tasks}": _rows(contenders, tasks, timing)}
        yield found
    size = CONV_SIZES["tiny" if options.tiny else "full"]
    for tasks in (1, 2 if options.tiny else MANY_IMAGES):
        contenders = [Contender(name, make()) for name, make in _wanted(image_makers(size, tasks), options.without)]
        for each in contenders:
            each.warm_up(1)
        found |= {f"images, {tasks}": _rows(contenders, tasks, timing)}
        yield found


def _wanted(makers: Iterator[tuple[str, Maker]], without: list[str]) -> Iterator[tuple[str, Maker]]:
    return ((name, make) for name, make in makers if not any(word in name for word in without))


def _rows(contenders: list[Contender], tasks: int, timing: dict[str, Any]) -> list[dict[str, Any]]:
    return [asdict(row) | {"tasks": tasks} for row in measure(contenders, OWN, **timing)]


def small_makers(tasks: int) -> Iterator[tuple[str, Maker]]:
    """The small network: this package, plain JAX, and other libraries."""
    weights, batches = draw_workload(key=jr.key(0))
    flat = [array.reshape(-1, *array.shape[2:]) for array in batches]
    count = len(flat[0]) // tasks
    sets = tuple(array[: count * tasks].reshape(count, tasks, *array.shape[1:]) for array in flat)
    yield OWN, partial(own_errors, plain_learner(INNER_STEPS, weights), sets)
    yield "plain JAX", partial(plain_errors, weights, sets)
    yield from libraries.mlp_makers(INNER_STEPS, weights, sets, inner_lr=SMALL_LR, outer_lr=None)


def own_errors(learner: AbstractMetaLearner, sets: Sets) -> Advance:
    """Mean squared errors of `predict`, compiled once."""
    stream = _singles(as_task_batch(sets).tasks, sets[0].shape[0])

    def error(learner: AbstractMetaLearner, task: Task, key: jax.Array) -> jax.Array:
        return jnp.mean((predict(learner, task.support, task.query.x, num_samples=1, key=key).mean - task.query.y) ** 2)

    ask = eqx.filter_jit(lambda learner, tasks, key: jax.vmap(partial(error, learner, key=key))(tasks).mean())
    return lambda: np.atleast_1d(ask(learner, next(stream), jr.key(0)))


def plain_errors(weights: Weights, sets: Sets) -> Advance:
    stream = _singles(jax.tree.map(jnp.asarray, sets), sets[0].shape[0])
    ask = jax.jit(partial(batch_loss, inner_steps=INNER_STEPS))
    weights = jax.tree.map(jnp.asarray, weights)
    return lambda: np.atleast_1d(ask(weights, next(stream)))


def _singles(sets: Any, count: int) -> Iterator[Any]:
    return itertools.cycle([jax.tree.map(lambda leaf, i=i: leaf[i], sets) for i in range(count)])


def image_makers(size: ConvSize, tasks: int) -> Iterator[tuple[str, Maker]]:
    """The convolutional network: this package, plain torch and learn2learn, on random images."""
    pictures = Pictures.of(size, key=jr.key(0))
    inner = InnerLoop(inner_lr=INNER_LR, inner_steps=size.inner_steps, inner_clamp=None)
    learner = maml.Config(conv=Conv(channels=size.channels, conv_blocks=size.blocks), inner=inner)
    yield OWN, partial(_own_images, learner.build(pictures.spec, key=jr.key(0)), pictures, tasks)
    for name, package, make in (
        ("torch, loop over tasks", "torch", torch_conv),
        ("learn2learn", "learn2learn", learn2learn_conv),
    ):
        if installed(package):
            yield name, partial(make, size, tasks, learning=False)


def _own_images(learner: AbstractMetaLearner, pictures: Pictures, tasks: int) -> Advance:
    given = pictures.sample(tasks, key=jr.key(1)).tasks

    def ask(learner: AbstractMetaLearner, tasks: Task, key: jax.Array) -> jax.Array:
        each = partial(_probabilities, learner, key=key)
        return jax.lax.map(each, tasks) if tasks.support.x.shape[0] > 1 else jax.vmap(each)(tasks)

    compiled = eqx.filter_jit(ask)
    return lambda: np.asarray(compiled(learner, given, jr.key(0))).mean().reshape(1)


def _probabilities(learner: AbstractMetaLearner, task: Task, *, key: jax.Array) -> jax.Array:
    return predict(learner, task.support, task.query.x, num_samples=1, key=key).mean
