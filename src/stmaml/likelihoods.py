"""What a network's raw output means: a distribution over the target, and the objective that trains it."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from stmaml.prediction import AbstractOutcome, BernoulliOutcome, CategoricalOutcome, NormalOutcome
from stmaml.tasks import Examples, NoiseModel, TaskSpec, weighted_mean

MIN_STD = 1e-3  # keeps log-densities finite when a task can be fitted exactly


class AbstractLikelihood(eqx.Module):
    """Turns raw outputs into a distribution, and scores them against targets."""

    @property
    @abc.abstractmethod
    def raw_size(self) -> int:
        """Numbers a network must output for one input."""

    @property
    @abc.abstractmethod
    def code_size(self) -> int:
        """Numbers `encode` gives for one target."""

    @abc.abstractmethod
    def outcome(self, raw: Float[Array, "n r"]) -> AbstractOutcome:
        """The predictive distribution at each input."""

    @abc.abstractmethod
    def objective(self, raw: Float[Array, "n r"], y: Shaped[Array, "n *dy"]) -> Float[Array, " n"]:
        """The loss of each example, for the outer loop."""

    @abc.abstractmethod
    def encode(self, y: Shaped[Array, "n *dy"]) -> Float[Array, "n c"]:
        """Targets as numbers a network can read."""

    def mean_objective(self, raw: Float[Array, "n r"], examples: Examples) -> Float[Array, ""]:
        """The loss of a set: the mean over its examples."""
        return weighted_mean(self.objective(raw, examples.y), examples.weight)

    def inner_objective(self, raw: Float[Array, "n r"], y: Shaped[Array, "n *dy"]) -> Float[Array, " n"]:
        """The loss of each example in a method's inner loop: the same, unless a likelihood says otherwise."""
        return self.objective(raw, y)

    def mean_inner_objective(self, raw: Float[Array, "n r"], examples: Examples) -> Float[Array, ""]:
        """The inner loss of a set: the mean over its examples (eq. 16, inner_loss)."""
        return weighted_mean(self.inner_objective(raw, examples.y), examples.weight)


class Gaussian(AbstractLikelihood):
    """Real targets with Gaussian noise, modelled in one of four ways.

    - `residual`: the objective is the squared error, as in the paper; one noise level is fitted beside it to the
      residuals of the training queries and has no influence on the predictor.
    - `fixed`: the log-density under the given `noise_std`.
    - `learned`: the log-density under one learned noise level.
    - `predicted`: the log-density under a noise level the network outputs for each input.
    """

    log_noise: Float[Array, ""] | None
    size: int = eqx.field(static=True)
    noise: NoiseModel = eqx.field(static=True)
    noise_std: float = eqx.field(static=True)

    def __init__(self, size: int, noise: NoiseModel = "residual", noise_std: float = 1.0):
        """Starts with noise level `noise_std`."""
        self.size, self.noise, self.noise_std = size, noise, noise_std
        self.log_noise = jnp.log(jnp.asarray(noise_std)) if noise in ("residual", "learned") else None

    @property
    def raw_size(self) -> int:
        """Mean, and noise if it is predicted, of each target."""
        return 2 * self.size if self.noise == "predicted" else self.size

    @property
    def code_size(self) -> int:
        """The targets themselves."""
        return self.size

    def outcome(self, raw: Float[Array, "n r"]) -> NormalOutcome:
        """A normal distribution for each input and target."""
        loc = raw[..., : self.size]
        if self.noise == "predicted":
            scale = self.noise_std * jax.nn.softplus(raw[..., self.size :]) / jnp.log(2.0)
        elif self.log_noise is None:
            scale = jnp.full_like(loc, self.noise_std)
        else:
            scale = jnp.broadcast_to(jnp.exp(self.log_noise), loc.shape)
        return NormalOutcome(loc, jnp.maximum(scale, MIN_STD))

    def objective(self, raw: Float[Array, "n r"], y: Shaped[Array, "n dy"]) -> Float[Array, " n"]:
        """Squared error (mean over targets), or minus the log-density (sum over targets)."""
        if self.noise != "residual":
            return -self.outcome(raw).log_prob(y)
        # Adds nothing to the value and nothing to the predictor's gradient: only log_noise learns from it.
        noise_fit = -self.outcome(jax.lax.stop_gradient(raw)).log_prob(y)
        return jnp.square(y - raw).mean(-1) + noise_fit - jax.lax.stop_gradient(noise_fit)

    def inner_objective(self, raw: Float[Array, "n r"], y: Shaped[Array, "n dy"]) -> Float[Array, " n"]:
        """The squared error, mean over targets, whatever the noise model: a support set moves the mean alone.

        A few examples say little about their noise, and the log-density's gradient, which grows as the noise shrinks,
        would make a step size right at the start of training and far too large at its end.
        """
        return jnp.square(y - raw[..., : self.size]).mean(-1)

    def encode(self, y: Shaped[Array, "n dy"]) -> Float[Array, "n dy"]:
        """The targets themselves."""
        return y


class Bernoulli(AbstractLikelihood):
    """Targets in 0..1, hard or soft: the objective is the mean binary cross-entropy."""

    size: int = eqx.field(static=True)

    @property
    def raw_size(self) -> int:
        """A logit for each target."""
        return self.size

    @property
    def code_size(self) -> int:
        """The targets themselves."""
        return self.size

    def outcome(self, raw: Float[Array, "n r"]) -> BernoulliOutcome:
        """A Bernoulli distribution for each input and target."""
        return BernoulliOutcome(raw)

    def objective(self, raw: Float[Array, "n r"], y: Shaped[Array, "n dy"]) -> Float[Array, " n"]:
        """Binary cross-entropy, mean over targets."""
        return -BernoulliOutcome(raw).log_prob(y) / self.size

    def encode(self, y: Shaped[Array, "n dy"]) -> Float[Array, "n dy"]:
        """The targets themselves."""
        return y


class Categorical(AbstractLikelihood):
    """Class indices: the objective is the cross-entropy."""

    num_classes: int = eqx.field(static=True)

    @property
    def raw_size(self) -> int:
        """A logit for each class."""
        return self.num_classes

    @property
    def code_size(self) -> int:
        """One-hot classes."""
        return self.num_classes

    def outcome(self, raw: Float[Array, "n r"]) -> CategoricalOutcome:
        """A categorical distribution for each input."""
        return CategoricalOutcome(raw)

    def objective(self, raw: Float[Array, "n r"], y: Int[Array, " n"]) -> Float[Array, " n"]:
        """Cross-entropy of the true class."""
        return -CategoricalOutcome(raw).log_prob(y)

    def encode(self, y: Int[Array, " n"]) -> Float[Array, "n c"]:
        """One-hot vectors."""
        return jax.nn.one_hot(y, self.num_classes)


def likelihood_for(spec: TaskSpec) -> AbstractLikelihood:
    """The likelihood that fits the targets of `spec`."""
    if spec.target == "class":
        return Categorical(spec.y_size)
    if spec.target == "binary":
        return Bernoulli(spec.y_size)
    return Gaussian(spec.y_size, spec.noise, spec.noise_std)
