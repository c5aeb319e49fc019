"""Convolutions with pooling, in each of the ways they are computed, against those of lax; derivatives of two orders."""

import re

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stmaml.nets import convolution, kernels
from stmaml.nets.convolution import conv3x3, has_kernels, pooled
from stmaml.nets.patches import largest, pick, square_matrix, square_patches, squares_of


def lax_conv(x, weight):
    return jax.lax.conv_general_dilated(x, weight, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


@pytest.fixture(params=["one by one", "kernels"])
def way(request, monkeypatch):
    """As on a CPU, and as on a GPU, whose kernels are then run step by step; sizes that leave rests everywhere."""
    if request.param == "kernels":
        monkeypatch.setattr(convolution, "has_kernels", lambda: True)
        monkeypatch.setattr(kernels, "TILES", dict.fromkeys(kernels.TILES, kernels.Tile(16, 1, 1)))
    return request.param


def twice(conv, x, weight, other, target):
    """Loss after a step of gradient descent, and its gradients, mapped over tasks with weights of their own."""

    def after(weight, x, other):
        def loss(weight, x):
            return (jnp.sin(conv(x, weight)) * target).mean()

        moved = weight - 20 * jax.grad(loss)(weight, x)
        return loss(moved, x) + loss(moved, other)

    return jax.jit(jax.vmap(jax.value_and_grad(after, argnums=(0, 1, 2))))(weight, x, other)


def assert_same(found, want, tolerance=1e-5):
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=tolerance * float(jnp.abs(theirs).max()))


def test_a_convolution_and_its_derivatives_are_those_of_lax(way, key):
    x, other = jr.normal(key, (2, 2, 2, 5, 3, 2))
    weight, target = jr.normal(jr.key(1), (2, 3, 3, 2, 3)), jr.normal(jr.key(2), (2, 5, 3, 3))
    assert_same(twice(conv3x3, x, weight, other, target), twice(lax_conv, x, weight, other, target))


@pytest.mark.parametrize("count", [1, 6, 7, 10])
def test_gradients_of_weights_are_the_same_however_many_images_are_taken_at_a_time(count, key):
    """Six are taken three at a time, seven one by one, ten in fives."""
    x, g = jr.normal(key, (count, 5, 4, 2)), jr.normal(jr.key(1), (count, 5, 4, 3))
    _, pull = jax.vjp(lambda weight: lax_conv(x, weight), jnp.zeros((3, 3, 2, 3)))
    found = jax.jit(convolution.weight_gradient)(x, g)
    np.testing.assert_allclose(found, pull(g)[0], rtol=1e-4, atol=1e-5)
    assert np.abs(found).max() > 1


def squares_pooled(x, weight, sign):
    rows, matrix = square_patches(x), square_matrix(weight)
    values, winner = pooled(rows, matrix.reshape(rows.shape[-1], 4, -1), sign)
    return values.reshape(x.shape[0], x.shape[1] // 2, x.shape[2] // 2, -1), winner


def test_pooling_at_once_and_its_derivatives_are_those_of_lax(way, key):
    """The largest of some channels and the smallest of others."""
    sign = jnp.array([1.0, -1.0, 1.0])
    x, other = jr.normal(key, (2, 2, 2, 4, 6, 2))
    weight, target = jr.normal(jr.key(1), (2, 3, 3, 2, 3)), jr.normal(jr.key(2), (2, 2, 3, 3))

    def apart(x, weight):
        squares = squares_of(lax_conv(x, weight))
        return pick(squares, largest(squares * jnp.broadcast_to(sign, squares.shape)))

    ours = twice(lambda x, weight: squares_pooled(x, weight, sign)[0], x, weight, other, target)
    assert_same(ours, twice(apart, x, weight, other, target))


def test_what_derivatives_of_pooling_need_is_kept_small(key):
    """Which place was chosen, not all four numbers: XLA would keep those and choose again wherever it is read."""
    rows, matrix, sign = jr.normal(key, (6, 100, 12)), jr.normal(jr.key(1), (12, 4, 32)), jnp.ones(32)

    def descend(matrix):
        for _ in range(3):
            matrix = matrix - jax.grad(lambda matrix: jnp.sin(pooled(rows, matrix, sign)[0]).sum())(matrix)
        return jnp.sin(pooled(rows, matrix, sign)[0]).sum()

    compiled = jax.jit(jax.grad(descend)).lower(matrix).compile()
    stats = compiled.memory_analysis()
    assert stats is not None
    squares = 6 * 100 * 4 * 32 * 4  # bytes
    assert stats.temp_size_in_bytes < 4 * squares


def test_of_equal_numbers_the_first_is_the_largest(way):
    values, winner = squares_pooled(jnp.ones((1, 2, 2, 1)), jnp.zeros((3, 3, 1, 2)), jnp.array([1.0, -1.0]))
    np.testing.assert_array_equal(values, jnp.zeros((1, 1, 1, 2)))
    np.testing.assert_array_equal(winner, jnp.zeros((1, 1, 2)))


def test_in_bfloat16_values_and_gradients_agree_to_its_accuracy(way, key):
    x, weight = jr.uniform(key, (2, 6, 6, 3)), jr.normal(key, (3, 3, 3, 4))
    cotangent = jr.normal(key, (2, 6, 6, 4))

    def pulled(precision):
        out, pull = jax.vjp(lambda x, w: conv3x3(x, w, precision), x, weight)
        return out, *pull(cotangent)

    for exact, rounded in zip(pulled("float32"), pulled("bfloat16"), strict=True):
        assert rounded.dtype == jnp.float32
        error = np.abs(np.asarray(exact - rounded)).max() / np.abs(np.asarray(exact)).max()
        assert 0 < error < 0.01  # three roundings of 2^-9 each


def test_on_other_devices_it_is_patches_times_matrix(key, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    x, weight = jr.normal(key, (2, 5, 3, 2)), jr.normal(jr.key(1), (3, 3, 2, 3))
    assert "conv_general" not in str(jax.make_jaxpr(conv3x3)(x, weight))
    np.testing.assert_allclose(conv3x3(x, weight), lax_conv(x, weight), rtol=1e-4, atol=1e-5)


def test_weights_of_many_tasks_make_no_grouped_convolution(key):
    x, weight = jr.normal(key, (3, 2, 4, 4, 2)), jr.normal(key, (3, 3, 3, 2, 4))
    mapped = jax.vmap(conv3x3)
    for i in range(3):
        np.testing.assert_allclose(mapped(x, weight)[i], lax_conv(x[i], weight[i]), rtol=1e-4, atol=1e-5)
    text = str(jax.make_jaxpr(mapped)(x, weight))
    assert "feature_group_count=1" in text
    assert "feature_group_count=3" not in text


@pytest.mark.parametrize(("capability", "able"), [("9.0", True), ("8.0", True), ("7.5", False), ("gfx90a", False)])
def test_kernels_are_for_gpus_that_run_them(capability, able, monkeypatch):
    assert not has_kernels()

    class Device:
        compute_capability = capability

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", lambda: [Device()])
    assert has_kernels() == able


def test_convolutions_in_loops_are_in_an_order_that_xla_is_quick_at(key):
    """XLA brings axes into this order by itself outside of loops alone; elsewhere it takes ten times as long."""

    def descend(weight, x):
        def step(weight, _):
            return weight - jax.grad(lambda weight: jnp.sin(conv3x3(x, weight)).sum())(weight), None

        return jax.lax.scan(step, weight, length=3)[0]

    x, weight = jr.normal(key, (2, 6, 6, 3)), jr.normal(key, (3, 3, 3, 4))
    text = jax.jit(descend).lower(weight, x).compile().as_text() or ""
    orders = re.findall(r"dim_labels=(\S+?),? ", text)
    assert orders
    assert set(orders) == {"b01f_01io->b01f"}
