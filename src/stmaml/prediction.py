"""Predictive distributions: the mixture over sampled predictors, as it is or recalibrated.

The mixture is taken at each query point on its own, not over the query set as a whole: its log-density is the logarithm
of the mean density of the sampled predictors at that point."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax.scipy.special import ndtr, ndtri
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from stmaml.outcomes import AbstractOutcome, AbstractRealOutcome
from stmaml.quantiles import at_normal_score
from stmaml.tasks import Scalar, TargetKind

MIN_TAIL = 1.8e-35  # 12 spreads of a normal: as far as floats reach


class AbstractPrediction(eqx.Module):
    """The mixture, with equal weights, of `s` outcomes for the same inputs; its quantiles may be corrected."""

    components: eqx.AbstractVar[AbstractOutcome]
    """Arrays with the sample axis `s` first, then the inputs."""

    @abc.abstractmethod
    def cdf(self, y: Float[Array, "n dy"]) -> Float[Array, "n dy"]:
        """Probability of a target at or below `y`, for each target on its own (real targets)."""

    @abc.abstractmethod
    def quantiles(self, levels: Float[Array, " l"]) -> Float[Array, "l n dy"]:
        """Where `cdf` reaches each level (real targets)."""

    @property
    def target(self) -> TargetKind:
        """What is predicted."""
        return self.components.target

    @property
    def num_samples(self) -> int:
        """Predictors in the mixture."""
        return jax.tree.leaves(self.components)[0].shape[0]

    @property
    def mean(self) -> Float[Array, "n k"]:
        """Expected target, or class probabilities."""
        return self.components.mean().mean(0)

    @property
    def noise_std(self) -> Float[Array, "n k"]:
        """The part of the spread that is noise: it stays even if the task is known."""
        return jnp.sqrt(self.components.variance().mean(0))

    @property
    def task_std(self) -> Float[Array, "n k"]:
        """The part of the spread that comes from not knowing the task: how far sampled predictors disagree."""
        return self.components.mean().std(0)

    @property
    def std(self) -> Float[Array, "n k"]:
        """The whole spread: noise and task, added in quadrature."""
        return jnp.sqrt(jnp.square(self.noise_std) + jnp.square(self.task_std))

    def log_prob(self, y: Shaped[Array, "n *dy"]) -> Float[Array, " n"]:
        """Log-density of each example under the mixture."""
        each = jax.vmap(lambda outcome: outcome.log_prob(y))(self.components)
        return jax.nn.logsumexp(each, axis=0) - jnp.log(self.num_samples)

    def sample(self, num_draws: int, *, key: PRNGKeyArray) -> Shaped[Array, "d n *k"]:
        """Targets drawn from the mixture; one predictor a draw, so a draw is a whole function plus noise."""

        def draw(key: PRNGKeyArray) -> Shaped[Array, "n *k"]:
            which, noise = jr.split(key)
            one = jr.randint(which, (), 0, self.num_samples)
            return jax.tree.map(lambda a: a[one], self.components).sample(key=noise)

        return jax.vmap(draw)(jr.split(key, num_draws))

    def crps(self, y: Float[Array, "n dy"]) -> Float[Array, "n dy"]:
        """Continuous ranked probability score (real targets): the distance to the truth less half of that within."""
        real = self.components.as_real()
        to_truth = jax.vmap(lambda one: one.distance(y))(real).mean(0)

        def to_others(one: AbstractRealOutcome) -> Float[Array, "n dy"]:
            return jax.vmap(lambda other: other.mean_distance(one))(real).mean(0)

        # One component after the other: all pairs at once would take as many arrays as there are samples.
        return to_truth - jax.lax.map(to_others, real).mean(0) / 2

    def tail(self, y: Float[Array, "n dy"], side: Scalar) -> Float[Array, "n dy"]:
        """The mixture's probability at or below `y` for a side of 1, above it for -1 (real targets)."""
        return jax.vmap(lambda one: one.tail(y, side))(self.components.as_real()).mean(0)

    def normal_scores(self, y: Float[Array, "n dy"]) -> Float[Array, "n dy"]:
        """The normal score of each target: standard normal if the mixture is right. Either tail is taken where it is
        the small one, so that far targets keep their digits."""
        below, above = (jnp.maximum(self.tail(y, jnp.asarray(side)), MIN_TAIL) for side in (1.0, -1.0))
        return jnp.where(below < above, ndtri(below), -ndtri(above))

    def at_scores(self, scores: Float[Array, " l"]) -> Float[Array, "l n dy"]:
        """The targets that have these normal scores, by bisection between those of the components."""
        real = self.components.as_real()
        return jax.vmap(lambda score: at_normal_score(self.tail, score, real.at_score(score)))(scores)


class Prediction(AbstractPrediction):
    """The mixture itself."""

    components: AbstractOutcome

    def cdf(self, y: Float[Array, "n dy"]) -> Float[Array, "n dy"]:
        """The mean of the components'."""
        return self.tail(y, jnp.asarray(1.0))

    def quantiles(self, levels: Float[Array, " l"]) -> Float[Array, "l n dy"]:
        """Those of the mixture, not of a normal fitted to it."""
        return self.at_scores(ndtri(levels))

    def pooled(self) -> "Prediction":
        """Averaged class probabilities as one component; real targets as they are."""
        return Prediction(self.components.pooled())

    def tempered(self, temperature: Scalar) -> "Prediction":
        """Less sure, for a temperature above 1: stretched about the mean, or averaged probabilities softened."""
        pooled = self.components.pooled()
        center = jnp.broadcast_to(self.mean, pooled.mean().shape)
        return Prediction(pooled.tempered(temperature, center))


class Recalibrated(AbstractPrediction):
    """A mixture whose quantiles are moved to where held-out targets fell; all else is the mixture's."""

    components: AbstractOutcome
    plain: Float[Array, " k"]
    """Rising normal scores of some levels."""
    found: Float[Array, " k"]
    """The normal scores under the mixture at which these levels hold."""

    def cdf(self, y: Float[Array, "n dy"]) -> Float[Array, "n dy"]:
        """The level whose quantile is `y`."""
        return ndtr(_extended(self.normal_scores(y), self.found, self.plain))

    def quantiles(self, levels: Float[Array, " l"]) -> Float[Array, "l n dy"]:
        """The mixture's, at corrected scores."""
        return self.at_scores(_extended(ndtri(levels), self.plain, self.found))


def _extended(at: Float[Array, "*n"], known: Float[Array, " k"], found: Float[Array, " k"]) -> Float[Array, "*n"]:
    """Linear interpolation that goes on outside at a slope of 1: as far out as the uncorrected score goes."""
    return jnp.interp(at, known, found) + jnp.minimum(at - known[0], 0) + jnp.maximum(at - known[-1], 0)
