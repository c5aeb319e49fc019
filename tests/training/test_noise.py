"""The residual noise level: a running mean of squared residuals, whatever the outer rate."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stmaml.errors import SettingError
from stmaml.inner import InnerLoop
from stmaml.likelihoods import Gaussian, estimate_noise, without_noise
from stmaml.methods import meta_sgd
from stmaml.tasks import TaskBatch, TaskSpec
from stmaml.training import TrainConfig, initial_state, run_steps


class Wide(eqx.Module):
    """Targets that are noise of scale 10."""

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec((1,), 1)

    def sample(self, num_tasks: int, *, key) -> TaskBatch:
        x = jr.normal(key, (num_tasks, 8, 1))
        y = 10 * jr.normal(jr.fold_in(key, 1), x.shape)
        return TaskBatch.of(x[:, :2], y[:, :2], x[:, 2:], y[:, 2:])


def trained(config: TrainConfig):
    learner = meta_sgd.Config(hidden=(3,), inner=InnerLoop(1e-5, 1)).build(Wide().spec, key=jr.key(0))
    return run_steps(initial_state(learner, config), Wide(), jr.key(1), jnp.arange(300), config)[0].learner


def sigma(learner) -> float:
    return float(jnp.exp(learner.likelihood.log_noise))


def test_sigma_is_right_within_a_few_hundred_steps_of_a_small_outer_rate():
    """Meta-SGD on targets of scale 10 at an outer rate of 1e-4, whose steps add up to 0.03 in log sigma."""
    assert sigma(trained(TrainConfig(steps=300, tasks_per_batch=20, outer_lr=1e-4))) == pytest.approx(10, rel=0.1)
    assert sigma(trained(TrainConfig(steps=300, tasks_per_batch=20, outer_lr=1e-4, noise_rate=None))) < 1.1


def test_one_step_is_the_running_mean_written_out():
    likelihood, share = Gaussian(2, "residual", 3.0), 0.1
    y = np.array([[1.0, -4.0], [2.0, 7.0], [0.5, 0.0]])
    raw = jnp.ones((3, 2))
    grads = jax.grad(lambda one: one.objective(raw, jnp.asarray(y)).mean())(likelihood)
    moved = estimate_noise(likelihood, grads, share)
    variance = 0.9 * 9 + 0.1 * np.mean((y - 1) ** 2)
    assert moved.log_noise is not None
    assert jnp.exp(2 * moved.log_noise) == pytest.approx(variance, rel=1e-5)
    assert without_noise(grads, likelihood).log_noise == 0


def test_a_noise_level_that_steers_the_predictor_takes_the_optimizers_steps():
    likelihood = Gaussian(1, "learned")
    grads = jax.grad(lambda one: one.objective(jnp.zeros((1, 1)), jnp.ones((1, 1))).mean())(likelihood)
    assert estimate_noise(likelihood, grads, 0.1).log_noise == likelihood.log_noise
    assert without_noise(grads, likelihood).log_noise == grads.log_noise


@pytest.mark.parametrize("rate", [0.0, 1.0, float("nan")])
def test_a_share_is_between_none_and_all(rate):
    with pytest.raises(SettingError, match="--noise-rate must lie between 0 and 1"):
        TrainConfig(noise_rate=rate)
