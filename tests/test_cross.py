"""Inputs that look at labelled examples: against NumPy, and what they must and must not depend on."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stmaml.errors import SettingError
from stmaml.inner import InnerLoop
from stmaml.methods import st_maml
from stmaml.methods.base import AbstractMetaLearner, pairs, predict_with
from stmaml.methods.looks_up import LookUp
from stmaml.methods.wrapper import with_inner
from stmaml.nets.attention import AttentionBlock
from stmaml.nets.cross import Lookup, Reader
from stmaml.tasks import Examples, TaskSpec, pad
from tests.methods.small import gradients, small_task, untouched

SIZE, HEADS = 8, 2


@pytest.fixture(scope="module")
def lookup() -> Lookup:
    return eqx.filter_jit(Lookup)(2, 3, SIZE, layers=2, num_heads=HEADS, key=jr.key(3))


@pytest.fixture(scope="module")
def xy():
    return jr.normal(jr.key(1), (5, 3))


@pytest.fixture(scope="module")
def x():
    return jr.normal(jr.key(2), (4, 2))


@eqx.filter_jit
def answers(lookup: Lookup, xy, weight, x):
    return lookup(xy, weight)(x)


def norm(rows: np.ndarray, layer: eqx.nn.LayerNorm) -> np.ndarray:
    centred = rows - rows.mean(1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(1, keepdims=True) + layer.eps)
    return scaled * np.asarray(layer.weight) + np.asarray(layer.bias)


def read(rows: np.ndarray, reader: Reader) -> np.ndarray:
    if reader.waves is not None:
        rates = np.exp(np.asarray(reader.waves.log_rates))
        fading = 0.7 ** np.arange(rates.shape[1])
        angles = rows[:, :, None] * rates
        waves = [(fading * wave).reshape(len(rows), -1) for wave in (np.sin(angles), np.cos(angles))]
        rows = np.concatenate([rows, *waves], axis=1)
    return perceptron(rows, reader)


def perceptron(rows: np.ndarray, mlp) -> np.ndarray:
    for i, layer in enumerate(mlp.layers):
        rows = rows @ np.asarray(layer.weight) + np.asarray(layer.bias)
        rows = np.maximum(rows, 0) if i < len(mlp.layers) - 1 else rows
    return rows


def layer_by_hand(block: AttentionBlock, rows: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """One query and one head at a time."""
    attention = block.attention
    q, k, v = (
        normed @ np.asarray(part.weight)
        for normed, part in (
            (norm(rows, block.norms[0]), attention.query),
            (norm(seen, block.norms[0]), attention.key),
            (norm(seen, block.norms[0]), attention.value),
        )
    )
    width = SIZE // HEADS
    found = np.zeros((len(rows), SIZE))
    for i in range(len(rows)):
        for head in range(HEADS):
            part = slice(head * width, (head + 1) * width)
            shares = np.exp(k[:, part] @ q[i, part] / np.sqrt(width))
            found[i, part] = shares @ v[:, part] / shares.sum()
    rows = rows + found @ np.asarray(attention.out.weight)
    return rows + perceptron(norm(rows, block.norms[1]), block.revise)


@pytest.mark.parametrize("octaves", [0, 3])
def test_the_answers_are_those_of_a_transformer_written_out_in_numpy(octaves, xy, x):
    lookup = eqx.filter_jit(Lookup)(2, 3, SIZE, layers=2, num_heads=HEADS, octaves=octaves, key=jr.key(3))
    first, second = lookup.blocks
    seen = read(np.asarray(xy), lookup.pair)
    rows = layer_by_hand(first, read(np.asarray(x), lookup.ask), seen)
    rows = layer_by_hand(second, rows, layer_by_hand(first, seen, seen))
    np.testing.assert_allclose(answers(lookup, xy, jnp.ones(5), x), norm(rows, lookup.norm), rtol=1e-4, atol=1e-5)


def test_rows_of_weight_zero_and_their_order_change_nothing(lookup, xy, x):
    want = answers(lookup, xy, jnp.ones(5), x)
    padded = jnp.concatenate([xy, jnp.full((2, 3), 40.0)])[::-1]
    weight = jnp.concatenate([jnp.ones(5), jnp.zeros(2)])[::-1]
    np.testing.assert_allclose(answers(lookup, padded, weight, x), want, rtol=1e-4, atol=1e-5)


def test_an_empty_set_still_gives_numbers(lookup, xy, x):
    assert np.isfinite(answers(lookup, xy, jnp.zeros(5), x)).all()


def test_inputs_do_not_look_at_each_other(lookup, xy, x):
    together = answers(lookup, xy, jnp.ones(5), x)
    alone = np.concatenate([answers(lookup, xy, jnp.ones(5), x[i : i + 1]) for i in range(4)])
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-5)


def test_every_example_reaches_every_answer(lookup, xy, x):
    jacobian = eqx.filter_jit(jax.jacobian(lambda xy: lookup(xy, jnp.ones(5))(x)))(xy)
    assert (np.abs(jacobian).max(axis=(1, 3)) > 0).all()


def test_heads_that_do_not_divide_the_size_are_refused(key):
    with pytest.raises(SettingError, match="3 heads must divide the sizes of keys and values, which are 8 and 8"):
        Lookup(2, 3, 8, layers=1, num_heads=3, key=key)


# In ST-MAML.

SPEC = TaskSpec((2,), 1, target="binary")
LOOKUP = LookUp("attention", 8, lookup_layers=1, lookup_heads=2)
CONFIG = st_maml.Config(
    hidden=(8,),
    h_size=3,
    encoder=st_maml.Encoding((8, 8), z_hidden=(), z_size=4),
    inner=InnerLoop(inner_lr=0.5, inner_steps=1),
)


@pytest.fixture(scope="module")
def learner() -> Any:
    return eqx.filter_jit(LOOKUP.build)(CONFIG, SPEC, key=jr.key(0))


@eqx.filter_jit
def logits(learner: AbstractMetaLearner, support: Examples, x, key):
    """Of two draws of z."""
    return jax.scipy.special.logit(predict_with(learner.adapt(support, num_samples=2, key=key), x).components.mean())


def test_without_inner_steps_the_base_learner_reads_input_lookup_and_h(learner, key):
    """By hand: raw = theta([x, r(x)], h) with gated head, for the mean of z drawn with the same noise."""
    task = small_task(SPEC, queries=5, key=key)
    still = with_inner(learner, lambda inner: InnerLoop(inner_lr=0.0, inner_steps=0))
    method = learner.learner
    xy = pairs(task.support, method.likelihood)
    d_z = method.phi(xy, task.support.weight)
    z = d_z.mu + d_z.sigma * jr.normal(jr.split(key, 2)[0], d_z.mu.shape)
    found = learner.reader(xy, task.support.weight)(task.query.x)
    head = method.theta.head
    hidden = perceptron(
        np.concatenate([task.query.x, found, np.tile(method.beta(z), (5, 1))], axis=1),
        eqx.tree_at(lambda m: m.layers, method.w, (method.theta.body[0],)),
    )
    gate = 1 / (1 + np.exp(-np.asarray(method.w(z))))
    want = np.maximum(hidden, 0) @ (gate[:, None] * np.asarray(head.weight)) + np.asarray(head.bias)
    np.testing.assert_allclose(logits(still, task.support, task.query.x, key)[0], want, rtol=1e-3, atol=1e-5)


def test_the_inner_loop_lowers_the_support_loss(learner, key):
    task = small_task(SPEC, key=key)
    method = learner.learner

    def loss(steps: int) -> float:
        one = with_inner(learner, lambda inner: InnerLoop(inner_lr=0.5 * steps, inner_steps=steps))
        raw = logits(one, task.support, task.support.x, key)[0]
        return float(method.likelihood.mean_objective(raw, task.support))

    assert loss(1) < loss(0) - 0.02


def test_padding_and_order_of_the_support_change_nothing(learner, key):
    task = small_task(SPEC, key=key)
    want = logits(learner, task.support, task.query.x, key)
    other = jax.tree.map(lambda leaf: leaf[::-1], pad(task.support, 8))
    np.testing.assert_allclose(logits(learner, other, task.query.x, key), want, rtol=1e-3, atol=1e-4)


def test_every_parameter_learns_with_waves_too(key):
    lookup = dataclasses.replace(LOOKUP, lookup_waves=2)
    learner = eqx.filter_jit(lookup.build)(CONFIG, SPEC, key=jr.key(0))
    tasks = jax.vmap(lambda key: small_task(SPEC, key=key))(jr.split(key, 4))
    assert untouched(gradients(learner, tasks, key=key)) == []


def test_without_a_lookup_nothing_is_looked_up(key):
    plain = eqx.filter_eval_shape(LookUp().build, CONFIG, SPEC, key=key)
    assert plain.theta.body[0].weight.shape == (2 + 3, 8)
    crossed = eqx.filter_eval_shape(LOOKUP.build, CONFIG, SPEC, key=key)
    assert crossed.learner.theta.body[0].weight.shape == (2 + 8 + 3, 8)
    assert crossed.learner.phi.pair.layers[0].weight.shape == (2 + 1, 8)  # reads what was given alone
