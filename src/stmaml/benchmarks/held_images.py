"""Images that tasks look up by row, on the device or, where they are too many, on the host."""

import os

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Int, UInt8


class Images(eqx.Module):
    """Images as bytes on the device."""

    pixels: UInt8[Array, "n h w c"]

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows, columns and channels of an image."""
        return self.pixels.shape[1:]

    def __call__(self, rows: Int[Array, "*m"]) -> UInt8[Array, "*m h w c"]:
        """The images in these places."""
        return self.pixels[rows]


class Held:
    """Bytes on the host, told apart by being this object: compiled programs refer to it."""

    def __init__(self, pixels: UInt8[np.ndarray, "n h w c"], rows: Int[np.ndarray, " m"]):
        """The images of `pixels` in these places; read from disk, if they lie there, when asked for."""
        self._pixels, self._rows = pixels, rows

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows, columns and channels of an image."""
        return self._pixels.shape[1:]

    def look_up(self, rows: Int[ArrayLike, "*m"]) -> UInt8[np.ndarray, "*m h w c"]:
        """The images in these places."""
        return self._pixels[self._rows[np.asarray(rows)]]


class HostImages(eqx.Module):
    """Images that stay on the host until they are asked for: a batch at a time is sent to the device, as bytes."""

    held: Held = eqx.field(static=True)

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows, columns and channels of an image."""
        return self.held.shape

    def __call__(self, rows: Int[Array, "*m"]) -> UInt8[Array, "*m h w c"]:
        """The images in these places."""
        wanted = jax.ShapeDtypeStruct((*rows.shape, *self.shape), jnp.uint8)
        return jax.pure_callback(self.held.look_up, wanted, rows, vmap_method="expand_dims")


def device_bytes() -> int:
    """Memory of the device that arrays are put on."""
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if limit is None else int(limit)
