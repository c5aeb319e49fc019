"""MAML: Finn, Abbeel, Levine, "Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks", ICML 2017.

Departures: the inner gradient is clamped element-wise, as in the ST-MAML authors' baseline, since quadratic surfaces
make an unclamped inner loop diverge; weights start from He's variance instead of a truncated normal of 0.01."""

from dataclasses import dataclass

import equinox as eqx
from jaxtyping import PRNGKeyArray

from stmaml.likelihoods import AbstractLikelihood, likelihood_for
from stmaml.methods.base import AbstractOneNet, FineTuning, inner_loss, settle
from stmaml.nets.backbone import BaseLearner, base_learner
from stmaml.tasks import Examples, TaskSpec


@dataclass(frozen=True)
class Config(FineTuning):
    """Settings of MAML."""

    def build(self, spec: TaskSpec, *, key: PRNGKeyArray) -> "MAML":
        """A fresh MAML for tasks like `spec`."""
        likelihood = likelihood_for(spec)
        theta = base_learner(spec, self.hidden, self.conv, likelihood.raw_size, key=key)
        return MAML(theta=theta, likelihood=likelihood, settings=self)


class MAML(AbstractOneNet):
    """A shared initialisation theta from which a few gradient steps reach any task (eq. 2, maml_obj)."""

    theta: BaseLearner
    likelihood: AbstractLikelihood
    settings: Config = eqx.field(static=True)

    def network(self, support: Examples) -> BaseLearner:
        """theta after the last inner step."""
        return settle(self.settings.inner(inner_loss(self.likelihood, support), self.theta), support)
