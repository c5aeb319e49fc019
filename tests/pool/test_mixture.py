"""Mixtures of members and their weights, against SciPy, numerical integration and plain search."""

import numpy as np
import pytest
from scipy import integrate, optimize, stats

from stmaml.pool.mixture import Mixture, distance
from stmaml.pool.weights import (
    Costs,
    class_weights,
    crps_costs,
    leading,
    learn_weights,
    least_cost,
    log_score_weights,
    neighbours,
    project,
)

RANDOM = np.random.default_rng(3)


def mixture(members: int = 3, rows: int = 4) -> Mixture:
    weight = RANDOM.dirichlet(np.ones(members), rows).T
    return Mixture(weight, RANDOM.normal(size=(members, rows)), RANDOM.uniform(0.2, 2, (members, rows)))


def density(one: Mixture, row: int, y: np.ndarray) -> np.ndarray:
    parts = zip(one.weight[:, row], one.mean[:, row], one.std[:, row], strict=True)
    return np.sum([w * stats.norm.pdf(y, m, s) for w, m, s in parts], axis=0)


def test_density_and_moments_equal_scipys():
    one, y = mixture(), RANDOM.normal(size=4)
    grid = np.linspace(-15, 15, 20_001)
    for row in range(4):
        pdf = density(one, row, grid)
        assert one.log_prob(y)[row] == pytest.approx(np.log(density(one, row, y[row])), abs=1e-10)
        assert one.expected()[row] == pytest.approx(integrate.simpson(pdf * grid, x=grid), abs=1e-6)
        centred = (grid - one.expected()[row]) ** 2
        assert one.variance()[row] == pytest.approx(integrate.simpson(pdf * centred, x=grid), abs=1e-6)


def test_crps_equals_the_integral_of_its_definition():
    one, y = mixture(), RANDOM.normal(size=4)
    grid = np.linspace(-15, 15, 60_001)
    for row in range(4):
        parts = zip(one.weight[:, row], one.mean[:, row], one.std[:, row], strict=True)
        cdf = np.sum([w * stats.norm.cdf(grid, m, s) for w, m, s in parts], axis=0)
        truth = integrate.trapezoid((cdf - (grid >= y[row])) ** 2, x=grid)
        assert one.crps(y)[row] == pytest.approx(truth, abs=1e-3)


@pytest.mark.parametrize("score", [-5.0, -1.3, 0.0, 0.4, 5.0])
def test_values_at_scores_have_those_scores(score: float):
    one = mixture(rows=7)
    found = one.at_scores(np.full((1, 7), score))[0]
    np.testing.assert_allclose(one.normal_scores(found), score, atol=1e-6)
    np.testing.assert_allclose(one.cdf(found), stats.norm.cdf(score), atol=1e-7)


@pytest.mark.parametrize("apart", [0.0, 1.0, 20.0, 1e4])
def test_newtons_steps_find_what_halving_finds(apart: float):
    """From members that agree to those with nothing between them; a row's answer is its own."""
    one = mixture(rows=200)
    one = Mixture(one.weight, apart * one.mean, one.std)
    scores = np.array([-4.7, -1.6, 0.0, 0.7, 3.1])[:, None].repeat(200, 1)
    found = one.at_scores(scores)
    np.testing.assert_allclose(found, one._halved(scores), rtol=1e-9, atol=1e-7)
    np.testing.assert_array_equal(one.at(np.arange(3, 9)).at_scores(scores[:, 3:9]), found[:, 3:9])


def test_members_without_weight_change_nothing():
    one = mixture(members=2)
    more = Mixture(
        np.concatenate([one.weight, np.zeros((1, 4))]),
        np.concatenate([one.mean, np.full((1, 4), 1e6)]),
        np.concatenate([one.std, np.ones((1, 4))]),
    )
    levels = np.linspace(-2, 2, 5)[:, None].repeat(4, 1)
    np.testing.assert_allclose(more.at_scores(levels), one.at_scores(levels), atol=1e-9)
    np.testing.assert_allclose(more.crps(np.zeros(4)), one.crps(np.zeros(4)), atol=1e-6)


def test_a_member_without_weight_hides_no_density():
    one = Mixture(np.array([[1.0], [0.0]]), np.array([[0.0], [60.0]]), np.ones((2, 1)))
    assert one.log_prob(np.array([60.0]))[0] == pytest.approx(stats.norm.logpdf(60), rel=1e-12)


def test_expected_distance_is_that_of_draws():
    draws = RANDOM.normal(0.7, 1.3, 400_000)
    assert distance(np.array([0.2 - 0.7]), np.array([1.3]))[0] == pytest.approx(np.abs(draws - 0.2).mean(), rel=5e-3)


def some_costs(rows: int = 300, groups: int = 10) -> tuple[Costs, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    y = RANDOM.normal(size=rows)
    mean = np.stack([0.8 * y, y + RANDOM.normal(0, 0.5, rows), RANDOM.normal(size=rows)])
    std = np.stack([np.full(rows, 0.4), np.full(rows, 0.5), np.full(rows, 1.0)])
    group = np.arange(rows) % groups
    return crps_costs(mean, std, y, group, groups), mean, std, y, group


def test_costs_are_the_crps_of_any_weights():
    costs, mean, std, y, group = some_costs()
    weights = np.array([0.5, 0.2, 0.3])
    crps = Mixture(np.repeat(weights[:, None], len(y), 1), mean, std).crps(y)
    expected = [crps[group == i].mean() for i in range(10)]
    np.testing.assert_allclose(costs.of(weights), expected, rtol=1e-10)


def plain_weights(costs: Costs, pull: float = 0.0) -> np.ndarray:
    aim = np.full((1, 3), 1 / 3)
    return least_cost(costs.own.mean(0)[None], costs.apart.mean(0)[None], aim, np.array([pull]))[0]


def test_best_weights_are_those_a_plain_search_finds():
    costs, *_ = some_costs()
    found = plain_weights(costs)

    def cost(free: np.ndarray) -> float:
        shares = np.exp(free - free.max())
        return float(costs.of(shares / shares.sum()).mean())

    searched = optimize.minimize(cost, np.zeros(3), method="Nelder-Mead", options={"maxiter": 4000, "fatol": 1e-12})
    assert costs.of(found).mean() <= searched.fun + 1e-6
    assert found.sum() == pytest.approx(1)
    assert (found >= 0).all()


def test_the_pull_is_towards_the_aim():
    costs, *_ = some_costs()
    gaps = [np.abs(plain_weights(costs, strength) - 1 / 3).max() for strength in (0.0, 1.0, 1e3)]
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 1e-2


def test_a_member_counts_less_the_more_clearly_it_is_behind():
    alone = np.array([[1.0, 2.0, 1.5], [1.0, 4.0, 1.5]])  # behind by 2 with an error of 1; by 0.5 with none
    np.testing.assert_allclose(leading(alone), np.array([1, np.exp(-2), 0]) / (1 + np.exp(-2)), atol=1e-12)
    steep = np.array([1, np.exp(-4), 0]) / (1 + np.exp(-4))
    np.testing.assert_allclose(leading(alone, 2.0), steep, atol=1e-12)
    np.testing.assert_allclose(leading(alone[:1]), 1 / 3)  # one group tells nothing
    np.testing.assert_allclose(leading(np.ones((4, 2))), 1 / 2)


def test_neighbouring_numbers_of_rows_share_their_weights():
    costs, mean, std, y, group = some_costs()
    other = crps_costs(mean[[2, 1, 0]], std[[2, 1, 0]], y, group, 10)  # where the best member is another
    together, apart = learn_weights([costs, other]), [learn_weights([one])[0] for one in (costs, other)]
    assert np.abs(together[0] - together[1]).sum() < np.abs(apart[0] - apart[1]).sum()


def test_the_more_groups_the_less_do_neighbours_say():
    few, many, all_groups = (neighbours(np.full(3, groups)) for groups in (1, 100, 10**9))
    np.testing.assert_allclose(few.sum(1), 1)
    assert few[0, 1] > many[0, 1] > all_groups[0, 1]
    assert few[0, 1] > few[0, 2] > 0
    np.testing.assert_allclose(all_groups, np.eye(3), atol=1e-6)


def test_with_many_groups_each_number_of_rows_has_its_own_weights():
    costs, mean, std, y, group = some_costs()
    other = crps_costs(mean[[2, 1, 0]], std[[2, 1, 0]], y, group, 10)
    crowd = [Costs(np.tile(one.own, (10_000, 1)), np.tile(one.apart, (10_000, 1, 1))) for one in (costs, other)]
    alone = [learn_weights([one])[0] for one in crowd]
    np.testing.assert_allclose(learn_weights(crowd), alone, atol=0.02)


def test_projection_is_the_nearest_point_of_the_simplex():
    v = np.array([0.9, 0.8, -0.5])
    grid = RANDOM.dirichlet(np.ones(3), 20_000)
    nearest = grid[np.square(grid - v).sum(1).argmin()]
    np.testing.assert_allclose(project(v), nearest, atol=0.03)
    np.testing.assert_allclose(project(v), [0.55, 0.45, 0.0], atol=1e-12)


def test_log_score_weights_are_those_a_plain_search_finds():
    likelihood = RANDOM.uniform(0.05, 1, (2, 200))
    share = np.full(200, 0.1)
    found = log_score_weights(likelihood, share, np.zeros(2))
    grid = np.linspace(0, 1, 5001)[:, None]
    scores = (share * np.log(grid * likelihood[0] + (1 - grid) * likelihood[1])).sum(1)
    assert found[0] == pytest.approx(grid[scores.argmax(), 0], abs=2e-3)
    equal = log_score_weights(likelihood, share, np.full(2, 1e6))
    np.testing.assert_allclose(equal, 0.5, atol=1e-3)


def test_classes_are_pulled_towards_those_not_clearly_behind():
    group = np.repeat(np.arange(30), 4)
    good = RANDOM.uniform(0.5, 0.9, 120)
    level = good * np.where(group % 2, 1.02, 1 / 1.02)  # ahead in every second group, behind in the others
    likelihood = np.stack([good, level, good / 3])
    weights = class_weights(likelihood, group)
    assert weights[2] < 0.01  # behind in every group: no share of the pull is its own
    np.testing.assert_allclose(weights[:2], 0.5, atol=0.1)
