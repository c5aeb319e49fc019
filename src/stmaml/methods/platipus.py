"""PLATIPUS: Finn, Xu, Levine, "Probabilistic Model-Agnostic Meta-Learning", NeurIPS 2018.

Departures: mu_theta starts from He's variance and both log standard deviations from one constant; `log_v_q` is the
logarithm of a standard deviation, as `log_sigma_theta` is; inner gradients are clamped, those of the means of q and p
too; the fit is a mean over the query set, so `kl_weight` is relative to one query example; several inner steps are
allowed where the algorithm writes one."""

import math
from dataclasses import dataclass, replace

import equinox as eqx
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.errors import at_least
from stmaml.likelihoods import AbstractLikelihood, likelihood_for
from stmaml.methods import base
from stmaml.methods.base import AbstractMetaLearner, FineTuning, Metrics, NetPredictor, inner_loss, settle
from stmaml.nets.backbone import BaseLearner, base_learner
from stmaml.nets.set_encoder import DiagonalNormal
from stmaml.tasks import Examples, Scalar, Task, TaskSpec


@dataclass(frozen=True)
class Config(FineTuning):
    """Settings of PLATIPUS."""

    start_log_std: float = -4.0
    """Where the log standard deviations of p and q start, for every weight."""
    start_gamma: float = 0.01
    """Where the learned step sizes gamma_p and gamma_q start."""
    mean_steps: int = 1
    """Gradient steps from mu_theta to the mean of p and of q."""
    kl_weight: float = 0.01
    """Weight of KL(q || p), which is a sum over all weights."""

    def __post_init__(self):
        at_least(0, mean_steps=self.mean_steps, start_gamma=self.start_gamma)
        at_least(-math.inf, start_log_std=self.start_log_std)

    def build(self, spec: TaskSpec, *, key: PRNGKeyArray) -> "PLATIPUS":
        """A fresh PLATIPUS for tasks like `spec`."""
        base.check_kl_weight(self.kl_weight)
        likelihood = likelihood_for(spec)
        mu_theta = base_learner(spec, self.hidden, self.conv, likelihood.raw_size, key=key)
        log_sigma_theta, log_v_q = jnp.full((2, ravel_pytree(mu_theta)[0].size), self.start_log_std)
        gamma_p, gamma_q = jnp.full(2, self.start_gamma)
        return PLATIPUS(mu_theta, log_sigma_theta, log_v_q, gamma_p, gamma_q, likelihood, self)


class PLATIPUS(AbstractMetaLearner):
    """MAML from a random initialisation theta, whose distribution follows from the task's data by gradient steps."""

    mu_theta: BaseLearner
    log_sigma_theta: Float[Array, " w"]
    log_v_q: Float[Array, " w"]
    gamma_p: Scalar
    gamma_q: Scalar
    likelihood: AbstractLikelihood
    settings: Config = eqx.field(static=True)

    def loss(self, task: Task, *, key: PRNGKeyArray) -> tuple[Scalar, Metrics]:
        """The query loss of weights fine-tuned from a draw of q(theta | query), plus KL(q || p)."""
        q_theta, p_theta = self._posterior(task.query), self._prior(task.support)
        phi = self._fine_tune(q_theta, task.support, key=key)
        fit = self.likelihood.mean_objective(base.outputs(phi, task.query), task.query)
        kl = q_theta.kl(p_theta).sum()
        return fit + self.settings.kl_weight * kl, {"fit": fit, "kl": kl}

    def adapt(self, support: Examples, *, num_samples: int, key: PRNGKeyArray) -> NetPredictor:
        """One fine-tuned network for each draw of theta from p(theta | support)."""
        p_theta = self._prior(support)

        def adapt_one(key: PRNGKeyArray) -> NetPredictor:
            return NetPredictor(self._fine_tune(p_theta, support, key=key), self.likelihood)

        return base.sample_predictors(adapt_one, num_samples=num_samples, key=key)

    def _posterior(self, query: Examples) -> DiagonalNormal:
        """q(theta | query) = N(mu_theta - gamma_q grad L(mu_theta, query), v_q)."""
        return DiagonalNormal(self._mean(query, self.gamma_q), jnp.exp(self.log_v_q))

    def _prior(self, support: Examples) -> DiagonalNormal:
        """p(theta | support) = N(mu_theta - gamma_p grad L(mu_theta, support), sigma_theta)."""
        return DiagonalNormal(self._mean(support, self.gamma_p), jnp.exp(self.log_sigma_theta))

    def _mean(self, examples: Examples, gamma: Scalar) -> Float[Array, " w"]:
        steps = replace(self.settings.inner, inner_steps=self.settings.mean_steps)
        return ravel_pytree(steps(inner_loss(self.likelihood, examples), self.mu_theta, lr=gamma))[0]

    def _fine_tune(self, d_theta: DiagonalNormal, support: Examples, *, key: PRNGKeyArray) -> BaseLearner:
        """phi: a draw of theta after the inner loop."""
        theta = ravel_pytree(self.mu_theta)[1](d_theta.sample(key=key))
        return settle(self.settings.inner(inner_loss(self.likelihood, support), theta), support)
