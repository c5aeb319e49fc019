"""Networks whose hidden blocks are modulated from outside: each block's pre-activations pass through a `Modulation`.

Features are the last axis, so the same modulations serve the channels of an image network.
"""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from stmaml.nets.learner import Learner

ModulationForm = Literal["film", "gate"]


class Film(eqx.Module):
    """Feature-wise linear modulation: x (1 + gamma) + beta."""

    gamma: Float[Array, " c"]
    beta: Float[Array, " c"]

    def __call__(self, x: Float[Array, "*n c"]) -> Float[Array, "*n c"]:
        """The modulated features."""
        return x * jnp.broadcast_to(1 + self.gamma, x.shape) + jnp.broadcast_to(self.beta, x.shape)


class Gate(eqx.Module):
    """Attention-like modulation: x sigmoid(logits)."""

    logits: Float[Array, " c"]

    def __call__(self, x: Float[Array, "*n c"]) -> Float[Array, "*n c"]:
        """The modulated features."""
        return x * jnp.broadcast_to(jax.nn.sigmoid(self.logits), x.shape)


Modulation = Film | Gate


def modulation_size(form: ModulationForm, width: int) -> int:
    """Numbers that modulate a block of `width` features."""
    return 2 * width if form == "film" else width


def modulation_of(form: ModulationForm, tau: Float[Array, " t"]) -> Modulation:
    """The modulation a vector stands for; FiLM reads [gamma, beta]."""
    return Film(*jnp.split(tau, 2)) if form == "film" else Gate(tau)


class ModulatedLearner(eqx.Module):
    """The base learner with every hidden layer modulated; the head never is."""

    plain: Learner

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Features of each modulated block."""
        return tuple(layer.weight.shape[1] for layer in self.plain.body)

    def __call__(self, x: Float[Array, "n *dx"], tau: tuple[Modulation, ...]) -> Float[Array, "n o"]:
        """Raw outputs for a set of inputs, under one modulation a block."""
        x = x.reshape(x.shape[0], -1)
        for layer, modulate in zip(self.plain.body, tau, strict=True):
            x = jax.nn.relu(modulate(layer(x)))
        return self.plain.head(x)
