"""What an outcome is: the distribution of the target at each input, under one predictor."""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from stmaml.tasks import Scalar, TargetKind

MIN_STD = 1e-3  # keeps log-densities finite when a task can be fitted exactly


class AbstractOutcome(eqx.Module):
    """The distribution of the target at each input."""

    target: ClassVar[TargetKind]

    @abc.abstractmethod
    def distribution(self) -> dist.Distribution:
        """The same as a numpyro distribution."""

    @abc.abstractmethod
    def log_prob(self, y: Shaped[Array, "..."]) -> Float[Array, "..."]:
        """Log-density of each example, summed over its targets."""

    @abc.abstractmethod
    def mean(self) -> Float[Array, "... k"]:
        """Expected target, or class probabilities."""

    @abc.abstractmethod
    def variance(self) -> Float[Array, "... k"]:
        """Variance of each target (of each class indicator)."""

    @abc.abstractmethod
    def as_real(self) -> "AbstractRealOutcome":
        """The same, for whoever needs numbers to scale and order; TypeError if the targets are none."""

    @abc.abstractmethod
    def tempered(self, temperature: Scalar, center: Float[Array, "... k"]) -> "AbstractOutcome":
        """Less sure, for a temperature above 1: numbers are stretched about `center`, log-odds divided."""

    @abc.abstractmethod
    def pooled(self) -> "AbstractOutcome":
        """Of a stack on a leading axis: its mixture as a stack of one where that is of the same kind, else itself."""

    def sample(self, *, key: PRNGKeyArray) -> Shaped[Array, "..."]:
        """A target drawn at each input."""
        return jnp.asarray(self.distribution().sample(key))


class AbstractRealOutcome(AbstractOutcome):
    """Real targets, each with its own distribution."""

    target: ClassVar[TargetKind] = "real"
    rest_size: ClassVar[int]
    """Numbers that a network outputs for each target beside its mean."""
    shared_start: ClassVar[tuple[float, ...]]
    """Where numbers start that are learnt once for all inputs."""

    @classmethod
    @abc.abstractmethod
    def from_raw(
        cls, mean: Float[Array, "... dy"], rest: Float[Array, "... dy r"], shared: Float[Array, " f"], unit: float
    ) -> "AbstractRealOutcome":
        """An outcome of that mean from a network's other outputs: of a spread of about `unit` where these are 0."""

    @abc.abstractmethod
    def affine(self, shift: Float[Array, "... dy"], scale: Float[Array, "... dy"]) -> "AbstractRealOutcome":
        """The distribution of shift + scale * target, for a scale above 0."""

    @abc.abstractmethod
    def tail(self, y: Float[Array, "... dy"], side: Scalar) -> Float[Array, "... dy"]:
        """Probability at or below `y` for a side of 1, above it for -1, with all its digits where it is small."""

    @abc.abstractmethod
    def at_score(self, score: Scalar) -> Float[Array, "... dy"]:
        """The quantile whose level the standard normal distribution reaches at `score`."""

    @abc.abstractmethod
    def distance(self, y: Float[Array, "... dy"]) -> Float[Array, "... dy"]:
        """The expected distance of a target from `y`."""

    @abc.abstractmethod
    def mean_distance(self, other: Any) -> Float[Array, "... dy"]:
        """The expected distance of a target from an independent one under another outcome of the same class."""

    def as_real(self) -> "AbstractRealOutcome":
        """Itself."""
        return self

    def tempered(self, temperature: Scalar, center: Float[Array, "... dy"]) -> "AbstractRealOutcome":
        """Stretched about the center."""
        return self.affine((1 - temperature) * center, jnp.broadcast_to(temperature, center.shape))

    def pooled(self) -> "AbstractRealOutcome":
        """Itself: a mixture of normals is no normal."""
        return self


def positive(raw: Float[Array, "*n"], unit: float) -> Float[Array, "*n"]:
    """A spread that is `unit` where a network outputs 0."""
    return jnp.maximum(unit * jax.nn.softplus(raw) / jnp.log(2.0), MIN_STD)
