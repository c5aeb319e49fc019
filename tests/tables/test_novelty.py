"""Unlike groups stand out, and suggested rows are those that lower the variance most."""

import numpy as np
import pytest
from scipy import stats
from scipy.spatial.distance import mahalanobis as scipy_mahalanobis

from stmaml.tables.novelty import Reference, mahalanobis, refer, suggest_rows
from tests.table_data import draw


def codes(count: int, seed: int) -> np.ndarray:
    return draw(stats.norm, size=(count, 3), random_state=seed) @ np.array(
        [[1.0, 0.5, 0.0], [0.0, 1.0, 0.3], [0, 0, 2.0]]
    )


@pytest.fixture
def reference():
    known = [codes(500, 0), 2 * codes(500, 1)]
    held_out = [codes(200, 2), 2 * codes(200, 3)]
    entropy = [np.full(200, 5.0), np.full(200, 3.0)]
    return refer([1, 10], known, held_out, entropy)


def test_distances_are_those_of_scipy():
    code, mean, precision = codes(4, 5), np.array([0.1, 0.2, 0.3]), np.linalg.inv(np.cov(codes(50, 6), rowvar=False))
    expected = [scipy_mahalanobis(row, mean, precision) for row in code]
    np.testing.assert_allclose(mahalanobis(code, mean, precision), expected)


def test_novelty_of_usual_groups_is_uniform_and_of_strange_ones_near_one(reference):
    usual = reference.novelty(codes(1000, 7), np.full(1000, 1))
    np.testing.assert_allclose(np.quantile(usual, [0.1, 0.5, 0.9]), [0.1, 0.5, 0.9], atol=0.1)
    assert (reference.novelty(codes(50, 8) + 20, np.full(50, 1)) == 1.0).all()


def test_novelty_is_judged_among_groups_with_as_many_labelled_rows(reference):
    far = 2.5 * codes(300, 9)
    few, many = reference.novelty(far, np.full(300, 1)), reference.novelty(far, np.full(300, 12))
    assert np.median(few) > 0.9 > np.median(many) + 0.1
    mixed = reference.novelty(far[:2], np.array([1, 12]))
    np.testing.assert_allclose(mixed, [few[0], many[1]])


def test_without_labelled_rows_nothing_is_said(reference):
    assert np.isnan(reference.novelty(codes(2, 0), np.array([0, 0]))).all()
    surplus = reference.surplus_entropy(np.array([6.0, 6.0, 6.0]), np.array([1, 10, 0]))
    np.testing.assert_array_equal(surplus, [1.0, 3.0, np.nan])


def test_more_coordinates_than_groups_still_give_distances():
    wide = refer([1], [draw(stats.norm, size=(5, 20), random_state=0)], [np.zeros((3, 20))], [np.zeros(3)])
    assert np.isfinite(wide.novelty(np.ones((2, 20)), np.array([1, 1]))).all()


def remaining_variance(covariance: np.ndarray, noise: np.ndarray, rows: list[int]) -> float:
    """The summed variance after labels of these rows, by the textbook formula for a Gaussian."""
    cross = covariance[:, rows]
    gain = cross @ np.linalg.solve(covariance[np.ix_(rows, rows)] + np.diag(noise[rows]), cross.T)
    return float(np.trace(covariance - gain))


def test_suggestions_lower_the_variance_most_step_by_step():
    functions = draw(stats.norm, size=(200, 3), random_state=0) @ draw(stats.norm, size=(3, 8), random_state=1)
    noise = np.linspace(0.1, 2.0, 8)
    centred = functions - functions.mean(0)
    covariance = centred.T @ centred / 200
    chosen: list[int] = []
    for row in suggest_rows(functions[..., None], noise, 4).tolist():
        options = {i: remaining_variance(covariance, noise, [*chosen, i]) for i in range(8) if i not in chosen}
        assert row == min(options, key=lambda i: options[i])
        chosen.append(row)


def test_a_noisy_label_is_worth_less_than_a_clean_one_and_none_comes_twice():
    functions = np.tile(draw(stats.norm, size=(50, 1), random_state=0), (1, 4))[..., None]
    rows = suggest_rows(functions, np.array([1.0, 0.01, 1.0, 1.0]), 10)
    assert rows[0] == 1
    assert sorted(rows.tolist()) == [0, 1, 2, 3]


def test_where_all_predictors_agree_any_order_will_do():
    assert sorted(suggest_rows(np.ones((1, 3, 1)), np.ones(3), 3).tolist()) == [0, 1, 2]


def test_entropy_in_words():
    """By what more labelled rows tell: 3 and 1 nats here, 2 on average."""
    reference = Reference(
        np.array([1, 2, 5]), np.zeros((3, 1)), np.ones((3, 1, 1)), np.ones((3, 2)), np.array([5.0, 2.0, 1.0])
    )
    words = reference.known_in_words([2.1, 1.9, -1.9, -2.1, None])
    assert words == ["less known than most", "as usual", "as usual", "better known than most", "no labelled rows"]
