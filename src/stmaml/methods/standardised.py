"""Any method, on standardised inputs and targets."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.methods.base import AbstractMetaLearner, AbstractPredictor, Metrics
from stmaml.prediction import AbstractOutcome, NormalOutcome
from stmaml.tasks import Examples, Scaling, Task


class Standardised(AbstractMetaLearner):
    """A learner that sees inputs and real targets of mean 0 and spread 1, or ranks, and answers in the original units.

    Its loss is in standardised units.
    """

    learner: AbstractMetaLearner
    scaling: Scaling = eqx.field(static=True)
    scale_targets: bool = eqx.field(static=True)
    """Off for binary and class targets, which are not numbers to scale."""

    def loss(self, task: Task, *, key: PRNGKeyArray) -> tuple[Float[Array, ""], Metrics]:
        """The wrapped learner's loss on the scaled task."""
        return self.learner.loss(Task(self._scale(task.support), self._scale(task.query)), key=key)

    def adapt(self, support: Examples, *, num_samples: int, key: PRNGKeyArray) -> "ScaledPredictor":
        """The wrapped learner's predictors, in original units."""
        predictors = self.learner.adapt(self._scale(support), num_samples=num_samples, key=key)
        return ScaledPredictor(predictors, self.scaling)

    def _scale(self, examples: Examples) -> Examples:
        y = examples.y
        if self.scale_targets:
            y = (y - jnp.broadcast_to(jnp.array(self.scaling.y_mean), y.shape)) / jnp.broadcast_to(
                jnp.array(self.scaling.y_std), y.shape
            )
        return Examples(_scale_inputs(examples.x, self.scaling), y, examples.weight)


class ScaledPredictor(AbstractPredictor):
    """A predictor of standardised targets from standardised inputs, seen from outside."""

    predictor: AbstractPredictor
    scaling: Scaling = eqx.field(static=True)

    def __call__(self, x: Float[Array, "n *dx"]) -> AbstractOutcome:
        """The outcome in original units."""
        return self._unscale(self.predictor(_scale_inputs(x, self.scaling)))

    def padded(self, x: Float[Array, "n *dx"], weight: Float[Array, " n"]) -> AbstractOutcome:
        """The same for a padded set."""
        return self._unscale(self.predictor.padded(_scale_inputs(x, self.scaling), weight))

    def _unscale(self, outcome: AbstractOutcome) -> AbstractOutcome:
        if not isinstance(outcome, NormalOutcome):
            return outcome
        std = jnp.broadcast_to(jnp.array(self.scaling.y_std), outcome.loc.shape)
        mean = jnp.broadcast_to(jnp.array(self.scaling.y_mean), outcome.loc.shape)
        return NormalOutcome(mean + std * outcome.loc, std * outcome.scale)


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
