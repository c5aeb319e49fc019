"""Coverage group by group: counts by hand, and guarantees on synthetic tables whose truth is known."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from scipy import stats

from stmaml.metrics import share_interval, summarise_share
from stmaml.tables import coverage
from stmaml.tables.coverage import group_reach, missed_groups
from tests.table_data import draw


def test_groups_that_are_held_less_than_promised_are_counted():
    group = np.array([3, 3, 3, 3, 3, 7, 7, 7, 7, 7, 1])
    inside = np.array([1, 1, 1, 1, 0, 1, 1, 1, 0, 0, 1], dtype=bool)  # 80 %, 60 %, all
    found = missed_groups(group, inside)
    assert (found.share, found.groups) == (pytest.approx(1 / 3), 3)
    exact = stats.binomtest(1, 3).proportion_ci(0.95)
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high))
    five, one = stats.binom.cdf(3, 5, 0.9), 1 - 0.9
    assert found.by_chance == pytest.approx((2 * five + one) / 3)


@pytest.mark.parametrize(("count", "total"), [(0, 5), (5, 5), (2, 40), (1, 1)])
def test_the_interval_of_a_share_is_the_exact_one(count, total):
    exact = stats.binomtest(count, total).proportion_ci(0.95)
    assert share_interval(count, total) == pytest.approx((exact.low, exact.high))
    summary = summarise_share((np.arange(total) < count).astype(float))
    assert summary["mean"] == pytest.approx(count / total)
    assert summary["ci95"] == pytest.approx(max(exact.high - count / total, count / total - exact.low))


def test_a_true_model_misses_as_many_groups_as_chance_says():
    group = np.repeat(np.arange(4000), 6)
    inside = draw(stats.bernoulli, 0.9, size=len(group), random_state=0).astype(bool)
    found = missed_groups(group, inside)
    assert found.low < found.by_chance < found.high
    assert found.by_chance == pytest.approx(stats.binom.cdf(4, 6, 0.9))


def tables(count: int, groups: int, rows: int, spread: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Normal scores of groups that err by a level and a scale of their own; with the level and the scale."""
    level = spread * draw(stats.norm, size=(count, groups, 1), random_state=seed)
    scale = np.exp(spread * draw(stats.norm, size=(count, groups, 1), random_state=seed + 1))
    return level + scale * draw(stats.norm, size=(count, groups, rows), random_state=seed + 2), level, scale


def held(reach: np.ndarray, level: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """The share of all rows of a group that lie within the reach."""
    return stats.norm.cdf((reach - level) / scale) - stats.norm.cdf((-reach - level) / scale)


@pytest.mark.parametrize(("shots", "spread", "most"), [(0, 0.5, 0.97), (3, 0.5, 0.97), (8, 0.5, 0.97), (8, 0.0, 1.0)])
def test_nine_groups_of_ten_get_their_coverage_in_a_thousand_tables(shots, spread, most):
    """The last ten groups of each are new: their labelled rows alone are seen."""
    scores, level, scale = tables(1000, 50, shots + 30, spread, seed=shots)
    new, ones, shares = slice(40, None), np.ones((40, 30)), []
    for table in scores:
        shares.append(group_reach(table[:40, :shots], table[:40, shots:], ones, table[new, :shots]))
    covered = held(np.array(shares), level[:, new, 0], scale[:, new, 0]) >= 0.9
    assert covered.mean() >= 0.9
    assert covered.mean() <= most  # nor are intervals any wider than they need be


def test_without_the_correction_many_groups_miss_theirs_and_labelled_rows_shorten_it():
    scores, level, scale = tables(200, 50, 38, 0.5, seed=1)
    pooled = np.quantile(np.abs(scores[:, :40]).reshape(200, -1), 0.9, axis=1)[:, None]
    assert np.mean(held(pooled, level[:, 40:, 0], scale[:, 40:, 0]) >= 0.9) < 0.7
    ones = np.ones((40, 30))
    blind = [group_reach(t[:40, :0], t[:40, 8:], ones, t[40:, :0]).mean() for t in scores]
    shown = [group_reach(t[:40, :8], t[:40, 8:], ones, t[40:, :8]).mean() for t in scores]
    assert np.mean(shown) < 0.9 * np.mean(blind)


def test_padding_changes_nothing_and_the_leave_one_out_line_is_right():
    scores, _, _ = tables(1, 25, 12, 0.5, seed=4)
    few, rest = scores[0, :, :2], scores[0, :, 2:]
    found, weight = group_reach(few, rest, np.ones((25, 10)), few[0]), np.pad(np.ones((25, 10)), ((0, 0), (0, 3)))
    for nothing in (99.0, 0.0):
        padded = np.pad(rest, ((0, 0), (0, 3)), constant_values=nothing)
        assert group_reach(few, padded, weight, few[0]) == pytest.approx(found)
    size, reach = np.log(np.sqrt(np.square(few).mean(1))), np.log(np.abs(rest).max(1))  # 9.9 of 11: the largest of ten
    off = []
    for i in range(25):
        others = np.arange(25) != i
        slope, intercept = np.polyfit(size[others], reach[others], 1)
        off.append(reach[i] - intercept - slope * size[i])
    slope, intercept = np.polyfit(size, reach, 1)
    assert found == pytest.approx(np.exp(intercept + slope * size[0] + np.sort(off)[23]))  # 23.4 of 26, rounded up


def test_too_few_groups_promise_nothing():
    scores, _, _ = tables(1, 8, 12, 0.5, seed=4)
    assert np.isinf(group_reach(scores[0, :, :2], scores[0, :, 2:], np.ones((8, 10)), scores[0, 0, :2]))


def test_nine_groups_are_enough_and_promise_the_farthest():
    scores, _, _ = tables(1, 9, 12, 0.5, seed=4)
    reach = np.abs(scores[0]).max(1)  # 11.7 of 13, rounded up
    off = [np.log(reach[i]) - np.log(np.delete(reach, i)).mean() for i in range(9)]
    found = group_reach(scores[0, :, :0], scores[0], np.ones((9, 12)), scores[0, 0, :0])
    assert found == pytest.approx(np.exp(np.log(reach).mean() + max(off)))


def test_the_reach_is_the_row_that_so_many_do_not_exceed():
    """Of twenty rows and one to come 18.9, so the nineteenth; of nine 9, so the last; a missing row counts for none."""
    scores = np.stack([np.arange(1.0, 21.0), np.arange(-1.0, -21.0, -1.0)])
    weight = np.stack([np.ones(20), np.arange(20) < 9])
    np.testing.assert_array_equal(coverage._reach(scores, weight, 0.9), [19.0, 9.0])


def test_scores_of_nothing_have_a_logarithm():
    np.testing.assert_allclose(coverage._design(np.zeros((2, 3))), [[1.0, np.log(1e-6)]] * 2)
    np.testing.assert_allclose(coverage._reach(np.zeros((1, 3)), np.ones((1, 3)), 0.9), [1e-6])


def test_counts_of_missed_groups_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        missed_groups(np.zeros(1, dtype=int), np.ones(1, dtype=bool)).share = 0.0  # type: ignore[misc]
