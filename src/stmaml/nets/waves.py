"""Coordinates as waves: what lets a small network draw fine detail."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from stmaml.errors import SettingError


def waves(x: Float[Array, "n d"], octaves: int) -> Float[Array, "n e"]:
    """Each row followed by the sines, then the cosines, of pi x, 2 pi x, 4 pi x ... of each of its numbers.

    Networks learn smooth functions of their inputs first; the waves make neighbouring points far apart.
    """
    if octaves < 1:
        raise SettingError(f"waves need at least one octave; got {octaves}.")
    rates = jnp.pi * 2.0 ** jnp.arange(octaves)
    angles = (x[:, :, None] * rates[None, None, :]).reshape(x.shape[0], -1)
    return jnp.concatenate([x, jnp.sin(angles), jnp.cos(angles)], axis=1)


def octaves_for(extent: int) -> int:
    """Octaves for `extent` points from 0 to 1: the finest wave is two to four points long, which they still resolve."""
    return max(1, (extent - 1).bit_length())
