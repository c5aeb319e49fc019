"""The linear mixed model that the learner begins with, against NumPy and the Bayes limit."""

from functools import partial

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stmaml.benchmarks.hierarchies import Shape, bayes_limit, linear_tables, one_of, table_key
from stmaml.prior.anchor import Line, fit_anchor, inverted, learn_line


def test_sweeping_inverts():
    root = jr.normal(jr.key(0), (6, 5, 5))
    matrix = root @ root.swapaxes(1, 2) + 0.5 * jnp.eye(5)[None]
    np.testing.assert_allclose(inverted(matrix), np.linalg.inv(np.asarray(matrix, float)), rtol=1e-3, atol=1e-4)


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
