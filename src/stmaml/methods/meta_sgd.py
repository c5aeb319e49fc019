"""Meta-SGD: Li, Zhou, Chen, Li, "Meta-SGD: Learning to Learn Quickly for Few-Shot Learning", 2017.

Departures: there may be more inner steps than the original's one, all with the same learned rates; the inner gradient
is clamped as in MAML; the rates start from one constant, `inner_lr`, instead of a random one."""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from stmaml.likelihoods import AbstractLikelihood, likelihood_for
from stmaml.methods.base import AbstractOneNet, FineTuning, inner_loss, settle
from stmaml.nets.backbone import BaseLearner, base_learner
from stmaml.tasks import Examples, TaskSpec


@dataclass(frozen=True)
class Config(FineTuning):
    """Settings of Meta-SGD."""

    def build(self, spec: TaskSpec, *, key: PRNGKeyArray) -> "MetaSGD":
        """A fresh Meta-SGD for tasks like `spec`."""
        likelihood = likelihood_for(spec)
        theta = base_learner(spec, self.hidden, self.conv, likelihood.raw_size, key=key)
        alpha = jax.tree.map(lambda leaf: jnp.full_like(leaf, self.inner.inner_lr), theta)
        return MetaSGD(theta=theta, alpha=alpha, likelihood=likelihood, settings=self)


class MetaSGD(AbstractOneNet):
    """A shared initialisation theta and a learned rate alpha for each of its weights; alpha may turn negative."""

    theta: BaseLearner
    alpha: BaseLearner
    likelihood: AbstractLikelihood
    settings: Config = eqx.field(static=True)

    def network(self, support: Examples) -> BaseLearner:
        """theta after the last inner step."""
        loss = inner_loss(self.likelihood, support)
        return settle(self.settings.inner(loss, self.theta, lr=self.alpha), support)
