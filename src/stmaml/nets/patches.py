"""Convolution as patches times matrix, and pooling.

Every task has weights of its own in an inner loop, and a convolution mapped over weights becomes a grouped one, which
is slow everywhere. Patches times matrix stays one product however it is mapped."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int8, Shaped

Precision = Literal["float32", "bfloat16"]
Squares = Shaped[Array, "*p 4 c"]
PIECES = 4  # of a sum over images: with some tens of tasks, enough to keep a GPU busy


def is_even(x: Float[Array, "n rows cols c"]) -> bool:
    """Whether images fall into 2x2 squares."""
    return x.shape[1] % 2 == 0 and x.shape[2] % 2 == 0


def conv3x3(
    x: Float[Array, "n rows cols i"], weight: Float[Array, "3 3 i o"], precision: Precision = "float32"
) -> Float[Array, "n rows cols o"]:
    """The convolution with zeros around the image, as patches times matrix; float32 out whatever the precision."""
    return _times(patches_of(x.astype(precision)), matrix_of(weight)).reshape(*x.shape[:3], -1)


def _times(patches: Shaped[Array, "n p k"], matrix: Float[Array, "k o"]) -> Float[Array, "n p o"]:
    # The sums are formed in float32 and rounded to the patches' type once, so that the products of the backward pass,
    # whose factors take the type of this result, are as cheap as those of the forward pass.
    return _product(patches, matrix.astype(patches.dtype)).astype(jnp.float32)


# The gradient of the matrix sums over all positions of all images, into a result so small that a GPU would be idle for
# the most part. The compiler splits such a sum, but to equal lengths, for which it copies patches and gradients. Here
# it is split by image. A product and a sum of products are each other's derivatives, so that two rules do for all
# orders.


@jax.custom_vjp
def _product(a: Shaped[Array, "n p k"], matrix: Shaped[Array, "k o"]) -> Shaped[Array, "n p o"]:
    return a @ matrix


def _product_forward(a: Array, matrix: Array) -> tuple[Array, tuple[Array, Array]]:
    return _product(a, matrix), (a, matrix)


def _product_backward(kept: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    a, matrix = kept
    return _product(g, matrix.T), _sum_of_products(a, g)


@jax.custom_vjp
def _sum_of_products(a: Shaped[Array, "n p k"], b: Shaped[Array, "n p o"]) -> Shaped[Array, "k o"]:
    """The sum over images and positions of a b^T."""
    pieces = _pieces(a.shape[0])
    parts = [each.reshape(pieces, -1, each.shape[-1]) for each in (a, b)]
    each = jnp.einsum("gpk,gpo->gko", *parts, preferred_element_type=jnp.float32)
    return each.sum(0).astype(a.dtype)


def _sum_of_products_forward(a: Array, b: Array) -> tuple[Array, tuple[Array, Array]]:
    return _sum_of_products(a, b), (a, b)


def _sum_of_products_backward(kept: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    a, b = kept
    return _product(b, g.T), _product(a, g)


_product.defvjp(_product_forward, _product_backward)
_sum_of_products.defvjp(_sum_of_products_forward, _sum_of_products_backward)


def _pieces(images: int) -> int:
    """Into how many equal parts a sum over images is split: a few on a GPU, none on a CPU, which gains nothing."""
    if jax.default_backend() == "cpu":
        return 1
    return next(d for d in range(1, images + 1) if images % d == 0 and (d >= PIECES or d == images))


def patches_of(x: Shaped[Array, "n rows cols i"]) -> Shaped[Array, "n p i9"]:
    """The 3x3 patch around each pixel."""
    n, height, width, channels = x.shape
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    shifted = [padded[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
    return jnp.concatenate(shifted, axis=-1).reshape(n, height * width, 9 * channels)


def matrix_of(weight: Float[Array, "3 3 i o"]) -> Float[Array, "i9 o"]:
    """The weights as a map from a 3x3 patch."""
    return weight.reshape(9 * weight.shape[2], -1)


def square_patches(x: Shaped[Array, "n rows cols i"]) -> Shaped[Array, "n p i16"]:
    """The 4x4 patch around each 2x2 square, cell by cell: four cells of 2x2 pixels."""
    n, height, width, channels = x.shape
    rows, cols = height // 2, width // 2
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    cells = padded.reshape(n, rows + 1, 2, cols + 1, 2, channels).transpose(0, 1, 3, 2, 4, 5)
    cells = cells.reshape(n, rows + 1, cols + 1, 4 * channels)
    patches = [cells[:, i : i + rows, j : j + cols] for i in range(2) for j in range(2)]
    return jnp.concatenate(patches, axis=-1).reshape(n, rows * cols, 16 * channels)


def square_matrix(weight: Float[Array, "3 3 i o"]) -> Float[Array, "i16 o4"]:
    """The weights as a map from a 4x4 patch, cell by cell, to a 2x2 square: at each of its places the kernel moved."""
    moved = [jnp.pad(weight, ((i, 1 - i), (j, 1 - j), (0, 0), (0, 0))) for i in range(2) for j in range(2)]
    by_row = jnp.stack(moved, axis=3).reshape(2, 2, 2, 2, weight.shape[2], -1)
    return by_row.transpose(0, 2, 1, 3, 4, 5).reshape(16 * weight.shape[2], -1)


def squares_of(x: Float[Array, "n rows cols c"]) -> Float[Array, "n rows2 cols2 4 c"]:
    """The four numbers of each 2x2 square together; a last odd row or column is in none."""
    n, height, width, channels = x.shape
    rows, cols = height // 2, width // 2
    even = x[:, : rows * 2, : cols * 2].reshape(n, rows, 2, cols, 2, channels)
    return even.transpose(0, 1, 3, 2, 4, 5).reshape(n, rows, cols, 4, channels)


def largest(squares: Squares) -> Int8[Array, "*p c"]:
    """Which of the four numbers of each square is the largest; of equal ones the first."""
    return largest_of(*(jax.lax.stop_gradient(squares[..., i, :]) for i in range(4)))


def largest_of(
    a: Shaped[Array, "*p c"], b: Shaped[Array, "*p c"], c: Shaped[Array, "*p c"], d: Shaped[Array, "*p c"]
) -> Int8[Array, "*p c"]:
    """Which of four numbers is the largest; of equal ones the first."""
    upper, lower = jnp.where(a >= b, 0, 1), jnp.where(c >= d, 2, 3)
    return jnp.where(jnp.maximum(a, b) >= jnp.maximum(c, d), upper, lower).astype(jnp.int8)


def pick(squares: Squares, winner: Int8[Array, "*p c"]) -> Shaped[Array, "*p c"]:
    """The chosen number of each square. As a sum over all four it is linear, and so is each of its derivatives."""
    place = jnp.arange(4, dtype=jnp.int8)[:, None]
    chosen = winner[..., None, :] == jnp.broadcast_to(place, squares.shape)
    return jnp.where(chosen, squares, jnp.zeros((), squares.dtype)).sum(-2)
