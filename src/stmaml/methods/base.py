"""The interface of a method: `loss` for training, `adapt` for use."""

import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.errors import SettingError
from stmaml.inner import InnerLoop
from stmaml.likelihoods import AbstractLikelihood
from stmaml.nets.conv import Conv, ConvBody, Images
from stmaml.nets.set_encoder import DiagonalNormal
from stmaml.outcomes import AbstractOutcome
from stmaml.prediction import Prediction
from stmaml.tasks import Examples, Scalar, Task, TaskSpec, Weight, only_asked, pad, weighted_mean

Metrics = dict[str, Scalar]
FEATURE_FLOOR = 1e-6  # keeps the features of an image in one colour, all equal, at 0


class AbstractPredictor(eqx.Module):
    """One hypothesis about a task: a set of inputs in, the distribution of their targets out."""

    @abc.abstractmethod
    def __call__(self, x: Float[Array, "n *dx"]) -> AbstractOutcome:
        """The outcome at each input of the set."""

    def padded(self, x: Float[Array, "n *dx"], weight: Weight) -> AbstractOutcome:
        """The outcome at each input, where those of weight 0 are padding: for predictors that read inputs together."""
        del weight
        return self(x)

    def together(self, x: Float[Array, "n *dx"], weight: Weight | None) -> AbstractOutcome:
        """The outcomes of stacked predictors, on their axis: for those that can share the work."""

        def outcome(predictor: AbstractPredictor) -> AbstractOutcome:
            return predictor(x) if weight is None else predictor.padded(x, weight)

        return eqx.filter_vmap(outcome)(self)


@runtime_checkable
class Net(Protocol):
    """A network as methods use it: it reads a whole set, in which rows of weight 0 have no say."""

    def __call__(self, x: Float[Array, "n *dx"], *, weight: Weight | None = None) -> Float[Array, "n r"]:
        """Raw outputs for each row."""
        ...

    def settle(self, x: Float[Array, "n *dx"], weight: Weight) -> Any:
        """The network after it has read the support set it is to answer for."""


NetT = TypeVar("NetT", bound=Net)
PredictorT = TypeVar("PredictorT", bound=AbstractPredictor)


class AbstractMetaLearner(eqx.Module):
    """Learns, from many tasks, a map from a support set to a distribution over predictors. Its array fields are its
    meta-parameters, named as in its paper; its settings are static fields."""

    @abc.abstractmethod
    def loss(self, task: Task, *, key: PRNGKeyArray) -> tuple[Scalar, Metrics]:
        """The training loss of one task, and parts of it for the log. Only here may a method read `task.query`."""

    @abc.abstractmethod
    def adapt(self, support: Examples, *, num_samples: int, key: PRNGKeyArray) -> AbstractPredictor:
        """Predictors for the task behind `support`, stacked on a leading axis `s`. Deterministic methods give one,
        particle methods their particles, the others `num_samples` draws."""

    def task_distribution(self, support: Examples) -> DiagonalNormal | None:
        """What the support says about which task this is, for methods that say so by a task variable; else None.
        Optional: the one method here that a learner may write anew."""
        del support
        return None


@runtime_checkable
class MethodConfig(Protocol):
    """The settings of a method: a frozen dataclass that builds its learner."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def build(self, spec: TaskSpec, *, key: PRNGKeyArray) -> AbstractMetaLearner:
        """A freshly initialised learner for tasks that look like `spec`."""
        ...


class NetPredictor(AbstractPredictor):
    """A network and the meaning of its outputs: what most methods adapt to."""

    net: Callable[..., Float[Array, "n r"]]
    likelihood: AbstractLikelihood

    def __call__(self, x: Float[Array, "n *dx"]) -> AbstractOutcome:
        """The likelihood of the network's outputs."""
        return self.likelihood.outcome(self.net(x))

    def padded(self, x: Float[Array, "n *dx"], weight: Weight) -> AbstractOutcome:
        """The same, with padding left out of whatever the network learns from the inputs."""
        return self.likelihood.outcome(self.net(x, weight=weight))


def outputs(net: Net, examples: Examples) -> Float[Array, "n r"]:
    """Raw outputs for a set of examples, whose weights the network is told."""
    return net(examples.x, weight=examples.weight)


def inner_loss(likelihood: AbstractLikelihood, examples: Examples) -> Callable[[Net], Scalar]:
    """What an inner loop descends: the loss of a network on a set."""
    return lambda net: likelihood.mean_inner_objective(outputs(net, examples), examples)


def settle(net: NetT, support: Examples) -> NetT:
    """A fine-tuned network that remembers what it needs of its support set, before it meets a query."""
    return net.settle(support.x, support.weight)


def stack_one(predictor: PredictorT) -> PredictorT:
    """A single predictor on a sample axis of length 1."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], predictor)


@dataclass(frozen=True)
class FineTuning:
    """Settings of every method that fine-tunes a network."""

    hidden: tuple[int, ...] = (40, 40)
    """Widths of the network's hidden layers; images are read by convolutions instead."""
    inner: InnerLoop = field(default_factory=InnerLoop)
    conv: Conv = field(default_factory=Conv)


@dataclass(frozen=True)
class Variational:
    """Settings of every method that is trained on an ELBO over a task variable z."""

    kl_weight: float | None = None
    """Weight of KL(q || p) beside the mean loss of the query; if not given, one over the number of query examples,
    which makes the loss minus the ELBO of one example."""
    kl_mean: bool = False
    """Average the KL over the coordinates of z instead of summing it."""
    asked_twice: bool = False
    """Whether the posterior counts examples that are both observed and asked, such as pixels of a whole image, twice,
    as joining the two sets does in the paper."""

    def known(self, task: Task) -> Examples:
        """What the posterior reads: support and query, each example once unless `asked_twice`."""
        return task.support + (task.query if self.asked_twice else only_asked(task))

    def weigh(self, fit: Scalar, q_z: DiagonalNormal, p_z: DiagonalNormal, query: Examples) -> tuple[Scalar, Metrics]:
        """Minus the ELBO of one example, and its parts, where `fit` is the mean loss of the query."""
        each = q_z.kl(p_z)
        kl = each.mean() if self.kl_mean else each.sum()
        weight = 1 / jnp.maximum(query.weight.sum(), 1.0) if self.kl_weight is None else jnp.asarray(self.kl_weight)
        return fit + weight * kl, {"fit": fit, "kl": kl}


class AbstractOneNet(AbstractMetaLearner):
    """A learner that adapts to one network, and is trained by its loss on the query."""

    likelihood: eqx.AbstractVar[AbstractLikelihood]

    @abc.abstractmethod
    def network(self, support: Examples) -> Net:
        """The network that has met the support."""

    def loss(self, task: Task, *, key: PRNGKeyArray) -> tuple[Scalar, Metrics]:
        """The query loss of the adapted network."""
        del key
        return self.likelihood.mean_objective(outputs(self.network(task.support), task.query), task.query), {}

    def adapt(self, support: Examples, *, num_samples: int, key: PRNGKeyArray) -> NetPredictor:
        """The adapted network."""
        del num_samples, key
        return stack_one(NetPredictor(self.network(support), self.likelihood))


def predict(
    learner: AbstractMetaLearner,
    support: Examples,
    x: Float[Array, "n *dx"],
    *,
    weight: Weight | None = None,
    num_samples: int = 20,
    key: PRNGKeyArray,
) -> Prediction:
    """The predictive distribution at `x` of the task behind `support`, which may be empty. Inputs of weight 0, if there
    are any, are padding: a network that normalises by the inputs' statistics skips them."""
    support = pad(support, max(1, support.weight.shape[0]))  # networks read at least one row, be it of weight 0
    return predict_with(learner.adapt(support, num_samples=num_samples, key=key), x, weight)


def predict_with(predictors: AbstractPredictor, x: Float[Array, "n *dx"], weight: Weight | None = None) -> Prediction:
    """The mixture of stacked predictors at `x`."""
    return Prediction(predictors.together(x, weight))


def sample_predictors(draw: Callable[[PRNGKeyArray], PredictorT], *, num_samples: int, key: PRNGKeyArray) -> PredictorT:
    """`num_samples` independent draws of a stochastic adaptation, stacked."""
    return jax.vmap(draw)(jr.split(key, num_samples))


def pairs(
    examples: Examples, likelihood: AbstractLikelihood, image: ConvBody | None = None, *, found: int = 0
) -> Float[Array, "n p"]:
    """Each example as one vector [x, y], the way task encoders read it; `image` makes features of images. The last
    `found` numbers of an input are left out."""
    features = features_of(examples, image)
    given = features[:, : features.shape[1] - found]
    return jnp.concatenate([given, likelihood.encode(examples.y)], axis=1)


def features_of(examples: Examples, image: ConvBody | None) -> Float[Array, "n f"]:
    """Each input as one vector."""
    if image is not None:
        return image_features(image, examples.x, examples.weight)
    return examples.x.reshape(examples.x.shape[0], -1)


def image_features(image: ConvBody, x: Images, weight: Weight | None = None) -> Float[Array, "n f"]:
    """The features of each image as a vector of length 1 and mean 0, for networks that read them all at once. As they
    come from a convolution they are thousands and none is below 0: each step of Adam moves all weights of a unit the
    same way, and within a hundred steps most units behind them answer to no image any more."""
    features = image(x, weight)
    features = features - features.mean(1, keepdims=True)
    length = jnp.sqrt(jnp.square(features).sum(1, keepdims=True) + FEATURE_FLOOR)
    return features / jnp.broadcast_to(length, features.shape)


def class_means(
    features: Float[Array, "n f"], code: Float[Array, "n k"], weight: Weight
) -> tuple[Float[Array, "k f"], Float[Array, " k"]]:
    """The mean of each class, given one-hot classes, and 1 for each class that has examples; the others' mean is 0."""
    counts = code * jnp.broadcast_to(weight[:, None], code.shape)
    means = jax.vmap(lambda of_class: weighted_mean(features, of_class))(counts.T)
    return means, (counts.sum(0) > 0).astype(features.dtype)


def check_kl_weight(given: float | None) -> None:
    """Refuses a weight that would reward distance between posterior and prior, or is no number."""
    if given is not None and not 0 <= given < float("inf"):
        raise SettingError(f"--kl-weight must be a number of at least 0; got {given}.")
