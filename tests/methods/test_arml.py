"""ARML's own mathematics: prototypes, graph, the gated start, the loss."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stmaml.inner import InnerLoop
from stmaml.methods import arml, maml
from stmaml.methods.base import predict
from stmaml.tasks import TaskSpec, pad
from tests.methods.small import SMALL, small_task

SPEC = TaskSpec((2,), 1)
CLASSES = TaskSpec((2,), 3, target="class")
SMALL_ARML = SMALL["arml"]
SIZE, VERTICES, SIGMA = 8, 5, 1.5


def noisy_graph(key) -> arml.KnowledgeGraph:
    """Parameters away from their start, so that no bias hides at zero."""
    leaves, structure = jax.tree.flatten(arml.KnowledgeGraph(SIZE, VERTICES, SIGMA, key=key))
    moved = [a + 0.3 * jr.normal(k, a.shape) for a, k in zip(leaves, jr.split(key, len(leaves)), strict=True)]
    return jax.tree.unflatten(structure, moved)


def naive_supergraph(graph: arml.KnowledgeGraph, c: np.ndarray, among_vertices: np.ndarray) -> np.ndarray:
    """A of prototypes and vertices, link by link; the links among the vertices are given."""
    h, k = np.asarray(graph.vertices), c.shape[0]
    w, b = np.asarray(graph.link.weight)[:, 0], np.asarray(graph.link.bias)[0]
    a = np.zeros((k + VERTICES, k + VERTICES))
    a[k:, k:] = among_vertices
    for i in range(k):
        for j in range(k):
            if i != j:
                a[i, j] = 1 / (1 + np.exp(-(np.abs(c[i] - c[j]) @ w + b)))
        closeness = [np.exp(-np.sum((c[i] - h[v]) ** 2) / (2 * SIGMA)) for v in range(VERTICES)]
        a[i, k:] = a[k:, i] = np.array(closeness) / sum(closeness)
    return a


@pytest.mark.parametrize("seed", [1, 2])
def test_graph_layer_is_the_convolution_of_the_whole_super_graph(seed, key):
    """tanh(D^-1 (A + I) X W + b) in full; whatever links the vertices have among themselves, C-hat is the same."""
    graph, c = noisy_graph(key), np.asarray(0.5 * jr.normal(jr.key(7), (3, SIZE)))
    a = naive_supergraph(graph, c, np.asarray(jr.uniform(jr.key(seed), (VERTICES, VERTICES))))
    with_self = a + np.eye(3 + VERTICES)
    mixed = np.linalg.inv(np.diag(with_self.sum(1))) @ with_self @ np.concatenate([c, graph.vertices])
    want = np.tanh(mixed @ np.asarray(graph.layer.weight) + np.asarray(graph.layer.bias))[:3]
    np.testing.assert_allclose(graph(jnp.asarray(c)), want, rtol=1e-4, atol=1e-5)


def test_each_prototype_is_linked_most_to_its_nearest_vertex(key):
    graph = noisy_graph(key)
    links = graph.link_vertices(graph.vertices + 0.01)
    np.testing.assert_allclose(links.sum(1), np.ones(VERTICES), rtol=1e-5)
    np.testing.assert_array_equal(links.argmax(1), np.arange(VERTICES))


def test_prototype_links_are_symmetric_and_never_to_itself(key):
    links = noisy_graph(key).link_prototypes(jr.normal(key, (3, SIZE)))
    np.testing.assert_allclose(links, links.T, rtol=1e-5)
    np.testing.assert_array_equal(jnp.diag(links), np.zeros(3))


def test_real_targets_have_soft_clusters_that_share_out_the_sum(key):
    learner = SMALL_ARML.build(SPEC, key=key)
    e, weight = jr.normal(key, (6, SIZE)), jnp.array([1.0, 1.0, 0.0, 1.0, 1.0, 0.0])
    assert learner.clusters is not None
    want = np.zeros((2, SIZE))
    for row in np.asarray(e)[np.asarray(weight) > 0]:
        scores = np.exp(row @ np.asarray(learner.clusters.weight))
        for k in range(2):
            want[k] += scores[k] / scores.sum() * row
    got = learner._prototypes(e, jnp.zeros((6, 1)), weight)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got.sum(0), e[weight > 0].sum(0), rtol=1e-4, atol=1e-5)


def test_class_targets_have_class_means(key):
    """Rows of weight 0 do not count, and a class without rows has a prototype of zeros."""
    learner = SMALL_ARML.build(CLASSES, key=key)
    e, weight = jr.normal(key, (6, SIZE)), jnp.array([1.0, 1.0, 1.0, 1.0, 0.0, 0.0])
    code = jax.nn.one_hot(jnp.array([0, 1, 0, 1, 2, 1]), 3)
    rows = np.asarray(e)
    want = np.stack([(rows[0] + rows[2]) / 2, (rows[1] + rows[3]) / 2, np.zeros(SIZE)])
    np.testing.assert_allclose(learner._prototypes(e, code, weight), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spec", [SPEC, CLASSES], ids=["real", "class"])
def test_the_gate_reads_both_embeddings(spec, key):
    """Without inner steps the start is theta gated by [q, t], pieced together here."""
    config = dataclasses.replace(SMALL_ARML, inner=InnerLoop(inner_steps=0))
    learner, support = config.build(spec, key=key), small_task(spec, key=key).support
    code = learner.likelihood.encode(support.y)
    inputs = support.x if spec is CLASSES else jnp.concatenate([support.x, code], axis=1)
    e = inputs @ learner.embed.linear.weight
    c = learner._prototypes(e, code, support.weight)
    rows = jnp.concatenate([c, jnp.eye(3)], axis=1) if spec is CLASSES else e
    q, q_loss = learner.q_encoder(rows, jnp.ones(rows.shape[0]))
    t, t_loss = learner.t_encoder(learner.graph(c), jnp.ones(c.shape[0]))
    theta0, reconstruction = learner._fine_tune(support)
    want = learner.gate(learner.theta, jnp.concatenate([q, t]))
    for got_leaf, want_leaf in zip(jax.tree.leaves(theta0), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(got_leaf, want_leaf, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(reconstruction, q_loss + t_loss, rtol=1e-5)


def test_without_gate_logits_it_is_maml_from_half_the_weights(key):
    learner = SMALL_ARML.build(SPEC, key=key)
    learner = eqx.tree_at(lambda m: m.gate, learner, replace_fn=lambda gate: jax.tree.map(jnp.zeros_like, gate))
    half = jax.tree.map(lambda leaf: leaf / 2, learner.theta)
    plain = maml.MAML(half, learner.likelihood, maml.Config(hidden=(8, 8), inner=SMALL_ARML.inner))
    task = small_task(SPEC, key=key)
    got, want = (predict(m, task.support, task.query.x, key=key).mean for m in (learner, plain))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_loss_is_the_query_loss_plus_the_weighted_reconstruction_losses(key):
    task = small_task(SPEC, key=key)
    light, heavy = (
        dataclasses.replace(SMALL_ARML, reconstruction_weight=weight).build(SPEC, key=key).loss(task, key=key)
        for weight in (0.0, 3.0)
    )
    assert light[1]["reconstruction"] > 0
    np.testing.assert_allclose(heavy[0], light[0] + 3 * light[1]["reconstruction"], rtol=1e-5)
    predicted = predict(SMALL_ARML.build(SPEC, key=key), task.support, task.query.x, key=key).mean
    np.testing.assert_allclose(light[0], jnp.square(predicted - task.query.y).mean(), rtol=1e-5)


@pytest.mark.parametrize("spec", [SPEC, CLASSES], ids=["real", "class"])
def test_recurrent_embedding_heeds_order_but_not_padding(spec, key):
    """For classes it reads the prototypes, so that the order of the examples is irrelevant even then."""
    learner = dataclasses.replace(SMALL_ARML, embedding="rnn", reading_order="given").build(spec, key=key)
    task = small_task(spec, key=key)

    @eqx.filter_jit
    def mean(support):
        return predict(learner, support, task.query.x, key=key).mean

    np.testing.assert_allclose(mean(pad(task.support, 7)), mean(task.support), rtol=1e-4, atol=1e-5)
    shuffled = jax.tree.map(lambda a: a[::-1], task.support)
    assert np.allclose(mean(shuffled), mean(task.support), atol=1e-5) == (spec is CLASSES)
