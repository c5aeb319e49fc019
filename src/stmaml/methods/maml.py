"""MAML: Finn, Abbeel, Levine, "Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks", ICML 2017.

Departures: the inner gradient is clamped element-wise, as in the ST-MAML authors' baseline, since quadratic surfaces
make an unclamped inner loop diverge; weights start from He's variance instead of a truncated normal of 0.01.
"""

from dataclasses import dataclass, field

import equinox as eqx
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.inner import InnerLoop
from stmaml.likelihoods import AbstractLikelihood, likelihood_for
from stmaml.methods.base import AbstractMetaLearner, Metrics, NetPredictor, outputs, settle, stack_one
from stmaml.nets.backbone import BaseLearner, base_learner
from stmaml.nets.conv import Conv
from stmaml.tasks import Examples, Task, TaskSpec


@dataclass(frozen=True)
class Config:
    """Settings of MAML."""

    hidden: tuple[int, ...] = (40, 40)
    """Widths of the network's hidden layers; images are read by convolutions instead."""
    inner: InnerLoop = field(default_factory=InnerLoop)
    conv: Conv = field(default_factory=Conv)

    def build(self, spec: TaskSpec, *, key: PRNGKeyArray) -> "MAML":
        """A fresh MAML for tasks like `spec`."""
        likelihood = likelihood_for(spec)
        return MAML(base_learner(spec, self.hidden, self.conv, likelihood.raw_size, key=key), likelihood, self)


class MAML(AbstractMetaLearner):
    """A shared initialisation theta from which a few gradient steps reach any task (eq. 2, maml_obj)."""

    theta: BaseLearner
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

        return settle(self.settings.inner(inner_loss, self.theta), support)
