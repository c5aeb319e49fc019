"""The linear mixed model that the learner begins with, against NumPy and the Bayes limit."""

from functools import partial

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stmaml.benchmarks.hierarchies import Shape, bayes_limit, linear_tables, one_of, table_key
from stmaml.prior.anchor import (
    LEAST_NOISE,
    LEVEL,
    PULL,
    RIDGE,
    ROUNDS,
    SLOPES,
    Anchor,
    Line,
    fit_anchor,
    inverted,
    learn_line,
    orthogonal,
    rooted,
)


def test_a_positive_matrix_is_inverted():
    root = jr.normal(jr.key(0), (5, 5))
    matrix = root @ root.T + 0.5 * jnp.eye(5)
    np.testing.assert_allclose(inverted(matrix), np.linalg.inv(np.asarray(matrix, float)), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(rooted(matrix), np.linalg.cholesky(np.asarray(matrix, float)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [1.0, 1e4, 1e9])
def test_what_rounding_makes_of_a_matrix_that_is_hardly_positive_stays_small(size: float):
    factor = jr.normal(jr.key(1), (12, 3))
    matrix = size * factor @ factor.T  # of rank 3: what is left of it is rounding, of either sign
    assert np.linalg.eigvalsh(np.asarray(matrix)).min() < 0
    root = rooted(matrix)
    np.testing.assert_allclose(root @ root.T, matrix, atol=1e-5 * size * float(jnp.square(factor).sum(1).max()))
    assert np.isfinite(inverted(matrix)).all()


def test_columns_are_taken_out_of_each_other_to_rounding_although_collinear():
    """X'X + 1 has a condition number of 10^8: single precision leaves nothing of its inverse."""
    part = 1e3 * np.asarray(jr.normal(jr.key(2), (4, 9, 3)))
    x = np.concatenate([part, part.sum(-1, keepdims=True), part[..., :1]], axis=-1).astype(np.float32)
    inside, inverse = (np.asarray(one, float) for one in orthogonal(jnp.asarray(x)))
    exact = np.linalg.inv(np.einsum("gsk,gsl->gkl", x, x, dtype=float) + np.eye(5))
    np.testing.assert_allclose(inverse @ inverse.swapaxes(1, 2), exact, atol=1e-3)
    np.testing.assert_allclose(inside @ inside.swapaxes(1, 2), x @ exact @ x.swapaxes(1, 2), atol=1e-3)


def test_the_model_of_collinear_skewed_columns_is_that_of_double_precision():
    """One column is the sum of the others, and all say next to everything of the target."""
    for seed in range(6):
        rows = _skewed(seed)
        found = _fitted(*(jnp.asarray(part, dtype=jnp.float32) for part in rows))
        with jax.enable_x64(True):
            exact = jax.tree.map(np.asarray, _fitted(*(jnp.asarray(part) for part in rows)))
        assert exact.mean.dtype == np.float64
        for name in ("mean", "std", "shared", "shared_std", "noise", "slope_std"):
            np.testing.assert_allclose(getattr(found, name), getattr(exact, name), rtol=1e-3, atol=1e-3, err_msg=name)


@jax.jit
def _fitted(x: jax.Array, y: jax.Array, labelled: jax.Array) -> Anchor:
    return fit_anchor(learn_line(x, y, labelled), x, y, labelled)


def _skewed(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Eight groups of eight rows."""
    random = np.random.default_rng(seed)
    part = np.exp(1.5 * random.standard_normal((8, 1, 3)) + 0.05 * random.standard_normal((8, 8, 3)))
    x, y = np.concatenate([part, part.sum(-1, keepdims=True)], axis=-1), part.sum(-1) ** 0.9
    labelled = (np.arange(8) < 5) * np.ones((8, 1))
    return (x - x.mean((0, 1))) / x.std((0, 1)), (y - y.mean()) / y.std(), labelled


def test_the_model_learnt_is_that_of_expectation_and_maximisation():
    """Groups of unlike size, one without a label; against the covariance of whole groups in double precision."""
    random = np.random.default_rng(7)
    x = random.standard_normal((6, 5, 2))
    labelled = (np.arange(5) < np.array([5, 4, 3, 2, 1, 0])[:, None]).astype(float)
    y = 0.5 + x @ [1.0, -0.7] + random.standard_normal((6, 1)) + 0.6 * random.standard_normal((6, 5))
    with jax.enable_x64(True):
        found = learn_line(*(jnp.asarray(part) for part in (x, y, labelled)))
    groups = [(np.column_stack([np.ones(5), x[g]])[on], y[g][on]) for g, on in enumerate(labelled > 0)]
    for name, expected in zip(("mean", "covariance", "variance", "noise"), _by_covariance(groups), strict=True):
        np.testing.assert_allclose(getattr(found, name), expected, rtol=1e-6, atol=1e-8, err_msg=name)


def _by_covariance(groups: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, ...]:
    """ROUNDS of EM, each group's effects from the covariance of its rows."""
    start, noise = np.array([LEVEL, SLOPES / 3, SLOPES / 3]), 0.5
    variance, mean, covariance = start, np.zeros(3), np.eye(3)
    for _ in range(ROUNDS):
        among = [np.linalg.inv(z * variance @ z.T + noise * np.eye(len(z))) for z, _ in groups]
        told = sum(z.T @ v @ z for v, (z, _) in zip(among, groups, strict=True))
        covariance = np.linalg.inv(told + RIDGE * np.eye(3))
        mean = covariance @ sum(z.T @ v @ y for v, (z, y) in zip(among, groups, strict=True))
        squares, left = PULL * start, LEAST_NOISE
        for v, (z, y) in zip(among, groups, strict=True):
            own = variance * (z.T @ v @ (y - z @ mean))
            doubt = np.diag(variance) - (variance[:, None] * z.T) @ v @ (z * variance)
            squares = squares + (own**2 + np.diag(doubt)) * (len(y) > 0)
            left += np.square(y - z @ (mean + own)).sum() + np.trace(z @ doubt @ z.T)
        noise = left / (sum(len(y) for _, y in groups) + 1)
        variance = squares / (sum(len(y) > 0 for _, y in groups) + PULL)
    return mean, covariance, variance, np.array(noise)


def test_a_labelled_row_is_left_out_of_what_is_said_of_it():
    keys = jr.split(jr.key(1), 2)
    x, y = jr.normal(keys[0], (1, 5, 2)), jr.normal(keys[1], (1, 5))
    line = Line(jnp.array([0.2, 0.5, -0.3]), 0.1 * jnp.eye(3), jnp.array([0.5, 0.2, 0.1]), jnp.asarray(0.3))
    whole = fit_anchor(line, x, y, jnp.ones((1, 5)))
    for row in range(5):
        alone = fit_anchor(line, x, y, jnp.ones((1, 5)).at[0, row].set(0.0))
        np.testing.assert_allclose(whole.mean[0, row], alone.mean[0, row], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(whole.std[0, row], alone.std[0, row], rtol=1e-4)


def test_without_labelled_rows_it_says_what_all_groups_share():
    line = Line(jnp.array([1.0, 2.0]), jnp.zeros((2, 2)) + 0.01 * jnp.eye(2), jnp.array([0.5, 0.1]), jnp.asarray(0.3))
    x = jnp.array([[[2.0], [0.0]]])
    found = fit_anchor(line, x, jnp.zeros((1, 2)), jnp.zeros((1, 2)))
    np.testing.assert_allclose(found.mean[0], [5.0, 1.0], rtol=1e-4)
    np.testing.assert_allclose(found.std[0] ** 2, [0.51 + 4 * 0.11 + 0.3, 0.81], rtol=1e-3)
    np.testing.assert_allclose(found.std, found.shared_std, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("shots", [0, 4])
def test_with_many_groups_it_is_near_the_bayes_limit(shots: int):
    tables, truth = jax.jit(partial(linear_tables, Shape(40, 4, 10, 2), 30, shots=shots))(key=table_key(3))
    best = np.stack([bayes_limit(one_of(tables, i), one_of(truth, i))[0] for i in range(30)])

    @jax.jit
    @jax.vmap
    def said(x, y, labelled):
        line = learn_line(x[:40], y[:40], labelled[:40])
        return fit_anchor(line, x, y, labelled)

    found = said(tables.x, tables.y, tables.labelled)
    asked = np.asarray(tables.asked) > 0
    error, limit = (np.mean((np.asarray(tables.y - mean)[asked]) ** 2) for mean in (found.mean, best))
    assert limit * 0.99 < error < limit * 1.1
    score = np.asarray((tables.y - found.mean) / found.std)[asked] ** 2
    assert score.mean() == pytest.approx(1, abs=0.25)
