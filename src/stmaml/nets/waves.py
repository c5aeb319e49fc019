"""Numbers as waves: what lets a small network draw fine detail."""

import math

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from stmaml.errors import SettingError

FADING = 0.7  # of an octave beside the one before it; level, the finest waves drown the rest early in training


def waves(x: Float[Array, "n d"], octaves: int) -> Float[Array, "n e"]:
    """Each row followed by the sines, then the cosines, of pi x, 2 pi x, 4 pi x ... of each of its numbers. Networks
    learn smooth functions of their inputs first; the waves make neighbouring points far apart."""
    _check(octaves)
    rates = jnp.pi * 2.0 ** jnp.arange(octaves)
    return _beside(x, jnp.broadcast_to(rates, (x.shape[1], octaves)), fading=1.0)


def octaves_for(extent: int) -> int:
    """Octaves for `extent` points from 0 to 1: the finest wave is two to four points long, which they still resolve."""
    return max(1, (extent - 1).bit_length())


class LearntWaves(eqx.Module):
    """Rows followed by sines and cosines of each of their numbers, at rates that start an octave apart and are learnt.
    For numbers of which small differences matter as much as large ones, such as two pressures whose ratio counts."""

    log_rates: Float[Array, "d octaves"]

    def __init__(self, size: int, octaves: int):
        """Rows of `size` numbers; the rates start at pi, 2 pi, 4 pi ... for each of them."""
        _check(octaves)
        self.log_rates = jnp.tile(math.log(math.pi) + math.log(2) * jnp.arange(octaves), (size, 1))

    @property
    def size(self) -> int:
        """Numbers in a row with its waves."""
        return self.log_rates.shape[0] + 2 * self.log_rates.size

    def __call__(self, x: Float[Array, "n d"]) -> Float[Array, "n e"]:
        """Each row, then its sines, then its cosines, fading with each octave."""
        return _beside(x, jnp.exp(self.log_rates), fading=FADING)


def _check(octaves: int) -> None:
    if octaves < 1:
        raise SettingError(f"waves need at least one octave; got {octaves}.")


def _beside(x: Float[Array, "n d"], rates: Float[Array, "d k"], *, fading: float) -> Float[Array, "n e"]:
    """Each row, then the sines and the cosines of its numbers at their rates, each wave at `fading` of the last."""
    shape = (x.shape[0], *rates.shape)
    angles = x[:, :, None] * jnp.broadcast_to(rates, shape)
    height = jnp.broadcast_to(fading ** jnp.arange(rates.shape[1]), shape)
    parts = ((height * wave).reshape(shape[0], -1) for wave in (jnp.sin(angles), jnp.cos(angles)))
    return jnp.concatenate([x, *parts], axis=1)
