"""Convolutions, pooling and normalisation against other libraries' and NumPy's."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stmaml.errors import SettingError
from stmaml.inner import InnerLoop
from stmaml.methods import maml
from stmaml.methods.base import settle
from stmaml.nets import patches
from stmaml.nets.backbone import base_learner
from stmaml.nets.conv import (
    EPSILON,
    Conv,
    ConvBody,
    ConvLearner,
    Moments,
    Norm,
    feature_shape,
    moments_by_inputs,
    moments_of,
)
from stmaml.nets.convolution import conv3x3
from stmaml.nets.learner import Learner
from stmaml.nets.modulated import Film
from stmaml.nets.patches import Precision, largest, pick, squares_of
from stmaml.tasks import Examples, Task, TaskSpec

TINY = Conv(channels=4, conv_blocks=2)
SHAPE = (8, 8, 3)
SIZES = ((3, 4, 5), (5, 2), (3, 4, 5), (5, 2))


@eqx.filter_jit
def run(net, *inputs):
    """As one compiled program: operation by operation it takes longer."""
    return net(*inputs)


def lax_conv(x, weight):
    return jax.lax.conv_general_dilated(x, weight, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def max_pool(x):
    return pick(squares_of(x), largest(squares_of(x)))


def lax_pool(x):
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


@eqx.filter_jit
def pulled(function, cotangent, *inputs):
    """Values and gradients."""
    out, pull = jax.vjp(function, *inputs)
    return out, *pull(cotangent)


@pytest.fixture(scope="module")
def images():
    return jr.uniform(jr.key(1), (5, *SHAPE))


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_sum_in_pieces_and_its_derivatives_are_those_of_one_sum(pieces, key, monkeypatch):
    """As on a GPU, where a sum over images is split: values, gradients and gradients of gradients."""
    monkeypatch.setattr(patches, "_pieces", lambda images: pieces)
    a, matrix, c, d = (jr.normal(k, s) for k, s in zip(jr.split(key, 4), SIZES, strict=True))

    def twice(product):
        def once(a, matrix):
            grads = jax.grad(lambda a, m: jnp.sin(product(a, m)).sum(), argnums=(0, 1))(a, matrix)
            return (jnp.cos(grads[0]) * c).sum() + (jnp.cos(grads[1]) * d).sum()

        return jax.jit(jax.value_and_grad(once, argnums=(0, 1)))(a, matrix)

    ours, plain = twice(patches._product), twice(lambda a, m: jnp.einsum("npk,ko->npo", a, m))
    for found, want in zip(jax.tree.leaves(ours), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4)


def test_sums_are_split_into_a_few_equal_pieces_on_a_gpu(monkeypatch):
    assert patches._pieces(25) == 1
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert [patches._pieces(n) for n in (1, 2, 7, 10, 25, 75, 100)] == [1, 2, 7, 5, 5, 5, 4]


@pytest.mark.parametrize("mode", ["batch", "support", "group", "none"])
@pytest.mark.parametrize("side", [6, 7])
def test_pooling_first_changes_nothing(mode, side, key):
    """Scales of both signs; an odd row and column are in no square but in the statistics."""
    block = ConvBody((side, side, 2), Conv(channels=4, conv_blocks=1, norm=mode), key=key).blocks[0]
    scale, weight = jnp.array([1.0, -0.5, 2.0, -1.5]), jnp.array([1.0, 0.0, 2.0])
    if mode != "none":
        block = eqx.tree_at(lambda b: b.norm.scale, block, scale)
    block = eqx.tree_at(lambda b: b.norm.shift, block, jnp.array([0.2, -0.1, 0.0, 0.3]))
    x = jr.normal(key, (3, side, side, 2))
    responses = conv3x3(x, block.weight)
    want = jax.nn.relu(max_pool(block.norm(responses, moments_of(responses, weight))))
    np.testing.assert_allclose(block.activate(block.convolve(x, weight), None), want, rtol=1e-4, atol=1e-5)


def test_moments_are_those_of_numpy(key):
    x = 3 + jnp.stack([0.5 * jr.normal(key, (3, 4, 5)), 2 * jr.normal(jr.key(1), (3, 4, 5))], axis=-1)
    found = moments_of(x, jnp.array([1.0, 0.0, 1.0]))
    counted = np.asarray(x)[[0, 2]].reshape(-1, 2)
    np.testing.assert_allclose(found.mean, counted.mean(0), rtol=1e-5)
    np.testing.assert_allclose(found.variance, counted.var(0), rtol=1e-4)
    empty = moments_of(x, jnp.zeros(3))
    np.testing.assert_array_equal(empty.mean, [0, 0])
    np.testing.assert_array_equal(empty.variance, [1, 1])


@pytest.mark.parametrize("side", [6, 7])
@pytest.mark.parametrize("weight", [[1.0, 1.0, 1.0], [1.0, 0.0, 2.0], [0.0, 0.0, 0.0]])
def test_moments_by_inputs_and_their_gradients_are_those_of_the_convolution(side, weight, key):
    x, kernel = jr.uniform(key, (3, side, side, 2)), jr.normal(jr.key(1), (3, 3, 2, 4))
    cotangent = Moments(jr.normal(jr.key(2), (4,)), jr.normal(jr.key(3), (4,)))

    def by_convolution(kernel):
        return moments_of(conv3x3(x, kernel), jnp.array(weight))

    def by_patches(kernel):
        return moments_by_inputs(x, kernel, jnp.array(weight))

    for want, found in zip(
        jax.tree.leaves(pulled(by_convolution, cotangent, kernel)),
        jax.tree.leaves(pulled(by_patches, cotangent, kernel)),
        strict=True,
    ):
        np.testing.assert_allclose(found, want, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("shape", [(2, 4, 6, 3), (2, 5, 7, 3)])
def test_pooling_and_its_gradients_are_those_of_lax(shape, key):
    x = jr.normal(key, shape)
    cotangent = jr.normal(jr.key(1), (2, 2, 3, 3))
    for ours, theirs in zip(pulled(max_pool, cotangent, x), pulled(lax_pool, cotangent, x), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_of_equal_numbers_the_first_gets_the_whole_gradient():
    gradient = jax.grad(lambda x: max_pool(x).sum())(jnp.ones((1, 2, 2, 1)))
    np.testing.assert_array_equal(gradient[0, ..., 0], [[1, 0], [0, 0]])


def normalised(x, axes):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + EPSILON)


@pytest.mark.parametrize("mode", ["batch", "support", "group", "none"])
def test_normalisation_is_numpys(mode, key):
    x = np.asarray(3 + 2 * jr.normal(key, (4, 3, 5, 16)), dtype=float)
    scale, shift = jr.normal(jr.key(1), (16,)), jr.normal(jr.key(2), (16,))
    norm = eqx.tree_at(lambda n: n.shift, Norm(16, mode), shift)
    if mode == "none":
        assert norm.scale is None
        want = x + np.asarray(shift)
    else:
        norm = eqx.tree_at(lambda n: n.scale, norm, scale)
        if mode == "group":
            plain = normalised(x.reshape(4, 3, 5, 2, 8), (1, 2, 4)).reshape(x.shape)
        else:
            plain = normalised(x, (0, 1, 2))
        want = plain * np.asarray(scale) + np.asarray(shift)
    values = jnp.asarray(x, dtype=jnp.float32)
    np.testing.assert_allclose(norm(values, moments_of(values, jnp.ones(4))), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["batch", "support", "group", "none"])
def test_images_of_weight_zero_have_no_part_in_the_statistics(mode, images, key):
    body = ConvBody(SHAPE, dataclasses.replace(TINY, norm=mode), key=key)
    weight = jnp.array([1.0, 1, 0, 1, 0])
    dirty = jnp.where(weight[:, None, None, None] > 0, images, 7.0)
    real = np.asarray(weight) > 0
    np.testing.assert_allclose(run(body, dirty, weight)[real], run(body, images[real]), rtol=1e-4, atol=1e-5)


def test_an_empty_support_leaves_numbers_finite(images, key):
    body = ConvBody(SHAPE, dataclasses.replace(TINY, norm="support"), key=key)
    assert np.isfinite(run(run(body.settle, images, jnp.zeros(5)), images)).all()


def test_a_settled_network_judges_each_image_on_its_own(images, key):
    support = Examples.of(jr.uniform(jr.key(2), (4, *SHAPE)), jnp.zeros(4, dtype=int))
    for mode, alone in (("support", True), ("batch", False)):
        theta = ConvLearner(SHAPE, dataclasses.replace(TINY, norm=mode), 3, key=key)
        settled = eqx.filter_jit(settle)(theta, support)
        together, single = run(settled, images), run(settled, images[:1])
        assert np.allclose(together[:1], single, rtol=1e-4, atol=1e-5) == alone
        # what is remembered are the statistics of these weights on the support, no other's
        np.testing.assert_allclose(run(settled, support.x), run(theta, support.x), rtol=1e-4, atol=1e-5)
        assert np.allclose(single, run(theta, images[:1])) != alone


def test_settling_heeds_the_modulation_and_the_weights(images, key):
    body = ConvBody(SHAPE, dataclasses.replace(TINY, norm="support"), key=key)
    tau = tuple(Film(jr.normal(jr.key(i), (4,)), jr.normal(jr.key(i + 9), (4,))) for i in range(2))
    weight = jnp.array([1.0, 1, 0, 1, 0])
    settled = run(body.settle, images, weight, tau)
    np.testing.assert_allclose(run(settled, images, None, tau), run(body, images, weight, tau), rtol=1e-4, atol=1e-5)


def test_a_modulation_follows_the_normalisation(images, key):
    """FiLM of one block, from its definition: the block's own numbers times (1 + gamma) plus beta, before ReLU."""
    body = ConvBody(SHAPE, Conv(channels=4, conv_blocks=1), key=key)
    film = Film(jr.normal(key, (4,)), jr.normal(jr.key(1), (4,)))
    block = body.blocks[0]
    responses = conv3x3(images, block.weight)
    raw = np.asarray(block.norm(responses, moments_of(responses, jnp.ones(5))))
    raw = raw * (1 + np.asarray(film.gamma)) + np.asarray(film.beta)
    want = np.maximum(raw.reshape(5, 4, 2, 4, 2, 4).max((2, 4)), 0).reshape(5, -1)
    np.testing.assert_allclose(body(images, None, (film,)), want, rtol=1e-4, atol=1e-5)


def reference_net(theta: ConvLearner, x):
    """The same network from lax's convolution and pooling, with ReLU before pooling."""
    for block in theta.body.blocks:
        x = lax_conv(x, block.weight)
        x = (x - x.mean((0, 1, 2))) / jnp.sqrt(x.var((0, 1, 2)) + EPSILON)
        assert block.norm.scale is not None
        x = lax_pool(jax.nn.relu(x * block.norm.scale + block.norm.shift))
    return x.reshape(x.shape[0], -1) @ theta.head.weight + theta.head.bias


def test_outer_gradients_through_inner_steps_are_those_of_a_network_made_of_lax(key):
    """Second derivatives of convolution, normalisation, pooling and ReLU at once."""
    theta = ConvLearner(SHAPE, Conv(channels=3, conv_blocks=2), 3, key=key)
    x, y = jr.uniform(key, (6, *SHAPE)), jnp.arange(6) % 3

    def cross_entropy(raw):
        return -jax.nn.log_softmax(raw)[jnp.arange(6), y].mean()

    def meta(net, theta):
        grads = jax.grad(lambda theta: cross_entropy(net(theta, x)))(theta)
        moved = jax.tree.map(lambda p, g: p - 0.5 * g, theta, grads)
        return cross_entropy(net(moved, x[::-1]))

    def ours(theta, x):
        return theta(x)

    with jax.numpy_rank_promotion("allow"):  # the reference broadcasts as NumPy does
        want = jax.jit(jax.grad(lambda theta: meta(reference_net, theta)))(theta)
    got = jax.jit(jax.grad(lambda theta: meta(ours, theta)))(theta)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4)


def test_the_benchmarks_network_has_800_features():
    conv = Conv()
    theta = eqx.filter_eval_shape(lambda key: ConvLearner((84, 84, 3), conv, 5, key=key), jr.key(0))
    assert theta.head.weight.shape == (800, 5)
    assert feature_shape((84, 84, 3), dataclasses.replace(conv, channels=64)) == (5, 5, 64)
    assert sum(leaf.size for leaf in jax.tree.leaves(theta)) == 27 * 32 + 3 * 9 * 32 * 32 + 4 * 2 * 32 + 800 * 5 + 5


@pytest.mark.parametrize(("form", "acts"), [("shift", True), ("head", False)])
def test_h_changes_the_order_of_pictures_where_it_shifts_channels(images, key, form, acts):
    """At the head it adds one number to a logit of all pictures, so that their order stays."""
    theta = ConvLearner(SHAPE, TINY, 1, h_size=3, h_form=form, key=key)
    directions = jr.normal(jr.key(3), (20, 3))
    plain = np.asarray(theta(images, jnp.zeros(3))[:, 0])
    orders = [np.argsort(np.asarray(theta(images, 5 * h)[:, 0])).tolist() for h in directions]
    assert any(order != np.argsort(plain).tolist() for order in orders) == acts


def test_h_is_a_shift_after_normalisation_and_stays_when_the_network_settles(images, key):
    theta = ConvLearner(SHAPE, dataclasses.replace(TINY, norm="support"), 2, h_size=3, key=key)
    assert theta.shifts is not None
    h = jnp.array([1.0, -2, 3])
    moved = [block.norm.shift + h @ by.weight for block, by in zip(theta.body.blocks, theta.shifts, strict=True)]
    by_hand = eqx.tree_at(lambda body: [block.norm.shift for block in body.blocks], theta.body, moved)
    np.testing.assert_allclose(theta(images, h), theta.head(by_hand(images)), rtol=1e-5, atol=1e-5)
    settled = theta.settle(images, jnp.ones(len(images)), h)
    np.testing.assert_allclose(settled(images, h), theta(images, h), rtol=1e-4, atol=1e-5)


def test_at_first_h_moves_features_a_little(images, key):
    """With shifts as large as other layers' outputs, an h that is drawn at random silences whole blocks for good."""
    theta = ConvLearner(SHAPE, TINY, 2, h_size=32, key=key)
    plain = np.asarray(theta.features(images, jnp.zeros(32)))
    moved = [np.asarray(theta.features(images, h)) for h in jr.normal(jr.key(4), (8, 32))]
    change = np.median([np.linalg.norm(one - plain) / np.linalg.norm(plain) for one in moved])
    assert 0.01 < change < 0.3


def test_features_join_before_the_head(images, key):
    theta = ConvLearner(SHAPE, TINY, 2, h_size=3, h_form="head", key=key)
    h = jnp.array([1.0, -2, 3])
    plain = np.asarray(theta.body(images)) @ np.asarray(theta.head.weight)[:-3]
    np.testing.assert_allclose(theta(images, h), plain + np.asarray(h @ theta.head.weight[-3:]), rtol=1e-4, atol=1e-5)


def test_images_get_convolutions_and_vectors_a_perceptron(key):
    assert isinstance(base_learner(TaskSpec(SHAPE, 3, target="class"), (8,), TINY, 3, key=key), ConvLearner)
    learner = base_learner(TaskSpec((2,), 1), (8,), TINY, 1, h_size=2, key=key)
    assert eqx.tree_equal(learner, Learner(2, (8,), 1, h_size=2, key=key))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Conv(channels=0), "--channels must be at least 1; got 0"),
        (lambda: Conv(conv_blocks=0), "--conv-blocks must be at least 1; got 0"),
        (lambda: ConvBody((8, 20, 3), Conv(), key=jr.key(0)), "8 by 20 are too small for 4 blocks"),
    ],
)
def test_settings_that_cannot_be(make, match):
    with pytest.raises(SettingError, match=match):
        make()


def outer_gradient(learner: maml.MAML, task: Task, key) -> np.ndarray:
    grads = eqx.filter_jit(eqx.filter_grad(lambda learner: learner.loss(task, key=key)[0]))(learner)
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(grads)])


def test_rematerialised_first_order_and_rounded_gradients(key):
    spec = TaskSpec((6, 6, 1), 2, target="class")
    x, y = jr.uniform(key, (16, *spec.x_shape)), jnp.arange(16) % 2
    task = Task(Examples.of(x, y), Examples.of(x[::-1], y))

    def learner(precision: Precision = "float32", **inner):
        config = maml.Config(conv=Conv(3, 1, precision=precision), inner=InnerLoop(0.3, 2, **inner))
        return config.build(spec, key=jr.key(0))

    exact = outer_gradient(learner(), task, key)
    np.testing.assert_allclose(outer_gradient(learner(remat=True), task, key), exact, rtol=1e-3, atol=1e-5)

    rounded = outer_gradient(learner("bfloat16"), task, key)
    cosine = rounded @ exact / np.linalg.norm(rounded) / np.linalg.norm(exact)
    assert 0.98 < cosine < 1  # rounding also changes which pixel wins a square, now and then

    first = outer_gradient(learner(order="first"), task, key)
    # as if the fine-tuned weights were the parameters
    moved = eqx.filter_jit(learner().network)(task.support)
    still = dataclasses.replace(learner(), theta=moved, settings=maml.Config(inner=InnerLoop(inner_steps=0)))
    np.testing.assert_allclose(first, outer_gradient(still, task, key), rtol=1e-3, atol=1e-5)
    assert np.linalg.norm(first - exact) > 0.01 * np.linalg.norm(exact)
