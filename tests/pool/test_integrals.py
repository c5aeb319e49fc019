"""Levels of groups integrated in full, against SciPy's quadrature and finite differences."""

import numpy as np
from scipy import integrate, optimize, special, stats

from stmaml.pool.mixed.covariance import Covariance
from stmaml.pool.mixed.integrals import level_odds, levels_of, minus_log_likelihood, refined
from stmaml.pool.mixed.laplace import Trials, fit_logistic
from tests.pool.test_laplace import cbpp


def pairs(groups: int = 400, spread: float = 3.0) -> Trials:
    """Two rows in each group, which differs much from others."""
    random = np.random.default_rng(3)
    group = np.repeat(np.arange(groups), 2)
    odds = 0.5 + spread * random.normal(size=groups)[group]
    y = (random.random(2 * groups) < special.expit(odds)).astype(float)
    return Trials(np.ones((2 * groups, 1)), np.ones((2 * groups, 1)), y, group)


def test_likelihood_is_the_integral():
    trials, beta, spread = cbpp(), np.array([-1.4, -1.0, -1.1, -1.6]), 1.3
    offset = trials.x @ beta
    _, weight, total = levels_of(trials, offset, np.full(len(offset), spread))
    np.testing.assert_allclose(weight.sum(1), 1.0)
    for number, start in enumerate(trials.starts):
        mine = slice(start, np.append(trials.starts, len(offset))[number + 1])
        sign = 2 * trials.y[mine] - 1

        def likelihood(u: float, sign: np.ndarray = sign, mine: slice = mine) -> float:
            return float(np.prod(special.expit(sign * (offset[mine] + spread * u))) * stats.norm.pdf(u))

        expected = integrate.quad(likelihood, -8, 8, epsabs=0, epsrel=1e-10, limit=200)[0]
        np.testing.assert_allclose(total[number], np.log(expected), rtol=1e-6)


def test_gradient_is_that_of_finite_differences():
    trials, ridge, at = cbpp(), np.array([0.0, 0.5, 0.5, 2.0]), np.array([-1.1, -0.7, -1.4, -1.2, 0.9])
    numeric = np.asarray(optimize.approx_fprime(at, lambda at: minus_log_likelihood(at, trials, ridge)[0], 1e-6))
    np.testing.assert_allclose(minus_log_likelihood(at, trials, ridge)[1], numeric, rtol=1e-4, atol=1e-4)


def test_levels_of_pairs_differ_as_they_were_drawn():
    """Laplace's approximation is far off where groups have two rows; the integral is not."""
    trials, ridge = pairs(), np.zeros(1)
    rough = fit_logistic(trials, Covariance(1), ridge)
    beta, factor = refined(trials, ridge, rough)
    assert abs(factor[0, 0] - 3.0) < 0.6
    assert abs(factor[0, 0] - 3.0) < abs(rough.factor[0, 0] - 3.0)
    assert abs(beta[0] - 0.5) < 0.3


def test_answers_are_expectations_over_levels():
    """One task with three labelled rows and one without any, beside integrals over the level."""
    told = Trials(np.ones((3, 1)), np.ones((3, 1)), np.array([1.0, 1.0, 0.0]), np.zeros(3, dtype=int))
    offsets, spread = (np.array([0.2, -0.4, 0.1]), np.array([0.3, -1.0, 0.3])), 2.0
    spreads = (np.full(3, spread), np.full(3, spread))
    mean, variance = level_odds(told, offsets, spreads, np.array([0, 0, 1]), np.zeros(3))
    sign = 2 * told.y - 1
    given = lambda u: float(np.prod(special.expit(sign * (offsets[0] + spread * u))) * stats.norm.pdf(u))  # noqa: E731
    for row, density in ((0, given), (1, given), (2, stats.norm.pdf)):
        moments = [
            integrate.quad(lambda u: special.expit(offsets[1][row] + spread * u) ** k * density(u), -9, 9)[0]  # noqa: B023
            for k in range(3)
        ]
        first, second = moments[1] / moments[0], moments[2] / moments[0]
        np.testing.assert_allclose(mean[row], first, rtol=1e-5)
        np.testing.assert_allclose(variance[row], second - first**2, rtol=1e-4)


def test_doubt_about_common_effects_pulls_towards_a_half():
    told = Trials(np.ones((0, 1)), np.ones((0, 1)), np.zeros(0), np.zeros(0, dtype=int))
    offsets, spreads = (np.zeros(0), np.full(2, 1.5)), (np.zeros(0), np.ones(2))
    mean, _ = level_odds(told, offsets, spreads, np.array([0, 0]), np.array([0.0, 4.0]))
    assert 0.5 < mean[1] < mean[0]


def test_disease_of_cattle():
    """`glmer(cbind(incidence, size - incidence) ~ period + (1 | herd), cbpp, binomial, nAGQ = 25)`."""
    trials, ridge = cbpp(), np.zeros(4)
    beta, factor = refined(trials, ridge, fit_logistic(trials, Covariance(1), ridge))
    np.testing.assert_allclose(beta, (-1.3992237, -0.9914089, -1.1278096, -1.5794810), atol=1e-3)
    np.testing.assert_allclose(factor, [[0.6475199]], atol=1e-3)
