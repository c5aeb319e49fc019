"""Mixtures of predictors, against SciPy and numerical integration."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.special
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from stmaml.outcomes import BernoulliOutcome, CategoricalOutcome, NormalOutcome
from stmaml.prediction import Prediction

LOC = np.array([[[0.0], [2.0]], [[1.5], [-3.0]], [[-4.0], [2.5]]])  # 3 samples, 2 inputs, 1 target
SCALE = np.array([[[0.5], [0.1]], [[1.0], [2.0]], [[0.2], [0.7]]])
log_prob = jax.jit(lambda prediction, y: prediction.log_prob(y))
quantiles = jax.jit(lambda prediction, levels: prediction.quantiles(levels))


@pytest.fixture
def mixture() -> Prediction:
    return Prediction(NormalOutcome(jnp.asarray(LOC, dtype=float), jnp.asarray(SCALE, dtype=float)))


def cdf(value: float, i: int) -> float:
    return float(scipy.stats.norm.cdf(value, LOC[:, i, 0], SCALE[:, i, 0]).mean())


def test_moments_obey_the_law_of_total_variance(mixture):
    np.testing.assert_allclose(mixture.mean, LOC.mean(0), rtol=1e-5)
    np.testing.assert_allclose(mixture.noise_std, np.sqrt((SCALE**2).mean(0)), rtol=1e-5)
    np.testing.assert_allclose(mixture.task_std, LOC.std(0), rtol=1e-5)
    second = (SCALE**2 + LOC**2).mean(0)
    np.testing.assert_allclose(mixture.std, np.sqrt(second - LOC.mean(0) ** 2), rtol=1e-5)


def test_one_sample_has_no_task_spread():
    one = Prediction(NormalOutcome(jnp.ones((1, 2, 1)), jnp.full((1, 2, 1), 0.3)))
    assert one.num_samples == 1
    np.testing.assert_array_equal(one.task_std, np.zeros((2, 1)))
    np.testing.assert_allclose(one.std, np.full((2, 1), 0.3), rtol=1e-6)


@given(
    loc=hnp.arrays(np.float32, (3, 2, 2), elements=st.floats(-10, 10, width=32)),
    scale=hnp.arrays(np.float32, (3, 2, 2), elements=st.floats(0.125, 10, width=32)),
    y=hnp.arrays(np.float32, (2, 2), elements=st.floats(-10, 10, width=32)),
)
@settings(deadline=None)
def test_log_density_is_that_of_the_mean_density(loc, scale, y):
    """A mixture over predictors, each of which speaks of all targets of an input at once."""
    each = scipy.stats.norm.logpdf(y[None], loc.astype(float), scale).sum(-1)
    want = scipy.special.logsumexp(each, axis=0) - np.log(3)
    got = log_prob(Prediction(NormalOutcome(jnp.asarray(loc), jnp.asarray(scale))), jnp.asarray(y))
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)


def test_log_density_far_from_every_component_is_finite(mixture):
    assert np.isfinite(mixture.log_prob(jnp.full((2, 1), 500.0))).all()


def test_class_probabilities_are_averaged(key):
    logits = jr.normal(key, (4, 3, 5))
    prediction = Prediction(CategoricalOutcome(logits))
    probability = scipy.special.softmax(np.asarray(logits), axis=-1).mean(0)
    np.testing.assert_allclose(prediction.mean, probability, rtol=1e-5)
    y = jnp.array([0, 4, 2])
    np.testing.assert_allclose(prediction.log_prob(y), np.log(probability[np.arange(3), y]), rtol=1e-5)
    np.testing.assert_allclose(np.square(prediction.std), probability * (1 - probability), rtol=1e-4)


def test_probabilities_of_ones_are_averaged(key):
    logits = jr.normal(key, (4, 3, 1))
    prediction = Prediction(BernoulliOutcome(logits))
    probability = scipy.special.expit(np.asarray(logits)).mean(0)
    np.testing.assert_allclose(prediction.mean, probability, rtol=1e-5)
    np.testing.assert_allclose(prediction.log_prob(jnp.ones((3, 1))), np.log(probability[:, 0]), rtol=1e-5)
    np.testing.assert_allclose(np.square(prediction.std), probability * (1 - probability), rtol=1e-4)


def test_cdf_is_the_mean_of_the_components(mixture):
    for value in (-5.0, 0.3, 2.0):
        want = [[cdf(value, 0)], [cdf(value, 1)]]
        np.testing.assert_allclose(mixture.cdf(jnp.full((2, 1), value)), want, rtol=1e-4, atol=1e-6)


def test_quantiles_are_where_scipy_finds_them(mixture):
    levels = [0.05, 0.3, 0.5, 0.95]
    got = jax.jit(lambda p: p.quantiles(jnp.array(levels)))(mixture)
    assert got.shape == (4, 2, 1)
    for k, level in enumerate(levels):
        gaps = [lambda v, i=i, level=level: cdf(v, i) - level for i in (0, 1)]
        want = [scipy.optimize.root_scalar(gap, bracket=(-30, 30)).root for gap in gaps]
        np.testing.assert_allclose(got[k, :, 0], want, rtol=1e-3, atol=1e-4)


@given(
    loc=hnp.arrays(np.float32, (4, 1, 1), elements=st.floats(-100, 100, width=32)),
    scale=hnp.arrays(np.float32, (4, 1, 1), elements=st.floats(0.015625, 10, width=32)),
)
@settings(deadline=None, max_examples=40)
def test_quantiles_undo_the_cdf(loc, scale):
    """Up to the step of single precision at the place where they are."""
    prediction = Prediction(NormalOutcome(jnp.asarray(loc), jnp.asarray(scale)))
    levels = np.array([0.01, 0.05, 0.5, 0.95, 0.99])
    found = np.asarray(quantiles(prediction, jnp.asarray(levels)), dtype=float)[:, 0, 0]
    assert (np.diff(found) >= 0).all()
    slack = 1e-4 + 1e-5 * np.abs(found)
    below, above = (
        scipy.stats.norm.cdf(found[:, None] + sign * slack[:, None], loc[:, 0, 0], scale[:, 0, 0]).mean(1)
        for sign in (-1, 1)
    )
    assert (below <= levels + 1e-4).all()
    assert (above >= levels - 1e-4).all()


def test_crps_is_the_area_between_the_distribution_function_and_the_truth(mixture):
    for truth in (-4.5, 0.2, 6.0):
        got = mixture.crps(jnp.full((2, 1), truth))
        for i in (0, 1):
            knots = sorted({truth, *LOC[:, i, 0]})
            left = scipy.integrate.quad(lambda v, i=i: cdf(v, i) ** 2, -25, truth, points=knots, limit=200)[0]
            right = scipy.integrate.quad(lambda v, i=i: (cdf(v, i) - 1) ** 2, truth, 25, points=knots, limit=200)[0]
            np.testing.assert_allclose(got[i, 0], left + right, rtol=1e-4)


@pytest.mark.parametrize("truth", [-1.0, 0.7, 3.0])
def test_crps_of_one_normal_has_its_closed_form(truth):
    w = (truth - 0.7) / 0.4
    phi, cap = scipy.stats.norm.pdf(w), scipy.stats.norm.cdf(w)
    want = 0.4 * (w * (2 * cap - 1) + 2 * phi - 1 / np.sqrt(np.pi))
    one = Prediction(NormalOutcome(jnp.full((1, 1, 1), 0.7), jnp.full((1, 1, 1), 0.4)))
    np.testing.assert_allclose(one.crps(jnp.full((1, 1), truth)), [[want]], rtol=1e-5)


def test_draws_have_the_moments_of_the_mixture(mixture, key):
    draws = jax.jit(lambda p: p.sample(20_000, key=key))(mixture)
    assert draws.shape == (20_000, 2, 1)
    np.testing.assert_allclose(draws.mean(0), mixture.mean, atol=0.1)
    np.testing.assert_allclose(draws.std(0), mixture.std, rtol=0.03)


def test_a_draw_follows_one_predictor_at_all_inputs(key):
    """Two certain predictors, at -1 and 1 everywhere: no draw mixes them."""
    loc = jnp.stack([jnp.full((5, 1), -1.0), jnp.full((5, 1), 1.0)])
    draws = Prediction(NormalOutcome(loc, jnp.full_like(loc, 1e-3))).sample(50, key=key)
    assert (np.abs(np.sign(draws).sum(1)) == 5).all()
    assert set(np.sign(draws[:, 0, 0]).tolist()) == {-1.0, 1.0}


def test_classes_are_drawn_by_their_probability(key):
    logits = jnp.log(jnp.array([[[0.7, 0.2, 0.1]], [[0.1, 0.2, 0.7]]]))
    draws = Prediction(CategoricalOutcome(logits)).sample(5000, key=key)
    np.testing.assert_allclose(np.bincount(draws[:, 0]) / 5000, [0.4, 0.2, 0.4], atol=0.03)


@pytest.mark.parametrize(
    "ask",
    [lambda p: p.quantiles(jnp.array([0.5])), lambda p: p.crps(jnp.zeros((2, 1))), lambda p: p.cdf(jnp.zeros((2, 1)))],
)
def test_classes_have_no_quantiles(ask):
    with pytest.raises(TypeError, match="for real-valued targets; this prediction is over classes"):
        ask(Prediction(CategoricalOutcome(jnp.zeros((1, 2, 3)))))


def test_arrays_and_distributions_agree(key):
    loc = jr.normal(key, (3, 1))
    outcome = NormalOutcome(loc, jnp.full_like(loc, 0.5))
    np.testing.assert_allclose(outcome.distribution().mean, outcome.mean(), rtol=1e-6)
    np.testing.assert_allclose(outcome.distribution().variance, outcome.variance(), rtol=1e-6)
    coin = BernoulliOutcome(loc)
    ones = jnp.ones((3, 1))
    each = jnp.asarray(coin.distribution().log_prob(ones))
    np.testing.assert_allclose(each[:, 0], coin.log_prob(ones), rtol=1e-5)
