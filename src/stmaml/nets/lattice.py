"""Inputs on a lattice, as pixels are: labelled ones make a picture with gaps, which a convolutional network reads.

That a set becomes a picture is from Gordon et al., "Convolutional Conditional Neural Processes", ICLR 2020; the network
is a U-Net (Ronneberger, Fischer, Brox, MICCAI 2015) of residual blocks."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stmaml.nets.layers import Linear
from stmaml.nets.patches import Precision, matrix_of, patches_of
from stmaml.tasks import Weight

Lattice = tuple[int, int]
Places = tuple[Int[Array, " n"], Int[Array, " n"]]
BLOCKS = (1, 2, 3)
"""Residual blocks at each size of the picture, on the way down; each size has half the extent and twice the channels of
the one before. The way up has as many, but for the smallest size."""
QUIET = 0.3  # of the usual spread: what a block adds starts small beside what it is added to


class Surroundings(eqx.Module):
    """A labelled set, read: a vector for every place of the lattice."""

    values: Float[Array, "rows cols f"]

    def __call__(self, x: Float[Array, "q d"]) -> Float[Array, "q f"]:
        """What the set tells about each input."""
        rows, columns = places(x, (self.values.shape[0], self.values.shape[1]))
        return self.values[rows, columns]


class LatticeReader(eqx.Module):
    """What inputs on a lattice read from a labelled set: a vector for each, whatever the size and order of the set."""

    stem: Float[Array, "3 3 i o"]
    down: tuple[tuple["ResidualBlock", ...], ...]
    shrink: tuple[Linear, ...]
    grow: tuple[Linear, ...]
    up: tuple[tuple["ResidualBlock", ...], ...]
    norm: eqx.nn.LayerNorm
    lattice: Lattice = eqx.field(static=True)
    x_size: int = eqx.field(static=True)
    precision: Precision = eqx.field(static=True)

    def __init__(
        self,
        lattice: Lattice,
        x_size: int,
        code_size: int,
        channels: int,
        *,
        precision: Precision = "float32",
        key: PRNGKeyArray,
    ):
        """`code_size` counts the numbers of one label, `channels` those of an answer."""
        keys = iter(jr.split(key, 2 * (sum(BLOCKS) + len(BLOCKS)) + 1))
        widths = [channels * 2**level for level in range(len(BLOCKS))]

        def blocks(level: int) -> tuple[ResidualBlock, ...]:
            return tuple(ResidualBlock(widths[level], precision, key=next(keys)) for _ in range(BLOCKS[level]))

        self.stem = _kernel(code_size + 1, channels, key=next(keys))
        self.down = tuple(blocks(level) for level in range(len(BLOCKS)))
        self.up = tuple(blocks(level) for level in range(len(BLOCKS) - 1))
        self.shrink = tuple(Linear(4 * w, 2 * w, init="glorot", key=next(keys)) for w in widths[:-1])
        self.grow = tuple(Linear(2 * w, 4 * w, init="glorot", key=next(keys)) for w in widths[:-1])
        self.norm = eqx.nn.LayerNorm(channels)
        self.lattice, self.x_size, self.precision = lattice, x_size, precision

    def __call__(self, xy: Float[Array, "n p"], weight: Weight) -> Surroundings:
        """The set as inputs will read it; each row of `xy` is an input and its label."""
        picture = draw(places(xy, self.lattice), xy[:, self.x_size :], weight, self.lattice)
        rows, columns = self.lattice
        step = 2 ** (len(BLOCKS) - 1)
        picture = jnp.pad(picture, ((0, -rows % step), (0, -columns % step), (0, 0)))
        return Surroundings(self._read(picture)[:rows, :columns])

    def _read(self, picture: Float[Array, "rows cols k"]) -> Float[Array, "rows cols f"]:
        x = _convolve(picture, self.stem, self.precision)
        kept = []
        for level, blocks in enumerate(self.down):
            for block in blocks:
                x = block(x)
            if level < len(self.shrink):
                kept.append(x)
                x = self.shrink[level](_squares_together(x))
        for level in reversed(range(len(self.up))):
            x = _squares_apart(self.grow[level](x)) + kept[level]
            for block in self.up[level]:
                x = block(x)
        return jax.nn.relu(jax.vmap(jax.vmap(self.norm))(x))


class ResidualBlock(eqx.Module):
    """Twice normalisation over channels, ReLU and convolution, added to what came in."""

    norms: tuple[eqx.nn.LayerNorm, eqx.nn.LayerNorm]
    kernels: tuple[Float[Array, "3 3 c c"], Float[Array, "3 3 c c"]]
    precision: Precision = eqx.field(static=True)

    def __init__(self, channels: int, precision: Precision, *, key: PRNGKeyArray):
        """Close to doing nothing at the start."""
        first, second = jr.split(key)
        self.norms = (eqx.nn.LayerNorm(channels), eqx.nn.LayerNorm(channels))
        self.kernels = (_kernel(channels, channels, key=first), QUIET * _kernel(channels, channels, key=second))
        self.precision = precision

    def __call__(self, x: Float[Array, "rows cols c"]) -> Float[Array, "rows cols c"]:
        """The picture, revised."""
        y = x
        for norm, kernel in zip(self.norms, self.kernels, strict=True):
            y = _convolve(jax.nn.relu(jax.vmap(jax.vmap(norm))(y)), kernel, self.precision)
        return x + y


def places(x: Float[Array, "n d"], lattice: Lattice) -> Places:
    """Row and column that the first two numbers of each input, from 0 to 1, are nearest to."""
    ends = [extent - 1 for extent in lattice]
    row, column = (jnp.clip(jnp.round(x[:, i] * end), 0, end).astype(int) for i, end in enumerate(ends))
    return row, column


def draw(where: Places, labels: Float[Array, "n k"], weight: Weight, lattice: Lattice) -> Float[Array, "rows cols k1"]:
    """Labels in their places, or their mean where several share one; a last channel is 1 where there are any."""
    rows = jnp.concatenate([labels, jnp.ones((labels.shape[0], 1))], axis=1) * weight[:, None]
    total = jnp.zeros((*lattice, labels.shape[1] + 1)).at[where].add(rows)
    count = total[..., -1:]
    return total / jnp.where(count > 0, count, 1.0)


def _kernel(in_channels: int, out_channels: int, *, key: PRNGKeyArray) -> Float[Array, "3 3 i o"]:
    return (2 / (9 * in_channels)) ** 0.5 * jr.normal(key, (3, 3, in_channels, out_channels))


def _convolve(
    x: Float[Array, "rows cols i"], kernel: Float[Array, "3 3 i o"], precision: Precision
) -> Float[Array, "rows cols o"]:
    """With zeros around. All tasks share the kernel: as a plain product, pictures of all of them become its rows."""
    out = patches_of(x[None].astype(precision))[0] @ matrix_of(kernel).astype(precision)
    return out.astype(x.dtype).reshape(*x.shape[:2], -1)


def _squares_together(x: Float[Array, "rows cols c"]) -> Float[Array, "rows2 cols2 c4"]:
    """The channels of the four places of each 2x2 square as those of one place."""
    rows, columns, channels = x.shape
    x = x.reshape(rows // 2, 2, columns // 2, 2, channels).transpose(0, 2, 1, 3, 4)
    return x.reshape(rows // 2, columns // 2, 4 * channels)


def _squares_apart(x: Float[Array, "rows2 cols2 c4"]) -> Float[Array, "rows cols c"]:
    """The opposite of `_squares_together`."""
    rows, columns, channels = x.shape
    x = x.reshape(rows, columns, 2, 2, channels // 4).transpose(0, 2, 1, 3, 4)
    return x.reshape(2 * rows, 2 * columns, channels // 4)
