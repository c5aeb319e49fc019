"""The convolution of a block, its pooling where that is done at once, and their derivatives of all orders.

Every task has weights of its own in an inner loop, and a convolution mapped over weights becomes a grouped one, which
is slow everywhere. So on a GPU kernels of our own do it, on a CPU one task's convolution follows the other, and
elsewhere it is patches times matrix, one product however it is mapped. A convolution and the gradient of its weights
are each other's derivatives, so that two rules do for all orders."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int8, Shaped

from stmaml.nets import kernels, patches

Images = Shaped[Array, "n rows cols i"]
Outputs = Shaped[Array, "n rows cols o"]
Kernel = Shaped[Array, "3 3 i o"]
DIMENSIONS = ("NHWC", "HWIO", "NHWC")


def conv3x3(
    x: Float[Array, "n rows cols i"], weight: Float[Array, "3 3 i o"], precision: patches.Precision = "float32"
) -> Float[Array, "n rows cols o"]:
    """The convolution with zeros around the image; float32 out whatever the precision of its factors."""
    # The sums are formed in float32 and rounded to the factors' type once, so that the products of the backward pass,
    # whose factors take the type of this result, are as cheap as those of the forward pass.
    if has_kernels() or jax.default_backend() == "cpu":
        return convolve(x.astype(precision), weight.astype(precision)).astype(jnp.float32)
    return patches.conv3x3(x, weight, precision)


def has_kernels() -> bool:
    """Whether the device runs the kernels: NVIDIA GPUs from 2020 on."""
    if jax.default_backend() != "gpu":
        return False
    capability = str(getattr(jax.devices()[0], "compute_capability", ""))
    return capability.replace(".", "").isdecimal() and float(capability) >= 8


@jax.custom_vjp
def convolve(x: Images, weight: Kernel) -> Outputs:
    """The convolution in the type of its factors."""
    return (kernels.conv3x3 if has_kernels() else _one_convolution)(x, weight)


def _convolve_forward(x: Array, weight: Array) -> tuple[Array, tuple[Array, Array]]:
    return convolve(x, weight), (x, weight)


def _convolve_backward(kept: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    x, weight = kept
    return convolve(g, turned(weight)), weight_gradient(x, g)


@jax.custom_vjp
def weight_gradient(x: Images, g: Outputs) -> Kernel:
    """The gradient of the weights of `convolve`, where that of its outputs is `g`."""
    return (kernels.weight_gradient if has_kernels() else _one_gradient)(x, g)


def _gradient_forward(x: Array, g: Array) -> tuple[Array, tuple[Array, Array]]:
    return weight_gradient(x, g), (x, g)


def _gradient_backward(kept: tuple[Array, Array], weight: Array) -> tuple[Array, Array]:
    x, g = kept
    return convolve(g, turned(weight)), convolve(x, weight)


convolve.defvjp(_convolve_forward, _convolve_backward)
weight_gradient.defvjp(_gradient_forward, _gradient_backward)


def turned(weight: Kernel) -> Shaped[Array, "3 3 o i"]:
    """The kernel whose convolution is the transpose of this one's."""
    return weight[::-1, ::-1].swapaxes(2, 3)


def _one_by_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, mapped by one call after the other."""
    single = jax.custom_batching.custom_vmap(function)

    @single.def_vmap
    def _mapped(size: int, batched: list[bool], *arguments: Array) -> tuple[Array, bool]:
        whole = [
            a if mapped else jnp.broadcast_to(a, (size, *a.shape)) for a, mapped in zip(arguments, batched, strict=True)
        ]
        if size == 1:
            return single(*(each[0] for each in whole))[None], True
        return jax.lax.map(lambda each: single(*each), tuple(whole)), True

    return single


def _lax(x: Images, weight: Kernel) -> Outputs:
    return jax.lax.conv_general_dilated(x, weight, (1, 1), "SAME", dimension_numbers=DIMENSIONS)


def _lax_gradient(x: Images, g: Outputs) -> Kernel:
    # A convolution whose channels are the images. Its axes are brought into the order that XLA is quick at, and a
    # barrier keeps them so: left to itself, XLA does that too, but not inside of a loop, such as that of training.
    images, kernel = jax.lax.optimization_barrier((x.transpose(3, 1, 2, 0), g.transpose(1, 2, 0, 3)))
    sums = jax.lax.conv_general_dilated(images, kernel, (1, 1), ((1, 1), (1, 1)), dimension_numbers=DIMENSIONS)
    return sums.transpose(1, 2, 0, 3)


_one_convolution, _one_gradient = _one_by_one(_lax), _one_by_one(_lax_gradient)


# The largest of each 2x2 square of a convolution, from the patches of the squares. What is not the largest is never
# kept: the derivatives need to know which it is, and that of the patches is the one thing that is not asked for in
# training. `values`, `values of a choice` and `gradient of a choice` are again each other's derivatives.


@jax.custom_vjp
def pooled(
    rows: Shaped[Array, "n p k"], matrix: Shaped[Array, "k 4 o"], sign: Float[Array, " o"]
) -> tuple[Shaped[Array, "n p o"], Int8[Array, "n p o"]]:
    """Of the four numbers of each square the largest after multiplication by `sign`, as it was before, and which it
    is; of equal ones the first."""
    if has_kernels():
        return kernels.pooled(rows, matrix, sign)
    squares = _squares(rows, matrix)
    winner = patches.largest(squares * jnp.broadcast_to(sign.astype(squares.dtype), squares.shape))
    return patches.pick(squares, winner), winner


def _pooled_forward(rows: Array, matrix: Array, sign: Array) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
    values, winner = pooled(rows, matrix, sign)
    return (values, winner), (rows, matrix, sign, winner)


def _pooled_backward(kept: tuple[Array, ...], cotangents: tuple[Array, Any]) -> tuple[Array, Array, Array]:
    rows, matrix, sign, winner = kept
    return (*_of_choice(rows, matrix, winner, cotangents[0]), jnp.zeros_like(sign))


@jax.custom_vjp
def picked(
    rows: Shaped[Array, "n p k"], matrix: Shaped[Array, "k 4 o"], winner: Int8[Array, "n p o"]
) -> Shaped[Array, "n p o"]:
    """The chosen of the four numbers of each square."""
    return kernels.picked(rows, matrix, winner) if has_kernels() else patches.pick(_squares(rows, matrix), winner)


def _picked_forward(rows: Array, matrix: Array, winner: Array) -> tuple[Array, tuple[Array, ...]]:
    return picked(rows, matrix, winner), (rows, matrix, winner)


def _picked_backward(kept: tuple[Array, ...], g: Array) -> tuple[Array, Array, None]:
    rows, matrix, winner = kept
    return (*_of_choice(rows, matrix, winner, g), None)


@jax.custom_vjp
def pooled_gradient(
    rows: Shaped[Array, "n p k"], g: Shaped[Array, "n p o"], winner: Int8[Array, "n p o"]
) -> Shaped[Array, "k 4 o"]:
    """The gradient of the matrix of `picked`."""
    if has_kernels():
        return kernels.pooled_gradient(rows, g, winner)
    each = jnp.einsum("npk,npqo->kqo", rows, _spread(g, winner), preferred_element_type=jnp.float32)
    return each.astype(rows.dtype)


def _pooled_gradient_forward(rows: Array, g: Array, winner: Array) -> tuple[Array, tuple[Array, ...]]:
    return pooled_gradient(rows, g, winner), (rows, g, winner)


def _pooled_gradient_backward(kept: tuple[Array, ...], matrix: Array) -> tuple[Array, Array, None]:
    rows, g, winner = kept
    return _rows_gradient(matrix, winner, g), picked(rows, matrix, winner), None


pooled.defvjp(_pooled_forward, _pooled_backward)
picked.defvjp(_picked_forward, _picked_backward)
pooled_gradient.defvjp(_pooled_gradient_forward, _pooled_gradient_backward)


def _of_choice(rows: Array, matrix: Array, winner: Array, g: Array) -> tuple[Array, Array]:
    return _rows_gradient(matrix, winner, g), pooled_gradient(rows, g, winner)


def _rows_gradient(matrix: Array, winner: Array, g: Array) -> Array:
    return jnp.einsum("npqo,kqo->npk", _spread(g, winner), matrix)


def _squares(rows: Shaped[Array, "n p k"], matrix: Shaped[Array, "k 4 o"]) -> Shaped[Array, "n p 4 o"]:
    return jnp.einsum("npk,kqo->npqo", rows, matrix)


def _spread(g: Shaped[Array, "n p o"], winner: Int8[Array, "n p o"]) -> Shaped[Array, "n p 4 o"]:
    """Each number at the chosen place of its square, zeros at the other three."""
    chosen = winner[:, :, None] == jnp.arange(4, dtype=jnp.int8)[None, None, :, None]
    return jnp.where(chosen, g[:, :, None], jnp.zeros((), g.dtype))
