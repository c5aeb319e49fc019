"""Convolutional networks for images: blocks of convolution, normalisation, pooling and ReLU."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.errors import SettingError, at_least
from stmaml.nets.convolution import conv3x3, pooled
from stmaml.nets.layers import Linear
from stmaml.nets.patches import (
    Precision,
    is_even,
    largest,
    matrix_of,
    patches_of,
    pick,
    square_matrix,
    square_patches,
    squares_of,
)
from stmaml.tasks import Weight, weighted_mean

NormMode = Literal["batch", "support", "none", "group"]
FeatureForm = Literal["shift", "head"]
Modulate = Callable[[Float[Array, "*n c"]], Float[Array, "*n c"]]
Modulations = tuple[Modulate, ...] | None
Shape = tuple[int, ...]  # height, width, channels
Images = Float[Array, "n rows cols c"]
EPSILON = 1e-3  # added to variances, as the benchmarks' own code does
SHIFT_START = 0.1  # of the usual first weights from h to shifts: an h drawn at random would else silence whole blocks
GROUP = 8  # channels that group normalisation takes together, or their largest common divisor with the channels


@dataclass(frozen=True)
class Conv:
    """Settings of the networks that read images; other inputs make no use of them."""

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
        at_least(1, channels=self.channels, conv_blocks=self.conv_blocks)


class Moments(eqx.Module):
    """Mean and variance of each channel."""

    mean: Float[Array, " c"]
    variance: Float[Array, " c"]


class Responses(eqx.Module):
    """What a convolution gives, with its statistics."""

    values: Float[Array, "n rows cols c"]
    moments: Moments
    pooled: bool = eqx.field(static=True, default=False)
    """Whether the values are but the largest of each 2x2 square."""


def moments_of(x: Float[Array, "n *p c"], weight: Weight) -> Moments:
    """Mean and variance of each channel over the images that count; 0 and 1 where none does."""
    # Both sums in one pass over the memory; channels whose mean is a thousand times their spread would suffer, and a
    # convolution of normalised features has none.
    inside = tuple(range(1, x.ndim - 1))
    mean, square = weighted_mean(x.mean(inside), weight), weighted_mean(jnp.square(x).mean(inside), weight)
    variance = jnp.maximum(square - jnp.square(mean), 0.0)
    return Moments(mean, jnp.where(weight.sum() > 0, variance, 1.0))


def moments_by_inputs(
    x: Float[Array, "n rows cols i"], kernel: Float[Array, "3 3 i o"], weight: Weight, precision: Precision = "float32"
) -> Moments:
    """`moments_of` the convolution of `x`, without it: they follow from the second moments of the patches of `x`. In an
    inner loop the images stay and the kernel moves, so that what is as large as the images is done once."""
    if is_even(x):
        rows, matrix = square_patches(x.astype(precision)), square_matrix(kernel)
    else:
        rows, matrix = patches_of(x.astype(precision)), matrix_of(kernel)
    exact = partial(jnp.einsum, precision="highest", preferred_element_type=jnp.float32)
    centre = weighted_mean(rows.mean(1, dtype=jnp.float32), weight)
    products = weighted_mean(exact("npk,npl->nkl", rows, rows).reshape(x.shape[0], -1) / rows.shape[1], weight)
    covariance = products.reshape(centre.shape * 2) - jnp.outer(centre, centre)
    means = exact("k,ko->o", centre, matrix).reshape(-1, kernel.shape[-1])  # one row for each place in a square
    spread = (matrix * exact("kl,lo->ko", covariance, matrix)).sum(0).reshape(means.shape)
    mean = means.mean(0)
    variance = (jnp.maximum(spread, 0.0) + jnp.square(means - jnp.broadcast_to(mean, means.shape))).mean(0)
    return Moments(mean, jnp.where(weight.sum() > 0, variance, 1.0))


class Norm(eqx.Module):
    """Normalisation with a learned scale and shift; mode `none` has the shift alone, as a bias."""

    scale: Float[Array, " c"] | None
    shift: Float[Array, " c"]
    moments: Moments | None
    """Those of a support set, once it has been read in mode `support`."""
    mode: NormMode = eqx.field(static=True)

    def __init__(self, channels: int, mode: NormMode):
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
        self.weight = (2 / (9 * in_channels)) ** 0.5 * jr.normal(key, (3, 3, in_channels, conv.channels))
        self.norm = Norm(conv.channels, conv.norm)
        self.precision, self.first = conv.precision, first

    def convolve(self, x: Float[Array, "n rows cols i"], weight: Weight, modulate: Modulate | None = None) -> Responses:
        """What the normalisation reads, and its statistics over the images that count. Where nothing comes between
        that, pooling and the images, it is pooled at once."""
        if not self.first:
            values = conv3x3(x, self.weight, self.precision)
            return Responses(values, moments_of(values, weight))
        moments = moments_by_inputs(x, self.weight, weight, self.precision)
        if is_even(x) and self._pools_first(modulate):
            return Responses(self._pooled(x), moments, pooled=True)
        return Responses(conv3x3(x, self.weight, self.precision), moments)

    def activate(self, x: Responses, modulate: Modulate | None) -> Float[Array, "n rows2 cols2 o"]:
        """The rest of the block; a modulation of the channels, where there is one, follows the normalisation."""
        if x.pooled:
            return jax.nn.relu(self.norm(x.values, x.moments))
        if not self._pools_first(modulate):
            x_normal = self.norm(x.values, x.moments)
            normal = squares_of(x_normal if modulate is None else modulate(x_normal))
            return jax.nn.relu(pick(normal, largest(normal)))
        squares = squares_of(x.values)
        winner = largest(squares * jnp.broadcast_to(self._sign, squares.shape))
        return jax.nn.relu(self.norm(pick(squares, winner), x.moments))

    def _pools_first(self, modulate: Modulate | None) -> bool:
        # The largest of four numbers stays the largest under whatever rises, so pooling may come first, which leaves a
        # quarter of the work: before ReLU, and before a normalisation by channel; the smallest where that falls.
        return modulate is None and self.norm.mode != "group"

    @property
    def _sign(self) -> Float[Array, " o"]:
        """-1 for channels that the normalisation turns round."""
        return jnp.ones_like(self.norm.shift) if self.norm.scale is None else jnp.where(self.norm.scale < 0, -1.0, 1.0)

    def _pooled(self, x: Float[Array, "n rows cols i"]) -> Float[Array, "n rows2 cols2 o"]:
        rows = square_patches(x.astype(self.precision))
        matrix = square_matrix(self.weight).astype(self.precision).reshape(rows.shape[-1], 4, -1)
        values, _ = pooled(rows, matrix, self._sign)
        return values.astype(jnp.float32).reshape(x.shape[0], x.shape[1] // 2, x.shape[2] // 2, -1)


class ConvBody(eqx.Module):
    """Blocks one after the other, flattened: images in, features out."""

    blocks: tuple[ConvBlock, ...]

    def __getitem__(self, index: int) -> ConvBlock:
        return self.blocks[index]

    def __init__(self, x_shape: Shape, conv: Conv, *, key: PRNGKeyArray):
        feature_shape(x_shape, conv)
        sizes = [x_shape[2], *[conv.channels] * (conv.conv_blocks - 1)]
        each = enumerate(zip(sizes, jr.split(key, conv.conv_blocks), strict=True))
        self.blocks = tuple(ConvBlock(size, conv, first=i == 0, key=k) for i, (size, k) in each)

    def maps(self, x: Images, weight: Weight | None = None, tau: Modulations = None) -> Float[Array, "n rows2 cols2 o"]:
        """The last block's channels as images."""
        weight = jnp.ones(x.shape[0]) if weight is None else weight
        for block, modulate in zip(self.blocks, tau or (None,) * len(self.blocks), strict=True):
            x = block.activate(block.convolve(x, weight, modulate), modulate)
        return x

    def __call__(self, x: Images, weight: Weight | None = None, tau: Modulations = None) -> Float[Array, "n f"]:
        """Features of a set of images; those of weight 0 have no part in its statistics. `tau` modulates each block."""
        return self.maps(x, weight, tau).reshape(x.shape[0], -1)

    def settle(self, x: Images, weight: Weight, tau: Modulations = None) -> "ConvBody":
        """In mode `support` the same network with the statistics of this set from now on; in others just the same."""
        if self.blocks[0].norm.mode != "support":
            return self
        settled = []
        for block, modulate in zip(self.blocks, tau or (None,) * len(self.blocks), strict=True):
            responses = block.convolve(x, weight, modulate)
            settled.append(eqx.tree_at(lambda b: b.norm, block, block.norm.remember(responses.moments)))
            x = settled[-1].activate(responses, modulate)
        return eqx.tree_at(lambda body: body.blocks, self, tuple(settled))


def feature_shape(x_shape: Shape, conv: Conv) -> tuple[int, int, int]:
    """Height, width and channels after the last block."""
    height, width = (extent >> conv.conv_blocks for extent in x_shape[:2])
    if min(height, width) < 1:
        small = f"images of {x_shape[0]} by {x_shape[1]} are too small for {conv.conv_blocks} blocks"
        raise SettingError(f"{small} that each halve them; use larger images or fewer --conv-blocks.")
    return height, width, conv.channels


class ConvLearner(eqx.Module):
    """The base learner for images, theta = [theta_b, theta_c]. A task's feature h, where there is one, shifts the
    channels of every block after their normalisation, so that it changes what the blocks make of a picture. In the
    form `head` it joins the flattened features instead and adds the same to the logits of all pictures."""

    body: ConvBody
    head: Linear
    shifts: tuple[Linear, ...] | None = None

    def __init__(
        self,
        x_shape: Shape,
        conv: Conv,
        out_size: int,
        *,
        h_size: int = 0,
        h_form: FeatureForm = "shift",
        head_bias: bool = True,
        key: PRNGKeyArray,
    ):
        body_key, head_key = jr.split(key)
        self.body = ConvBody(x_shape, conv, key=body_key)
        features = math.prod(feature_shape(x_shape, conv)) + h_size * (h_form == "head")
        self.head = Linear(features, out_size, init="glorot", use_bias=head_bias, key=head_key)
        if h_size and h_form == "shift":
            keys = jr.split(jr.fold_in(key, 2), conv.conv_blocks)
            usual = (Linear(h_size, conv.channels, init="glorot", use_bias=False, key=k) for k in keys)
            self.shifts = tuple(eqx.tree_at(lambda by: by.weight, one, SHIFT_START * one.weight) for one in usual)

    def __call__(
        self, x: Images, h: Float[Array, " h"] | None = None, *, weight: Weight | None = None, tau: Modulations = None
    ) -> Float[Array, "n o"]:
        """Raw outputs for a set of images; those of weight 0 have no part in its statistics."""
        features = self.features(x, h, weight=weight, tau=tau)
        return self.head(features) if h is None or self.shifts is not None else self.head.joined([features, h])

    def features(
        self, x: Images, h: Float[Array, " h"] | None = None, *, weight: Weight | None = None, tau: Modulations = None
    ) -> Float[Array, "n f"]:
        """What the last layer reads of a set of images, but for an h that joins it."""
        return self._shifted(h)(x, weight, tau)

    def settle(
        self, x: Images, weight: Weight, h: Float[Array, " h"] | None = None, *, tau: Modulations = None
    ) -> "ConvLearner":
        """The learner after reading the support set it is to answer for: see `ConvBody.settle`."""
        settled = self._shifted(h).settle(x, weight, tau)
        own = eqx.tree_at(_shifts_of, settled, _shifts_of(self.body))  # h is added anew at each call
        return eqx.tree_at(lambda theta: theta.body, self, own)

    def _shifted(self, h: Float[Array, " h"] | None) -> ConvBody:
        """The blocks as the task's h shifts them."""
        if h is None or self.shifts is None:
            return self.body
        moved = [own + by(h) for own, by in zip(_shifts_of(self.body), self.shifts, strict=True)]
        return eqx.tree_at(_shifts_of, self.body, moved)


def _shifts_of(body: ConvBody) -> list[Any]:
    return [block.norm.shift for block in body.blocks]
