"""The product of rows and weights, with gradients in a form that a CPU is quick at.

The gradient of the weights sums over rows, which lie across both of its factors. XLA's fast products of small matrices
on a CPU take no such factor, and its slow ones spend most of their time on preparations, which in an inner loop, where
each task has weights of its own, is a fifth of a step. So one factor is turned first, and a barrier keeps the compiler
from turning it back. A product and the two gradients of it are products again, so that two rules do for all orders."""

import jax
from jaxtyping import Array, Float


def times(x: Float[Array, "*n i"], weight: Float[Array, "i o"]) -> Float[Array, "*n o"]:
    """x W for every row."""
    return _product(x, weight) if x.ndim == 2 and jax.default_backend() == "cpu" else x @ weight


@jax.custom_vjp
def _product(a: Float[Array, "n k"], b: Float[Array, "k o"]) -> Float[Array, "n o"]:
    return a @ b


def _product_forward(a: Array, b: Array) -> tuple[Array, tuple[Array, Array]]:
    return _product(a, b), (a, b)


def _product_backward(kept: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    a, b = kept
    return _product_turned(g, b), _product(_turned(a), g)


@jax.custom_vjp
def _product_turned(a: Float[Array, "n o"], b: Float[Array, "k o"]) -> Float[Array, "n k"]:
    return a @ b.T


def _product_turned_forward(a: Array, b: Array) -> tuple[Array, tuple[Array, Array]]:
    return _product_turned(a, b), (a, b)


def _product_turned_backward(kept: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    a, b = kept
    return _product(g, b), _product(_turned(g), a)


_product.defvjp(_product_forward, _product_backward)
_product_turned.defvjp(_product_turned_forward, _product_turned_backward)


def _turned(a: Float[Array, "n k"]) -> Float[Array, "k n"]:
    return jax.lax.optimization_barrier(a.T)
