"""The steps of training as one compiled program, with tasks sampled inside it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray, PyTree

from stmaml.likelihoods import estimate_noise, without_noise
from stmaml.limits import AHEAD_BYTES
from stmaml.methods.base import AbstractMetaLearner
from stmaml.nets.attention import in_precision
from stmaml.tasks import Scalar, Task, TaskBatch
from stmaml.training.config import TrainConfig
from stmaml.training.devices import ONE_DEVICE, Layout
from stmaml.training.state import State


def step_key(key: PRNGKeyArray, step: Any) -> PRNGKeyArray:
    """The key of a step: of its tasks and of its losses."""
    return jr.fold_in(jr.fold_in(key, 0), step)


@eqx.filter_jit
def run_steps(
    state: State,
    source: Any,
    key: PRNGKeyArray,
    steps: Int[Array, " n"],
    config: TrainConfig,
    layout: Layout = ONE_DEVICE,
) -> tuple[State, tuple[Float[Array, " n"], dict[str, Float[Array, " n"]], Bool[Array, ""]]]:
    """Every step of `steps` in turn. `source` is sampled inside, or holds one ready batch a step; the devices of
    `layout` share the tasks."""
    data_keys, loss_keys = jax.vmap(lambda index: jr.split(step_key(key, index)), out_axes=1)(steps)

    def step(state: State, inputs: tuple[PRNGKeyArray, PRNGKeyArray, TaskBatch | None]):
        data_key, loss_key, batch = inputs
        if batch is None:
            batch = layout.drawn(source.sample(config.tasks_per_batch, key=data_key), axis=0)
        return meta_step(state, batch, config, key=loss_key, layout=layout)

    ahead = source if isinstance(source, TaskBatch) else _sample_ahead(source, data_keys, config)
    state, (losses, logs) = jax.lax.scan(step, state, (data_keys, loss_keys, layout.drawn(ahead, axis=1)))
    leaves = jax.tree.leaves(eqx.filter(state.learner, eqx.is_inexact_array))
    finite = jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves]).all()
    return layout.whole((state, (losses, logs, finite)))


def _sample_ahead(source: Any, keys: Key[Array, " n"], config: TrainConfig) -> TaskBatch | None:
    """The batches of all steps, drawn together in a third of the time; none where they would fill much memory."""
    sample = jax.vmap(lambda key: source.sample(config.tasks_per_batch, key=key))
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(jax.eval_shape(sample, keys)))
    return sample(keys) if size <= AHEAD_BYTES else None


@eqx.filter_jit
def run_many(
    bundle: State,
    source: Any,
    keys: Key[Array, " l"],
    steps: Int[Array, " n"],
    config: TrainConfig,
    layout: Layout = ONE_DEVICE,
):
    """`run_steps` for learners side by side; the devices of `layout` share the learners or the tasks."""

    def run(source: Any, bundle: State, keys: Key[Array, " k"]):
        own = layout.of_one_learner
        return eqx.filter_vmap(lambda state, key: run_steps(state, source, key, steps, config, own))(bundle, keys)

    return layout.each(run, source, bundle, keys)


@eqx.filter_jit
def run_each(bundle: State, sources: Any, keys: Key[Array, " l"], steps: Int[Array, " n"], config: TrainConfig):
    """`run_steps` for learners side by side, each with a source of its own."""
    by_first_axis = (eqx.if_array(0), eqx.if_array(0), 0)

    def run(state: State, source: Any, key: PRNGKeyArray):
        return run_steps(state, source, key, steps, config)

    return eqx.filter_vmap(run, in_axes=by_first_axis)(bundle, sources, keys)


def host_batches(
    source: Any, key: PRNGKeyArray, steps: range, tasks_per_batch: int, check: Callable[[TaskBatch], None]
) -> TaskBatch:
    """Batches of these steps from a source that is called on the host, checked and stacked."""
    batches = []
    for index in steps:
        data_key, _ = jr.split(step_key(key, index))  # as in run_steps: apart from the loss's key
        batches.append(source.sample(tasks_per_batch, key=data_key))
        check(batches[-1])
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *batches)


def meta_step(
    state: State, batch: TaskBatch, config: TrainConfig, *, key: PRNGKeyArray, layout: Layout = ONE_DEVICE
) -> tuple[State, tuple[Scalar, dict[str, Scalar]]]:
    """One step of the optimizer on the mean loss of a batch of tasks (Algorithm 1, line 12)."""

    @eqx.filter_value_and_grad(has_aux=True)
    def mean_loss(learner: AbstractMetaLearner, tasks: Task, keys: Key[Array, " m"]):
        ready = in_precision(learner, config.attention_precision)
        losses, metrics = jax.vmap(lambda task, key: ready.loss(task, key=key))(tasks, keys)
        return losses.mean(), {name: values.mean() for name, values in metrics.items()}

    keys = jr.split(key, batch.family.shape[0])
    mean_of = partial(_in_turns, mean_loss, config.task_chunk)
    (loss, metrics), grads = layout.mean(mean_of, state.learner, batch.tasks, keys)
    params = eqx.filter(state.learner, eqx.is_inexact_array)
    by_steps = grads if config.noise_rate is None else without_noise(grads, params)
    updates, opt_state = config.optimizer_of().update(by_steps, state.opt_state, params)
    learner = eqx.apply_updates(state.learner, jax.tree.map(lambda update: state.rate * update, updates))
    if config.noise_rate is not None:
        moved = estimate_noise(eqx.filter(learner, eqx.is_inexact_array), grads, config.noise_rate)
        learner = eqx.combine(moved, learner)
    return State(learner, opt_state, state.rate, state.best), (loss, metrics)


def _in_turns(
    mean_of: Callable[..., Any], chunk: int | None, learner: AbstractMetaLearner, tasks: Task, keys: Key[Array, " m"]
) -> Any:
    """The mean that `mean_of` takes over tasks, computed `chunk` of them at a time."""
    count = keys.shape[0]
    if chunk is None or chunk >= count:
        return mean_of(learner, tasks, keys)
    parts = jax.tree.map(lambda leaf: leaf.reshape(count // chunk, chunk, *leaf.shape[1:]), (tasks, keys))
    like = eqx.filter_eval_shape(mean_of, learner, *jax.tree.map(lambda leaf: leaf[0], parts))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)

    def add(total: PyTree, part: tuple[Task, Key[Array, " c"]]) -> tuple[PyTree, None]:
        return jax.tree.map(jnp.add, total, mean_of(learner, *part)), None

    total, _ = jax.lax.scan(add, zeros, parts)
    return jax.tree.map(lambda leaf: leaf * (chunk / count), total)
