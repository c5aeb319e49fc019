"""Lakshminarayanan, Pritzel, Blundell, "Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles",
NeurIPS 2017, with learners of any method.

Departure: learners may differ in method and settings, not only in their seed; each is trained as usual, without
adversarial examples."""

import math

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.errors import SettingError
from stmaml.methods.base import AbstractMetaLearner, AbstractPredictor, Metrics
from stmaml.methods.wrapper import in_use
from stmaml.outcomes import AbstractOutcome
from stmaml.tasks import Examples, Scalar, Task, Weight


class Committee(AbstractMetaLearner):
    """Trained learners whose answers are mixed, each with an equal share, however many predictors it has."""

    learners: tuple[AbstractMetaLearner, ...]

    def __check_init__(self):
        if not self.learners:
            raise SettingError("a committee needs at least one learner; got none.")

    def loss(self, task: Task, *, key: PRNGKeyArray) -> tuple[Scalar, Metrics]:
        """The sum of the learners' losses: each is trained as if it were alone."""
        each = zip(self.learners, jr.split(key, len(self.learners)), strict=True)
        return jnp.stack([one.loss(task, key=own)[0] for one, own in each]).sum(), {}

    def adapt(self, support: Examples, *, num_samples: int, key: PRNGKeyArray) -> "Voices":
        """The predictors of all learners."""
        each = zip(self.learners, jr.split(key, len(self.learners)), strict=True)
        return Voices(tuple(in_use(one).adapt(support, num_samples=num_samples, key=own) for one, own in each))


class Voices(AbstractPredictor):
    """The stacked predictors of several learners, which may have different numbers of them."""

    predictors: tuple[AbstractPredictor, ...]

    def __call__(self, x: Float[Array, "n *dx"]) -> AbstractOutcome:
        """Nothing: no single predictor speaks for all learners."""
        del x
        raise SettingError("a committee has no single predictor; ask `predict_with` about all of them.")

    def together(self, x: Float[Array, "n *dx"], weight: Weight | None) -> AbstractOutcome:
        """The outcomes of all predictors, those of learners with few of them repeated to equal shares."""
        each = [one.together(x, weight) for one in self.predictors]
        if len({jax.tree.structure(one) for one in each}) > 1:
            kinds = ", ".join(type(one).__name__ for one in each)
            raise SettingError(
                f"learners of a committee must answer in the same way; these answer by {kinds}. Train them with the "
                "same --noise-model."
            )
        counts = [jax.tree.leaves(one)[0].shape[0] for one in each]
        share = math.lcm(*counts)
        even = [_repeated(one, share // count) for one, count in zip(each, counts, strict=True)]
        return jax.tree.map(lambda *parts: jnp.concatenate(parts), *even)


def _repeated(outcome: AbstractOutcome, times: int) -> AbstractOutcome:
    return jax.tree.map(lambda leaf: jnp.repeat(leaf, times, axis=0), outcome)
