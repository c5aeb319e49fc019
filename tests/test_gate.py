"""The gate on every parameter of a network."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from stmaml.nets.gate import Gate, perturb
from stmaml.nets.learner import Learner

CODE = 6


def test_each_parameter_is_scaled_by_the_sigmoid_of_its_own_logit(key):
    theta = perturb(Learner(2, (8, 8), 1, key=key), scale=0.5, key=key)
    gate, code = Gate(CODE, theta, key=key), jr.normal(key, (CODE,))
    pairs = zip(gate.layers, jax.tree.leaves(theta), jax.tree.leaves(gate(theta, code)), strict=True)
    for layer, before, after in pairs:
        logits = np.asarray(code) @ np.asarray(layer.weight)
        for i, value in enumerate(np.asarray(before).ravel()):
            np.testing.assert_allclose(np.asarray(after).ravel()[i], value / (1 + np.exp(-logits[i])), rtol=1e-4)


def test_a_gate_without_logits_halves_everything(key):
    theta = Learner(2, (8, 8), 1, key=key)
    gate = jax.tree.map(jnp.zeros_like, Gate(CODE, theta, key=key))
    assert eqx.tree_equal(gate(theta, jnp.ones(CODE)), jax.tree.map(lambda leaf: leaf / 2, theta))


def test_perturbed_parameters_are_close_and_none_is_zero(key):
    theta = Learner(2, (8, 8), 1, key=key)
    for before, after in zip(jax.tree.leaves(theta), jax.tree.leaves(perturb(theta, key=key)), strict=True):
        assert np.all(np.asarray(after) != np.asarray(before))
        assert np.abs(np.asarray(after - before)).max() < 0.05
