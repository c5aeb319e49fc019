"""Logistic mixed models against lme4's glmer, and their gradient against finite differences."""

import numpy as np
from scipy import optimize

from stmaml.pool.mixed.covariance import Covariance
from stmaml.pool.mixed.laplace import Trials, _laplace, fit_logistic
from tests.pool.classics import flags, numbered, table


def cbpp() -> Trials:
    """A row for every animal."""
    data = table("cbpp")
    ill, size = data["incidence"].astype(int), data["size"].astype(int)
    y = np.concatenate([np.repeat([1.0, 0.0], (a, b - a)) for a, b in zip(ill, size, strict=True)])
    herd, period = np.repeat(numbered(data["herd"]), size), np.repeat(data["period"], size)
    order = np.argsort(herd, kind="stable")
    x = np.concatenate([np.ones((len(y), 1)), flags(period)], axis=1)
    return Trials(x[order], np.ones((len(y), 1)), y[order], herd[order])


def test_disease_of_cattle():
    """`glmer(cbind(incidence, size - incidence) ~ period + (1 | herd), cbpp, binomial)`."""
    own = fit_logistic(cbpp(), Covariance(1), np.zeros(4))
    np.testing.assert_allclose(own.beta, (-1.398343, -0.991925, -1.128216, -1.579745), atol=2e-3)
    np.testing.assert_allclose(own.factor, [[0.642070]], atol=2e-3)
    np.testing.assert_allclose(own.log_likelihood, -277.502226, atol=1e-3)
    np.testing.assert_allclose(own.u[:4, 0] * own.factor[0, 0], (0.589629, -0.299093, 0.405866, 0.039023), atol=5e-3)
    errors = np.sqrt(np.diag(own.beta_covariance))
    np.testing.assert_allclose(errors, (0.231214, 0.303151, 0.322830, 0.422049), rtol=0.03)


def test_gradient_is_that_of_finite_differences():
    random = np.random.default_rng(0)
    group = np.sort(random.integers(0, 9, size=70))
    x = np.concatenate([np.ones((70, 1)), random.normal(size=(70, 2))], axis=1)
    trials = Trials(x, x[:, :2], (random.random(70) < 0.4).astype(float), group)
    covariance, ridge, start = Covariance(2), np.array([0.1, 0.5, 0.5]), np.zeros((len(trials.starts), 2))
    at = np.array([-0.4, 0.6, 0.2, 0.9, 0.4, 0.7])
    value = lambda at: _laplace(at[:3], at[3:], trials, covariance, ridge, start)  # noqa: E731
    numeric = np.asarray(optimize.approx_fprime(at, lambda at: value(at)[0], 1e-6))
    np.testing.assert_allclose(value(at)[1], numeric, rtol=1e-4, atol=1e-4)
