"""BMAML: Yoon, Kim, Dia, Kim, Bengio, Ahn, "Bayesian Model-Agnostic Meta-Learning", NeurIPS 2018.

The log-posterior is a sum over examples, as in the paper, but a step moves by `inner_lr` times the SVGD direction
divided by the number of examples: where the particles are heading stays the same, and the step grows neither with the
shot count nor from follower to leader.

Departures: the kernel's bandwidth comes from the median squared distance between different particles (the released
code counts the zeros of the diagonal too); the repulsion is the kernel's exact gradient, with its factor 2 (which the
released code drops); gradients of the log-posterior are clamped by element; gamma starts from the benchmark's noise
level instead of 100, with its prior in those units, and the log-prior's weight is lowered by the same factor 100, to
keep the paper's balance of data and prior; weights start from He's variance.

The particles' noise precision gamma steers the inner loop only. Predictions use the likelihood's own noise, fitted to
the mixture of adapted particles on training queries as in the other methods: the chaser loss never compares gamma
with a residual and would use it as a step size, so its gamma would not be an honest noise level."""

from dataclasses import dataclass, field
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.errors import SettingError, at_least
from stmaml.inner import InnerLoop, bound
from stmaml.likelihoods import AbstractLikelihood, Gaussian, likelihood_for
from stmaml.methods.base import AbstractMetaLearner, FineTuning, Metrics, NetPredictor, outputs, settle
from stmaml.nets.backbone import BaseLearner, base_learner
from stmaml.outcomes import AbstractOutcome, NormalOutcome
from stmaml.prediction import Prediction
from stmaml.tasks import Examples, Scalar, Task, TaskSpec, weighted_mean

MetaLoss = Literal["chaser", "query"]
LAMBDA_PRIOR = (2.0, 2.0)  # shape and rate of a Gamma distribution
GAMMA_PRIOR = (2.0, 0.2)  # the same, where noise of standard deviation `noise_std` has precision 1


@dataclass(frozen=True)
class Config(FineTuning):
    """Settings of BMAML."""

    num_particles: int = 10
    """Particles M; at least 2."""
    meta_loss: MetaLoss = "chaser"
    """What trains the particles: the distance to a leader that also saw the query, or the query loss itself."""
    leader_steps: int = 1
    """SVGD steps by which the leader is ahead of the follower."""
    prior_weight: float = 0.01
    """Weight of the log-prior beside the log-likelihood; 1 is Bayes' rule."""
    inner: InnerLoop = field(default_factory=lambda: InnerLoop(inner_lr=0.02))

    def __post_init__(self):
        if self.num_particles < 2:
            needed = "BMAML needs at least 2 particles, since its kernel is scaled by their distances"
            raise SettingError(f"{needed}; num_particles is {self.num_particles}. For one particle use maml.")
        at_least(1 if self.meta_loss == "chaser" else 0, leader_steps=self.leader_steps)
        at_least(0, prior_weight=self.prior_weight)

    def build(self, spec: TaskSpec, *, key: PRNGKeyArray) -> "BMAML":
        """A fresh BMAML for tasks like `spec`; each particle has its own initial weights."""
        likelihood = likelihood_for(spec)
        log_gamma = None
        if isinstance(likelihood, Gaussian) and likelihood.log_noise is not None:
            log_gamma = -2 * jnp.log(jnp.asarray(likelihood.noise_std))

        def particle(key: PRNGKeyArray) -> Particle:
            theta = base_learner(spec, self.hidden, self.conv, likelihood.raw_size, key=key)
            return Particle(theta, jnp.zeros(()), log_gamma)

        return BMAML(jax.vmap(particle)(jr.split(key, self.num_particles)), likelihood, self)


class Particle(eqx.Module):
    """One hypothesis: network weights, their precision lambda, and the precision gamma of unknown Gaussian noise."""

    theta: BaseLearner
    log_lambda: Float[Array, "..."]
    log_gamma: Float[Array, "..."] | None


class BMAML(AbstractMetaLearner):
    """Initial particles Theta_0, on a leading axis, that a few SVGD steps take to the posterior of any task."""

    particles: Particle
    likelihood: AbstractLikelihood
    settings: Config = eqx.field(static=True)

    def loss(self, task: Task, *, key: PRNGKeyArray) -> tuple[Scalar, Metrics]:
        """The chaser loss, or the particles' mean query loss; the likelihood's noise is fitted beside either."""
        del key
        follower = self._svgd(self.particles, task.support, steps=self.settings.inner.inner_steps)
        raw = jax.vmap(lambda theta: outputs(settle(theta, task.support), task.query))(follower.theta)
        frozen = jax.lax.stop_gradient(self.likelihood)
        fit = jax.vmap(lambda one: frozen.mean_objective(one, task.query))(raw).mean()
        noise_fit = self._noise_fit(raw, task.query)
        main = fit if self.settings.meta_loss == "query" else self._chase(follower, task)
        return main + noise_fit - jax.lax.stop_gradient(noise_fit), {"fit": fit}

    def adapt(self, support: Examples, *, num_samples: int, key: PRNGKeyArray) -> NetPredictor:
        """The particles, moved to the posterior of the task."""
        del num_samples, key
        moved = self._svgd(self.particles, support, steps=self.settings.inner.inner_steps)
        return jax.vmap(lambda theta: NetPredictor(settle(theta, support), self.likelihood))(moved.theta)

    def _chase(self, follower: Particle, task: Task) -> Scalar:
        """Squared distance of the followers' weights to leaders that also saw the query, and stand still."""
        leader = self._svgd(follower, task.support + task.query, steps=self.settings.leader_steps)
        gaps = jax.tree.map(lambda a, b: jnp.square(a - jax.lax.stop_gradient(b)).sum(), follower.theta, leader.theta)
        return jax.tree.reduce(jnp.add, gaps)

    def _noise_fit(self, raw: Float[Array, "s n r"], query: Examples) -> Scalar:
        """Minus the mixture's log-density, as a function of the likelihood's parameters alone."""
        mixture = Prediction(jax.vmap(self.likelihood.outcome)(jax.lax.stop_gradient(raw)))
        return -weighted_mean(mixture.log_prob(query.y), query.weight)

    def _svgd(self, particles: Particle, examples: Examples, *, steps: int) -> Particle:
        inner = self.settings.inner
        unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], particles))[1]
        count, clamp = jnp.maximum(examples.weight.sum(), 1.0), bound(inner.inner_clamp)

        def score(flat: Float[Array, " d"]) -> Float[Array, " d"]:
            gradient = jax.grad(lambda flat: self._log_posterior(unravel(flat), examples))(flat)
            return jnp.clip(gradient, -count * clamp, count * clamp)

        def step(flat: Float[Array, "s d"]) -> Float[Array, "s d"]:
            phi = svgd_direction(flat, jax.vmap(score)(flat)) / count
            return flat + inner.inner_lr * (jax.lax.stop_gradient(phi) if inner.order == "first" else phi)

        flat = jax.vmap(lambda particle: ravel_pytree(particle)[0])(particles)
        if inner.remat:  # saves memory only inside a scan
            body = jax.checkpoint(step)
            return jax.vmap(unravel)(jax.lax.scan(lambda flat, _: (body(flat), None), flat, length=steps)[0])
        for _ in range(steps):
            flat = step(flat)
        return jax.vmap(unravel)(flat)

    def _log_posterior(self, particle: Particle, examples: Examples) -> Scalar:
        """log p(y | x, w, gamma), summed over examples, and the weighted log p(w | lambda) p(lambda) p(gamma)."""
        fits = self._outcome(particle, examples).log_prob(examples.y)
        prior = _log_weight_prior(particle) + _log_precision_prior(particle.log_lambda, *LAMBDA_PRIOR)
        if particle.log_gamma is not None and isinstance(self.likelihood, Gaussian):
            unit = 2 * jnp.log(jnp.asarray(self.likelihood.noise_std))
            prior += _log_precision_prior(particle.log_gamma + unit, *GAMMA_PRIOR)
        return jnp.sum(examples.weight * fits) + self.settings.prior_weight * prior

    def _outcome(self, particle: Particle, examples: Examples) -> AbstractOutcome:
        """What a particle believes in the inner loop: its own gamma, where the noise is unknown."""
        raw = outputs(particle.theta, examples)
        if particle.log_gamma is None:
            return self.likelihood.outcome(raw)
        return NormalOutcome(raw, jnp.broadcast_to(jnp.exp(-particle.log_gamma / 2), raw.shape))


def svgd_direction(theta: Float[Array, "s d"], score: Float[Array, "s d"]) -> Float[Array, "s d"]:
    """Stein variational gradient descent's direction for each particle (Liu and Wang, 2016, eq. 8). phi_i = mean_j
    [k(theta_j, theta_i) score_j + grad_j k(theta_j, theta_i)] with k(a, b) = exp(-|a - b|^2 / h) and h = median
    |theta_i - theta_j|^2 / log s over the pairs i < j; h is a constant in derivatives."""
    num, gaps = theta.shape[0], theta[:, None] - theta[None]
    squared = jnp.square(gaps).sum(-1)
    h = jax.lax.stop_gradient(jnp.median(squared[jnp.triu_indices(num, 1)])) / jnp.log(num)
    kernel = jnp.exp(-squared / h)
    repulsion = 2 / h * jnp.einsum("ij,ijd->id", kernel, gaps)
    return (kernel @ score + repulsion) / num


def _log_weight_prior(particle: Particle) -> Scalar:
    """A normal of mean 0 and precision lambda for each weight, without constants."""
    w = ravel_pytree(particle.theta)[0]
    return w.size * particle.log_lambda / 2 - jnp.exp(particle.log_lambda) * jnp.square(w).sum() / 2


def _log_precision_prior(log_precision: Scalar, shape: float, rate: float) -> Scalar:
    """A Gamma density of the precision as a density of its logarithm, hence `shape` and not `shape - 1`."""
    return shape * log_precision - rate * jnp.exp(log_precision)
