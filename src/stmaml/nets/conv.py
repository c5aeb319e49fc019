"""Convolutional networks for images: blocks of convolution, normalisation, pooling and ReLU.

Every task has weights of its own in an inner loop, and a convolution mapped over weights becomes a grouped one, which
is slow everywhere. So a convolution is written as patches times matrix, which stays one product however it is mapped.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int8, PRNGKeyArray, Shaped

from stmaml.errors import SettingError
from stmaml.nets.layers import Linear
from stmaml.tasks import weighted_mean

NormMode = Literal["batch", "support", "none", "group"]
Precision = Literal["float32", "bfloat16"]
Modulate = Callable[[Float[Array, "*n c"]], Float[Array, "*n c"]]
EPSILON = 1e-3  # added to variances, as the benchmarks' own code does
PIECES = 4  # of a sum over images: with some tens of tasks, enough to keep a GPU busy
GROUP = 8  # channels that group normalisation takes together, or their largest common divisor with the channels


@dataclass(frozen=True)
class Conv:
    """Settings of the networks that read images; inputs that are no images make no use of them."""

    channels: int = 32
    """Channels of every convolution."""
    conv_blocks: int = 4
    """Blocks of convolution, normalisation, ReLU and pooling; each halves height and width."""
    norm: NormMode = "batch"
    """Whose statistics normalise: those of whatever set is read, so that test images are judged together (batch), those
    of the support set for support and query alike (support), those of each image for itself (group), or none."""
    precision: Precision = "float32"
    """Numbers that convolutions multiply; bfloat16 is faster on a GPU. Parameters and statistics stay float32."""

    def __post_init__(self):
        for flag, value in (("--channels", self.channels), ("--conv-blocks", self.conv_blocks)):
            if value < 1:
                raise SettingError(f"{flag} must be at least 1; got {value}.")


def conv3x3(
    x: Float[Array, "n rows cols i"], weight: Float[Array, "3 3 i o"], precision: Precision = "float32"
) -> Float[Array, "n rows cols o"]:
    """The convolution with zeros around the image, as patches times matrix; float32 out whatever the precision."""
    return _times(_patches(x.astype(precision)), _matrix(weight)).reshape(*x.shape[:3], -1)


def conv3x3_squares(
    x: Float[Array, "n rows cols i"], weight: Float[Array, "3 3 i o"], precision: Precision = "float32"
) -> Float[Array, "n rows2 cols2 4 o"]:
    """The numbers of `conv3x3` by the 2x2 squares that pooling looks at; height and width must be even.

    A square of outputs is made from a 4x4 patch at once. Patches then hold each input 4 times instead of 9, which
    counts for more than the 16 in 36 products that are with zero: this is bound by memory, not by products.
    """
    n, height, width, _ = x.shape
    out = _times(_square_patches(x.astype(precision)), _square_matrix(weight))
    return out.reshape(n, height // 2, width // 2, 4, -1)


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


def _patches(x: Shaped[Array, "n rows cols i"]) -> Shaped[Array, "n p i9"]:
    """The 3x3 patch around each pixel."""
    n, height, width, channels = x.shape
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    shifted = [padded[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
    return jnp.concatenate(shifted, axis=-1).reshape(n, height * width, 9 * channels)


def _matrix(weight: Float[Array, "3 3 i o"]) -> Float[Array, "i9 o"]:
    return weight.reshape(9 * weight.shape[2], -1)


def _square_patches(x: Shaped[Array, "n rows cols i"]) -> Shaped[Array, "n p i16"]:
    """The 4x4 patch around each 2x2 square, cell by cell: four cells of 2x2 pixels."""
    n, height, width, channels = x.shape
    rows, cols = height // 2, width // 2
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    cells = padded.reshape(n, rows + 1, 2, cols + 1, 2, channels).transpose(0, 1, 3, 2, 4, 5)
    cells = cells.reshape(n, rows + 1, cols + 1, 4 * channels)
    patches = [cells[:, i : i + rows, j : j + cols] for i in range(2) for j in range(2)]
    return jnp.concatenate(patches, axis=-1).reshape(n, rows * cols, 16 * channels)


def _square_matrix(weight: Float[Array, "3 3 i o"]) -> Float[Array, "i16 o4"]:
    """The weights as a map from a 4x4 patch, cell by cell, to a 2x2 square: at each of its places the kernel moved."""
    moved = [jnp.pad(weight, ((i, 1 - i), (j, 1 - j), (0, 0), (0, 0))) for i in range(2) for j in range(2)]
    by_row = jnp.stack(moved, axis=3).reshape(2, 2, 2, 2, weight.shape[2], -1)
    return by_row.transpose(0, 2, 1, 3, 4, 5).reshape(16 * weight.shape[2], -1)


def max_pool(x: Float[Array, "n rows cols c"]) -> Float[Array, "n rows2 cols2 c"]:
    """The largest of each 2x2 square; a last odd row or column is left out. Of equal numbers the first counts."""
    squares = _squares(x)
    return pick(squares, largest(squares))


def _squares(x: Float[Array, "n rows cols c"]) -> Float[Array, "n rows2 cols2 4 c"]:
    n, height, width, channels = x.shape
    rows, cols = height // 2, width // 2
    even = x[:, : rows * 2, : cols * 2].reshape(n, rows, 2, cols, 2, channels)
    return even.transpose(0, 1, 3, 2, 4, 5).reshape(n, rows, cols, 4, channels)


def largest(squares: Float[Array, "n rows cols 4 c"]) -> Int8[Array, "n rows cols c"]:
    """Which of the four numbers of each square is the largest; of equal ones the first."""
    a, b, c, d = (jax.lax.stop_gradient(squares[..., i, :]) for i in range(4))
    upper, lower = jnp.where(a >= b, 0, 1), jnp.where(c >= d, 2, 3)
    return jnp.where(jnp.maximum(a, b) >= jnp.maximum(c, d), upper, lower).astype(jnp.int8)


def pick(
    squares: Float[Array, "n rows cols 4 c"], winner: Int8[Array, "n rows cols c"]
) -> Float[Array, "n rows cols c"]:
    """The chosen number of each square. As a sum over all four it is linear, and so is each of its derivatives."""
    place = jnp.arange(4, dtype=jnp.int8)[:, None]
    chosen = winner[..., None, :] == jnp.broadcast_to(place, squares.shape)
    return jnp.where(chosen, squares, 0.0).sum(-2)


class Responses(eqx.Module):
    """What a convolution gives, with its statistics."""

    values: Float[Array, "n rows cols c"] | Float[Array, "n rows cols 4 c"]
    """An image; or, where height and width are even, its 2x2 squares."""
    moments: "Moments"

    @property
    def squares(self) -> Float[Array, "n rows cols 4 c"]:
        """The four numbers of each 2x2 square together, for pooling; a last odd row or column is in none."""
        return self.values if self.values.ndim == 5 else _squares(self.values)


class Moments(eqx.Module):
    """Mean and variance of each channel."""

    mean: Float[Array, " c"]
    variance: Float[Array, " c"]


def moments_of(x: Float[Array, "n *p c"], weight: Float[Array, " n"]) -> Moments:
    """Mean and variance of each channel over the images that count; 0 and 1 where none does."""
    # Both sums in one pass over the memory; channels whose mean is a thousand times their spread would suffer, and a
    # convolution of normalised features has none.
    inside = tuple(range(1, x.ndim - 1))
    return _moments(x.mean(inside), jnp.square(x).mean(inside), weight)


def _moments(mean: Float[Array, "n c"], square: Float[Array, "n c"], weight: Float[Array, " n"]) -> Moments:
    """From the mean number and the mean square in each image."""
    mean, square = weighted_mean(mean, weight), weighted_mean(square, weight)
    variance = jnp.maximum(square - jnp.square(mean), 0.0)
    return Moments(mean, jnp.where(weight.sum() > 0, variance, 1.0))


def moments_by_inputs(
    x: Float[Array, "n rows cols i"],
    kernel: Float[Array, "3 3 i o"],
    weight: Float[Array, " n"],
    precision: Precision = "float32",
) -> Moments:
    """`moments_of` the convolution of `x`, without it: they follow from the second moments of the patches of `x`.

    In an inner loop the images stay and the kernel moves, so that what is as large as the images is done once.
    """
    even = _is_even(x)
    patches, matrix = (_square_patches(x), _square_matrix(kernel)) if even else (_patches(x), _matrix(kernel))
    patches = patches.astype(precision)
    count = patches.shape[1]
    exact = partial(jnp.einsum, precision="highest", preferred_element_type=jnp.float32)
    centre = weighted_mean(patches.mean(1, dtype=jnp.float32), weight)
    products = weighted_mean(exact("npk,npl->nkl", patches, patches).reshape(x.shape[0], -1) / count, weight)
    covariance = products.reshape(centre.shape * 2) - jnp.outer(centre, centre)
    means = exact("k,ko->o", centre, matrix).reshape(-1, kernel.shape[-1])  # one row for each place in a square
    spread = (matrix * exact("kl,lo->ko", covariance, matrix)).sum(0).reshape(means.shape)
    mean = means.mean(0)
    variance = (jnp.maximum(spread, 0.0) + jnp.square(means - jnp.broadcast_to(mean, means.shape))).mean(0)
    return Moments(mean, jnp.where(weight.sum() > 0, variance, 1.0))


def _is_even(x: Float[Array, "n rows cols c"]) -> bool:
    return x.shape[1] % 2 == 0 and x.shape[2] % 2 == 0


class Norm(eqx.Module):
    """Normalisation with a learned scale and shift; mode `none` has the shift alone, as a bias."""

    scale: Float[Array, " c"] | None
    shift: Float[Array, " c"]
    moments: Moments | None
    """Those of a support set, once it has been read in mode `support`."""
    mode: NormMode = eqx.field(static=True)

    def __init__(self, channels: int, mode: NormMode):
        """Starts as plain normalisation: scale 1, shift 0."""
        self.scale = None if mode == "none" else jnp.ones(channels)
        self.shift = jnp.zeros(channels)
        self.moments, self.mode = None, mode

    def __call__(self, x: Float[Array, "n *p c"], moments: Moments) -> Float[Array, "n *p c"]:
        """The normalised channels of a set of images that has these statistics."""
        shift = jnp.broadcast_to(self.shift, x.shape)
        if self.scale is None:
            return x + shift
        if self.mode == "group":
            return _group_normalise(x) * jnp.broadcast_to(self.scale, x.shape) + shift
        moments = moments if self.moments is None else self.moments
        factor = jax.lax.rsqrt(moments.variance + EPSILON)
        normal = (x - jnp.broadcast_to(moments.mean, x.shape)) * jnp.broadcast_to(factor, x.shape)
        return normal * jnp.broadcast_to(self.scale, x.shape) + shift

    def remember(self, moments: Moments) -> "Norm":
        """The same, with these statistics from now on."""
        return eqx.tree_at(lambda n: n.moments, self, moments, is_leaf=lambda leaf: leaf is None)


def _group_normalise(x: Float[Array, "n *p c"]) -> Float[Array, "n *p c"]:
    """Each group of channels of each image at mean 0 and variance 1."""
    channels = x.shape[-1]
    size = math.gcd(channels, GROUP)
    groups = x.reshape(x.shape[0], -1, channels // size, size)
    centred = groups - groups.mean((1, 3), keepdims=True)
    factor = jax.lax.rsqrt(jnp.square(centred).mean((1, 3), keepdims=True) + EPSILON)
    return (centred * factor).reshape(x.shape)


class ConvBlock(eqx.Module):
    """Convolution, normalisation, 2x2 max-pooling, ReLU. No bias before the normalisation, which would take it away."""

    weight: Float[Array, "3 3 i o"]
    norm: Norm
    precision: Precision = eqx.field(static=True)
    first: bool = eqx.field(static=True)
    """Whether it reads the images themselves."""

    def __init__(self, in_channels: int, conv: Conv, *, first: bool, key: PRNGKeyArray):
        """Weights of He's variance."""
        self.weight = (2 / (9 * in_channels)) ** 0.5 * jr.normal(key, (3, 3, in_channels, conv.channels))
        self.norm = Norm(conv.channels, conv.norm)
        self.precision, self.first = conv.precision, first

    def convolve(self, x: Float[Array, "n rows cols i"], weight: Float[Array, " n"]) -> Responses:
        """What the normalisation reads, and its statistics over the images that count."""
        values = (conv3x3_squares if _is_even(x) else conv3x3)(x, self.weight, self.precision)
        if self.first:
            return Responses(values, moments_by_inputs(x, self.weight, weight, self.precision))
        return Responses(values, moments_of(values, weight))

    def activate(self, x: Responses, modulate: Modulate | None) -> Float[Array, "n rows2 cols2 o"]:
        """The rest of the block; a modulation of the channels, where there is one, follows the normalisation."""
        if modulate is not None or self.norm.mode == "group":
            x_normal = self.norm(x.values, x.moments)
            normal = Responses(x_normal if modulate is None else modulate(x_normal), x.moments).squares
            return jax.nn.relu(pick(normal, largest(normal)))
        # The largest of four numbers stays the largest under whatever rises, so pooling may come first, which leaves a
        # quarter of the work: before ReLU, and before a normalisation by channel; the smallest where that falls.
        squares = x.squares
        falls = jnp.zeros_like(self.norm.shift) if self.norm.scale is None else jnp.where(self.norm.scale < 0, 1.0, 0.0)
        winner = largest(squares * jnp.broadcast_to(1 - 2 * falls, squares.shape))
        return jax.nn.relu(self.norm(pick(squares, winner), x.moments))


class ConvBody(eqx.Module):
    """Blocks one after the other, flattened: images in, features out."""

    blocks: tuple[ConvBlock, ...]

    def __getitem__(self, index: int) -> ConvBlock:
        return self.blocks[index]

    def __init__(self, x_shape: tuple[int, ...], conv: Conv, *, key: PRNGKeyArray):
        """For images of shape (height, width, channels)."""
        feature_shape(x_shape, conv)
        sizes = [x_shape[2], *[conv.channels] * (conv.conv_blocks - 1)]
        keys = jr.split(key, conv.conv_blocks)
        self.blocks = tuple(
            ConvBlock(size, conv, first=i == 0, key=k) for i, (size, k) in enumerate(zip(sizes, keys, strict=True))
        )

    def maps(
        self,
        x: Float[Array, "n rows cols c"],
        weight: Float[Array, " n"] | None = None,
        tau: tuple[Modulate, ...] | None = None,
    ) -> Float[Array, "n rows2 cols2 o"]:
        """The last block's channels as images."""
        weight = jnp.ones(x.shape[0]) if weight is None else weight
        for block, modulate in zip(self.blocks, tau or (None,) * len(self.blocks), strict=True):
            x = block.activate(block.convolve(x, weight), modulate)
        return x

    def __call__(
        self,
        x: Float[Array, "n rows cols c"],
        weight: Float[Array, " n"] | None = None,
        tau: tuple[Modulate, ...] | None = None,
    ) -> Float[Array, "n f"]:
        """Features of a set of images; those of weight 0 have no part in its statistics. `tau` modulates each block."""
        return self.maps(x, weight, tau).reshape(x.shape[0], -1)

    def settle(
        self, x: Float[Array, "n rows cols c"], weight: Float[Array, " n"], tau: tuple[Modulate, ...] | None = None
    ) -> "ConvBody":
        """In mode `support` the same network with the statistics of this set from now on; in others just the same."""
        if self.blocks[0].norm.mode != "support":
            return self
        settled = []
        for block, modulate in zip(self.blocks, tau or (None,) * len(self.blocks), strict=True):
            responses = block.convolve(x, weight)
            settled.append(eqx.tree_at(lambda b: b.norm, block, block.norm.remember(responses.moments)))
            x = settled[-1].activate(responses, modulate)
        return eqx.tree_at(lambda body: body.blocks, self, tuple(settled))


def feature_shape(x_shape: tuple[int, ...], conv: Conv) -> tuple[int, int, int]:
    """Height, width and channels after the last block."""
    height, width = (extent >> conv.conv_blocks for extent in x_shape[:2])
    if min(height, width) < 1:
        raise SettingError(
            f"images of {x_shape[0]} by {x_shape[1]} are too small for {conv.conv_blocks} blocks that each halve them; "
            "use larger images or fewer --conv-blocks."
        )
    return height, width, conv.channels


class ConvLearner(eqx.Module):
    """The base learner for images, theta = [theta_b, theta_c]; a feature h joins the flattened features."""

    body: ConvBody
    head: Linear

    def __init__(
        self,
        x_shape: tuple[int, ...],
        conv: Conv,
        out_size: int,
        *,
        h_size: int = 0,
        head_bias: bool = True,
        key: PRNGKeyArray,
    ):
        """For images of shape (height, width, channels)."""
        body_key, head_key = jr.split(key)
        self.body = ConvBody(x_shape, conv, key=body_key)
        features = math.prod(feature_shape(x_shape, conv)) + h_size
        self.head = Linear(features, out_size, init="glorot", use_bias=head_bias, key=head_key)

    def __call__(
        self,
        x: Float[Array, "n rows cols c"],
        h: Float[Array, " h"] | None = None,
        *,
        weight: Float[Array, " n"] | None = None,
        tau: tuple[Modulate, ...] | None = None,
    ) -> Float[Array, "n o"]:
        """Raw outputs for a set of images; those of weight 0 have no part in its statistics."""
        features = self.body(x, weight, tau)
        if h is not None:
            h_rows = jnp.broadcast_to(h, (x.shape[0], h.shape[0]))
            features = jnp.concatenate([features, h_rows], axis=1)  # eq. 12: x_hat = [x, h]
        return self.head(features)

    def settle(
        self, x: Float[Array, "n rows cols c"], weight: Float[Array, " n"], tau: tuple[Modulate, ...] | None = None
    ) -> "ConvLearner":
        """The learner after reading the support set it is to answer for: see `ConvBody.settle`."""
        return eqx.tree_at(lambda theta: theta.body, self, self.body.settle(x, weight, tau))
