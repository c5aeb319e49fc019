"""Convolutional networks for images: blocks of convolution, normalisation, pooling and ReLU.

Every task has weights of its own in an inner loop, and a convolution mapped over weights becomes a grouped one, which
is slow everywhere. So a convolution is written as patches times matrix, which stays one product however it is mapped.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.errors import SettingError
from stmaml.nets.layers import Linear
from stmaml.tasks import weighted_mean

NormMode = Literal["batch", "support", "none", "group"]
Precision = Literal["float32", "bfloat16"]
Modulate = Callable[[Float[Array, "*n c"]], Float[Array, "*n c"]]
EPSILON = 1e-3  # added to variances, as the benchmarks' own code does
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
    kind = jnp.dtype(precision)
    n, height, width, channels = x.shape
    padded = jnp.pad(x.astype(kind), ((0, 0), (1, 1), (1, 1), (0, 0)))
    shifted = [padded[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
    patches = jnp.concatenate(shifted, axis=-1).reshape(n * height * width, 9 * channels)
    # The sums are formed in float32 and rounded to `kind` once, so that the products of the backward pass, whose
    # factors take the type of this result, are as cheap as those of the forward pass.
    out = patches @ weight.reshape(9 * channels, -1).astype(kind)
    return out.reshape(n, height, width, -1).astype(jnp.float32)


def conv3x3_squares(
    x: Float[Array, "n rows cols i"], weight: Float[Array, "3 3 i o"], precision: Precision = "float32"
) -> Float[Array, "n rows2 cols2 4 o"]:
    """The numbers of `conv3x3` by the 2x2 squares that pooling looks at; height and width must be even.

    A square of outputs is made from a 4x4 patch at once. Patches then hold each input 4 times instead of 9, which
    counts for more than the 16 in 36 products that are with zero: this is bound by memory, not by products.
    """
    kind = jnp.dtype(precision)
    n, height, width, channels = x.shape
    rows, cols = height // 2, width // 2
    padded = jnp.pad(x.astype(kind), ((0, 0), (1, 1), (1, 1), (0, 0)))
    cells = padded.reshape(n, rows + 1, 2, cols + 1, 2, channels).transpose(0, 1, 3, 2, 4, 5)
    cells = cells.reshape(n, rows + 1, cols + 1, 4 * channels)
    patches = [cells[:, i : i + rows, j : j + cols] for i in range(2) for j in range(2)]
    out = jnp.concatenate(patches, axis=-1).reshape(n * rows * cols, -1) @ _square_matrix(weight).astype(kind)
    return out.reshape(n, rows, cols, 4, -1).astype(jnp.float32)


def _square_matrix(weight: Float[Array, "3 3 i o"]) -> Float[Array, "i16 o4"]:
    """The weights as a map from a 4x4 patch, cell by cell, to a 2x2 square: at each of its places the kernel moved."""
    moved = [jnp.pad(weight, ((i, 1 - i), (j, 1 - j), (0, 0), (0, 0))) for i in range(2) for j in range(2)]
    by_row = jnp.stack(moved, axis=3).reshape(2, 2, 2, 2, weight.shape[2], -1)
    return by_row.transpose(0, 2, 1, 3, 4, 5).reshape(16 * weight.shape[2], -1)


def max_pool(x: Float[Array, "n rows cols c"]) -> Float[Array, "n rows2 cols2 c"]:
    """The largest of each 2x2 square; a last odd row or column is left out.

    Of equal numbers the first gets the gradient. Selection is linear where it is differentiated again.
    """
    n, height, width, channels = x.shape
    even = x[:, : height // 2 * 2, : width // 2 * 2]
    squares = even.reshape(n, height // 2, 2, width // 2, 2, channels)
    rows = _larger(squares[:, :, 0], squares[:, :, 1])
    return _larger(rows[:, :, :, 0], rows[:, :, :, 1])


class Responses(eqx.Module):
    """What a convolution gives, for statistics in whatever order, and for pooling."""

    values: Float[Array, "n rows cols c"]
    """An image; or, if `squares`, half as many rows, in which the four numbers of each 2x2 square stand together."""
    squares: bool = eqx.field(static=True)

    def pool(self, values: Float[Array, "n rows cols c"]) -> Float[Array, "n rows2 cols2 c"]:
        """The largest of each square of `values`, which are in the same order as the responses."""
        if not self.squares:
            return max_pool(values)
        n, rows, cols, channels = values.shape
        by_square = values.reshape(n, rows, cols // 4, 4, channels)
        upper = _larger(by_square[..., 0, :], by_square[..., 1, :])
        return _larger(upper, _larger(by_square[..., 2, :], by_square[..., 3, :]))


def _larger(a: Array, b: Array) -> Array:
    return jnp.where(a >= b, a, b)


class Moments(eqx.Module):
    """Mean and variance of each channel."""

    mean: Float[Array, " c"]
    variance: Float[Array, " c"]


def moments_of(x: Float[Array, "n rows cols c"], weight: Float[Array, " n"]) -> Moments:
    """Mean and variance of each channel over the images that count; 0 and 1 where none does."""
    mean = weighted_mean(x.mean((1, 2)), weight)
    variance = weighted_mean(jnp.square(x - jnp.broadcast_to(mean, x.shape)).mean((1, 2)), weight)
    return Moments(mean, jnp.where(weight.sum() > 0, variance, 1.0))


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

    def __call__(self, x: Float[Array, "n rows cols c"], weight: Float[Array, " n"]) -> Float[Array, "n rows cols c"]:
        """The normalised channels of a set of images, of which those of weight 0 have no say."""
        shift = jnp.broadcast_to(self.shift, x.shape)
        if self.scale is None:
            return x + shift
        if self.mode == "group":
            return _group_normalise(x) * jnp.broadcast_to(self.scale, x.shape) + shift
        return self.by_moments(x, moments_of(x, weight) if self.moments is None else self.moments)

    def by_moments(self, x: Float[Array, "n rows cols c"], moments: Moments) -> Float[Array, "n rows cols c"]:
        """The channels normalised by given statistics; for modes that have a scale."""
        assert self.scale is not None
        factor = jax.lax.rsqrt(moments.variance + EPSILON)
        normal = (x - jnp.broadcast_to(moments.mean, x.shape)) * jnp.broadcast_to(factor, x.shape)
        return normal * jnp.broadcast_to(self.scale, x.shape) + jnp.broadcast_to(self.shift, x.shape)

    def remember(self, x: Float[Array, "n rows cols c"], weight: Float[Array, " n"]) -> "Norm":
        """The same, with the statistics of this set from now on."""
        return eqx.tree_at(lambda n: n.moments, self, moments_of(x, weight), is_leaf=lambda leaf: leaf is None)


def _group_normalise(x: Float[Array, "n rows cols c"]) -> Float[Array, "n rows cols c"]:
    """Each group of channels of each image at mean 0 and variance 1."""
    n, height, width, channels = x.shape
    size = math.gcd(channels, GROUP)
    groups = x.reshape(n, height, width, channels // size, size)
    centred = groups - groups.mean((1, 2, 4), keepdims=True)
    factor = jax.lax.rsqrt(jnp.square(centred).mean((1, 2, 4), keepdims=True) + EPSILON)
    return (centred * factor).reshape(x.shape)


class ConvBlock(eqx.Module):
    """Convolution, normalisation, 2x2 max-pooling, ReLU. No bias before the normalisation, which would take it away."""

    weight: Float[Array, "3 3 i o"]
    norm: Norm
    precision: Precision = eqx.field(static=True)

    def __init__(self, in_channels: int, conv: Conv, *, key: PRNGKeyArray):
        """Weights of He's variance."""
        self.weight = (2 / (9 * in_channels)) ** 0.5 * jr.normal(key, (3, 3, in_channels, conv.channels))
        self.norm = Norm(conv.channels, conv.norm)
        self.precision = conv.precision

    def convolve(self, x: Float[Array, "n rows cols i"]) -> Responses:
        """What the normalisation reads."""
        n, height, width, _ = x.shape
        if height % 2 or width % 2:  # a last row or column is in no square, but counts in the statistics
            return Responses(conv3x3(x, self.weight, self.precision), squares=False)
        squares = conv3x3_squares(x, self.weight, self.precision)
        return Responses(squares.reshape(n, height // 2, 2 * width, -1), squares=True)

    def activate(
        self, x: Responses, weight: Float[Array, " n"], modulate: Modulate | None
    ) -> Float[Array, "n rows2 cols2 o"]:
        """The rest of the block; a modulation of the channels, where there is one, follows the normalisation."""
        # The larger of two numbers stays the larger under whatever rises, so pooling may come first, which leaves a
        # quarter of the work: before ReLU, and before a normalisation by channel, turned round where its scale is
        # negative.
        if modulate is not None or self.norm.mode == "group":
            x_normal = self.norm(x.values, weight)
            return jax.nn.relu(x.pool(x_normal if modulate is None else modulate(x_normal)))
        if self.norm.scale is None:
            return jax.nn.relu(self.norm(x.pool(x.values), weight))
        moments = moments_of(x.values, weight) if self.norm.moments is None else self.norm.moments
        turn = jax.lax.stop_gradient(jnp.where(self.norm.scale < 0, -1.0, 1.0))
        pooled = x.pool(x.values * jnp.broadcast_to(turn, x.values.shape))
        return jax.nn.relu(self.norm.by_moments(pooled * jnp.broadcast_to(turn, pooled.shape), moments))


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
        self.blocks = tuple(ConvBlock(size, conv, key=k) for size, k in zip(sizes, keys, strict=True))

    def maps(
        self,
        x: Float[Array, "n rows cols c"],
        weight: Float[Array, " n"] | None = None,
        tau: tuple[Modulate, ...] | None = None,
    ) -> Float[Array, "n rows2 cols2 o"]:
        """The last block's channels as images."""
        weight = jnp.ones(x.shape[0]) if weight is None else weight
        for block, modulate in zip(self.blocks, tau or (None,) * len(self.blocks), strict=True):
            x = block.activate(block.convolve(x), weight, modulate)
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
            responses = block.convolve(x)
            settled.append(eqx.tree_at(lambda b: b.norm, block, block.norm.remember(responses.values, weight)))
            x = settled[-1].activate(responses, weight, modulate)
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
