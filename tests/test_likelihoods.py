"""Likelihoods: densities against SciPy, and what trains what."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import scipy.special
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from stmaml.errors import SettingError
from stmaml.inner import InnerLoop
from stmaml.likelihoods import (
    NOISE_MODELS,
    Bernoulli,
    Categorical,
    Gaussian,
    Predicted,
    Rising,
    estimate_noise,
    likelihood_for,
    without_noise,
)
from stmaml.methods import maml
from stmaml.methods.base import predict
from stmaml.outcomes import MIN_STD, NormalMixtureOutcome, NormalOutcome, StudentOutcome
from stmaml.recipes.base import Modelling
from stmaml.tasks import Examples, Task, TaskSpec
from tests.methods.small import small_task

finite = st.floats(-20, 20, width=32)
rows = hnp.arrays(np.float32, (3, 2), elements=finite)


def test_fixed_noise_has_the_normal_density(key):
    raw, y = jr.normal(key, (2, 5, 3))
    want = -scipy.stats.norm.logpdf(y, raw, 0.4).sum(1)
    np.testing.assert_allclose(Gaussian(3, "fixed", 0.4).objective(raw, y), want, rtol=1e-5)


def test_learned_noise_starts_where_it_is_told(key):
    raw, y = jr.normal(key, (2, 5, 3))
    likelihood = Gaussian(3, "learned", 0.4)
    want = -scipy.stats.norm.logpdf(y, raw, 0.4).sum(1)
    np.testing.assert_allclose(likelihood.objective(raw, y), want, rtol=1e-5)
    assert Gaussian(3, "fixed", 0.4).log_noise is None


def test_learned_noise_gets_the_slope_of_the_density(key):
    """d/d log s of -log N(y; m, s) is 1 - (y - m)^2 / s^2."""
    raw, y = jr.normal(key, (2, 5, 1))
    slope = jax.grad(lambda likelihood: likelihood.objective(raw, y).sum())(Gaussian(1, "learned", 0.4)).log_noise
    np.testing.assert_allclose(slope, np.sum(1 - np.square(y - raw) / 0.4**2), rtol=1e-4)


def test_predicted_noise_is_a_softplus_that_starts_at_its_setting(key):
    raw, y = jr.normal(key, (5, 4)), jr.normal(jr.fold_in(key, 1), (5, 2))
    likelihood = Predicted(NormalOutcome, 2, 0.4)
    scale = 0.4 * np.log1p(np.exp(np.asarray(raw[:, 2:], dtype=float))) / np.log(2)
    want = -scipy.stats.norm.logpdf(y, raw[:, :2], scale).sum(1)
    assert likelihood.raw_size == 4
    np.testing.assert_allclose(likelihood.objective(raw, y), want, rtol=1e-5)
    np.testing.assert_allclose(likelihood.outcome(jnp.zeros((1, 4))).variance(), np.full((1, 2), 0.16), rtol=1e-5)


def test_noise_has_a_floor():
    likelihood = Predicted(NormalOutcome, 1)
    np.testing.assert_allclose(likelihood.outcome(jnp.array([[0.0, -1e4]])).variance(), [[MIN_STD**2]], rtol=1e-6)


@given(raw=rows, y=rows, noise_std=st.floats(0.01, 10))
@settings(deadline=None)
def test_residual_noise_costs_the_squared_error_and_nothing_more(raw, y, noise_std):
    got = Gaussian(2, "residual", noise_std).objective(jnp.asarray(raw), jnp.asarray(y))
    np.testing.assert_allclose(got, np.square(y - raw).mean(1), rtol=1e-3, atol=1e-3)


def test_residual_noise_leaves_the_predictor_to_the_squared_error(key):
    raw, y = jr.normal(key, (2, 5, 2))
    slope = jax.grad(lambda raw: Gaussian(2, "residual", 0.1).objective(raw, y).sum())(raw)
    np.testing.assert_allclose(slope, 2 * (raw - y) / 2, rtol=1e-5)


def test_residual_noise_learns_from_the_density_of_the_residuals(key):
    raw, y = jr.normal(key, (2, 5, 2))
    slope = jax.grad(lambda likelihood: likelihood.objective(raw, y).sum())(Gaussian(2, "residual", 0.4)).log_noise
    np.testing.assert_allclose(slope, np.sum(1 - np.square(y - raw) / 0.4**2), rtol=1e-4)


def test_residual_noise_settles_at_the_residuals_root_mean_square(key):
    raw, y = jr.normal(key, (2, 50, 1))
    rms = float(jnp.sqrt(jnp.square(y - raw).mean()))
    slopes = [
        jax.grad(lambda m: m.objective(raw, y).mean())(Gaussian(1, "residual", rms * factor)).log_noise
        for factor in (0.5, 1.0, 2.0)
    ]
    assert slopes[0] < -0.1
    np.testing.assert_allclose(slopes[1], 0, atol=1e-4)
    assert slopes[2] > 0.1


def test_residual_noise_is_the_spread_of_its_outcome():
    np.testing.assert_allclose(Gaussian(1, "residual", 0.3).outcome(jnp.zeros((2, 1))).scale, 0.3, rtol=1e-6)


@given(logits=rows, y=hnp.arrays(np.int32, (3, 2), elements=st.integers(0, 1)))
@settings(deadline=None)
def test_bernoulli_has_scipys_probability(logits, y):
    want = scipy.stats.bernoulli.logpmf(y, scipy.special.expit(logits.astype(float)))
    got = Bernoulli(2).outcome(jnp.asarray(logits)).log_prob(jnp.asarray(y, dtype=float))
    np.testing.assert_allclose(got, want.sum(1), rtol=1e-4, atol=1e-5)


def test_soft_targets_mix_the_two_log_probabilities(key):
    logits, y = jr.normal(key, (4, 3)), jr.uniform(key, (4, 3))
    p = scipy.special.expit(np.asarray(logits, dtype=float))
    want = -(y * np.log(p) + (1 - y) * np.log(1 - p))
    np.testing.assert_allclose(Bernoulli(3).objective(logits, y), want.mean(1), rtol=1e-5)


def test_sure_and_wrong_is_expensive_but_finite():
    loss = Bernoulli(1).objective(jnp.array([[200.0]]), jnp.array([[0.0]]))
    np.testing.assert_allclose(loss, [200.0], rtol=1e-6)


@given(logits=hnp.arrays(np.float32, (4, 3), elements=finite), y=hnp.arrays(np.int32, 4, elements=st.integers(0, 2)))
@settings(deadline=None)
def test_categorical_is_minus_the_log_softmax(logits, y):
    want = -scipy.special.log_softmax(logits.astype(float), axis=1)[np.arange(4), y]
    got = Categorical(3).objective(jnp.asarray(logits), jnp.asarray(y))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    outcome = Categorical(3).outcome(jnp.asarray(logits))
    np.testing.assert_allclose(outcome.log_prob(jnp.asarray(y)), -want, rtol=1e-4, atol=1e-5)


def test_targets_are_read_as_they_are_and_classes_one_hot():
    y = jnp.array([[0.25], [2.0]])
    np.testing.assert_array_equal(Gaussian(1).encode(y), y)
    np.testing.assert_array_equal(Bernoulli(1).encode(y), y)
    np.testing.assert_array_equal(Categorical(3).encode(jnp.array([2, 0])), [[0, 0, 1], [1, 0, 0]])


def test_the_loss_of_a_set_is_the_mean_over_its_real_rows(key):
    raw, y = jr.normal(key, (2, 4, 1))
    examples = Examples(jnp.zeros((4, 2)), y, jnp.array([1.0, 0.0, 1.0, 0.0]))
    each = Gaussian(1, "fixed", 0.4).objective(raw, y)
    got = Gaussian(1, "fixed", 0.4).mean_objective(raw, examples)
    np.testing.assert_allclose(got, (each[0] + each[2]) / 2, rtol=1e-6)


@pytest.mark.parametrize("noise", NOISE_MODELS)
def test_the_inner_loss_of_real_targets_is_the_squared_error_of_the_mean(noise, key):
    likelihood = NOISE_MODELS[noise](3, 0.4)
    raw, y = jr.normal(key, (5, likelihood.raw_size)), jr.normal(jr.fold_in(key, 1), (5, 3))
    want = np.square(np.asarray(y, dtype=float) - np.asarray(raw, dtype=float)[:, :3]).mean(1)
    np.testing.assert_allclose(likelihood.inner_objective(raw, y), want, rtol=1e-5)
    np.testing.assert_allclose(likelihood.outcome(raw).mean(), raw[:, :3], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("noise", NOISE_MODELS)
def test_every_noise_model_starts_with_about_the_spread_it_is_told(noise):
    likelihood = likelihood_for(TaskSpec((2,), 2, noise=noise, noise_std=0.4))
    spread = np.sqrt(likelihood.outcome(jnp.zeros((3, likelihood.raw_size))).variance())
    np.testing.assert_allclose(spread, np.full((3, 2), 0.4), rtol=0.2)


def test_student_noise_predicts_a_scale_and_learns_its_degrees_of_freedom(key):
    likelihood = Predicted(StudentOutcome, 2, 0.4)
    raw, y = jr.normal(key, (5, 4)), 3 * jr.normal(jr.fold_in(key, 1), (5, 2))
    scale = 0.4 * np.log1p(np.exp(np.asarray(raw[:, 2:], dtype=float))) / np.log(2)

    def density(shared: float) -> np.ndarray:
        return -scipy.stats.t.logpdf(y, 2.1 + np.exp(shared), raw[:, :2], scale).sum(1)

    np.testing.assert_allclose(likelihood.objective(raw, y), density(2.0), rtol=1e-5)
    slope = eqx.filter_grad(lambda m: m.objective(raw, y).sum())(likelihood).shared
    np.testing.assert_allclose(slope, [(density(2.001) - density(1.999)).sum() / 0.002], rtol=1e-3)
    low = eqx.tree_at(lambda m: m.shared, likelihood, jnp.array([-50.0]))
    assert np.isfinite(low.outcome(raw).variance()).all()


def test_a_mixture_of_normals_has_the_networks_weights_places_and_scales(key):
    likelihood = Predicted(NormalMixtureOutcome, 2, 0.4)
    raw, y = jr.normal(key, (5, likelihood.raw_size)), jr.normal(jr.fold_in(key, 1), (5, 2))
    rest = np.asarray(raw[:, 2:], dtype=float).reshape(5, 2, 3, 5)
    weight = scipy.special.softmax(rest[:, :, 0], axis=-1)
    places = 0.4 * (rest[:, :, 1] + np.linspace(-1, 1, 5))
    loc = raw[:, :2, None] + places - (weight * places).sum(-1, keepdims=True)
    scale = 0.4 * 0.5**0.5 * np.log1p(np.exp(rest[:, :, 2])) / np.log(2)
    want = -np.log((weight * scipy.stats.norm.pdf(y[..., None], loc, scale)).sum(-1)).sum(-1)
    np.testing.assert_allclose(likelihood.objective(raw, y), want, rtol=1e-4)


def test_normals_that_start_side_by_side_learn_different_things(key):
    likelihood = Predicted(NormalMixtureOutcome, 1)
    y = jr.normal(key, (50, 1))
    slope = jax.grad(lambda raw: likelihood.objective(jnp.broadcast_to(raw, (50, 16)), y).sum())(jnp.zeros(16))
    for part in np.split(np.asarray(slope[1:]), 3):
        assert len(np.unique(part.round(4))) > 2


def test_a_noise_model_that_is_not_there_is_refused_by_name():
    with pytest.raises(
        SettingError, match="there is no noise model 'cauchy'; choose one of: residual, fixed, learned, "
    ):
        likelihood_for(TaskSpec((2,), 1, noise="cauchy"))
    with pytest.raises(SettingError, match="student, mixture"):
        Modelling(noise_model="cauchy")


def test_the_inner_loss_moves_the_mean_and_no_noise(key):
    raw, y = jr.normal(key, (5, 4)), jr.normal(jr.fold_in(key, 1), (5, 2))
    slope = jax.grad(lambda raw: Predicted(NormalOutcome, 2, 0.4).inner_objective(raw, y).sum())(raw)
    np.testing.assert_allclose(slope[:, :2], 2 * (raw[:, :2] - y) / 2, rtol=1e-5)
    np.testing.assert_array_equal(slope[:, 2:], np.zeros((5, 2)))
    for noise in ("residual", "learned"):
        grads = jax.grad(lambda m: m.inner_objective(raw[:, :2], y).sum())(Gaussian(2, noise, 0.4))
        assert grads.log_noise == 0


def test_the_inner_loss_of_classes_and_probabilities_is_the_outer_one(key):
    raw = jr.normal(key, (4, 3))
    classes, probabilities = jnp.array([2, 0, 1, 1]), jr.uniform(key, (4, 3))
    want = -scipy.special.log_softmax(np.asarray(raw, dtype=float), axis=1)[np.arange(4), classes]
    np.testing.assert_allclose(Categorical(3).inner_objective(raw, classes), want, rtol=1e-5)
    np.testing.assert_array_equal(Categorical(3).inner_objective(raw, classes), Categorical(3).objective(raw, classes))
    np.testing.assert_array_equal(
        Bernoulli(3).inner_objective(raw, probabilities), Bernoulli(3).objective(raw, probabilities)
    )


def test_the_inner_loss_of_a_set_is_the_mean_over_its_real_rows(key):
    raw, y = jr.normal(key, (2, 4, 1))
    examples = Examples(jnp.zeros((4, 2)), y, jnp.array([1.0, 0.0, 1.0, 0.0]))
    each = np.square(y - raw)[:, 0]
    got = Gaussian(1, "fixed", 0.4).mean_inner_objective(raw, examples)
    np.testing.assert_allclose(got, (each[0] + each[2]) / 2, rtol=1e-6)


@eqx.filter_jit
def maml_outcome(learner: maml.MAML, task: Task, key) -> NormalOutcome:
    outcome = predict(learner, task.support, task.query.x, key=key).components
    assert isinstance(outcome, NormalOutcome)
    return outcome


def new_maml(noise, noise_std: float, key) -> maml.MAML:
    spec = TaskSpec((2,), 1, noise=noise, noise_std=noise_std)
    config = maml.Config(hidden=(8,), inner=InnerLoop(inner_lr=0.1, inner_steps=2))
    return eqx.filter_jit(config.build)(spec, key=key)


def test_the_noise_level_has_no_say_in_what_maml_adapts_to(key):
    """Under the log-density a noise of 0.05 would take steps 100 times those of 0.5."""
    task = small_task(TaskSpec((2,), 1), key=key)
    quiet, loud = (
        eqx.tree_at(lambda m: m.likelihood.log_noise, new_maml("learned", 1.0, key), jnp.log(std))
        for std in (0.05, 0.5)
    )
    first, second = maml_outcome(quiet, task, key), maml_outcome(loud, task, key)
    np.testing.assert_array_equal(first.loc, second.loc)
    np.testing.assert_allclose((first.scale[0, 0, 0], second.scale[0, 0, 0]), (0.05, 0.5), rtol=1e-5)
    for noise in ("residual", "fixed"):
        np.testing.assert_allclose(maml_outcome(new_maml(noise, 0.05, key), task, key).loc, first.loc, rtol=1e-6)


def test_maml_adapts_by_the_squared_error_though_the_noise_is_predicted(key):
    """Two steps by hand on the means of the support; features move below the noise, its own weights do not."""
    learner, task = new_maml("predicted", 0.4, key), small_task(TaskSpec((2,), 1), key=key)

    @jax.jit
    def step(theta):
        grads = jax.grad(lambda theta: jnp.square(theta(task.support.x)[:, :1] - task.support.y).mean())(theta)
        return jax.tree.map(lambda p, g: p - 0.1 * jnp.clip(g, -10, 10), theta, grads)

    theta = step(step(learner.theta))
    raw = np.asarray(theta(task.query.x), dtype=float)
    got = maml_outcome(learner, task, key)
    np.testing.assert_allclose(got.loc[0], raw[:, :1], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(got.scale[0], 0.4 * np.log1p(np.exp(raw[:, 1:])) / np.log(2), rtol=1e-4)
    np.testing.assert_array_equal(theta.head.weight[:, 1], learner.theta.head.weight[:, 1])
    assert not np.allclose(theta.body[0].weight, learner.theta.body[0].weight, atol=1e-3)


@pytest.mark.parametrize(
    ("spec", "kind", "raw_size", "code_size"),
    [
        (TaskSpec((2,), 3), Gaussian, 3, 3),
        (TaskSpec((2,), 3, noise="predicted"), Predicted, 6, 3),
        (TaskSpec((2,), 3, noise="student"), Predicted, 6, 3),
        (TaskSpec((2,), 3, noise="mixture"), Predicted, 48, 3),
        (TaskSpec((2,), 3, target="binary"), Bernoulli, 3, 3),
        (TaskSpec((2,), 3, target="class"), Categorical, 3, 3),
    ],
)
def test_targets_choose_their_likelihood(spec, kind, raw_size, code_size):
    likelihood = likelihood_for(spec)
    assert isinstance(likelihood, kind)
    assert (likelihood.raw_size, likelihood.code_size) == (raw_size, code_size)


def test_only_what_is_learnt_is_a_leaf():
    sizes = {"residual": 1, "fixed": 0, "learned": 1, "predicted": 0, "student": 1, "mixture": 0}
    assert {name: len(jax.tree.leaves(make(2, 0.4))) for name, make in NOISE_MODELS.items()} == sizes
    assert jax.tree.leaves((Bernoulli(2), Categorical(3))) == []


def test_the_spread_is_one_where_nothing_else_is_said():
    np.testing.assert_allclose(Gaussian(1).outcome(jnp.zeros((1, 1))).scale, [[1.0]])
    np.testing.assert_allclose(Predicted(NormalOutcome, 1).outcome(jnp.zeros((1, 2))).variance(), [[1.0]], rtol=1e-6)


def test_residual_noise_moves_to_the_residuals_and_other_leaves_stay():
    """Of a learner with two likelihoods and a weight, only the noise that no outer step moves is estimated."""
    y, share = np.array([[1.0, -4.0], [2.0, 7.0], [0.5, 0.0]]), 0.1
    learner = {"residual": Gaussian(2, "residual", 3.0), "learned": Gaussian(2, "learned", 3.0), "w": jnp.array(5.0)}

    def loss(learner):
        raw, targets = jnp.ones((3, 2)), jnp.asarray(y)
        of_noise = [learner[name].objective(raw, targets).mean() for name in ("residual", "learned")]
        return sum(of_noise) + learner["w"] ** 2

    gradients = jax.grad(loss)(learner)
    moved, cut = estimate_noise(learner, gradients, share), without_noise(gradients, learner)
    variance = (1 - share) * 9 + share * np.square(y - 1).mean()
    np.testing.assert_allclose(jnp.exp(2 * moved["residual"].log_noise), variance, rtol=1e-5)
    assert (moved["learned"].log_noise, moved["w"]) == (learner["learned"].log_noise, 5.0)
    assert cut["residual"].log_noise == 0
    assert (cut["learned"].log_noise, cut["w"]) == (gradients["learned"].log_noise, 10.0)
    assert gradients["learned"].log_noise != 0


def test_a_rising_likelihood_reads_its_start_and_so_much_of_the_outputs(key):
    """At a gain of 0 it says what it starts with, whatever the network says; else start + gain * output."""
    raw, y = jr.normal(key, (5, 4)), jr.normal(jr.fold_in(key, 1), (5, 2))
    start, gain, plain = jnp.array([1.0, -2.0, 0.5, 0.0]), jnp.array([0.5, 2.0, -1.0, 3.0]), Predicted(NormalOutcome, 2)
    rising = Rising(plain, start, gain)
    risen = jnp.asarray(np.asarray(start) + np.asarray(raw) * np.asarray(gain))
    assert (rising.raw_size, rising.code_size) == (4, 2)
    np.testing.assert_allclose(rising.objective(raw, y), plain.objective(risen, y), rtol=1e-5)
    np.testing.assert_allclose(rising.inner_objective(raw, y), plain.inner_objective(risen, y), rtol=1e-5)
    np.testing.assert_allclose(rising.outcome(raw).mean(), risen[:, :2], rtol=1e-5)
    np.testing.assert_array_equal(rising.encode(y), y)
    still = Rising(plain, start, jnp.zeros(4)).outcome(raw)
    np.testing.assert_allclose(still.mean(), np.tile([1.0, -2.0], (5, 1)))
