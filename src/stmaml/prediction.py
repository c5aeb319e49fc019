"""Predictive distributions: the outcome of one predictor, and the mixture over sampled predictors.

Outcomes are plain arrays, so they may cross `vmap`; numpyro distributions are built from them on the outside. The
mixture is taken at each query point on its own, not over the query set as a whole: its log-density is the logarithm
of the mean density of the sampled predictors at that point.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpyro.distributions as dist
from jax.scipy.special import ndtr, ndtri
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped


class AbstractOutcome(eqx.Module):
    """The distribution of the target at each input, under one predictor."""

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


class NormalOutcome(AbstractOutcome):
    """Normal targets."""

    loc: Float[Array, "... dy"]
    scale: Float[Array, "... dy"]

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


class BernoulliOutcome(AbstractOutcome):
    """Targets in 0..1; a soft target y counts as y of a one and 1 - y of a zero."""

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

    def variance(self) -> Float[Array, "... dy"]:
        """p (1 - p)."""
        return self.mean() * (1 - self.mean())


class CategoricalOutcome(AbstractOutcome):
    """Class indices."""

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

    def variance(self) -> Float[Array, "... c"]:
        """p (1 - p) of each class."""
        return self.mean() * (1 - self.mean())


class Prediction(eqx.Module):
    """The mixture, with equal weights, of `s` outcomes for the same inputs."""

    components: AbstractOutcome
    """Arrays with the sample axis `s` first, then the inputs."""

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
            return jax.tree.map(lambda a: a[one], self.components).distribution().sample(noise)

        return jax.vmap(draw)(jr.split(key, num_draws))

    def cdf(self, y: Float[Array, "n dy"]) -> Float[Array, "n dy"]:
        """Probability of a target at or below `y`, for each target on its own (normal outcomes)."""
        normal = self._normal()
        return ndtr((y[None] - normal.loc) / normal.scale).mean(0)

    def quantiles(self, levels: Float[Array, " l"]) -> Float[Array, "l n dy"]:
        """Where the mixture's distribution function reaches each level (normal outcomes).

        Bisection between the outermost component quantiles: 40 halvings end below float precision.
        """
        normal = self._normal()

        def at(level: Float[Array, ""]) -> Float[Array, "n dy"]:
            each = normal.loc + ndtri(level) * normal.scale

            def halve(_: Int[Array, ""], bracket: tuple[Array, Array]) -> tuple[Array, Array]:
                low, high = bracket
                middle = (low + high) / 2
                below = self.cdf(middle) < level
                return jnp.where(below, middle, low), jnp.where(below, high, middle)

            low, high = jax.lax.fori_loop(0, 40, halve, (each.min(0), each.max(0)))
            return (low + high) / 2

        return jax.vmap(at)(levels)

    def crps(self, y: Float[Array, "n dy"]) -> Float[Array, "n dy"]:
        """Continuous ranked probability score (normal outcomes), in closed form for a mixture of normals."""
        normal = self._normal()
        loc, variance = normal.loc, jnp.square(normal.scale)
        to_truth = _absolute_mean(y[None] - loc, variance).mean(0)
        # One component after the other: all pairs at once would take as many arrays as there are samples.
        to_others = jax.lax.map(
            lambda one: _absolute_mean(loc - one[0][None], variance + one[1][None]).mean(0), (loc, variance)
        )
        return to_truth - to_others.mean(0) / 2

    def _normal(self) -> NormalOutcome:
        if not isinstance(self.components, NormalOutcome):
            raise TypeError("quantiles and CRPS are for real-valued targets; this prediction is over classes")
        return self.components


def _absolute_mean(mean: Array, variance: Array) -> Array:
    """E|X| of a normal X."""
    std = jnp.sqrt(variance)
    ratio = mean / std
    return 2 * std * jnp.exp(-jnp.square(ratio) / 2) / jnp.sqrt(2 * jnp.pi) + mean * (2 * ndtr(ratio) - 1)
