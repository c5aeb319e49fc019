"""Networks whose hidden blocks are modulated from outside: each block's pre-activations pass through a `Modulation`.

Features are the last axis, so the same modulations serve the channels of an image network."""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from stmaml.nets.backbone import BaseLearner
from stmaml.nets.conv import ConvLearner
from stmaml.tasks import Weight

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
Modulations = tuple[Modulation, ...]


def modulation_size(form: ModulationForm, width: int) -> int:
    """Numbers that modulate a block of `width` features."""
    return 2 * width if form == "film" else width


def modulation_of(form: ModulationForm, tau: Float[Array, " t"]) -> Modulation:
    """The modulation a vector stands for; FiLM reads [gamma, beta]."""
    return Film(*jnp.split(tau, 2)) if form == "film" else Gate(tau)


class ModulatedLearner(eqx.Module):
    """The base learner with every hidden layer, or the channels of every block, modulated; the head never is."""

    plain: BaseLearner

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Features of each modulated block."""
        layers = self.plain.body.blocks if isinstance(self.plain, ConvLearner) else self.plain.body
        return tuple(layer.weight.shape[-1] for layer in layers)

    def __call__(
        self, x: Float[Array, "n *dx"], tau: Modulations, *, weight: Weight | None = None
    ) -> Float[Array, "n o"]:
        """Raw outputs for a set of inputs, under one modulation a block."""
        if isinstance(self.plain, ConvLearner):
            return self.plain(x, weight=weight, tau=tau)
        x = x.reshape(x.shape[0], -1)
        for layer, modulate in zip(self.plain.body, tau, strict=True):
            x = jax.nn.relu(modulate(layer(x)))
        return self.plain.head(x)

    def settle(self, x: Float[Array, "n *dx"], tau: Modulations, weight: Weight) -> "ModulatedLearner":
        """The same, with what the base learner remembers of a support set under this modulation."""
        if isinstance(self.plain, ConvLearner):
            return ModulatedLearner(self.plain.settle(x, weight, tau=tau))
        return self
