"""Targets with heavy tails."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import ndtr
from jaxtyping import Array, Float, Shaped

from stmaml.outcomes.base import AbstractRealOutcome, positive
from stmaml.quantiles import student_at, student_density, student_tail
from stmaml.tasks import Scalar

MIN_FREEDOM = 2.1  # up to 2 there is no variance


class StudentOutcome(AbstractRealOutcome):
    """Targets with heavy tails: Student's distribution, moved and scaled, with more than two degrees of freedom."""

    rest_size: ClassVar[int] = 1
    shared_start: ClassVar[tuple[float, ...]] = (2.0,)  # 2.1 + exp(2): about 9.5 degrees of freedom
    loc: Float[Array, "... dy"]
    scale: Float[Array, "... dy"]
    freedom: Float[Array, "... dy"]

    @classmethod
    def from_raw(
        cls, mean: Float[Array, "... dy"], rest: Float[Array, "... dy 1"], shared: Float[Array, " 1"], unit: float
    ) -> "StudentOutcome":
        """A scale for each input; the degrees of freedom are the same for all."""
        freedom = jnp.broadcast_to(MIN_FREEDOM + jnp.exp(shared[0]), mean.shape)
        return StudentOutcome(mean, positive(rest[..., 0], unit), freedom)

    def distribution(self) -> dist.Distribution:
        """Independent Student's t."""
        return dist.StudentT(self.freedom, self.loc, self.scale)

    def log_prob(self, y: Shaped[Array, "... dy"]) -> Float[Array, "..."]:
        """Sum over targets."""
        return jnp.asarray(self.distribution().log_prob(y)).sum(-1)

    def mean(self) -> Float[Array, "... dy"]:
        """The location."""
        return self.loc

    def variance(self) -> Float[Array, "... dy"]:
        """Larger than the squared scale, the more so the fewer the degrees of freedom."""
        return jnp.square(self.scale) * self.freedom / (self.freedom - 2)

    def affine(self, shift: Float[Array, "... dy"], scale: Float[Array, "... dy"]) -> "StudentOutcome":
        """Student's again."""
        return StudentOutcome(shift + scale * self.loc, scale * self.scale, self.freedom)

    def tail(self, y: Float[Array, "... dy"], side: Scalar) -> Float[Array, "... dy"]:
        """By the incomplete beta function."""
        t = side * (y - self.loc) / self.scale
        return student_tail(t, jnp.broadcast_to(self.freedom, t.shape))

    def at_score(self, score: Scalar) -> Float[Array, "... dy"]:
        """By bisection."""
        below = jnp.broadcast_to(ndtr(-jnp.abs(score)), self.loc.shape)
        return self.loc - jnp.sign(score) * student_at(below, self.freedom) * self.scale

    def distance(self, y: Float[Array, "... dy"]) -> Float[Array, "... dy"]:
        """In closed form (Jordan, Krueger, Lerch, "Evaluating probabilistic forecasts with scoringRules", 2019)."""
        t = (y - self.loc) / self.scale
        freedom = jnp.broadcast_to(self.freedom, t.shape)
        beyond = 2 * student_density(t, freedom) * (freedom + jnp.square(t)) / (freedom - 1)
        return self.scale * (t * (2 * student_tail(t, freedom) - 1) + beyond)

    def mean_distance(self, other: "StudentOutcome") -> Float[Array, "... dy"]:
        """The mean of one's distance over the other, the narrower, by the trapezoidal rule.

        With t = sqrt(freedom) sinh u the density falls as cosh(u)^-freedom, so that few points suffice."""
        wide = self.scale > other.scale
        narrow = jax.tree.map(lambda a, b: jnp.where(wide, b, a), self, other)
        around = jax.tree.map(lambda a, b: jnp.where(wide, a, b), self, other)
        end = jnp.arccosh(jnp.power(1e-5, -1 / (narrow.freedom - 1)))

        def term(share: Scalar) -> tuple[Float[Array, "... dy"], Float[Array, "... dy"]]:
            u = share * end
            weight = jnp.power(jnp.cosh(u), -narrow.freedom)
            at = narrow.loc + narrow.scale * jnp.sqrt(narrow.freedom) * jnp.sinh(u)
            return weight, weight * around.distance(at)

        weight, distance = jax.vmap(term)(jnp.linspace(-1, 1, 27))
        return distance.sum(0) / weight.sum(0)
