"""Normal targets."""

from typing import ClassVar

import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import ndtr
from jaxtyping import Array, Float, Shaped

from stmaml.outcomes.base import AbstractRealOutcome, positive
from stmaml.tasks import Scalar


class NormalOutcome(AbstractRealOutcome):
    """Normal targets."""

    rest_size: ClassVar[int] = 1
    shared_start: ClassVar[tuple[float, ...]] = ()
    loc: Float[Array, "... dy"]
    scale: Float[Array, "... dy"]

    @classmethod
    def from_raw(
        cls, mean: Float[Array, "... dy"], rest: Float[Array, "... dy 1"], shared: Float[Array, " 0"], unit: float
    ) -> "NormalOutcome":
        """A scale for each input."""
        return NormalOutcome(mean, positive(rest[..., 0], unit))

    def distribution(self) -> dist.Distribution:
        """Independent normals."""
        return dist.Normal(self.loc, self.scale)

    def log_prob(self, y: Shaped[Array, "... dy"]) -> Float[Array, "..."]:
        """Sum over targets."""
        return jnp.asarray(self.distribution().log_prob(y)).sum(-1)

    def mean(self) -> Float[Array, "... dy"]:
        """The location."""
        return self.loc

    def variance(self) -> Float[Array, "... dy"]:
        """The squared scale."""
        return jnp.square(self.scale)

    def affine(self, shift: Float[Array, "... dy"], scale: Float[Array, "... dy"]) -> "NormalOutcome":
        """Normal again."""
        return NormalOutcome(shift + scale * self.loc, scale * self.scale)

    def tail(self, y: Float[Array, "... dy"], side: Scalar) -> Float[Array, "... dy"]:
        """By the error function."""
        return ndtr(side * (y - self.loc) / self.scale)

    def at_score(self, score: Scalar) -> Float[Array, "... dy"]:
        """So many scales from the location."""
        return self.loc + score * self.scale

    def distance(self, y: Float[Array, "... dy"]) -> Float[Array, "... dy"]:
        """In closed form."""
        return absolute_mean(y - self.loc, jnp.square(self.scale))

    def mean_distance(self, other: "NormalOutcome") -> Float[Array, "... dy"]:
        """In closed form: a difference of normals is normal."""
        return absolute_mean(self.loc - other.loc, jnp.square(self.scale) + jnp.square(other.scale))


def absolute_mean(mean: Float[Array, "*n"], variance: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """E|X| of a normal X."""
    std = jnp.sqrt(variance)
    ratio = mean / std
    return 2 * std * jnp.exp(-jnp.square(ratio) / 2) / jnp.sqrt(2 * jnp.pi) + mean * (2 * ndtr(ratio) - 1)
