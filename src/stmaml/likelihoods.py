"""What a network's raw output means: a distribution over the target, and the objective that trains it."""

import abc
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree, Shaped

from stmaml import outcomes
from stmaml.errors import SettingError
from stmaml.outcomes import AbstractOutcome, AbstractRealOutcome, BernoulliOutcome, CategoricalOutcome, NormalOutcome
from stmaml.tasks import Examples, Scalar, TaskSpec, weighted_mean


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

    def mean_objective(self, raw: Float[Array, "n r"], examples: Examples) -> Scalar:
        """The loss of a set: the mean over its examples."""
        return weighted_mean(self.objective(raw, examples.y), examples.weight)

    def inner_objective(self, raw: Float[Array, "n r"], y: Shaped[Array, "n *dy"]) -> Float[Array, " n"]:
        """The loss of each example in a method's inner loop: the same, unless a likelihood says otherwise."""
        return self.objective(raw, y)

    def mean_inner_objective(self, raw: Float[Array, "n r"], examples: Examples) -> Scalar:
        """The inner loss of a set: the mean over its examples (eq. 16, inner_loss)."""
        return weighted_mean(self.inner_objective(raw, examples.y), examples.weight)


class AbstractNumbers(AbstractLikelihood):
    """Targets that a network can read as they are."""

    size: eqx.AbstractVar[int]

    @property
    def code_size(self) -> int:
        """The targets themselves."""
        return self.size

    def encode(self, y: Shaped[Array, "n dy"]) -> Float[Array, "n dy"]:
        """The targets themselves."""
        return y


class AbstractReal(AbstractNumbers):
    """Real targets. The first raw outputs are their means, whatever else a noise model reads."""

    def inner_objective(self, raw: Float[Array, "n r"], y: Shaped[Array, "n dy"]) -> Float[Array, " n"]:
        """The squared error, mean over targets, whatever the noise model: a support set moves the mean alone. A few
        examples say little about their noise, and the log-density's gradient, which grows as the noise shrinks, would
        make a step size right at the start of training and far too large at its end."""
        return jnp.square(y - raw[..., : self.size]).mean(-1)


class Gaussian(AbstractReal):
    """Real targets with one level of Gaussian noise.

    - `residual`: the objective is the squared error, as in the paper; the noise level is fitted beside it to the
      residuals of the training queries and has no influence on the predictor.
    - `fixed`: the log-density under the given `noise_std`.
    - `learned`: the log-density under a learned noise level."""

    log_noise: Scalar | None
    size: int = eqx.field(static=True)
    noise: str = eqx.field(static=True)
    noise_std: float = eqx.field(static=True)

    def __init__(self, size: int, noise: str = "residual", noise_std: float = 1.0):
        self.size, self.noise, self.noise_std = size, noise, noise_std
        self.log_noise = None if noise == "fixed" else jnp.log(jnp.asarray(noise_std))

    @property
    def raw_size(self) -> int:
        """The mean of each target."""
        return self.size

    def outcome(self, raw: Float[Array, "n r"]) -> NormalOutcome:
        """A normal distribution for each input and target."""
        scale = self.noise_std if self.log_noise is None else jnp.exp(self.log_noise)
        return NormalOutcome(raw, jnp.maximum(jnp.broadcast_to(scale, raw.shape), outcomes.MIN_STD))

    def objective(self, raw: Float[Array, "n r"], y: Shaped[Array, "n dy"]) -> Float[Array, " n"]:
        """Squared error (mean over targets), or minus the log-density (sum over targets)."""
        if self.noise != "residual":
            return -self.outcome(raw).log_prob(y)
        # Adds nothing to the value and nothing to the predictor's gradient: only log_noise learns from it.
        noise_fit = -self.outcome(jax.lax.stop_gradient(raw)).log_prob(y)
        return jnp.square(y - raw).mean(-1) + noise_fit - jax.lax.stop_gradient(noise_fit)

    def estimates_noise(self) -> bool:
        """Whether the noise level is a by-product that an average of squared residuals can stand for."""
        return self.noise == "residual"


class Predicted(AbstractReal):
    """Real targets whose distribution the network outputs for each input: the objective is minus the log-density."""

    shared: Float[Array, " f"] | None
    """What is learnt once for all inputs, if anything."""
    family: type[AbstractRealOutcome] = eqx.field(static=True)
    size: int = eqx.field(static=True)
    noise_std: float = eqx.field(static=True)

    def __init__(self, family: type[AbstractRealOutcome], size: int, noise_std: float = 1.0):
        self.family, self.size, self.noise_std = family, size, noise_std
        self.shared = jnp.array(family.shared_start) if family.shared_start else None

    @property
    def raw_size(self) -> int:
        """The mean of each target, and what else its distribution needs."""
        return self.size * (1 + self.family.rest_size)

    def outcome(self, raw: Float[Array, "n r"]) -> AbstractRealOutcome:
        """A distribution for each input and target."""
        rest = raw[..., self.size :].reshape(*raw.shape[:-1], self.size, self.family.rest_size)
        shared = jnp.zeros(0) if self.shared is None else self.shared
        return self.family.from_raw(raw[..., : self.size], rest, shared, self.noise_std)

    def objective(self, raw: Float[Array, "n r"], y: Shaped[Array, "n dy"]) -> Float[Array, " n"]:
        """Minus the log-density, summed over targets."""
        return -self.outcome(raw).log_prob(y)


class Bernoulli(AbstractNumbers):
    """Targets in 0..1, hard or soft: the objective is the mean binary cross-entropy."""

    size: int = eqx.field(static=True)

    @property
    def raw_size(self) -> int:
        """A logit for each target."""
        return self.size

    def outcome(self, raw: Float[Array, "n r"]) -> BernoulliOutcome:
        """A Bernoulli distribution for each input and target."""
        return BernoulliOutcome(raw)

    def objective(self, raw: Float[Array, "n r"], y: Shaped[Array, "n dy"]) -> Float[Array, " n"]:
        """Binary cross-entropy, mean over targets."""
        return -BernoulliOutcome(raw).log_prob(y) / self.size


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


class Rising(AbstractLikelihood):
    """Any likelihood of raw outputs that first count for nothing: `start` is what is said before training, and `gain`,
    from 0 on, is how much of the network's own outputs is added to it (Bachlechner et al., "ReZero is All You Need",
    2021)."""

    likelihood: AbstractLikelihood
    start: Float[Array, " r"]
    gain: Float[Array, " r"]

    @property
    def raw_size(self) -> int:
        """As many as without it."""
        return self.likelihood.raw_size

    @property
    def code_size(self) -> int:
        """As many as without it."""
        return self.likelihood.code_size

    def outcome(self, raw: Float[Array, "n r"]) -> AbstractOutcome:
        """The outcome of start and outputs together."""
        return self.likelihood.outcome(self._risen(raw))

    def objective(self, raw: Float[Array, "n r"], y: Shaped[Array, "n *dy"]) -> Float[Array, " n"]:
        """That of start and outputs together."""
        return self.likelihood.objective(self._risen(raw), y)

    def encode(self, y: Shaped[Array, "n *dy"]) -> Float[Array, "n c"]:
        """Targets as without it."""
        return self.likelihood.encode(y)

    def inner_objective(self, raw: Float[Array, "n r"], y: Shaped[Array, "n *dy"]) -> Float[Array, " n"]:
        """That of start and outputs together."""
        return self.likelihood.inner_objective(self._risen(raw), y)

    def _risen(self, raw: Float[Array, "n r"]) -> Float[Array, "n r"]:
        return jnp.broadcast_to(self.start, raw.shape) + raw * jnp.broadcast_to(self.gain, raw.shape)


NOISE_MODELS: dict[str, Callable[[int, float], AbstractReal]] = {
    "residual": lambda size, std: Gaussian(size, "residual", std),
    "fixed": lambda size, std: Gaussian(size, "fixed", std),
    "learned": lambda size, std: Gaussian(size, "learned", std),
    "predicted": partial(Predicted, NormalOutcome),
    "student": partial(Predicted, outcomes.StudentOutcome),
    "mixture": partial(Predicted, outcomes.NormalMixtureOutcome),
}
"""How the spread of real targets can be modelled, given how many there are and where it starts."""


def check_noise_model(name: str) -> None:
    """SettingError for a noise model that is not there."""
    if name not in NOISE_MODELS:
        raise SettingError(f"there is no noise model '{name}'; choose one of: {', '.join(NOISE_MODELS)}.")


def likelihood_for(spec: TaskSpec) -> AbstractLikelihood:
    """The likelihood that fits the targets of `spec`."""
    if spec.target == "class":
        return Categorical(spec.y_size)
    if spec.target == "binary":
        return Bernoulli(spec.y_size)
    check_noise_model(spec.noise)
    return NOISE_MODELS[spec.noise](spec.y_size, spec.noise_std)


Tree = TypeVar("Tree", bound=PyTree)


def without_noise(gradients: Tree, learner: PyTree) -> Tree:
    """Gradients of a learner, with 0 for noise levels that are estimated from residuals."""

    def cut(likelihood: Gaussian, gradient: Any) -> Gaussian:
        del likelihood
        return eqx.tree_at(lambda one: one.log_noise, gradient, jnp.zeros_like(gradient.log_noise))

    return _with_noise(cut, learner, gradients)


def estimate_noise(learner: Tree, gradients: PyTree, share: float) -> Tree:
    """The learner with noise levels moved towards the squared residuals of a batch, by a running mean in which the
    batch has this share. The gradient tells the residuals: that of log sigma is 1 - r^2 / sigma^2 for each target."""

    def move(likelihood: Any, gradient: Any) -> Gaussian:
        ratio = 1 - gradient.log_noise / likelihood.size
        moved = likelihood.log_noise + jnp.log1p(share * (ratio - 1)) / 2
        return eqx.tree_at(lambda one: one.log_noise, likelihood, moved)

    return _with_noise(move, learner, gradients, keep_first=True)


def _with_noise(change: Callable[..., Any], learner: PyTree, gradients: PyTree, *, keep_first: bool = False) -> Any:
    """Both trees as one, by `change` where a noise level is estimated; else the gradients' leaves, or the learner's."""

    def is_noise(node: Any) -> bool:
        return isinstance(node, Gaussian) and node.estimates_noise()

    def one(own: Any, gradient: Any) -> Any:
        if is_noise(own):
            return change(own, gradient)
        return own if keep_first else gradient

    return jax.tree.map(one, learner, gradients, is_leaf=is_noise)
