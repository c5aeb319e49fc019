"""The inner loop, against closed forms, finite differences and a plain loop."""

import math

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stmaml.errors import SettingError
from stmaml.inner import InnerLoop, bound, descend

CURVATURE = np.array([0.7, 2.0, 0.1], dtype=np.float32)
START = np.array([2.0, -1.0, 0.5], dtype=np.float32)


def bowl(p):
    return 0.5 * jnp.sum(CURVATURE * p**2)


def small_net_loss(params, x, y):
    hidden = jnp.tanh(x @ params["w1"] + jnp.broadcast_to(params["b1"], (x.shape[0], params["b1"].shape[0])))
    return jnp.mean((hidden @ params["w2"] - y) ** 2)


def small_net(key):
    k1, k2, k3, kx, ky = jr.split(key, 5)
    params = {"w1": jr.normal(k1, (2, 4)), "b1": 0.1 * jr.normal(k2, (4,)), "w2": jr.normal(k3, (4, 1))}
    return params, jr.normal(kx, (6, 2)), jr.normal(ky, (6, 1))


def test_steps_on_a_quadratic_have_their_closed_form():
    end = descend(bowl, START, lr=0.1, steps=4)
    np.testing.assert_allclose(end, START * (1 - 0.1 * CURVATURE) ** 4, rtol=1e-5)


def test_meta_gradient_of_a_quadratic_is_exact():
    jacobian = jax.jacobian(lambda p: descend(bowl, p, lr=0.1, steps=4))(START)
    np.testing.assert_allclose(jacobian, np.diag((1 - 0.1 * CURVATURE) ** 4), rtol=1e-5, atol=1e-7)


def test_meta_gradient_reaches_what_the_loss_closes_over():
    """x (1 - lr a)^K has derivative -K lr x (1 - lr a)^(K - 1) in the curvature a."""

    def end(a):
        return descend(lambda p: 0.5 * a * p**2, jnp.array(2.0), lr=0.1, steps=3)

    np.testing.assert_allclose(jax.grad(end)(jnp.array(0.7)), -3 * 0.1 * 2.0 * (1 - 0.07) ** 2, rtol=1e-5)


def test_meta_gradient_reaches_the_rate():
    """x (1 - lr a)^K has derivative -K a x (1 - lr a)^(K - 1) in the rate."""

    def end(lr):
        return descend(lambda p: 0.5 * 0.7 * p**2, jnp.array(2.0), lr=lr, steps=3)

    np.testing.assert_allclose(jax.grad(end)(jnp.array(0.1)), -3 * 0.7 * 2.0 * (1 - 0.07) ** 2, rtol=1e-5)


def test_first_order_drops_the_curvature():
    """With the inner gradients constant, the end moves as the start does, and not at all with the loss."""
    same = descend(bowl, START, lr=0.1, steps=4, order="first")
    np.testing.assert_allclose(same, descend(bowl, START, lr=0.1, steps=4), rtol=1e-6)
    jacobian = jax.jacobian(lambda p: descend(bowl, p, lr=0.1, steps=4, order="first"))(START)
    np.testing.assert_allclose(jacobian, np.eye(3), rtol=1e-6)
    slope = jax.grad(lambda a: descend(lambda p: a * p**2, jnp.array(2.0), lr=0.1, steps=4, order="first"))
    assert slope(jnp.array(0.7)) == 0


def test_meta_gradient_agrees_with_finite_differences(key):
    with jax.enable_x64(True):
        params, x, y = jax.tree.map(lambda a: a.astype(jnp.float64), small_net(key))
        assert x.dtype == jnp.float64
        direction = jax.tree.map(lambda a: jnp.cos(jnp.arange(a.size, dtype=a.dtype)).reshape(a.shape), params)

        @jax.jit
        def outer(params):
            end = descend(lambda p: small_net_loss(p, x[:3], y[:3]), params, lr=0.3, steps=3)
            return small_net_loss(end, x[3:], y[3:])

        slope = jax.jvp(outer, (params,), (direction,))[1]
        ahead, behind = (outer(jax.tree.map(lambda p, d, s=s: p + s * d, params, direction)) for s in (1e-5, -1e-5))
        reverse = jax.grad(outer)(params)
        np.testing.assert_allclose(slope, (ahead - behind) / 2e-5, rtol=1e-7)
        dots = jax.tree.map(lambda g, d: jnp.sum(g * d), reverse, direction)
        np.testing.assert_allclose(sum(jax.tree.leaves(dots)), slope, rtol=1e-10)


def test_it_is_a_plain_loop_of_clamped_steps(key):
    params, x, y = small_net(key)
    want = {name: np.asarray(leaf) for name, leaf in params.items()}
    for _ in range(3):
        grads = jax.grad(small_net_loss)({name: jnp.asarray(leaf) for name, leaf in want.items()}, x, y)
        want = {name: leaf - 0.2 * np.clip(grads[name], -0.15, 0.15) for name, leaf in want.items()}
    got = descend(lambda p: small_net_loss(p, x, y), params, lr=0.2, steps=3, clamp=0.15)
    for name in params:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-5, atol=1e-6)


def test_a_prefix_of_rates_covers_what_is_below_it():
    params = ({"a": jnp.array([1.0, 2.0]), "b": jnp.array([3.0])}, jnp.array([4.0]))

    def loss(p):
        return jnp.sum(p[0]["a"]) + jnp.sum(p[0]["b"]) + jnp.sum(p[1])

    (weights, code) = descend(loss, params, lr=(0.1, 0.5), steps=2)
    np.testing.assert_allclose(weights["a"], [0.8, 1.8], rtol=1e-6)
    np.testing.assert_allclose(weights["b"], [2.8], rtol=1e-6)
    np.testing.assert_allclose(code, [3.0], rtol=1e-6)


def test_every_element_can_have_its_own_rate():
    end = descend(jnp.sum, jnp.zeros(3), lr=jnp.array([0.1, -0.2, 0.0]), steps=1)
    np.testing.assert_allclose(end, [-0.1, 0.2, 0.0], rtol=1e-6)


def test_the_clamp_bounds_each_element_and_keeps_the_others():
    slopes = jnp.array([5.0, -7.0, 0.5, -0.25])
    end = descend(lambda p: jnp.sum(slopes * p), jnp.zeros(4), lr=1.0, steps=1, clamp=1.0)
    np.testing.assert_allclose(end, [-1.0, 1.0, -0.5, 0.25])


def test_clamps_may_differ_by_leaf_and_infinity_is_none():
    def loss(p):
        return 100 * (p[0] + p[1])

    weights, code = descend(loss, (jnp.array(0.0), jnp.array(0.0)), lr=1.0, steps=1, clamp=(3.0, math.inf))
    assert (weights, code) == (-3.0, -100.0)


def test_no_clamp_is_an_infinite_one():
    assert bound(None) == math.inf
    assert bound(2.0) == 2.0
    loop = InnerLoop(inner_lr=1.0, inner_steps=1, inner_clamp=None)
    assert loop(lambda p: 1000 * p, jnp.array(0.0)) == -1000


@pytest.mark.parametrize("order", ["second", "first"])
def test_remat_changes_neither_values_nor_gradients(order, key):
    params, x, y = small_net(key)
    tilts = jr.normal(key, (3,))

    def outer(params, remat):
        end = descend(
            lambda p, tilt: small_net_loss(p, x[:3], y[:3] + tilt),
            params,
            lr=0.2,
            steps=3,
            clamp=2.0,
            order=order,
            remat=remat,
            per_step=tilts,
        )
        return small_net_loss(end, x[3:], y[3:])

    plain, recomputed = (jax.jit(jax.value_and_grad(outer), static_argnums=1)(params, remat) for remat in (False, True))
    np.testing.assert_allclose(plain[0], recomputed[0], rtol=1e-5)
    for name in params:
        np.testing.assert_allclose(plain[1][name], recomputed[1][name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("remat", [False, True])
def test_each_step_sees_its_own_slice(remat):
    """On 0.5 (p - t)^2 with rate 1 every step lands on its own target."""
    visited = descend(
        lambda p, t: 0.5 * (p - t) ** 2,
        jnp.array(0.0),
        lr=1.0,
        steps=3,
        per_step=jnp.array([5.0, -2.0, 7.0]),
        remat=remat,
    )
    np.testing.assert_allclose(visited, 7.0, rtol=1e-6)
    halfway = descend(
        lambda p, t: 0.5 * (p - t) ** 2,
        jnp.array(0.0),
        lr=0.5,
        steps=3,
        per_step=jnp.array([8.0, 4.0, 2.0]),
        remat=remat,
    )
    np.testing.assert_allclose(halfway, ((8 / 2 + 4) / 2 + 2) / 2, rtol=1e-6)


@pytest.mark.parametrize("remat", [False, True])
def test_no_steps_give_back_the_start(remat):
    np.testing.assert_array_equal(descend(bowl, START, lr=0.1, steps=0, remat=remat), START)


def test_the_usual_settings_are_those_of_the_paper():
    usual = InnerLoop()
    assert (usual.inner_lr, usual.inner_steps, usual.inner_clamp) == (1e-3, 5, 10.0)
    assert (usual.order, usual.remat) == ("second", False)


def test_settings_are_handed_on(key):
    params, x, y = small_net(key)

    def loss(p):
        return small_net_loss(p, x, y)

    loop = InnerLoop(inner_lr=0.2, inner_steps=2, inner_clamp=0.5)
    want = descend(loss, params, lr=0.2, steps=2, clamp=0.5)
    np.testing.assert_array_equal(loop(loss, params)["w1"], want["w1"])
    other = loop(loss, params, lr=0.4, clamp=0.1)
    np.testing.assert_array_equal(other["w1"], descend(loss, params, lr=0.4, steps=2, clamp=0.1)["w1"])


@pytest.mark.parametrize("setting", [{"inner_lr": 0.0}, {"inner_steps": 0}])
def test_a_loop_may_stand_still(setting):
    """Neither a rate of 0 nor no step at all is refused, and either leaves what it is given."""
    np.testing.assert_array_equal(InnerLoop(**setting)(bowl, START), START)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"inner_lr": math.inf}, "--inner-lr must be a number of at least 0; got inf"),
        ({"inner_lr": -1e-9}, "--inner-lr must be a number of at least 0; got -1e-09"),
        ({"inner_clamp": 0.0}, "--inner-clamp must be above 0, or none; got 0"),
        ({"inner_steps": -1}, "--inner-steps must be at least 0; got -1"),
        ({"inner_lr": math.nan}, "--inner-lr must be a number of at least 0; got nan"),
        ({"inner_clamp": -1.0}, "--inner-clamp must be above 0, or none; got -1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting, message):
    with pytest.raises(SettingError, match=message):
        InnerLoop(**setting)


def test_without_remat_the_steps_are_written_out_one_by_one():
    """A scan would save no memory, and takes longer on small networks."""
    plain, recomputed = (
        str(jax.make_jaxpr(lambda p, more=more: descend(bowl, p, lr=0.1, steps=2, **more))(START))
        for more in ({}, {"remat": True})
    )
    assert "scan" not in plain
    assert "scan" in recomputed


def test_settings_can_be_part_of_what_a_program_is_compiled_for():
    assert hash(InnerLoop(inner_lr=0.1)) == hash(InnerLoop(inner_lr=0.1))
