"""Steps of the optimizers: Adam's and Muon's, against what they are defined to be."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

from stmaml.experiments import create_runs, train_runs
from stmaml.nets.cross import Reader
from stmaml.nets.layers import Linear
from stmaml.training.optimizers import MUON_RMS, optimizer
from tests.training.test_loop import BENCHMARK, EXPERIMENT, TRAINING, final_state

RATE = 0.05


@pytest.fixture(scope="module")
def params() -> Reader:
    return eqx.filter_jit(Reader)(3, 6, 2, key=jr.key(0))


@pytest.fixture(scope="module")
def grads(params):
    keys = iter(jr.split(jr.key(1), 20))
    return jax.tree.map(lambda leaf: jr.normal(next(keys), leaf.shape), eqx.filter(params, eqx.is_inexact_array))


def first_step(name, params, grads, weight_decay=0.0):
    rule = optimizer(name, optax.constant_schedule(RATE), clip_norm=1e6, weight_decay=weight_decay)
    params = eqx.filter(params, eqx.is_inexact_array)
    return jax.jit(lambda: rule.update(grads, rule.init(params), params)[0])()


def test_adams_first_step_has_the_length_of_the_rate_against_the_sign(params, grads):
    update = first_step("adam", params, grads)
    jax.tree.map(lambda u, g: np.testing.assert_allclose(u, -RATE * np.sign(g), rtol=1e-3), update, grads)


def test_muon_moves_a_matrix_against_the_orthogonal_part_of_its_gradient(params, grads):
    """With g = U S V, the step is -rate U V, times 0.2 by the root of the longer side; the iteration is 30 % exact."""
    update = first_step("muon", params, grads)
    for step, grad in zip(update.layers, grads.layers, strict=True):
        u, _, v = np.linalg.svd(np.asarray(grad.weight), full_matrices=False)
        seen = u.T @ np.asarray(step.weight) @ v.T / (RATE * MUON_RMS * max(grad.weight.shape) ** 0.5)
        assert (np.diag(seen) < -0.6).all()
        assert (np.diag(seen) > -1.3).all()
        np.testing.assert_allclose(seen, np.diag(np.diag(seen)), atol=1e-3)


@pytest.mark.parametrize("name", ["adam", "muon"])
def test_decay_takes_a_share_of_weight_matrices_and_of_nothing_else(name, params, grads):
    plain, decayed = (first_step(name, params, grads, weight_decay=decay) for decay in (0.0, 0.3))
    for before, after, layer in zip(plain.layers, decayed.layers, params.layers, strict=True):
        np.testing.assert_allclose(after.weight - before.weight, -RATE * 0.3 * layer.weight, atol=1e-6)
        np.testing.assert_allclose(after.bias, before.bias, atol=1e-6)
    np.testing.assert_allclose(decayed.waves.log_rates, plain.waves.log_rates, atol=1e-6)


def test_muon_leaves_all_but_weight_matrices_to_adam(params, grads):
    """The rates of waves are a table of numbers, not a matrix, though of two axes."""
    update = first_step("muon", params, grads)
    adam = optax.adam(RATE, nesterov=True)
    for got, grad in ((update.waves.log_rates, grads.waves.log_rates), (update.layers[0].bias, grads.layers[0].bias)):
        want, _ = adam.update([grad], adam.init([grad]))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), [got], want)


@pytest.mark.parametrize("name", ["adam", "muon"])
def test_long_gradients_are_cut_before_they_are_remembered(name, params, grads):
    """A spike a million times as long as the bound counts as one of the bound's length."""
    length = float(np.sqrt(sum(np.square(leaf).sum() for leaf in jax.tree.leaves(grads))))
    rule = optimizer(name, optax.constant_schedule(RATE), clip_norm=length)
    arrays = eqx.filter(params, eqx.is_inexact_array)

    @jax.jit
    def after(spike):
        _, state = rule.update(jax.tree.map(lambda g: spike * g, grads), rule.init(arrays), arrays)
        return rule.update(jax.tree.map(jnp.flip, grads), state, arrays)[0]

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6), after(1e6), after(1.0))


def test_a_run_with_muon_can_be_interrupted_and_has_seeds_side_by_side(tmp_path):
    training = dataclasses.replace(TRAINING, steps=40, optimizer="muon")
    muon = dataclasses.replace(EXPERIMENT, training=training)
    together = create_runs(muon, BENCHMARK, tmp_path / "both", [0, 1])
    train_runs(together, muon, BENCHMARK)
    (alone,) = create_runs(muon, BENCHMARK, tmp_path / "alone", [1])
    seen = iter([False, True])
    with pytest.raises(Exception, match="stopped at step"):
        train_runs([alone], muon, BENCHMARK, should_stop=lambda: next(seen))
    train_runs([alone], muon, BENCHMARK)
    want, got = final_state(alone), final_state(together[1])
    assert want.keys() == got.keys()
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=5e-3, atol=5e-4, err_msg=name)
    adam = dataclasses.replace(EXPERIMENT, training=dataclasses.replace(training, optimizer="adam"))
    (other,) = create_runs(adam, BENCHMARK, tmp_path / "adam", [1])
    train_runs([other], adam, BENCHMARK)
    head = "learner.theta.head.weight"
    assert not np.allclose(final_state(other)[head], want[head], atol=1e-3)


def test_matrices_of_one_shape_take_the_steps_they_would_take_alone():
    keys = jr.split(jr.key(3), 4)
    layers = [Linear(4, 4, key=keys[0]), Linear(4, 4, key=keys[1]), Linear(4, 3, key=keys[2])]
    slopes = jax.tree.map(lambda leaf: jr.normal(keys[3], leaf.shape) + leaf, layers)
    together = first_step("muon", layers, slopes)
    alone = [first_step("muon", [layer], [slope])[0] for layer, slope in zip(layers, slopes, strict=True)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), together, alone)
