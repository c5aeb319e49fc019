"""Any method for classes on top of a Bayesian linear regression of them, which it corrects from the first step on.

The regression of each class's yes and no says roughly how likely it is, given the labelled rows; the logarithm of that
is added to the method's logits. (`on_linear.py` hands it on as an input alone; the method has to learn to trust it.)

So that any method can be trained on it, a target is handed on as its class followed by those logarithms."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

from stmaml.likelihoods import AbstractLikelihood
from stmaml.methods.base import AbstractMetaLearner, AbstractPredictor, Metrics
from stmaml.methods.on_linear import Posterior, Prior, beside
from stmaml.methods.wrapper import AbstractWrapper, beside_each
from stmaml.outcomes import AbstractOutcome, AbstractRealOutcome, CategoricalOutcome
from stmaml.tasks import Examples, Scalar, TargetKind, Task

LEAST = 0.02  # of a class, by the regression, which knows no bounds


class ShiftedOutcome(AbstractOutcome):
    """Classes whose log-probabilities are yet to be shifted by what comes with each target."""

    target: ClassVar[TargetKind] = "class"
    logits: Float[Array, "... c"]

    def shifted(self, shift: Float[Array, "... c"]) -> CategoricalOutcome:
        """The outcome once the shift is known."""
        return CategoricalOutcome(self.logits + shift)

    def log_prob(self, y: Shaped[Array, "... k"]) -> Float[Array, "..."]:
        """Log-probability of the class, under the shift behind it."""
        return self.shifted(y[..., 1:]).log_prob(y[..., 0].astype(int))

    def distribution(self) -> dist.Distribution:
        """A categorical, without any shift."""
        return CategoricalOutcome(self.logits).distribution()

    def mean(self) -> Float[Array, "... c"]:
        """Class probabilities, without any shift."""
        return jax.nn.softmax(self.logits)

    def variance(self) -> Float[Array, "... c"]:
        """p (1 - p)."""
        return self.mean() * (1 - self.mean())

    def as_real(self) -> AbstractRealOutcome:
        """Never."""
        return CategoricalOutcome(self.logits).as_real()

    def tempered(self, temperature: Scalar, center: Float[Array, "... c"]) -> "ShiftedOutcome":
        """Log-odds divided by the temperature."""
        del center
        return ShiftedOutcome(self.logits / temperature)

    def pooled(self) -> "ShiftedOutcome":
        """Averaged probabilities."""
        return ShiftedOutcome(CategoricalOutcome(self.logits).pooled().logits)


class ShiftedClasses(AbstractLikelihood):
    """Classes, each followed by the logarithm of what every class's share was thought to be."""

    num_classes: int = eqx.field(static=True)

    @property
    def raw_size(self) -> int:
        """A logit for each class."""
        return self.num_classes

    @property
    def code_size(self) -> int:
        """One-hot classes."""
        return self.num_classes

    def outcome(self, raw: Float[Array, "n r"]) -> ShiftedOutcome:
        """A categorical distribution for each input, to be shifted."""
        return ShiftedOutcome(raw)

    def objective(self, raw: Float[Array, "n r"], y: Float[Array, "n k"]) -> Float[Array, " n"]:
        """Cross-entropy of the true class."""
        return -ShiftedOutcome(raw).log_prob(y)

    def encode(self, y: Float[Array, "n k"]) -> Float[Array, "n c"]:
        """One-hot vectors."""
        return jax.nn.one_hot(y[:, 0].astype(int), self.num_classes)


class ClassesOnLinear(AbstractWrapper):
    """A method, whose likelihood is made of `ShiftedClasses`, that corrects a regression of the classes."""

    learner: AbstractMetaLearner
    prior: Prior
    num_classes: int = eqx.field(static=True)

    def loss(self, task: Task, *, key: PRNGKeyArray) -> tuple[Scalar, Metrics]:
        """The method's loss."""
        posterior, support = self._learn(task.support)
        mean, spread = posterior(task.query.x)
        query = Examples(beside(task.query.x, mean, spread), with_shift(task.query.y, mean), task.query.weight)
        return self.learner.loss(Task(support, query), key=key)

    def adapt(self, support: Examples, *, num_samples: int, key: PRNGKeyArray) -> "ShiftedPredictor":
        """The method's predictors, each on top of the regression."""
        posterior, seen = self._learn(support)
        predictors = self.learner.adapt(seen, num_samples=num_samples, key=key)
        return ShiftedPredictor(predictors, beside_each(predictors, posterior))

    def seen(self, support: Examples) -> Examples:
        """Labelled rows as the method sees them: each judged by the others."""
        return self._learn(support)[1]

    def _learn(self, support: Examples) -> tuple[Posterior, Examples]:
        y = jax.nn.one_hot(support.y, self.num_classes)
        posterior, mean, spread = self.prior.learn(support.x, y, support.weight)
        return posterior, Examples(beside(support.x, mean, spread), with_shift(support.y, mean), support.weight)


class ShiftedPredictor(AbstractPredictor):
    """A predictor of what the regression misses, and the regression."""

    predictor: AbstractPredictor
    posterior: Posterior

    def __call__(self, x: Float[Array, "n *dx"]) -> CategoricalOutcome:
        """The classes by both together."""
        mean, spread = self.posterior(x)
        outcome = self.predictor(beside(x, mean, spread))
        assert isinstance(outcome, ShiftedOutcome)
        return outcome.shifted(log_shares(mean))


def log_shares(mean: Float[Array, "n c"]) -> Float[Array, "n c"]:
    """The logarithms of what a regression says of each class, made probabilities."""
    shares = jnp.maximum(mean, LEAST)
    return jnp.log(shares) - jnp.broadcast_to(jnp.log(shares.sum(1, keepdims=True)), shares.shape)


def with_shift(y: Int[Array, " n"], mean: Float[Array, "n c"]) -> Float[Array, "n k"]:
    """Each class, followed by the logarithms of what the regression says of all."""
    return jnp.concatenate([y[:, None].astype(mean.dtype), log_shares(mean)], axis=1)
