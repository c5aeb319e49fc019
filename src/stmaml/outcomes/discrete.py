"""Targets that are no numbers to scale: values in 0..1, and classes."""

from dataclasses import replace
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float, Shaped

from stmaml.outcomes.base import AbstractOutcome, AbstractRealOutcome
from stmaml.tasks import Scalar, TargetKind

MIN_PROBABILITY = 1e-12  # of a class, before logarithms are taken


class AbstractDiscreteOutcome(AbstractOutcome):
    """Targets that are no numbers to scale: each possible value has a probability."""

    logits: eqx.AbstractVar[Float[Array, "... k"]]

    def variance(self) -> Float[Array, "... k"]:
        """p (1 - p)."""
        return self.mean() * (1 - self.mean())

    def as_real(self) -> AbstractRealOutcome:
        """Never."""
        raise TypeError("quantiles and CRPS are for real-valued targets; this prediction is over classes")

    def tempered(self, temperature: Scalar, center: Float[Array, "... k"]) -> "AbstractDiscreteOutcome":
        """Log-odds divided by the temperature."""
        del center
        return replace(self, logits=self.logits / temperature)


class BernoulliOutcome(AbstractDiscreteOutcome):
    """Targets in 0..1; a soft target y counts as y of a one and 1 - y of a zero."""

    target: ClassVar[TargetKind] = "binary"
    logits: Float[Array, "... dy"]

    def distribution(self) -> dist.Distribution:
        """Independent Bernoullis."""
        return dist.BernoulliLogits(self.logits)

    def log_prob(self, y: Shaped[Array, "... dy"]) -> Float[Array, "..."]:
        """Minus the binary cross-entropy, summed over targets."""
        return (y * jax.nn.log_sigmoid(self.logits) + (1 - y) * jax.nn.log_sigmoid(-self.logits)).sum(-1)

    def mean(self) -> Float[Array, "... dy"]:
        """Probability of a one."""
        return jax.nn.sigmoid(self.logits)

    def pooled(self) -> "BernoulliOutcome":
        """Averaged probabilities."""
        one, zero = (jax.nn.logsumexp(jax.nn.log_sigmoid(s * self.logits), axis=0, keepdims=True) for s in (1, -1))
        return BernoulliOutcome(one - zero)


class CategoricalOutcome(AbstractDiscreteOutcome):
    """Class indices."""

    target: ClassVar[TargetKind] = "class"
    logits: Float[Array, "... c"]

    def distribution(self) -> dist.Distribution:
        """A categorical."""
        return dist.CategoricalLogits(self.logits)

    def log_prob(self, y: Shaped[Array, "..."]) -> Float[Array, "..."]:
        """Log-probability of the class."""
        log_p = jax.nn.log_softmax(self.logits)
        return jnp.take_along_axis(log_p, y[..., None], axis=-1)[..., 0]

    def mean(self) -> Float[Array, "... c"]:
        """Class probabilities."""
        return jax.nn.softmax(self.logits)

    def pooled(self) -> "CategoricalOutcome":
        """Averaged probabilities."""
        return CategoricalOutcome(jnp.log(jnp.maximum(self.mean().mean(0, keepdims=True), MIN_PROBABILITY)))
