"""Inputs on a lattice that read a labelled set as a picture: against plain convolutions, and what must not matter."""

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
from stmaml.nets.lattice import LatticeReader, draw, places
from stmaml.recipes import Modelling, build_learner
from stmaml.tasks import Examples, Scaling, Task, TaskSpec, pad
from tests.methods.small import gradients, untouched

LATTICE = (8, 12)
CHANNELS = 4


def some_places(count: int, *, key) -> jax.Array:
    """Different places of the lattice, as coordinates from 0 to 1."""
    flat = jr.permutation(key, LATTICE[0] * LATTICE[1])[:count]
    return jnp.stack([flat // LATTICE[1] / (LATTICE[0] - 1), flat % LATTICE[1] / (LATTICE[1] - 1)], axis=1)


@pytest.fixture(scope="module")
def reader() -> LatticeReader:
    return eqx.filter_jit(LatticeReader)(LATTICE, 2, 1, CHANNELS, key=jr.key(3))


@pytest.fixture(scope="module")
def xy():
    return jnp.concatenate([some_places(9, key=jr.key(1)), jr.uniform(jr.key(2), (9, 1))], axis=1)


@eqx.filter_jit
def everywhere(reader: LatticeReader, xy, weight):
    return reader(xy, weight).values


# Pictures of labelled sets.


def test_inputs_belong_to_the_nearest_place_and_none_falls_outside():
    x = jnp.array([[0.0, 0.0], [1.0, 1.0], [3 / 7 + 0.02, 5 / 11 - 0.02], [-0.3, 1.2]])
    rows, columns = places(x, LATTICE)
    np.testing.assert_array_equal(rows, [0, 7, 3, 0])
    np.testing.assert_array_equal(columns, [0, 11, 5, 11])


def test_labels_are_drawn_in_their_places_beside_a_mark():
    where = (jnp.array([1, 0, 1]), jnp.array([2, 0, 2]))
    picture = draw(where, jnp.array([[0.2], [0.7], [0.6]]), jnp.ones(3), (2, 3))
    np.testing.assert_allclose(picture[..., 0], [[0.7, 0, 0], [0, 0, 0.4]], rtol=1e-6)  # the mean where two meet
    np.testing.assert_allclose(picture[..., 1], [[1, 0, 0], [0, 0, 1]], rtol=1e-6)


def test_rows_of_weight_zero_are_not_drawn():
    where = (jnp.array([1, 0, 1]), jnp.array([2, 0, 2]))
    picture = draw(where, jnp.array([[0.2], [0.7], [0.6]]), jnp.array([1.0, 0.0, 0.0]), (2, 3))
    np.testing.assert_allclose(picture, np.pad([[[0.2, 1.0]]], ((1, 0), (2, 0), (0, 0))), rtol=1e-6)


# The network.


def convolved(x, kernel):
    return np.asarray(
        jax.lax.conv_general_dilated(
            x[None], kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), precision="highest"
        )[0]
    )


def normed(x, layer):
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + layer.eps)
    return scaled * np.asarray(layer.weight) + np.asarray(layer.bias)


def revised(x, block):
    y = convolved(np.maximum(normed(x, block.norms[0]), 0), block.kernels[0])
    return x + convolved(np.maximum(normed(y, block.norms[1]), 0), block.kernels[1])


def halved(x, layer):
    """Place (i, j) from the four places (2i, 2j), (2i, 2j + 1), (2i + 1, 2j), (2i + 1, 2j + 1), in this order."""
    four = np.concatenate([x[0::2, 0::2], x[0::2, 1::2], x[1::2, 0::2], x[1::2, 1::2]], axis=-1)
    return four @ np.asarray(layer.weight) + np.asarray(layer.bias)


def doubled(x, layer):
    out = np.split(x @ np.asarray(layer.weight) + np.asarray(layer.bias), 4, axis=-1)
    large = np.zeros((2 * x.shape[0], 2 * x.shape[1], out[0].shape[-1]), dtype=np.float32)
    for k, part in enumerate(out):
        large[k // 2 :: 2, k % 2 :: 2] = part
    return large


def by_hand(reader: LatticeReader, xy: np.ndarray) -> np.ndarray:
    """Down twice, up twice, with what was there on the way down added on the way up."""
    rows, columns = (np.rint(xy[:, i] * (LATTICE[i] - 1)).astype(int) for i in range(2))
    picture = np.zeros((*LATTICE, 2), dtype=np.float32)
    picture[rows, columns] = np.stack([xy[:, 2], np.ones(len(xy))], axis=1)
    large = convolved(picture, reader.stem)
    for block in reader.down[0]:
        large = revised(large, block)
    middle = halved(large, reader.shrink[0])
    for block in reader.down[1]:
        middle = revised(middle, block)
    small = halved(middle, reader.shrink[1])
    for block in reader.down[2]:
        small = revised(small, block)
    middle = doubled(small, reader.grow[1]) + middle
    for block in reader.up[1]:
        middle = revised(middle, block)
    large = doubled(middle, reader.grow[0]) + large
    for block in reader.up[0]:
        large = revised(large, block)
    return np.maximum(normed(large, reader.norm), 0)


def test_the_answers_are_those_of_a_network_written_out_with_plain_convolutions(reader, xy):
    np.testing.assert_allclose(
        everywhere(reader, xy, jnp.ones(9)), by_hand(reader, np.asarray(xy)), rtol=1e-3, atol=1e-4
    )


def test_an_input_reads_the_place_where_it_lies(reader, xy):
    x = some_places(5, key=jr.key(7))
    values = everywhere(reader, xy, jnp.ones(9))
    rows, columns = (np.rint(np.asarray(x[:, i]) * (LATTICE[i] - 1)).astype(int) for i in range(2))
    np.testing.assert_array_equal(
        eqx.filter_jit(lambda r, xy, x: r(xy, jnp.ones(9))(x))(reader, xy, x), values[rows, columns]
    )


def test_rows_of_weight_zero_and_their_order_change_nothing(reader, xy):
    padded = jnp.concatenate([xy, jnp.full((2, 3), 0.5)])[::-1]
    weight = jnp.concatenate([jnp.ones(9), jnp.zeros(2)])[::-1]
    want = everywhere(reader, xy, jnp.ones(9))
    np.testing.assert_allclose(everywhere(reader, padded, weight), want, rtol=1e-5, atol=1e-6)


def test_an_empty_set_still_gives_numbers(reader, xy):
    assert np.isfinite(everywhere(reader, xy, jnp.zeros(9))).all()


def test_every_example_reaches_every_place(reader, xy):
    """On the smallest of the three sizes, 2 by 3 here, every place sees every other."""
    jacobian = eqx.filter_jit(jax.jacobian(lambda xy: reader(xy, jnp.ones(9)).values))(xy)
    assert (np.abs(jacobian[..., 2]).max(axis=2) > 0).all()


def test_any_size_of_lattice_will_do(key):
    odd = eqx.filter_jit(LatticeReader)((5, 7), 2, 1, CHANNELS, key=key)
    assert everywhere(odd, jnp.array([[0.5, 0.5, 1.0]]), jnp.ones(1)).shape == (5, 7, CHANNELS)


def test_in_bfloat16_the_answers_agree_to_its_accuracy(reader, xy):
    again = eqx.filter_jit(LatticeReader)(LATTICE, 2, 1, CHANNELS, precision="bfloat16", key=jr.key(3))
    want, got = everywhere(reader, xy, jnp.ones(9)), everywhere(again, xy, jnp.ones(9))
    assert got.dtype == jnp.float32
    assert 0 < np.abs(got - want).max() < 0.15


# In ST-MAML.

SPEC = TaskSpec((2,), 1, target="binary", lattice=LATTICE)
LOOKUP = LookUp("lattice", CHANNELS)
CONFIG = st_maml.Config(
    hidden=(8,),
    h_size=3,
    encoder=st_maml.Encoding((8, 8), z_hidden=(), z_size=4),
    inner=InnerLoop(inner_lr=0.5, inner_steps=1),
)


def pixels(*, key, queries: int = 6) -> Task:
    x_key, y_key = jr.split(key)
    x, y = some_places(5 + queries, key=x_key), jr.uniform(y_key, (5 + queries, 1))
    return Task(Examples.of(x[:5], y[:5]), Examples.of(x[5:], y[5:]))


@pytest.fixture(scope="module")
def learner() -> Any:
    return eqx.filter_jit(LOOKUP.build)(CONFIG, SPEC, key=jr.key(0))


@eqx.filter_jit
def logits(learner: AbstractMetaLearner, support: Examples, x, key):
    """Of two draws of z."""
    return jax.scipy.special.logit(predict_with(learner.adapt(support, num_samples=2, key=key), x).components.mean())


def test_without_inner_steps_the_base_learner_reads_input_surroundings_and_h(learner, key):
    task = pixels(key=key)
    still = with_inner(learner, lambda inner: InnerLoop(inner_lr=0.0, inner_steps=0))
    method = learner.learner
    xy = pairs(task.support, method.likelihood)
    d_z = method.phi(xy, task.support.weight)
    z = d_z.mu + d_z.sigma * jr.normal(jr.split(key, 2)[0], d_z.mu.shape)
    found = learner.reader(xy, task.support.weight)(task.query.x)
    inputs = np.concatenate([task.query.x, found, np.tile(method.beta(z), (6, 1))], axis=1)
    (first,), head = method.theta.body, method.theta.head
    hidden = np.maximum(inputs @ np.asarray(first.weight) + np.asarray(first.bias), 0)
    gate = 1 / (1 + np.exp(-np.asarray(method.w(z))))
    want = hidden @ (gate[:, None] * np.asarray(head.weight)) + np.asarray(head.bias)
    np.testing.assert_allclose(logits(still, task.support, task.query.x, key)[0], want, rtol=1e-3, atol=1e-5)


def test_padding_and_order_of_the_support_change_nothing(learner, key):
    task = pixels(key=key)
    want = logits(learner, task.support, task.query.x, key)
    other = jax.tree.map(lambda leaf: leaf[::-1], pad(task.support, 8))
    np.testing.assert_allclose(logits(learner, other, task.query.x, key), want, rtol=1e-3, atol=1e-4)


def test_every_parameter_learns(learner, key):
    tasks = jax.vmap(lambda key: pixels(key=key))(jr.split(key, 4))
    assert untouched(gradients(learner, tasks, key=key)) == []


def test_inputs_on_no_lattice_cannot_be_read_as_a_picture(key):
    with pytest.raises(SettingError, match="needs inputs on a lattice, such as pixels"):
        LOOKUP.build(CONFIG, dataclasses.replace(SPEC, lattice=None), key=key)


def test_standardised_pixels_are_no_lattice(key):
    """Their coordinates are not in 0..1, so the picture would be drawn in the wrong places."""
    scaling = Scaling((0.5, 0.5), (0.3, 0.3), (0.0,), (1.0,))
    build_learner(CONFIG, SPEC, Modelling(lookup=LOOKUP), key=key)
    with pytest.raises(SettingError, match="not standardised: choose another --lookup, or add --no-standardise"):
        build_learner(CONFIG, SPEC, Modelling(standardise=True, lookup=LOOKUP), key=key, scaling=scaling)
