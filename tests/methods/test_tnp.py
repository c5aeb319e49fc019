"""TNP-D against one masked transformer over support and query together, written out in plain jax.numpy."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stmaml.errors import SettingError
from stmaml.methods.base import predict
from stmaml.methods.tnp import Config
from stmaml.tasks import Examples, Task, TaskSpec
from tests.methods.small import small_task

SPEC = TaskSpec((2,), 1, noise="predicted")
SMALL = Config(width=8, layers=3, num_heads=2)
HEADS = 2


def shaken(learner: Any) -> Any:
    """The learner with every number moved: scales of 1 and shifts of 0 would hide where they stand."""
    arrays, rest = eqx.partition(learner, eqx.is_inexact_array)
    leaves, tree = jax.tree.flatten(arrays)
    keys = jr.split(jr.key(7), len(leaves))
    moved = [leaf + 0.2 * jr.normal(k, leaf.shape) for leaf, k in zip(leaves, keys, strict=True)]
    return eqx.combine(jax.tree.unflatten(tree, moved), rest)


@pytest.fixture(scope="module")
def learner() -> Any:
    return shaken(eqx.filter_jit(SMALL.build)(SPEC, key=jr.key(0)))


@eqx.filter_jit
def raw_outputs(learner: Any, support: Examples, x: jax.Array) -> jax.Array:
    return learner.network(support)(x)


def norm(layer: Any, x: jax.Array) -> jax.Array:
    centred = x - x.mean(1, keepdims=True)
    scaled = centred / jnp.sqrt(jnp.square(centred).mean(1, keepdims=True) + 1e-5)
    return scaled * layer.weight[None] + layer.bias[None]


def mlp(net: Any, x: jax.Array) -> jax.Array:
    for layer in net.layers[:-1]:
        x = jnp.maximum(x @ layer.weight + layer.bias[None], 0)
    return x @ net.layers[-1].weight + net.layers[-1].bias[None]


def masked_attention(attention: Any, x: jax.Array, mask: jax.Array) -> jax.Array:
    """Every row looks at the rows of its line in the mask."""
    q, k, v = (x @ layer.weight for layer in (attention.query, attention.key, attention.value))
    size = q.shape[1] // HEADS
    answers = []
    for part in (slice(h * size, (h + 1) * size) for h in range(HEADS)):
        likeness = jnp.exp(q[:, part] @ k[:, part].T / np.sqrt(size)) * mask
        answers.append(likeness / likeness.sum(1, keepdims=True) @ v[:, part])
    return jnp.concatenate(answers, axis=1) @ attention.out.weight


def reading_version(learner: Any, support: Examples, x: jax.Array) -> jax.Array:
    """Both sets as one sequence: everybody sees the support, an asked input itself as well, and nobody another."""
    n, q = support.x.shape[0], x.shape[0]
    labelled = jnp.concatenate([support.x, support.y, jnp.zeros((n, 1))], axis=1)
    asked = jnp.concatenate([x, jnp.zeros((q, 1)), jnp.ones((q, 1))], axis=1)
    mask = jnp.concatenate([jnp.ones((n + q, n)), jnp.zeros((n + q, q))], axis=1) + jnp.diag(
        jnp.concatenate([jnp.zeros(n), jnp.ones(q)])
    )
    rows = mlp(learner.read, jnp.concatenate([labelled, asked]))
    for block in learner.blocks:
        rows = rows + masked_attention(block.attention, norm(block.norms[0], rows), mask)
        rows = rows + mlp(block.revise, norm(block.norms[1], rows))
    return mlp(learner.head, norm(learner.norm, rows[n:]))


def test_it_is_a_masked_transformer_over_both_sets(learner, key):
    task = small_task(SPEC, key=key)
    want = reading_version(learner, task.support, task.query.x)
    np.testing.assert_allclose(raw_outputs(learner, task.support, task.query.x), want, rtol=2e-4, atol=2e-5)


def test_the_loss_is_the_density_of_what_it_says(learner, key):
    task = small_task(SPEC, key=key)
    raw = np.asarray(reading_version(learner, task.support, task.query.x))
    loss, _ = eqx.filter_jit(learner.loss)(task, key=key)
    prediction = eqx.filter_jit(predict)(learner, task.support, task.query.x, num_samples=5, key=key)
    np.testing.assert_allclose(prediction.mean[:, 0], raw[:, 0], rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(loss, -prediction.log_prob(task.query.y).mean(), rtol=1e-4)


def test_what_is_asked_beside_an_input_and_in_which_order_does_not_matter(learner, key):
    task = small_task(SPEC, key=key)
    every = raw_outputs(learner, task.support, task.query.x)
    turned = raw_outputs(learner, task.support, task.query.x[::-1])
    np.testing.assert_allclose(turned[::-1], every, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(raw_outputs(learner, task.support, task.query.x[2:3]), every[2:3], rtol=1e-4, atol=1e-5)


def test_examples_may_stand_in_any_order_and_those_of_weight_0_are_none(learner, key):
    task = small_task(SPEC, key=key)
    exact = raw_outputs(learner, task.support, task.query.x)
    turned = jax.tree.map(lambda leaf: leaf[jnp.array([3, 0, 4, 1, 2])], task.support)
    np.testing.assert_allclose(raw_outputs(learner, turned, task.query.x), exact, rtol=1e-4, atol=1e-5)
    garbage = Examples(jnp.full((3, 2), 40.0), jnp.full((3, 1), -9.0), jnp.zeros(3))
    np.testing.assert_allclose(raw_outputs(learner, garbage + task.support, task.query.x), exact, rtol=1e-4, atol=1e-5)


def test_without_examples_an_input_still_sees_itself(learner, key):
    """Not zeros: the answer depends on the input, and gradients are finite."""
    task = small_task(SPEC, key=key)
    empty = Examples(task.support.x, task.support.y, jnp.zeros(5))
    found = raw_outputs(learner, empty, task.query.x)
    nothing = jax.tree.map(lambda leaf: leaf[:0], task.support)
    np.testing.assert_allclose(found, reading_version(learner, nothing, task.query.x), rtol=2e-4, atol=2e-5)
    grads = eqx.filter_jit(eqx.filter_grad(lambda some: some.loss(Task(empty, task.query), key=key)[0]))(learner)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


def test_a_labelled_0_is_not_an_asked_input(learner, key):
    """The target of an asked input is set to 0; the mark tells it from an example that has this target."""
    x = jr.normal(key, (4, 2))
    marked = [jnp.concatenate([x, jnp.zeros((4, 1)), jnp.full((4, 1), mark)], axis=1) for mark in (0.0, 1.0)]
    assert np.abs(np.asarray(learner.read(marked[0]) - learner.read(marked[1]))).max() > 1e-3


def test_widths_and_layers_that_cannot_be_are_refused(key):
    with pytest.raises(SettingError, match="--layers must be at least 1; got 0"):
        Config(layers=0)
    with pytest.raises(SettingError, match="3 heads must divide"):
        Config(width=8, num_heads=3).build(SPEC, key=key)
