"""What ARML and HSML share: an initialisation gated, weight by weight, by what an embedding of the task says."""

import abc
from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import PRNGKeyArray

from stmaml.errors import above, at_least
from stmaml.likelihoods import AbstractLikelihood
from stmaml.methods import base
from stmaml.methods.base import AbstractMetaLearner, FineTuning, Metrics, NetPredictor, inner_loss, settle
from stmaml.nets.autoencoder import Embedding
from stmaml.nets.backbone import BaseLearner
from stmaml.tasks import Examples, Scalar, Task


@dataclass(frozen=True)
class GatedSettings(FineTuning):
    """Settings of both methods."""

    embedding: Embedding = "mean"
    """How the support becomes a task embedding: by pooling, or by a recurrent network that heeds the order."""
    reading_order: Literal["content", "given"] = "content"
    """In which order a recurrent embedding reads the support: by what the inputs hold, whatever the order they come in;
    or as given, which for classes is class by class and so tells their labels."""
    sample_size: int = 20
    """Numbers each support example is embedded in."""
    code_size: int = 40
    """Numbers in a task embedding."""
    sigma: float = 2.0
    """Softness of the assignment to what all tasks share, leaves or vertices: larger is softer."""
    reconstruction_weight: float = 0.01
    """Weight of the auto-encoders' losses."""

    def ordered(self, support: Examples) -> Examples:
        """The support in the order in which its embedding reads it."""
        return by_content(support) if self.embedding == "rnn" and self.reading_order == "content" else support

    def check(self, **counts: int) -> None:
        """Refuses sizes, and counts of what a method's own structure is made of, that make no sense."""
        at_least(1, sample_size=self.sample_size, code_size=self.code_size, **counts)
        at_least(0, reconstruction_weight=self.reconstruction_weight)
        above(0, sigma=self.sigma)


def by_content(examples: Examples) -> Examples:
    """The same set, its rows by where their inputs fall along a fixed direction: no label has a say in it."""
    x = examples.x.reshape(examples.x.shape[0], -1)
    order = jnp.argsort(x @ jr.normal(jr.key(0), (x.shape[1],)))
    return jax.tree.map(lambda leaf: leaf[order], examples)


class AbstractGated(AbstractMetaLearner):
    """MAML from a start of each task's own, with auto-encoders that are trained beside it."""

    likelihood: eqx.AbstractVar[AbstractLikelihood]
    settings: eqx.AbstractVar[GatedSettings]

    @abc.abstractmethod
    def _tailor(self, support: Examples) -> tuple[BaseLearner, Scalar]:
        """theta^0, gated by the task's embedding, and the reconstruction loss of the support."""

    def loss(self, task: Task, *, key: PRNGKeyArray) -> tuple[Scalar, Metrics]:
        """The query loss after the last inner step, and the reconstruction loss of the support."""
        del key
        theta_k, reconstruction = self._fine_tune(task.support)
        fit = self.likelihood.mean_objective(base.outputs(theta_k, task.query), task.query)
        total = fit + self.settings.reconstruction_weight * reconstruction
        return total, {"fit": fit, "reconstruction": reconstruction}

    def adapt(self, support: Examples, *, num_samples: int, key: PRNGKeyArray) -> NetPredictor:
        """The gated and fine-tuned network."""
        del num_samples, key
        return base.stack_one(NetPredictor(self._fine_tune(support)[0], self.likelihood))

    def _fine_tune(self, support: Examples) -> tuple[BaseLearner, Scalar]:
        theta0, reconstruction = self._tailor(self.settings.ordered(support))
        return settle(self.settings.inner(inner_loss(self.likelihood, support), theta0), support), reconstruction
