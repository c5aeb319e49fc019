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
AT_A_TIME = 5  # images on a CPU, or the next divisor of their number


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


def _products_gradient(x: Images, g: Outputs) -> Kernel:
    """The gradient of the weights of `_lax`, some images at a time: what is made of them then stays in the processor's
    cache. It is three products instead of the convolution with images for channels that JAX would make of it, which XLA
    does in one thread."""
    parts = _some_at_a_time(lambda part: _three_products(*part), (x, g))
    return parts.sum(0).astype(x.dtype)


def _three_products(x: Images, g: Outputs) -> Float[Array, "3 3 i o"]:
    """For each row of the kernel the product of images moved up or down and gradients moved left and right."""
    _, height, width, channels = x.shape
    rows, cols = (jnp.pad(a, [(0, 0), *edges, (0, 0)]) for a, edges in ((x, [(1, 1), (0, 0)]), (g, [(0, 0), (1, 1)])))
    moved = jnp.concatenate([cols[:, :, 2 - j : 2 - j + width] for j in range(3)], axis=-1)
    each = [
        jnp.einsum("nhwi,nhwk->ik", rows[:, i : i + height], moved, preferred_element_type=jnp.float32)
        for i in range(3)
    ]
    return jnp.stack(each).reshape(3, channels, 3, -1).swapaxes(1, 2)


def _some_at_a_time(function: Callable[..., Any], images: Any) -> Any:
    """The results for some images after those for others, on a leading axis. Being a loop, it also keeps XLA from doing
    the work again wherever the result is read, and from holding all that the work is made from till then."""
    count = jax.tree.leaves(images)[0].shape[0]
    some = max(d for d in range(1, min(count, AT_A_TIME) + 1) if count % d == 0)
    return jax.lax.map(function, jax.tree.map(lambda a: a.reshape(count // some, some, *a.shape[1:]), images))


_one_convolution, _one_gradient = _one_by_one(_lax), _one_by_one(_products_gradient)


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

    def of_one(rows: Array) -> tuple[Array, Array]:
        places = _places(rows, matrix)
        winner = patches.largest_of(*(each * jnp.broadcast_to(sign.astype(each.dtype), each.shape) for each in places))
        return _choose(places, winner), winner

    return jax.lax.map(of_one, rows)


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
    return kernels.picked(rows, matrix, winner) if has_kernels() else _choose(_places(rows, matrix), winner)


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
    each = [
        jnp.einsum("npk,npo->ko", rows, _at(place, g, winner), preferred_element_type=jnp.float32) for place in range(4)
    ]
    return jnp.stack(each, axis=1).astype(rows.dtype)


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
    each = [jnp.einsum("npo,ko->npk", _at(place, g, winner), matrix[:, place]) for place in range(4)]
    return each[0] + each[1] + each[2] + each[3]


# Channels stay the innermost axis of all that follows: XLA's loops on a CPU are several times slower where they have to
# find out which of four places a number is at.


def _places(rows: Shaped[Array, "*n p k"], matrix: Shaped[Array, "k 4 o"]) -> list[Shaped[Array, "*n p o"]]:
    """The four numbers of each square, one array for each place."""
    squares, size = rows @ matrix.reshape(matrix.shape[0], -1), matrix.shape[2]
    return [squares[..., place * size : (place + 1) * size] for place in range(4)]


def _choose(places: list[Shaped[Array, "*n p o"]], winner: Int8[Array, "*n p o"]) -> Shaped[Array, "*n p o"]:
    """The chosen number of each square."""
    first, second, third, fourth = places
    lower = jnp.where(winner == 2, third, fourth)
    return jnp.where(winner == 0, first, jnp.where(winner == 1, second, lower))


def _at(place: int, g: Shaped[Array, "n p o"], winner: Int8[Array, "n p o"]) -> Shaped[Array, "n p o"]:
    """Each number where this place is the chosen one, else zero."""
    return jnp.where(winner == place, g, jnp.zeros((), g.dtype))
