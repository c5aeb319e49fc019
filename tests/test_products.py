"""Products of rows and weights as layers take them, and their derivatives, against those of a plain product."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stmaml.nets.products import times


def twice(product, x, weight, target):
    """Loss after two steps of gradient descent, and its gradients, mapped over tasks with weights of their own."""

    def loss(weight, x):
        return (jnp.sin(product(jnp.tanh(product(x, weight)), weight)) * target).mean()

    def after(weight, x):
        for _ in range(2):
            weight = weight - 3 * jax.grad(loss)(weight, x)
        return loss(weight, x)

    return jax.jit(jax.vmap(jax.value_and_grad(after, argnums=(0, 1))))(weight, x)


def test_derivatives_of_two_orders_are_those_of_a_plain_product(key):
    x, weight, target = jr.normal(key, (4, 5, 3)), jr.normal(jr.key(1), (4, 3, 3)), jr.normal(jr.key(2), (5, 3))
    found, want = twice(times, x, weight, target), twice(jnp.matmul, x, weight, target)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_weights_that_tasks_share_get_the_sum_of_their_gradients(key):
    x, weight = jr.normal(key, (4, 5, 3)), jr.normal(jr.key(1), (3, 2))

    def total(product):
        return jax.grad(lambda weight: jnp.sin(jax.vmap(product, (0, None))(x, weight)).sum())(weight)

    np.testing.assert_allclose(total(times), total(jnp.matmul), rtol=1e-5)


@pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 4, 3)])
def test_any_number_of_axes_is_multiplied(shape, key):
    x, weight = jr.normal(key, shape), jr.normal(jr.key(1), (3, 2))
    np.testing.assert_allclose(times(x, weight), x @ weight, rtol=1e-6)


def test_on_a_cpu_rows_of_one_factor_are_turned_before_the_gradient(key):
    def gradient(x, weight):
        return jax.grad(lambda weight: jnp.sin(times(x, weight)).sum())(weight)

    text = str(jax.make_jaxpr(gradient)(jnp.ones((4, 3)), jnp.ones((3, 2))))
    assert "optimization_barrier" in text


def test_elsewhere_the_product_is_left_to_the_compiler(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    text = str(jax.make_jaxpr(jax.grad(lambda w: times(jnp.ones((4, 3)), w).sum()))(jnp.ones((3, 2))))
    assert "custom_vjp" not in text
    assert "barrier" not in text
