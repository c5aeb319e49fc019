"""REML and maximum likelihood against lme4 1.1-31."""

import numpy as np
import pytest
from scipy import optimize

from stmaml.pool.mixed.covariance import Covariance
from stmaml.pool.mixed.reml import Structure, deviance, estimate, groups_of, reduce, solve
from stmaml.pool.mixed.sums import Matrices, Sums, chunks, sums_of, thinned
from tests.pool.classics import machines, oats, penicillin, sleepstudy


def fitted(rows: Matrices, structure: Structure):
    """Variances of effects and levels, of noise, fixed effects and log-likelihood."""
    num_levels = int(rows.codes.max(initial=-1)) + 1
    sums = sums_of(rows, num_levels)
    theta = estimate(sums, structure)
    factor = structure.covariance.factor(theta[: structure.covariance.num])
    solved = solve(reduce(sums, groups_of(sums, factor)), structure, theta, np.diag(sums.rr))
    levels = theta[structure.covariance.num :] ** 2 * solved.sigma2
    fixed = solved.gamma[num_levels:]
    errors = np.sqrt(solved.sigma2 * (solved.half**2).sum(axis=1))[num_levels:]
    return factor @ factor.T * solved.sigma2, levels, solved.sigma2, fixed, errors, -0.5 * solved.deviance


@pytest.mark.parametrize(
    ("method", "variances", "noise", "errors", "log_likelihood"),
    [
        ("reml", (612.100158, 9.604409, 35.071714), 654.940008, (6.824597, 1.545790), -871.814136),
        ("ml", (565.476966, 11.055122, 32.681785), 654.945706, (6.632123, 1.502230), -875.969672),
    ],
)
def test_level_and_slope_of_the_sleep_study(method, variances, noise, errors, log_likelihood):
    """`lmer(Reaction ~ Days + (Days | Subject), sleepstudy)`."""
    covariance, _, sigma2, fixed, own_errors, own = fitted(sleepstudy(), Structure(Covariance(2), (), method))
    np.testing.assert_allclose(covariance[[0, 0, 1], [0, 1, 1]], variances, rtol=2e-3)
    np.testing.assert_allclose(sigma2, noise, rtol=1e-4)
    np.testing.assert_allclose(fixed, (251.405105, 10.467286), rtol=1e-6)
    np.testing.assert_allclose(own_errors, errors, rtol=1e-3)
    np.testing.assert_allclose(own, log_likelihood, atol=1e-5)


CASES = {
    "nested machines": (machines, 13.909457, 22.858444, 0.924630, (52.355556, 7.966667, 13.916667), -107.843784),
    "nested oats": (oats, 108.943650, 214.476722, 165.558374, (82.4, 73.666667, 5.291667, -6.875), -289.445894),
    "crossed penicillin": (penicillin, 0.716905, 3.731132, 0.302415, (22.972222,), -165.430295),
}
ERRORS = {
    "nested machines": (2.485830, 2.176975, 2.176975),
    "nested oats": (8.058574, 6.781478, 7.078918, 7.078918),
    "crossed penicillin": (0.808595,),
}


@pytest.mark.parametrize("name", CASES)
def test_further_groupings(name):
    """`(1 | inner) + (1 | outer)` and crossed ones."""
    rows, group, level, noise, fixed, log_likelihood = CASES[name]
    covariance, levels, sigma2, own, errors, own_likelihood = fitted(rows(), Structure(Covariance(1), (6,)))
    np.testing.assert_allclose((covariance[0, 0], levels[0], sigma2), (group, level, noise), rtol=1e-3)
    np.testing.assert_allclose(own, fixed, rtol=1e-5)
    np.testing.assert_allclose(errors, ERRORS[name], rtol=1e-3)
    np.testing.assert_allclose(own_likelihood, log_likelihood, atol=1e-5)


def made(seed: int, *, groups: int = 9, rows: int = 60) -> Sums:
    random = np.random.default_rng(seed)
    z = np.concatenate([np.ones((rows, 1)), random.normal(size=(rows, 4))], axis=1)
    rest = np.concatenate([random.normal(size=(rows, 3)), np.ones((rows, 1)), random.normal(size=(rows, 2))], axis=1)
    codes = random.integers(-1, 5, size=(rows, 1))
    return sums_of(Matrices(z, codes, rest, random.integers(0, groups, size=rows)), 5)


@pytest.mark.parametrize("method", ["reml", "ml"])
def test_gradient_is_that_of_finite_differences(method):
    structure = Structure(Covariance(2, (1, 2)), (5, 3), method)
    sums = made(0)
    theta = np.array([0.7, -0.3, 0.4, 0.5, 0.9, 0.6, 1.3])
    numeric = np.asarray(optimize.approx_fprime(theta, lambda at: deviance(at, sums, structure)[0], 1e-6))
    np.testing.assert_allclose(deviance(theta, sums, structure)[1], numeric, rtol=1e-4, atol=1e-4)


def test_deviance_is_that_of_the_dense_normal_density():
    """Maximum likelihood: the density of y at the profiled effects and noise, written out."""
    random = np.random.default_rng(1)
    group, codes = np.repeat(np.arange(6), 5), random.integers(0, 3, size=30)
    z, x, y = random.normal(size=(30, 2)), np.ones((30, 1)), random.normal(size=30)
    sums = sums_of(Matrices(z, codes[:, None], np.concatenate([x, y[:, None]], axis=1), group), 3)
    theta = np.array([0.8, 0.3, 0.5, 1.2])
    factor = np.array([[0.8, 0.0], [0.3, 0.5]])
    v = np.eye(30) + (z @ factor @ factor.T @ z.T) * (group[:, None] == group)
    v = v + 1.44 * (codes[:, None] == codes)
    inverse = np.linalg.inv(v)
    beta = (x.T @ inverse @ y) / (x.T @ inverse @ x)[0, 0]
    left = y - x @ beta
    expected = np.linalg.slogdet(v)[1] + 30 * (1 + np.log(2 * np.pi * (left @ inverse @ left) / 30))
    own = deviance(theta, sums, Structure(Covariance(2), (3,), "ml"))[0]
    np.testing.assert_allclose(own, expected, rtol=1e-10)


def test_variance_that_is_not_there_ends_at_zero():
    random = np.random.default_rng(2)
    y = np.tile([1.0, -1.0, 2.0, -2.0], 20) + 0.01 * random.normal(size=80)
    rows = Matrices(np.ones((80, 1)), np.zeros((80, 0), int), np.stack([np.ones(80), y], 1), np.repeat(range(20), 4))
    assert estimate(sums_of(rows, 0), Structure(Covariance(1), ()))[0] == 0.0


def test_chunks_are_whole_groups_and_all_rows():
    group = np.random.default_rng(3).integers(0, 40, size=500)
    parts = chunks(group, 60)
    assert sorted(np.concatenate(parts)) == list(range(500))
    assert len(parts) > 5
    assert sum(len(set(group[part])) for part in parts) == 40


def test_sums_of_chunks_add_up():
    random = np.random.default_rng(4)
    rows = sleepstudy()
    factor = np.tril(random.normal(size=(2, 2)))
    whole = sums_of(rows, 0)
    total = reduce(whole, groups_of(whole, factor))
    parts = []
    for part in chunks(rows.group, 30):
        own = sums_of(Matrices(rows.z[part], rows.codes[part], rows.rest[part], rows.group[part]), 0)
        parts.append(reduce(own, groups_of(own, factor)))
    added = sum(parts[1:], parts[0])
    np.testing.assert_allclose(added.s, total.s, rtol=1e-9)
    np.testing.assert_allclose(added.log_det, total.log_det, rtol=1e-9)


def test_thinning_keeps_all_groups_where_it_may():
    assert list(thinned([3] * 10, 100, 100)) == list(range(10))
    assert len(thinned([10] * 1000, 1000, 10_000)) == 100
