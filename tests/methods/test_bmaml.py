"""BMAML's own mathematics: the SVGD step, the posterior, the chaser loss and the predictive noise."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
import scipy.stats
from blackjax.vi import svgd
from jax.flatten_util import ravel_pytree

from stmaml.inner import InnerLoop
from stmaml.methods import bmaml
from stmaml.methods.base import predict
from stmaml.methods.bmaml import BMAML, Particle, svgd_direction
from stmaml.tasks import TaskSpec
from tests.methods.small import small_task

SPEC = TaskSpec((2,), 1, noise_std=0.5)
CONFIG = bmaml.Config(
    hidden=(8,),
    num_particles=4,
    leader_steps=2,
    prior_weight=0.5,
    inner=InnerLoop(inner_lr=0.1, inner_steps=2, inner_clamp=None),
)


@pytest.fixture
def learner(key) -> BMAML:
    """Particles whose precisions differ, so that no two roles can be confused."""
    learner = CONFIG.build(SPEC, key=key)
    precisions = jnp.array([[0.1, -0.2, 0.3, 0.0], [1.0, 1.2, 0.8, 1.1]])
    return eqx.tree_at(lambda t: (t.particles.log_lambda, t.particles.log_gamma), learner, tuple(precisions))


@pytest.fixture
def task(key):
    return small_task(SPEC, key=jr.fold_in(key, 1))


def naive_direction(theta: np.ndarray, score: np.ndarray, h: float) -> np.ndarray:
    """The definition of phi, pair by pair."""
    phi = np.zeros_like(theta)
    for i in range(len(theta)):
        for j in range(len(theta)):
            k = np.exp(-np.sum((theta[i] - theta[j]) ** 2) / h)
            phi[i] += (k * score[j] - 2 / h * (theta[j] - theta[i]) * k) / len(theta)
    return phi


def naive_bandwidth(theta: np.ndarray) -> float:
    num = len(theta)
    squared = [np.sum((theta[i] - theta[j]) ** 2) for i in range(num) for j in range(i)]
    return float(np.median(squared) / np.log(num))


@pytest.mark.parametrize("num", [2, 5])
def test_direction_equals_the_double_loop(num, key):
    theta, score = np.asarray(jr.normal(key, (2, num, 3)))
    want = naive_direction(theta, score, naive_bandwidth(theta))
    np.testing.assert_allclose(svgd_direction(jnp.array(theta), jnp.array(score)), want, rtol=1e-5, atol=1e-6)


def test_direction_equals_blackjax(key):
    """One blackjax step with our bandwidth; its own median is of distances, ours of squared distances."""
    theta = jr.normal(key, (5, 3))
    score = jax.grad(lambda t: -0.5 * jnp.sum(jnp.array([1.0, 2.0, 0.5]) * jnp.square(t - 1)))
    optimizer = optax.sgd(0.1)
    start = svgd.init(theta, {"length_scale": naive_bandwidth(np.asarray(theta))}, optimizer)
    state = svgd.build_kernel(optimizer)(start, score, svgd.rbf_kernel)
    (want,) = jax.tree.leaves(state.particles)
    np.testing.assert_allclose(theta + 0.1 * svgd_direction(theta, jax.vmap(score)(theta)), want, rtol=1e-5)


def test_bandwidth_is_a_constant_in_derivatives(key):
    theta, score, tangent = jr.normal(key, (3, 4, 3))
    h = naive_bandwidth(np.asarray(theta))

    def with_constant_h(theta):
        gaps = theta[:, None] - theta[None]
        k = jnp.exp(-jnp.square(gaps).sum(-1) / h)
        return (k @ score + 2 / h * (k[..., None] * gaps).sum(1)) / 4

    got = jax.jvp(lambda t: svgd_direction(t, score), (theta,), (tangent,))[1]
    want = jax.jvp(with_constant_h, (theta,), (tangent,))[1]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def one(particles: Particle, i: int) -> Particle:
    return jax.tree.map(lambda leaf: leaf[i], particles)


def flatten(particles: Particle) -> jax.Array:
    return jax.vmap(lambda particle: ravel_pytree(particle)[0])(particles)


def log_joint(particle: Particle, examples) -> float:
    """The log-posterior up to a constant, from SciPy's densities."""
    assert particle.log_gamma is not None
    lam, gam = np.exp(particle.log_lambda), np.exp(particle.log_gamma)
    w = ravel_pytree(particle.theta)[0]
    data = float(np.sum(scipy.stats.norm.logpdf(examples.y, particle.theta(examples.x), gam**-0.5)))
    weights = scipy.stats.norm.logpdf(w, 0, lam**-0.5).sum()
    # A density of log(g) is g times the density of g.
    lam_prior = scipy.stats.gamma.logpdf(lam, 2, scale=1 / 2) + np.log(lam)
    gam_prior = scipy.stats.gamma.logpdf(gam, 2, scale=1 / (0.2 * SPEC.noise_std**2)) + np.log(gam)
    return data + 0.5 * (weights + lam_prior + gam_prior)


def test_posterior_agrees_with_scipy_up_to_a_constant(learner, task):
    mine = [learner._log_posterior(one(learner.particles, i), task.support) for i in range(4)]
    theirs = [log_joint(one(learner.particles, i), task.support) for i in range(4)]
    np.testing.assert_allclose(np.diff(mine), np.diff(theirs), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("target", ["class", "binary"])
def test_log_likelihood_of_classes_is_minus_the_cross_entropy(target, key):
    spec = TaskSpec((2,), 3 if target == "class" else 1, target=target)
    learner, support = CONFIG.build(spec, key=key), small_task(spec, key=key).support
    particle = one(learner.particles, 0)
    assert particle.log_gamma is None
    empty = eqx.tree_at(lambda e: e.weight, support, jnp.zeros(5))
    logits = particle.theta(support.x)
    losses = (
        optax.softmax_cross_entropy_with_integer_labels(logits, support.y)
        if target == "class"
        else optax.sigmoid_binary_cross_entropy(logits, support.y)
    )
    data = learner._log_posterior(particle, support) - learner._log_posterior(particle, empty)
    np.testing.assert_allclose(data, -losses.sum(), rtol=1e-5)


def reference_svgd(learner: BMAML, particles: Particle, examples, steps: int) -> Particle:
    """Steps of inner_lr / n along the direction, on the unclamped log-posterior."""
    unravel = ravel_pytree(one(particles, 0))[1]
    flat = flatten(particles)
    score = jax.vmap(jax.grad(lambda t: learner._log_posterior(unravel(t), examples)))
    for _ in range(steps):
        flat = flat + 0.1 / examples.weight.sum() * svgd_direction(flat, score(flat))
    return jax.vmap(unravel)(flat)


def reference_chaser(particles: Particle, learner: BMAML, task, leader: Particle) -> jax.Array:
    """Squared distance of the follower's weights to a leader given as plain numbers."""
    follower = reference_svgd(learner, particles, task.support, 2)
    return jnp.square(flatten(follower)[:, :-2] - flatten(leader)[:, :-2]).sum()  # the last two are the precisions


@pytest.mark.slow
def test_chaser_loss_and_its_gradient_take_the_leader_as_constant(learner, task, key):
    follower = reference_svgd(learner, learner.particles, task.support, 2)
    leader = reference_svgd(learner, follower, task.support + task.query, 2)
    want, want_grads = jax.value_and_grad(reference_chaser)(learner.particles, learner, task, leader)
    got, got_grads = eqx.filter_value_and_grad(lambda t: t.loss(task, key=key)[0])(learner)
    assert want > 1e-6
    np.testing.assert_allclose(got, want, rtol=1e-4)
    np.testing.assert_allclose(flatten(got_grads.particles), flatten(want_grads), rtol=1e-3, atol=1e-5)


def test_query_loss_is_the_mean_over_particles(learner, task, key):
    learner = BMAML(learner.particles, learner.likelihood, dataclasses.replace(CONFIG, meta_loss="query"))
    follower = reference_svgd(learner, learner.particles, task.support, 2)
    errors = [jnp.square(one(follower, i).theta(task.query.x) - task.query.y).mean() for i in range(4)]
    np.testing.assert_allclose(learner.loss(task, key=key)[0], np.mean(errors), rtol=1e-5)


def test_noise_is_fitted_to_the_mixture_on_queries(learner, task, key):
    """The gradient of log_noise is that of minus the mixture's log-density, and no other parameter feels it."""

    def nll(log_noise):
        noisy = eqx.tree_at(lambda t: t.likelihood.log_noise, learner, log_noise)
        return -predict(noisy, task.support, task.query.x, num_samples=1, key=key).log_prob(task.query.y).mean()

    grads = eqx.filter_grad(lambda t: t.loss(task, key=key)[0])(learner)
    want = jax.grad(nll)(learner.likelihood.log_noise)
    assert abs(want) > 1e-3
    np.testing.assert_allclose(grads.likelihood.log_noise, want, rtol=1e-4)


def test_adapt_gives_every_particle_whatever_num_samples(learner, task, key):
    prediction = predict(learner, task.support, task.query.x, num_samples=1, key=key)
    assert prediction.num_samples == 4
    assert (np.asarray(prediction.task_std) > 0).all()
    np.testing.assert_allclose(prediction.noise_std, SPEC.noise_std, rtol=1e-5)


def test_clamp_bounds_a_step_whatever_the_targets(key):
    """Each particle moves by at most inner_lr times clamp plus the repulsion."""
    config = dataclasses.replace(CONFIG, inner=InnerLoop(inner_lr=0.1, inner_steps=1, inner_clamp=2.0))
    learner, support = config.build(SPEC, key=key), small_task(SPEC, key=key).support
    wild = eqx.tree_at(lambda e: e.y, support, 50 * support.y)
    start, end = flatten(learner.particles), flatten(learner._svgd(learner.particles, wild, steps=1))
    repulsion = svgd_direction(start, jnp.zeros_like(start)) / 5
    assert jnp.abs(end - start - 0.1 * repulsion).max() <= 0.1 * 2.0 + 1e-5


def test_rematerialised_steps_give_the_same_loss_and_first_order_another_gradient(learner, task, key):
    def loss_and_grads(**inner):
        config = dataclasses.replace(CONFIG, inner=dataclasses.replace(CONFIG.inner, **inner))
        changed = BMAML(learner.particles, learner.likelihood, config)
        loss, grads = eqx.filter_value_and_grad(lambda t: t.loss(task, key=key)[0])(changed)
        return loss, flatten(grads.particles)

    plain, remat, first = loss_and_grads(), loss_and_grads(remat=True), loss_and_grads(order="first")
    np.testing.assert_allclose(remat[0], plain[0], rtol=1e-5)
    np.testing.assert_allclose(remat[1], plain[1], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(first[0], plain[0], rtol=1e-5)
    assert (first[1][:, -2:] == 0).all()  # constant steps do not depend on the precisions


@pytest.mark.parametrize("num", [0, 1])
def test_one_particle_is_refused(num):
    with pytest.raises(ValueError, match=f"at least 2 particles.*num_particles is {num}"):
        bmaml.Config(num_particles=num)
