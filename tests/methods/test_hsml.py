"""HSML's own mathematics: the tree, the gated start, the loss."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stmaml.inner import InnerLoop
from stmaml.methods import hsml, maml
from stmaml.methods.base import predict
from stmaml.methods.gated import by_content
from stmaml.tasks import Examples, TaskSpec, pad
from tests.methods.small import SMALL, small_task

SPEC = TaskSpec((2,), 1)
SMALL_HSML = SMALL["hsml"]
SIZE = 8


def noisy_tree(key) -> hsml.ClusterTree:
    """Parameters away from their start, so that no bias hides at zero."""
    leaves, structure = jax.tree.flatten(hsml.ClusterTree(SIZE, 4, 2, 1.5, key=key))
    moved = [a + 0.3 * jr.normal(k, a.shape) for a, k in zip(leaves, jr.split(key, len(leaves)), strict=True)]
    return jax.tree.unflatten(structure, moved)


def naive_root(tree: hsml.ClusterTree, g: np.ndarray) -> np.ndarray:
    """The tree node by node, edge by edge."""
    arrays = jax.tree.map(np.asarray, tree)
    closeness = [np.exp(-np.sum((g - c) ** 2) / (2 * tree.sigma)) for c in arrays.centres]
    p = [value / sum(closeness) for value in closeness]
    u = [p[k] * np.tanh(g @ arrays.leaves.weight[k] + arrays.leaves.bias[k]) for k in range(4)]
    root = np.zeros(SIZE)
    for j in range(2):
        v = np.zeros(SIZE)
        for k in range(4):
            scores = [np.exp(u[k] @ arrays.edges.weight[:, i] + arrays.edges.bias[i]) for i in range(2)]
            v += scores[j] / sum(scores) * np.tanh(u[k] @ arrays.nodes.weight[j] + arrays.nodes.bias[j])
        root += np.tanh(v @ arrays.root.weight + arrays.root.bias)
    return root


def test_tree_follows_its_definition(key):
    tree, g = noisy_tree(key), jr.normal(jr.key(1), (SIZE,))
    np.testing.assert_allclose(tree(g), naive_root(tree, np.asarray(g)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("leaf", range(4))
def test_the_nearest_centre_wins(leaf, key):
    tree = noisy_tree(key)
    p = tree.assign(tree.centres[leaf] + 0.01)
    np.testing.assert_allclose(p.sum(), 1, rtol=1e-5)
    assert np.argmax(p) == leaf


def test_a_larger_sigma_softens_the_assignment(key):
    g = jr.normal(key, (SIZE,))
    sharp, soft = (hsml.ClusterTree(SIZE, 4, 2, sigma, key=key).assign(g) for sigma in (0.5, 10.0))
    assert sharp.max() > soft.max() > 0.25


def test_without_gate_logits_it_is_maml_from_half_the_weights(key):
    learner = SMALL_HSML.build(SPEC, key=key)
    learner = eqx.tree_at(lambda m: m.gate, learner, replace_fn=lambda gate: jax.tree.map(jnp.zeros_like, gate))
    half = jax.tree.map(lambda leaf: leaf / 2, learner.theta)
    plain = maml.MAML(half, learner.likelihood, maml.Config(hidden=(8, 8), inner=SMALL_HSML.inner))
    task = small_task(SPEC, key=key)
    got, want = (predict(m, task.support, task.query.x, key=key).mean for m in (learner, plain))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_the_gate_reads_embedding_and_root(key):
    """Without inner steps the prediction is that of theta gated by [g, H], pieced together here."""
    config = dataclasses.replace(SMALL_HSML, inner=InnerLoop(inner_steps=0))
    learner, task = config.build(SPEC, key=key), small_task(SPEC, key=key)
    xy = jnp.concatenate([task.support.x, task.support.y], axis=1)
    g, _ = learner.encoder(xy @ learner.embed.linear.weight, jnp.ones(5))
    theta0 = learner.gate(learner.theta, jnp.concatenate([g, learner.tree(g)]))
    got = predict(learner, task.support, task.query.x, key=key).mean
    np.testing.assert_allclose(got, theta0(task.query.x), rtol=1e-5, atol=1e-6)


def test_loss_is_the_query_loss_plus_the_weighted_reconstruction_loss(key):
    task = small_task(SPEC, key=key)
    light, heavy = (
        dataclasses.replace(SMALL_HSML, reconstruction_weight=weight).build(SPEC, key=key).loss(task, key=key)
        for weight in (0.0, 3.0)
    )
    assert light[1]["reconstruction"] > 0
    np.testing.assert_allclose(heavy[0], light[0] + 3 * light[1]["reconstruction"], rtol=1e-5)
    predicted = predict(SMALL_HSML.build(SPEC, key=key), task.support, task.query.x, key=key).mean
    np.testing.assert_allclose(light[0], jnp.square(predicted - task.query.y).mean(), rtol=1e-5)


def test_recurrent_embedding_heeds_order_but_not_padding(key):
    learner = dataclasses.replace(SMALL_HSML, embedding="rnn", reading_order="given").build(SPEC, key=key)
    task = small_task(SPEC, key=key)

    @eqx.filter_jit
    def mean(support):
        return predict(learner, support, task.query.x, key=key).mean

    np.testing.assert_allclose(mean(pad(task.support, 7)), mean(task.support), rtol=1e-4, atol=1e-5)
    assert not np.allclose(mean(jax.tree.map(lambda a: a[::-1], task.support)), mean(task.support), atol=1e-6)


def test_a_recurrent_embedding_reads_the_support_in_an_order_that_tells_no_label(key):
    """Sorted by class or shuffled, whatever the labels: the rows are read in the same order."""
    x, y = jr.normal(key, (6, 2)), jnp.array([0, 0, 1, 1, 2, 2])
    shuffled = jr.permutation(jr.fold_in(key, 1), 6)
    one, other = by_content(Examples.of(x, y)), by_content(Examples.of(x[shuffled], y[shuffled]))
    assert eqx.tree_equal(one, other)
    assert (by_content(Examples.of(x, y[::-1])).x == one.x).all()
    given = dataclasses.replace(SMALL_HSML, embedding="rnn", reading_order="given")
    support = Examples.of(x, y)
    assert given.ordered(support) is support
    assert SMALL_HSML.ordered(support) is support  # pooling heeds no order
    assert eqx.tree_equal(dataclasses.replace(given, reading_order="content").ordered(support), one)
