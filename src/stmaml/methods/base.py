"""The interface of a method: `loss` for training, `adapt` for use."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.likelihoods import AbstractLikelihood
from stmaml.prediction import AbstractOutcome, Prediction
from stmaml.tasks import Examples, Task, TaskSpec, pad

Metrics = dict[str, Float[Array, ""]]


class AbstractPredictor(eqx.Module):
    """One hypothesis about a task: a set of inputs in, the distribution of their targets out."""

    @abc.abstractmethod
    def __call__(self, x: Float[Array, "n *dx"]) -> AbstractOutcome:
        """The outcome at each input of the set."""


PredictorT = TypeVar("PredictorT", bound=AbstractPredictor)


class AbstractMetaLearner(eqx.Module):
    """Learns, from many tasks, a map from a support set to a distribution over predictors.

    Its array fields are its meta-parameters, named as in its paper; its settings are static fields.
    """

    @abc.abstractmethod
    def loss(self, task: Task, *, key: PRNGKeyArray) -> tuple[Float[Array, ""], Metrics]:
        """The training loss of one task, and parts of it for the log. Only here may a method read `task.query`."""

    @abc.abstractmethod
    def adapt(self, support: Examples, *, num_samples: int, key: PRNGKeyArray) -> AbstractPredictor:
        """Predictors for the task behind `support`, stacked on a leading axis `s`.

        Deterministic methods give one, particle methods their particles, the others `num_samples` draws.
        """


@runtime_checkable
class MethodConfig(Protocol):
    """The settings of a method: a frozen dataclass that builds its learner."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def build(self, spec: TaskSpec, *, key: PRNGKeyArray) -> AbstractMetaLearner:
        """A freshly initialised learner for tasks that look like `spec`."""
        ...


class NetPredictor(AbstractPredictor):
    """A network and the meaning of its outputs: what most methods adapt to."""

    net: Callable[[Float[Array, "n *dx"]], Float[Array, "n r"]]
    likelihood: AbstractLikelihood

    def __call__(self, x: Float[Array, "n *dx"]) -> AbstractOutcome:
        """The likelihood of the network's outputs."""
        return self.likelihood.outcome(self.net(x))


def stack_one(predictor: PredictorT) -> PredictorT:
    """A single predictor on a sample axis of length 1."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], predictor)


def predict(
    learner: AbstractMetaLearner,
    support: Examples,
    x: Float[Array, "n *dx"],
    *,
    num_samples: int = 20,
    key: PRNGKeyArray,
) -> Prediction:
    """The predictive distribution at `x` of the task behind `support`, which may be empty."""
    support = pad(support, max(1, support.weight.shape[0]))  # networks read at least one row, be it of weight 0
    return predict_with(learner.adapt(support, num_samples=num_samples, key=key), x)


def predict_with(predictors: AbstractPredictor, x: Float[Array, "n *dx"]) -> Prediction:
    """The mixture of stacked predictors at `x`."""
    return Prediction(eqx.filter_vmap(lambda predictor: predictor(x))(predictors))


def sample_predictors(
    adapt_one: Callable[[PRNGKeyArray], PredictorT], *, num_samples: int, key: PRNGKeyArray
) -> PredictorT:
    """`num_samples` independent draws of a stochastic adaptation, stacked."""
    return jax.vmap(adapt_one)(jr.split(key, num_samples))


def pairs(examples: Examples, likelihood: AbstractLikelihood) -> Float[Array, "n p"]:
    """Each example as one vector [x, y], the way task encoders read it."""
    x = examples.x.reshape(examples.x.shape[0], -1)
    return jnp.concatenate([x, likelihood.encode(examples.y)], axis=1)


def kl_weight(given: float | None, query: Examples) -> Float[Array, ""]:
    """The weight of a KL beside a mean loss: as given, or the ELBO's, where the loss is a sum over the query."""
    return 1 / jnp.maximum(query.weight.sum(), 1.0) if given is None else jnp.asarray(given)
