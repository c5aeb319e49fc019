"""Meta-SGD: Li, Zhou, Chen, Li, "Meta-SGD: Learning to Learn Quickly for Few-Shot Learning", 2017.

Departures: there may be more inner steps than the original's one, all with the same learned rates; the inner gradient
is clamped as in MAML; the rates start from one constant, `inner_lr`, instead of a random one.
"""

from dataclasses import dataclass, field

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.inner import InnerLoop
from stmaml.likelihoods import AbstractLikelihood, likelihood_for
from stmaml.methods.base import AbstractMetaLearner, Metrics, NetPredictor, outputs, settle, stack_one
from stmaml.nets.backbone import BaseLearner, base_learner
from stmaml.nets.conv import Conv
from stmaml.tasks import Examples, Task, TaskSpec


@dataclass(frozen=True)
class Config:
    """Settings of Meta-SGD."""

    hidden: tuple[int, ...] = (40, 40)
    """Widths of the network's hidden layers; images are read by convolutions instead."""
    inner: InnerLoop = field(default_factory=InnerLoop)
    conv: Conv = field(default_factory=Conv)

    def build(self, spec: TaskSpec, *, key: PRNGKeyArray) -> "MetaSGD":
        """A fresh Meta-SGD for tasks like `spec`."""
        likelihood = likelihood_for(spec)
        theta = base_learner(spec, self.hidden, self.conv, likelihood.raw_size, key=key)
        alpha = jax.tree.map(lambda leaf: jnp.full_like(leaf, self.inner.inner_lr), theta)
        return MetaSGD(theta, alpha, likelihood, self)


class MetaSGD(AbstractMetaLearner):
    """A shared initialisation theta and a learned rate alpha for each of its weights; alpha may turn negative."""

    theta: BaseLearner
    alpha: BaseLearner
    likelihood: AbstractLikelihood
    settings: Config = eqx.field(static=True)

    def loss(self, task: Task, *, key: PRNGKeyArray) -> tuple[Float[Array, ""], Metrics]:
        """The query loss after the last inner step."""
        del key
        theta_k = self._fine_tune(task.support)
        return self.likelihood.mean_objective(outputs(theta_k, task.query), task.query), {}

    def adapt(self, support: Examples, *, num_samples: int, key: PRNGKeyArray) -> NetPredictor:
        """The fine-tuned network."""
        del num_samples, key
        return stack_one(NetPredictor(self._fine_tune(support), self.likelihood))

    def _fine_tune(self, support: Examples) -> BaseLearner:
        def inner_loss(theta: BaseLearner) -> Float[Array, ""]:
            return self.likelihood.mean_inner_objective(outputs(theta, support), support)

        return settle(self.settings.inner(inner_loss, self.theta, lr=self.alpha), support)
