"""MMAML's own mathematics: the recurrent encoder, the modulations, and what the inner loop leaves alone."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stmaml.inner import InnerLoop
from stmaml.methods import maml, mmaml
from stmaml.methods.base import pairs
from stmaml.methods.mmaml import MMAML
from stmaml.nets.conv import Conv
from stmaml.nets.layers import Linear
from stmaml.nets.learner import Learner
from stmaml.nets.modulated import Film, Gate, ModulatedLearner, modulation_of
from stmaml.nets.recurrent import BiLSTM
from stmaml.tasks import Examples, TaskSpec
from tests.methods.small import small_task

SPEC = TaskSpec((2,), 1)
INNER = InnerLoop(inner_lr=0.05, inner_steps=2)
CONFIG = mmaml.Config(hidden=(8, 6), encoder=(5, 4), inner=INNER)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def naive_lstm(cell: eqx.nn.LSTMCell, rows: list[np.ndarray]) -> list[np.ndarray]:
    """The hidden state after each row, from the equations (Hochreiter and Schmidhuber, with a forget gate)."""
    h, c, states = np.zeros(cell.hidden_size), np.zeros(cell.hidden_size), []
    for x in rows:
        gates = np.asarray(cell.weight_ih) @ x + np.asarray(cell.weight_hh) @ h + np.asarray(cell.bias)
        i, f, g, o = np.split(gates, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        states.append(h)
    return states


def naive_bilstm(net: BiLSTM, rows: list[np.ndarray]) -> np.ndarray:
    """Two layers, each read both ways; the ends of the second."""
    ahead, back = [], []
    for forward, backward in zip(net.forward, net.backward, strict=True):
        ahead = naive_lstm(forward, rows)
        back = naive_lstm(backward, rows[::-1])[::-1]
        rows = [np.concatenate(pair) for pair in zip(ahead, back, strict=True)]
    return np.concatenate([ahead[-1], back[0]])


def test_encoder_equals_a_loop_from_the_equations(key):
    net, rows = BiLSTM(3, (5, 4), key=key), jr.normal(key, (6, 3))
    want = naive_bilstm(net, list(np.asarray(rows)))
    assert want.shape == (8,)
    np.testing.assert_allclose(net(rows, jnp.ones(6)), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("keep", [[1, 0, 1, 1, 0], [0, 0, 1, 0, 0], [0, 1, 1, 1, 1]])
def test_encoder_skips_rows_of_weight_zero_wherever_they_stand(keep, key):
    net, rows, weight = BiLSTM(3, (5, 4), key=key), jr.normal(key, (5, 3)), jnp.array(keep, dtype=float)
    kept = [row for row, k in zip(np.asarray(rows), keep, strict=True) if k]
    np.testing.assert_allclose(net(rows, weight), naive_bilstm(net, kept), rtol=1e-5, atol=1e-6)


def test_encoder_of_an_empty_set_is_zero_with_finite_gradients(key):
    net, rows = BiLSTM(3, (5, 4), key=key), 50 * jr.normal(key, (5, 3))
    value, grads = eqx.filter_value_and_grad(lambda net: net(rows, jnp.zeros(5)).sum())(net)
    assert value == 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


def test_film_scales_around_one_and_shifts():
    x, tau = jnp.array([[1.0, -2.0], [3.0, 4.0]]), jnp.array([0.5, -1.0, 10.0, 20.0])
    film = modulation_of("film", tau)
    assert isinstance(film, Film)
    np.testing.assert_allclose(film(x), [[11.5, 20.0], [14.5, 20.0]])


def test_gate_multiplies_by_a_sigmoid():
    x, tau = jnp.array([[1.0, -2.0]]), jnp.array([0.0, np.log(3.0)])
    gate = modulation_of("gate", tau)
    assert isinstance(gate, Gate)
    np.testing.assert_allclose(gate(x), [[0.5, -1.5]], rtol=1e-6)


def test_modulation_acts_before_the_relu_and_spares_the_head(key):
    theta = CONFIG.build(SPEC, key=key).theta
    taus = [np.asarray(jr.normal(jr.fold_in(key, i), (2 * width,))) for i, width in enumerate((8, 6))]
    x = np.asarray(jr.normal(key, (5, 2)))
    hidden = x
    assert isinstance(theta.plain, Learner)
    for layer, tau in zip(theta.plain.body, taus, strict=True):
        gamma, beta = np.split(tau, 2)
        hidden = np.maximum((hidden @ np.asarray(layer.weight)) * (1 + gamma) + beta, 0)
    want = hidden @ np.asarray(theta.plain.head.weight)
    got = theta(jnp.array(x), tuple(modulation_of("film", jnp.array(tau)) for tau in taus))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def with_zero_heads(learner: MMAML) -> MMAML:
    return eqx.tree_at(lambda t: t.omega_g, learner, jax.tree.map(jnp.zeros_like, learner.omega_g))


def test_zero_heads_with_film_are_maml(key):
    """Loss and gradients of the shared weights, through two inner steps."""
    task = small_task(SPEC, key=key)
    learner = with_zero_heads(CONFIG.build(SPEC, key=key))
    settings = maml.Config(hidden=(8, 6), inner=INNER)
    plain = maml.MAML(theta=learner.theta.plain, likelihood=learner.likelihood, settings=settings)
    got, got_grads = eqx.filter_value_and_grad(lambda t: t.loss(task, key=key)[0])(learner)
    want, want_grads = eqx.filter_value_and_grad(lambda t: t.loss(task, key=key)[0])(plain)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    for a, b in zip(jax.tree.leaves(got_grads.theta), jax.tree.leaves(want_grads.theta), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_zero_heads_with_gates_halve_the_layers(key):
    learner = with_zero_heads(dataclasses.replace(CONFIG, modulation="gate").build(SPEC, key=key))
    support = small_task(SPEC, key=key).support
    plain = learner.theta.plain
    assert isinstance(plain, Learner)
    halved = eqx.tree_at(lambda t: [layer.weight for layer in t.body], plain, [w.weight / 2 for w in plain.body])
    got = learner.theta(support.x, learner._modulation(support))
    np.testing.assert_allclose(got, halved(support.x), rtol=1e-5, atol=1e-6)


def test_modulation_is_fixed_while_the_inner_loop_moves_theta(key):
    """The adapted network is MAML's inner loop on theta under the heads' modulation of the encoder's summary."""
    learner, support = CONFIG.build(SPEC, key=key), small_task(SPEC, key=key).support
    assert isinstance(learner.omega_h, BiLSTM)
    summary = jnp.array(naive_bilstm(learner.omega_h, list(np.asarray(pairs(support, learner.likelihood)))))
    tau = tuple(Film(*jnp.split(head(summary.astype(jnp.float32)), 2)) for head in learner.omega_g)
    theta = learner.theta
    for _ in range(2):
        grads = jax.grad(lambda t: jnp.square(t(support.x, tau) - support.y).mean())(theta)
        theta = jax.tree.map(lambda p, g: p - 0.05 * jnp.clip(g, -10, 10), theta, grads)
    net = learner.network(support)
    for a, b in zip(jax.tree.leaves((net.theta, net.tau)), jax.tree.leaves((theta, tau)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_labels_of_classes_reach_the_encoder(key):
    spec = TaskSpec((2,), 3, target="class")
    learner, support = CONFIG.build(spec, key=key), small_task(spec, key=key).support
    other = eqx.tree_at(lambda e: e.y, support, (support.y + 1) % 3)
    first, second = (jax.tree.leaves(learner._modulation(s)) for s in (support, other))
    assert all(not np.allclose(a, b) for a, b in zip(first, second, strict=True))


def test_there_is_one_head_for_each_hidden_layer(key):
    learner = CONFIG.build(SPEC, key=key)
    assert isinstance(learner.theta, ModulatedLearner)
    assert all(isinstance(head, Linear) for head in learner.omega_g)
    assert [head.weight.shape for head in learner.omega_g] == [(8, 16), (8, 12)]


def test_on_images_the_modulation_starts_close_to_none(key):
    spec = TaskSpec((16, 16, 3), 3, target="class")
    learner = mmaml.Config(encoder=(16,), conv=Conv(channels=8, conv_blocks=2)).build(spec, key=key)
    support = Examples.of(jr.uniform(key, (6, 16, 16, 3)), jnp.arange(6) % 3)
    for film in learner._modulation(support):
        assert isinstance(film, Film)
        assert 0 < jnp.abs(film.gamma).max() < 0.5
