"""Any method for images that, in use, sees each of them as it is and turned left to right."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.methods.base import AbstractMetaLearner, AbstractPredictor, Metrics
from stmaml.methods.wrapper import AbstractWrapper
from stmaml.outcomes import AbstractOutcome
from stmaml.tasks import Examples, Scalar, Task, Weight


class BothWays(AbstractWrapper):
    """A learner that adapts to each labelled image twice, as it is and turned left to right, and whose answers are
    averages over both forms of what is asked. It is trained as if it were not wrapped."""

    learner: AbstractMetaLearner

    def loss(self, task: Task, *, key: PRNGKeyArray) -> tuple[Scalar, Metrics]:
        """The wrapped learner's own."""
        return self.learner.loss(task, key=key)

    def adapt(self, support: Examples, *, num_samples: int, key: PRNGKeyArray) -> "BothForms":
        """The wrapped learner's predictors, from twice as many images."""
        return BothForms(self.learner.adapt(self.seen(support), num_samples=num_samples, key=key))

    def seen(self, support: Examples) -> Examples:
        """The images as they are, then turned."""
        return support + eqx.tree_at(lambda examples: examples.x, support, turned(support.x))


class BothForms(AbstractPredictor):
    """Predictors each of which answers twice: for images as they are, and turned."""

    predictor: AbstractPredictor

    def __call__(self, x: Float[Array, "n rows cols c"]) -> AbstractOutcome:
        """For the images as they are: one predictor has one answer."""
        return self.predictor(x)

    def padded(self, x: Float[Array, "n rows cols c"], weight: Weight) -> AbstractOutcome:
        """The same for a padded set."""
        return self.predictor.padded(x, weight)

    def together(self, x: Float[Array, "n rows cols c"], weight: Weight | None) -> AbstractOutcome:
        """First the answers of all predictors to the images as they are, then those to the turned ones."""
        both = [self.predictor.together(each, weight) for each in (x, turned(x))]
        return jax.tree.map(lambda *parts: jnp.concatenate(parts), *both)


def turned(x: Float[Array, "*n rows cols c"]) -> Float[Array, "*n rows cols c"]:
    """Images turned left to right."""
    return x[..., ::-1, :]
