"""PLATIPUS against its algorithm: gradients by hand on a linear network, and in plain jax.numpy on a deeper one."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree

from stmaml.inner import InnerLoop
from stmaml.methods.platipus import PLATIPUS, Config
from stmaml.tasks import Examples, Task, TaskSpec
from tests.methods.small import small_task

SPEC = TaskSpec((2,), 1)
INNER = InnerLoop(inner_lr=0.05, inner_steps=2)
LINEAR = Config(hidden=(), kl_weight=0.01, inner=INNER)
DEEP = Config(hidden=(8,), kl_weight=0.01, mean_steps=2, inner=INNER)


def varied(config: Config, *, key) -> PLATIPUS:
    """A learner whose spreads differ between weights and between p and q, as do its two gammas."""
    build_key, p_key, q_key = jr.split(key, 3)
    learner = config.build(SPEC, key=build_key)
    shape = learner.log_v_q.shape
    return dataclasses.replace(
        learner,
        log_sigma_theta=-2 + 0.5 * jr.normal(p_key, shape),
        log_v_q=-3 + 0.5 * jr.normal(q_key, shape),
        gamma_p=jnp.array(0.03),
        gamma_q=jnp.array(0.07),
    )


def linear_gradient(w: np.ndarray, examples: Examples) -> np.ndarray:
    """Gradient of the mean of ([x, 1] . w - y)^2: a linear network's flat weights end with its bias."""
    x1 = np.concatenate([examples.x, np.ones((len(examples.x), 1))], axis=1)
    return 2 / len(x1) * x1.T @ (x1 @ w - np.asarray(examples.y)[:, 0])


def adapted_weights(learner: PLATIPUS, support: Examples, *, num_samples: int, key) -> np.ndarray:
    """The flat weights of each adapted network."""
    nets: Any = learner.adapt(support, num_samples=num_samples, key=key).net
    return np.asarray(jax.vmap(lambda net: ravel_pytree(net)[0])(nets))


def without_inner_steps(learner: PLATIPUS) -> PLATIPUS:
    inner = dataclasses.replace(learner.settings.inner, inner_steps=0)
    return dataclasses.replace(learner, settings=dataclasses.replace(learner.settings, inner=inner))


def test_loss_on_a_linear_network_by_hand(key):
    """q steps from mu on the query, p on the support; a draw of q descends on the support, the query judges it."""
    learner, task = varied(LINEAR, key=key), small_task(SPEC, key=key)
    mu = np.asarray(ravel_pytree(learner.mu_theta)[0])
    q: Any = dist.Normal(mu - 0.07 * linear_gradient(mu, task.query), jnp.exp(learner.log_v_q))
    p: Any = dist.Normal(mu - 0.03 * linear_gradient(mu, task.support), jnp.exp(learner.log_sigma_theta))
    phi = np.asarray(q.loc + q.scale * jr.normal(key, mu.shape))
    for _ in range(2):
        phi = phi - 0.05 * linear_gradient(phi, task.support)
    error = np.asarray(task.query.x) @ phi[:2] + phi[2] - np.asarray(task.query.y)[:, 0]
    loss, parts = learner.loss(task, key=key)
    np.testing.assert_allclose(parts["fit"], np.square(error).mean(), rtol=1e-4)
    np.testing.assert_allclose(parts["kl"], np.sum(dist.kl_divergence(q, p)), rtol=1e-4)
    np.testing.assert_allclose(loss, parts["fit"] + 0.01 * parts["kl"], rtol=1e-6)


def test_loss_and_meta_gradient_of_a_deep_network(key):
    """The algorithm again, in plain jax.numpy on one flat vector of weights; so are its meta-gradients."""
    learner, task = varied(DEEP, key=key), small_task(SPEC, key=key)
    mu, unravel = ravel_pytree(learner.mu_theta)
    eps = jr.normal(key, mu.shape)

    def error(w, examples: Examples):
        net = unravel(w)
        hidden = jnp.maximum(examples.x @ net.body[0].weight + net.body[0].bias[None], 0)
        return jnp.mean((hidden @ net.head.weight + net.head.bias[None] - examples.y) ** 2)

    def descend(w, examples: Examples, lr, steps: int):
        for _ in range(steps):
            w = w - lr * jax.grad(error)(w, examples)
        return w

    def loss(mu, log_sigma, log_v, gamma_p, gamma_q):
        q_mean, p_mean = descend(mu, task.query, gamma_q, 2), descend(mu, task.support, gamma_p, 2)
        phi = descend(q_mean + jnp.exp(log_v) * eps, task.support, 0.05, 2)
        ratio = jnp.exp(2 * (log_v - log_sigma))
        kl = jnp.sum(log_sigma - log_v + (ratio + ((q_mean - p_mean) / jnp.exp(log_sigma)) ** 2 - 1) / 2)
        return error(phi, task.query) + 0.01 * kl

    arguments = (mu, learner.log_sigma_theta, learner.log_v_q, learner.gamma_p, learner.gamma_q)
    want, want_grads = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3, 4)))(*arguments)
    got, grads = eqx.filter_jit(eqx.filter_value_and_grad(lambda learner: learner.loss(task, key=key)[0]))(learner)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    got_grads = (ravel_pytree(grads.mu_theta)[0], grads.log_sigma_theta, grads.log_v_q, grads.gamma_p, grads.gamma_q)
    for got_grad, want_grad in zip(got_grads, want_grads, strict=True):
        np.testing.assert_allclose(got_grad, want_grad, rtol=1e-3, atol=1e-5)


def test_adapt_draws_from_p_given_the_support(key):
    """Without inner steps the adapted weights are draws of theta: moved by gamma_p, spread by sigma_theta."""
    learner, task = without_inner_steps(varied(LINEAR, key=key)), small_task(SPEC, key=key)
    theta = adapted_weights(learner, task.support, num_samples=4000, key=key)
    mu, sigma = np.asarray(ravel_pytree(learner.mu_theta)[0]), np.exp(learner.log_sigma_theta)
    mean = mu - 0.03 * linear_gradient(mu, task.support)
    np.testing.assert_array_less(np.abs(theta.mean(0) - mean), 4 * sigma / 4000**0.5)
    np.testing.assert_allclose(theta.std(0), sigma, rtol=0.05)


def test_adapt_fine_tunes_each_draw_on_the_support(key):
    learner, task = varied(LINEAR, key=key), small_task(SPEC, key=key)
    starts = adapted_weights(without_inner_steps(learner), task.support, num_samples=3, key=key)
    ends = adapted_weights(learner, task.support, num_samples=3, key=key)
    for start, end in zip(starts, ends, strict=True):
        theta = start
        for _ in range(2):
            theta = theta - 0.05 * linear_gradient(theta, task.support)
        np.testing.assert_allclose(end, theta, rtol=1e-4, atol=1e-6)


def test_training_reads_the_query_where_use_reads_the_support(key):
    """With query = support and equal spreads and rates, q is p: no KL. Another query moves q away from p."""
    learner, task = LINEAR.build(SPEC, key=key), small_task(SPEC, key=key)
    _, same = learner.loss(Task(task.support, task.support), key=key)
    _, other = learner.loss(task, key=key)
    np.testing.assert_allclose(same["kl"], 0.0, atol=1e-5)
    assert other["kl"] > 1e-2


def test_a_fresh_learner_owns_each_of_its_arrays(key):
    """Training may donate buffers: no two fields may share one."""
    leaves = [leaf for leaf in jax.tree.leaves(LINEAR.build(SPEC, key=key)) if isinstance(leaf, jax.Array)]
    assert len({leaf.unsafe_buffer_pointer() for leaf in leaves}) == len(leaves)
