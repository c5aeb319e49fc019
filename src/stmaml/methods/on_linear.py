"""Any method on top of a Bayesian linear regression, whose prior is learnt together with it.

Groups of a table mostly differ by a level and a few slopes. For those the best predictor is known in closed form, and
with few groups no network finds it as well. So the regression comes first: its answer at each row is an input of the
method, and a real target is handed on as what is left of it, in spreads of the regression. A method that adds nothing
to it leaves the regression."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from stmaml.methods.base import AbstractMetaLearner, AbstractPredictor, Metrics
from stmaml.methods.wrapper import AbstractWrapper, beside_each
from stmaml.outcomes import AbstractOutcome
from stmaml.tasks import Examples, Scalar, Task, TaskSpec, Weight, weighted_mean

MIN_NOISE = 0.05  # of standardised targets: a smaller one would leave single precision no digits
GAIN = 10.0  # the prior has few numbers and far to go, so it moves ten times as fast as the weights of a network
START = (1.0, 0.3, 0.5)  # spread of the level, of all slopes together, and of the noise, before training


class Posterior(eqx.Module):
    """What labelled rows say about the coefficients of the regression, one column for each target."""

    mean: Float[Array, "k c"]
    covariance: Float[Array, "k k"]
    noise: Scalar
    """Variance of a target about its line."""

    def __call__(self, x: Float[Array, "n d"]) -> tuple[Float[Array, "n c"], Float[Array, "n 1"]]:
        """The predicted mean and spread at each input."""
        rows = with_level(x)
        variance = jnp.maximum((rows @ self.covariance * rows).sum(1), 0.0) + self.noise
        return rows @ self.mean, jnp.sqrt(variance)[:, None]


class Prior(eqx.Module):
    """A normal prior of independent coefficients, the level first, and the noise."""

    mean: Float[Array, "k c"]
    log_std: Float[Array, " k"]
    log_noise: Scalar

    def __init__(self, num_inputs: int, num_targets: int):
        level, slopes, noise = START
        each = jnp.full(num_inputs, slopes / max(1, num_inputs) ** 0.5)
        self.mean = jnp.zeros((num_inputs + 1, num_targets))
        self.log_std = jnp.log(jnp.concatenate([jnp.array([level]), each])) / GAIN
        self.log_noise = jnp.log(jnp.asarray(noise)) / GAIN

    def learn(
        self, x: Float[Array, "n d"], y: Float[Array, "n c"], weight: Weight
    ) -> tuple[Posterior, Float[Array, "n c"], Float[Array, "n 1"]]:
        """The posterior, and for each row the mean and spread that all other rows predict for it."""
        there = (weight > 0).astype(x.dtype)
        rows = with_level(x) * jnp.broadcast_to(there[:, None], (x.shape[0], x.shape[1] + 1))
        mean, variance = GAIN * self.mean, jnp.exp(2 * GAIN * self.log_std)
        noise = jnp.square(MIN_NOISE) + jnp.exp(2 * GAIN * self.log_noise)
        scaled = rows * jnp.broadcast_to(variance, rows.shape)
        gram = scaled @ rows.T + jnp.diag(noise / jnp.where(weight > 0, weight, 1.0))
        factor = jax.scipy.linalg.cholesky(gram, lower=True)
        inverse = jax.scipy.linalg.cho_solve((factor, True), jnp.eye(x.shape[0], dtype=x.dtype))
        residual = (y - rows @ mean) * jnp.broadcast_to(there[:, None], y.shape)
        solved = inverse @ residual
        posterior = Posterior(mean + scaled.T @ solved, jnp.diag(variance) - scaled.T @ inverse @ scaled, noise)
        # Leaving one out, in closed form: Rasmussen and Williams, "Gaussian Processes for Machine Learning", eq. 5.12.
        precision = jnp.diag(inverse)[:, None]
        return posterior, y - solved / jnp.broadcast_to(precision, y.shape), 1 / jnp.sqrt(precision)


def with_level(x: Float[Array, "n d"]) -> Float[Array, "n k"]:
    """The inputs with a column of ones before them."""
    return jnp.concatenate([jnp.ones((x.shape[0], 1), dtype=x.dtype), x], axis=1)


class OnLinear(AbstractWrapper):
    """A method that sees what the regression makes of a group, and corrects it."""

    learner: AbstractMetaLearner
    prior: Prior
    num_classes: int = eqx.field(static=True)
    """0 for real targets."""

    def loss(self, task: Task, *, key: PRNGKeyArray) -> tuple[Scalar, Metrics]:
        """The method's loss; for real targets minus their log-density, where the method's is that of what it sees."""
        posterior, support = self._learn(task.support)
        mean, spread = posterior(task.query.x)
        left = self._left(task.query.y, mean, spread)
        query = Examples(beside(task.query.x, mean, spread), left, task.query.weight)
        loss, metrics = self.learner.loss(Task(support, query), key=key)
        if self.num_classes:
            return loss, metrics
        return loss + weighted_mean(jnp.log(spread[:, 0]), task.query.weight), metrics

    def adapt(self, support: Examples, *, num_samples: int, key: PRNGKeyArray) -> "LinearPredictor":
        """The method's predictors, each on top of the regression."""
        posterior, seen = self._learn(support)
        predictors = self.learner.adapt(seen, num_samples=num_samples, key=key)
        return LinearPredictor(predictors, beside_each(predictors, posterior), corrects=not self.num_classes)

    def seen(self, support: Examples) -> Examples:
        """Labelled rows as the method sees them: each judged by the others."""
        return self._learn(support)[1]

    def _learn(self, support: Examples) -> tuple[Posterior, Examples]:
        y = jax.nn.one_hot(support.y, self.num_classes) if self.num_classes else support.y
        posterior, mean, spread = self.prior.learn(support.x, y, support.weight)
        return posterior, Examples(beside(support.x, mean, spread), self._left(support.y, mean, spread), support.weight)

    def _left(self, y: Shaped[Array, "n *dy"], mean: Float[Array, "n c"], spread: Float[Array, "n 1"]) -> Array:
        """What the method is to predict: classes as they are, numbers as what the regression leaves."""
        return y if self.num_classes else (y - mean) / jnp.broadcast_to(spread, mean.shape)


class LinearPredictor(AbstractPredictor):
    """A predictor of what the regression leaves, and the regression."""

    predictor: AbstractPredictor
    posterior: Posterior
    corrects: bool = eqx.field(static=True)
    """Whether it predicts what the regression leaves of numbers; classes are predicted as they are."""

    def __call__(self, x: Float[Array, "n *dx"]) -> AbstractOutcome:
        """The outcome of both together."""
        mean, spread = self.posterior(x)
        outcome = self.predictor(beside(x, mean, spread))
        return outcome.as_real().affine(mean, jnp.broadcast_to(spread, mean.shape)) if self.corrects else outcome


def beside(x: Float[Array, "n d"], mean: Float[Array, "n c"], spread: Float[Array, "n 1"]) -> Float[Array, "n k"]:
    """The inputs, followed by what the regression says."""
    return jnp.concatenate([x, mean, jnp.log(spread)], axis=1)


def extended(spec: TaskSpec) -> TaskSpec:
    """What tasks look like to the method: the regression's mean and spread are further inputs."""
    extra = (spec.y_size if spec.target == "class" else 1) + 1
    return TaskSpec((spec.x_size + extra,), spec.y_size, target=spec.target, noise=spec.noise)
