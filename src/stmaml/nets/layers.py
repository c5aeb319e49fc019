"""Linear layers and stacks of them, over whole sets."""

import itertools
from collections.abc import Sequence
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.errors import SettingError
from stmaml.nets.products import times

Init = Literal["he", "glorot"]


class Linear(eqx.Module):
    """x W + b for every row. W is stored inputs first, so a set needs no transpose."""

    weight: Float[Array, "i o"]
    bias: Float[Array, " o"] | None

    def __init__(self, in_size: int, out_size: int, *, init: Init = "he", use_bias: bool = True, key: PRNGKeyArray):
        """Normal weights of the variance He or Glorot give; zero bias."""
        if min(in_size, out_size) < 1:
            layer = f"a layer from {in_size} to {out_size} numbers"
            raise SettingError(f"{layer} is impossible; every width must be at least 1.")
        variance = 2 / in_size if init == "he" else 2 / (in_size + out_size)
        self.weight = variance**0.5 * jr.normal(key, (in_size, out_size))
        self.bias = jnp.zeros(out_size) if use_bias else None

    def __call__(self, x: Float[Array, "*n i"]) -> Float[Array, "*n o"]:
        """One output row for each input row."""
        out = times(x, self.weight)
        return out if self.bias is None else out + jnp.broadcast_to(self.bias, out.shape)

    def joined(self, parts: Sequence[Float[Array, "... _"]]) -> Float[Array, "n o"]:
        """The same at the parts side by side, of which those without rows are the same for every row (eq. 12: x_hat =
        [x, h]). They are never copied into one array. That saves work, and it is right: where a part is repeated for
        every row and then multiplied, XLA's GPU compiler of JAX 0.11 gets every second set of a large batch wrong."""
        ends = itertools.accumulate(part.shape[-1] for part in parts)
        each = [times(part, self.weight[end - part.shape[-1] : end]) for part, end in zip(parts, ends, strict=True)]
        rows = sum((out for out in each if out.ndim > 1), start=jnp.zeros((), dtype=self.weight.dtype))
        same = sum((out for out in each if out.ndim == 1), start=jnp.zeros(self.weight.shape[1]))
        if self.bias is not None:
            same = same + self.bias
        return rows + jnp.broadcast_to(same, rows.shape)


class MLP(eqx.Module):
    """Linear layers with ReLU between them; the last one stays linear."""

    layers: tuple[Linear, ...]

    def __init__(self, sizes: tuple[int, ...], *, init: Init = "he", key: PRNGKeyArray):
        if len(sizes) < 2:
            raise SettingError("a network needs at least one layer; give its widths.")
        keys = jr.split(key, len(sizes) - 1)
        self.layers = tuple(Linear(i, o, init=init, key=k) for i, o, k in zip(sizes[:-1], sizes[1:], keys, strict=True))

    def __call__(self, x: Float[Array, "*n i"]) -> Float[Array, "*n o"]:
        """One output row for each input row."""
        for layer in self.layers[:-1]:
            x = jax.nn.relu(layer(x))
        return self.layers[-1](x)

    def joined(self, parts: Sequence[Float[Array, "... _"]]) -> Float[Array, "n o"]:
        """The same at the parts side by side: see `Linear.joined`."""
        first, *rest = self.layers
        x = first.joined(parts)
        for layer in rest:
            x = layer(jax.nn.relu(x))
        return x
