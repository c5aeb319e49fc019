"""Any method, on standardised inputs and targets."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.methods.base import AbstractMetaLearner, AbstractPredictor, Metrics
from stmaml.methods.wrapper import AbstractWrapper
from stmaml.outcomes import AbstractOutcome
from stmaml.tasks import Examples, Scalar, Scaling, Task, Weight


class Standardised(AbstractWrapper):
    """A learner that sees inputs and real targets of mean 0 and spread 1, or ranks, and answers in the original units.
    Its loss is in standardised units."""

    learner: AbstractMetaLearner
    scaling: Scaling = eqx.field(static=True)
    scale_targets: bool = eqx.field(static=True)
    """Off for binary and class targets, which are not numbers to scale."""

    def loss(self, task: Task, *, key: PRNGKeyArray) -> tuple[Scalar, Metrics]:
        """The wrapped learner's loss on the scaled task."""
        return self.learner.loss(Task(self.seen(task.support), self.seen(task.query)), key=key)

    def adapt(self, support: Examples, *, num_samples: int, key: PRNGKeyArray) -> "ScaledPredictor":
        """The wrapped learner's predictors, in original units."""
        predictors = self.learner.adapt(self.seen(support), num_samples=num_samples, key=key)
        return ScaledPredictor(predictors, self.scaling, self.scale_targets)

    def seen(self, support: Examples) -> Examples:
        """Labelled examples, scaled."""
        y = support.y
        if self.scale_targets:
            mean, std = _target_scale(self.scaling, y.shape)
            y = (y - mean) / std
        return Examples(_scale_inputs(support.x, self.scaling), y, support.weight)


class ScaledPredictor(AbstractPredictor):
    """A predictor of standardised targets from standardised inputs, seen from outside."""

    predictor: AbstractPredictor
    scaling: Scaling = eqx.field(static=True)
    scale_targets: bool = eqx.field(static=True)

    def __call__(self, x: Float[Array, "n *dx"]) -> AbstractOutcome:
        """The outcome in original units."""
        return self._unscale(self.predictor(_scale_inputs(x, self.scaling)))

    def padded(self, x: Float[Array, "n *dx"], weight: Weight) -> AbstractOutcome:
        """The same for a padded set."""
        return self._unscale(self.predictor.padded(_scale_inputs(x, self.scaling), weight))

    def together(self, x: Float[Array, "n *dx"], weight: Weight | None) -> AbstractOutcome:
        """Stacked predictors, as what is inside has them."""
        return self._unscale(self.predictor.together(_scale_inputs(x, self.scaling), weight))

    def _unscale(self, outcome: AbstractOutcome) -> AbstractOutcome:
        if not self.scale_targets:
            return outcome
        return outcome.as_real().affine(*_target_scale(self.scaling, outcome.mean().shape))


def _target_scale(scaling: Scaling, shape: tuple[int, ...]) -> tuple[Array, Array]:
    mean, std = (jnp.broadcast_to(jnp.array(a), shape) for a in (scaling.y_mean, scaling.y_std))
    return mean, std


def _scale_inputs(x: Float[Array, "n *dx"], scaling: Scaling) -> Float[Array, "n *dx"]:
    if scaling.x_knots:
        return _scale_by_rank(x, scaling)
    shape = x.shape[1:]
    mean, std = (jnp.array(values).reshape(shape) for values in (scaling.x_mean, scaling.x_std))
    return (x - jnp.broadcast_to(mean, x.shape)) / jnp.broadcast_to(std, x.shape)


def _scale_by_rank(x: Float[Array, "n *dx"], scaling: Scaling) -> Float[Array, "n *dx"]:
    """Ranks among the training inputs, on a uniform scale of mean 0 and spread 1; at its ends beyond their range."""
    knots, ranks = (jnp.array(values, dtype=jnp.float32) for values in (scaling.x_knots, scaling.x_ranks))
    columns = x.reshape(x.shape[0], len(scaling.x_knots)).astype(jnp.float32)  # as whole numbers, ranks would be 0 or 1
    rank = jax.vmap(jnp.interp, in_axes=(1, 0, 0), out_axes=1)(columns, knots, ranks)
    return (math.sqrt(3) * (2 * rank - 1)).reshape(x.shape)
