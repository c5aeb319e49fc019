"""Recalibrated intervals hold on new groups, by count and against SciPy."""

import json
import re
from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from stmaml.errors import RunError
from stmaml.metrics import score_task
from stmaml.outcomes import CategoricalOutcome, NormalOutcome
from stmaml.prediction import Prediction
from stmaml.tables import calibration
from stmaml.tables.aftercare import Judge
from stmaml.tables.calibration import (
    LEVELS,
    SET_LEVELS,
    TEMPERATURES,
    Calibration,
    Recalibration,
    best_temperature,
    caution,
    class_sets,
    conformal_floors,
    conformal_scores,
    coverage_spread,
    free_rows,
    normal_score,
)
from stmaml.tables.heldout import Raw
from stmaml.tasks import Examples
from tests.table_data import draw

LOC = np.array([[0.0, 1.0, -2.0], [1.0, 1.5, 3.0]], dtype=np.float32)
SCALE = np.array([[1.0, 0.2, 0.5], [0.5, 0.3, 2.0]], dtype=np.float32)


def mixture(temperature: float = 1.0) -> Prediction:
    normals = NormalOutcome(jnp.array(LOC)[..., None], jnp.array(SCALE)[..., None])
    return Prediction(normals).tempered(jnp.float32(temperature))


@eqx.filter_jit
def quantiles_of_a_normal(finish: Recalibration, levels):
    standard = Prediction(NormalOutcome(jnp.zeros((1, 1, 1)), jnp.ones((1, 1, 1))))
    return finish(standard).quantiles(levels)[:, 0, 0]


def scores_at(calibration: Calibration, shots: int, levels) -> np.ndarray:
    """The normal scores of recalibrated quantiles, found through a prediction that is standard normal itself."""
    return np.asarray(quantiles_of_a_normal(calibration.at(shots), jnp.asarray(levels, dtype=jnp.float32)))


def mixture_cdf(y):
    return stats.norm.cdf(y, LOC.astype(float), SCALE.astype(float)).mean(0)


def test_the_normal_score_is_that_of_the_mixtures_distribution_function():
    for shift in (-1.5, 0.0, 2.0):
        y = LOC.mean(0) + np.float32(shift)
        expected = stats.norm.ppf(mixture_cdf(y))
        np.testing.assert_allclose(mixture().normal_scores(jnp.array(y)[:, None])[:, 0], expected, atol=2e-4)


@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_far_targets_keep_their_scores_in_both_tails(side):
    same = Prediction(NormalOutcome(jnp.zeros((2, 1, 1)), jnp.ones((2, 1, 1))))
    for z in (4.0, 8.0, 11.0):
        np.testing.assert_allclose(same.normal_scores(jnp.array([[side * z]])), [[side * z]], rtol=1e-3)


def test_a_quantile_is_where_the_distribution_function_reaches_its_level():
    for level in (0.001, 0.02, 0.5, 0.9, 0.999):
        scores = jnp.array([stats.norm.ppf(level)], dtype=jnp.float32)
        y = np.asarray(mixture().at_scores(scores), dtype=float)[0, :, 0]
        np.testing.assert_allclose(mixture_cdf(y), level, atol=1e-5)


def test_a_temperature_stretches_the_mixture_about_its_mean():
    wide = mixture(3.0)
    np.testing.assert_allclose(wide.mean[:, 0], LOC.mean(0), rtol=1e-5)
    np.testing.assert_allclose(wide.task_std[:, 0], 3 * LOC.std(0), rtol=1e-5)
    np.testing.assert_allclose(wide.noise_std[:, 0], 3 * np.sqrt(np.square(SCALE).mean(0)), rtol=1e-5)


def raw_of(prediction: Prediction, y: np.ndarray, weight: np.ndarray) -> Raw:
    """One task's predictions."""
    query = Examples(jnp.zeros((len(y), 1)), jnp.asarray(y), jnp.asarray(weight, dtype=jnp.float32))
    return Raw(*jax.tree.map(lambda leaf: leaf[None], (prediction, query)))


def test_the_log_score_of_a_group_is_that_of_scipy_at_each_temperature():
    y = np.array([0.3, 1.2, 0.0], dtype=np.float32)
    found = raw_of(mixture(), y[:, None], np.array([1.0, 1.0, 0.0])).nll()[0]
    middle = LOC.mean(0)
    for place in (0, 24, 60):
        t = TEMPERATURES[place]
        density = stats.norm.pdf(y, middle + t * (LOC - middle), t * SCALE).mean(0)
        np.testing.assert_allclose(found[place], -np.log(density[:2]).mean(), rtol=1e-4)


def test_softening_divides_log_odds():
    p = jnp.array([[0.8, 0.2], [0.5, 0.5]])
    raw = raw_of(Prediction(CategoricalOutcome(jnp.log(p)[None])), np.array([1, 0]), np.array([1.0, 0.0]))
    softened = raw.probabilities(2.0)[0]
    np.testing.assert_allclose(np.log(softened[0, 0] / softened[0, 1]), np.log(4) / 2, rtol=1e-5)
    np.testing.assert_allclose(softened[1], [0.5, 0.5], rtol=1e-6)
    np.testing.assert_allclose(raw.of_truth(2.0)[0], softened[[0, 1], [1, 0]])
    place = int(np.abs(TEMPERATURES - 1).argmin())
    odds = 4 ** (1 / TEMPERATURES[place])
    np.testing.assert_allclose(raw.nll()[0, place], np.log(1 + odds), rtol=1e-5)


def test_the_best_temperature_is_the_ratio_of_true_and_claimed_spread():
    draws = draw(stats.norm, size=(400, 1), random_state=0).astype(np.float32) * 3
    exact = np.square(draws / 1.5 / TEMPERATURES[None]) / 2 + np.log(TEMPERATURES)[None]
    one = Prediction(NormalOutcome(jnp.zeros((1, 1, 1)), jnp.full((1, 1, 1), 1.5)))
    found = raw_of(one, draws[:1], np.ones(1)).nll()
    np.testing.assert_allclose(found, exact[:1] + np.log(1.5) + np.log(2 * np.pi) / 2, rtol=1e-4)
    assert best_temperature(exact) == pytest.approx(2.0, rel=0.08)


def test_what_users_get_is_scored_as_any_prediction_is():
    """Coverage and width of recalibrated quantiles; error, density and CRPS of the tempered mixture."""
    row = conformal_scores(groups_of_scores(60, 20, seed=4), np.ones((60, 20)), 60)
    finish = Calibration((5,), (1.5,), (row,), 60).at(5)
    y = np.array([0.3, 1.2, -2.5], dtype=np.float32)[:, None]
    query, wide = Examples(jnp.zeros((3, 1)), jnp.asarray(y), jnp.ones(3)), mixture(1.5)
    scores = eqx.filter_jit(Judge(finish))(mixture(), query)
    low, high = row[LEVELS.index(0.05)], row[LEVELS.index(0.95)]
    within = np.asarray(wide.normal_scores(jnp.array(y)))
    width = np.diff(wide.at_scores(jnp.array([low, high])), axis=0)[0]
    np.testing.assert_allclose(scores["coverage90"], ((within >= low) & (within <= high)).mean(), rtol=1e-6)
    np.testing.assert_allclose(scores["width90"], width.mean(), rtol=1e-5)
    plain = score_task(wide, jnp.array(y), jnp.ones(3))
    for name in ("mse", "nll", "crps"):
        np.testing.assert_allclose(scores[name], plain[name], rtol=1e-5)
    before, after, size = scores["held"][-3:]  # of the 90 % interval
    np.testing.assert_allclose(after, scores["coverage90"], rtol=1e-6)
    np.testing.assert_allclose(size, width.mean(), rtol=1e-5)
    level = mixture_cdf(y[:, 0])
    np.testing.assert_allclose(before, ((level >= 0.05) & (level <= 0.95)).mean(), rtol=1e-6)


def test_sets_are_judged_by_hand():
    """Whether they hold the class and how large they are; the log-score before and after softening."""
    p = jnp.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])
    floors = tuple(0.5 if level < 0.85 else 0.25 for level in SET_LEVELS)  # at 80 and at 90 %
    finish = Calibration((5,), (2.0,), (), 60, (floors,)).at(5)
    query = Examples(jnp.zeros((2, 1)), jnp.array([0, 1]), jnp.ones(2))
    scores = Judge(finish)(Prediction(CategoricalOutcome(jnp.log(p)[None])), query)
    soft = np.sqrt(p) / np.sqrt(p).sum(1, keepdims=True)
    inside = {floor: (soft >= floor) | (soft == soft.max(1, keepdims=True)) for floor in (0.5, 0.25)}
    assert [inside[floor].sum() for floor in (0.5, 0.25)] == [2, 4]
    parts = [part for held in inside.values() for part in (held[[0, 1], [0, 1]].mean(), held.sum(1).mean())]
    np.testing.assert_allclose(scores["held"], [-np.log([0.7, 0.3]).mean(), *parts], rtol=1e-5)
    np.testing.assert_allclose(scores["nll"], -np.log(soft[[0, 1], [0, 1]]).mean(), rtol=1e-5)
    np.testing.assert_allclose(scores["sets90"], inside[0.25][[0, 1], [0, 1]].mean())


def groups_of_scores(num_groups: int, rows: int, seed: int, scale: float = 1.7) -> np.ndarray:
    """Scores of an overconfident, skewed model: rows of a group share an offset."""
    shared = draw(stats.norm, size=(num_groups, 1), random_state=seed)
    own = draw(stats.gamma, 2.0, size=(num_groups, rows), random_state=seed + 1) - 2.0
    return scale * (0.7 * shared + 0.5 * own)


@pytest.mark.parametrize("nominal", [0.5, 0.8, 0.9])
def test_central_intervals_hold_on_new_groups_where_plain_ones_fail(nominal):
    """Mean over 60 calibration sets of 60 groups each, on 4,000 new groups: within 2 points, and not below."""
    new = groups_of_scores(4000, 5, seed=10_000)
    ends = np.array([(1 - nominal) / 2, (1 + nominal) / 2])
    plain = stats.norm.ppf(ends)
    assert abs(((new >= plain[0]) & (new <= plain[1])).mean() - nominal) > 0.05
    held = []
    for seed in range(60):
        scores = groups_of_scores(60, 20, seed=2 * seed)
        row = conformal_scores(scores, np.ones_like(scores), 60)
        low, high = scores_at(Calibration((5,), (1.0,), (row,), 60), 5, ends)
        held.append(((new >= low) & (new <= high)).mean())
    assert nominal - 0.005 < np.mean(held) < nominal + 0.02


def test_with_one_row_a_group_the_margin_is_that_of_split_conformal():
    """A twentieth score falls between the extremes of 19 others in 18 of 20 cases: 90 % exactly."""
    scores = np.arange(19.0)[:, None] / 4 - 2.25
    row = conformal_scores(scores, np.ones_like(scores), 19)
    assert row[LEVELS.index(0.95)] == scores[-1, 0]
    assert row[LEVELS.index(0.05)] == scores[0, 0]
    assert row[LEVELS.index(0.5)] == scores[9, 0]


def mean_coverage(groups: int, nominal: float, tie: float, scale: float = 1.0) -> float:
    """How much of 4,000 new groups intervals hold, on average over 150 sets to calibrate on; `tie` binds a group."""

    def drawn(count: int, rows: int, seed: int) -> np.ndarray:
        shared = draw(stats.norm, size=(count, 1), random_state=seed)
        own = draw(stats.norm, size=(count, rows), random_state=seed + 1)
        return scale * (tie * shared + np.sqrt(1 - tie**2) * own)

    new = drawn(4000, 5, seed=90_000)
    held = []
    for seed in range(150):
        scores = drawn(groups, 20, seed=2 * seed)
        row = conformal_scores(scores, np.ones_like(scores), groups)
        low, high = (row[LEVELS.index(round(end, 3))] for end in ((1 - nominal) / 2, (1 + nominal) / 2))
        held.append(((new >= low) & (new <= high)).mean())
    return float(np.mean(held))


@pytest.mark.parametrize("nominal", [0.5, 0.8, 0.9])
@pytest.mark.parametrize("tie", [0.0, 0.3, 0.95])
def test_a_dozen_or_two_of_groups_keep_the_promise_however_much_their_rows_err_together(tie, nominal):
    """A margin for 24 groups alone would hold 94 % for 90 % of free rows; one for all rows 88 % of those tied."""

    assert nominal - 0.01 < mean_coverage(24, nominal, tie) < nominal + 0.015


def test_free_rows_lie_between_groups_and_rows():
    alike = np.tile(np.arange(20.0)[:, None], (3, 5))  # each of twenty groups drawn three times
    assert free_rows(alike, np.ones_like(alike), 20) == 20
    crossed = np.tile(np.arange(5.0), (20, 1))  # the same values in every group
    assert free_rows(crossed, np.ones_like(crossed), 20) == 100
    halves = np.array([[0.0, 1.0], [1.0, 2.0], [2.0, 3.0]])  # variance of all 11/12, of the means 1
    assert free_rows(halves, np.ones_like(halves), 3) == 3
    mixed = np.array([[0.0, 4.0], [1.0, 5.0], [2.0, 6.0]])  # variance of all 14/3, of the means 1
    assert free_rows(mixed, np.ones_like(mixed), 3) == 6  # 14, but for the number of rows
    wide = np.array([[-1.0, 1.0, 0.0, 0.0], [1.0, 1.0, -1.0, 1.0]])
    padded = np.array([[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    means = np.array([0.0, 0.5])
    square = np.square(wide - 1 / 3)
    want = 2 * np.mean([square[0, :2].mean(), square[1].mean()]) / means.var(ddof=1)
    assert free_rows(wide, padded, 2) == pytest.approx(min(want, 6))


@pytest.mark.parametrize("groups", [2, 4, 8, 18])
@pytest.mark.parametrize("nominal", [0.5, 0.8, 0.9])
def test_few_groups_whose_rows_err_together_keep_the_promise_on_average(groups, nominal):
    """Where pooled quantiles of two groups hold 62 % for 90 %: mean over 150 calibration sets, 4,000 new groups."""
    assert mean_coverage(groups, nominal, tie=0.95, scale=1.3) == pytest.approx(nominal, abs=0.04)


def test_a_few_groups_that_err_alike_give_students_quantiles_about_the_learners_own_median():
    """Without rows that differ within a group, a quantile is that of Student times the root mean square of groups."""
    means = np.array([1.0, -2.0, 3.0])
    scores = np.tile(means[:, None], (4, 5))  # each group drawn four times
    row = conformal_scores(scores, np.ones_like(scores), 3)
    np.testing.assert_allclose(row, stats.t.ppf(LEVELS, 3) * np.sqrt(np.square(means).mean()), atol=1e-4)
    apart = np.array([[0.0, 2.0, 9.0], [-2.0, 0.0, 0.0]])  # the last column is padding
    weight = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]])
    row = conformal_scores(apart, weight, 2)
    expected = np.sqrt(np.square(stats.t.ppf(LEVELS, 2)) + np.square(stats.norm.ppf(LEVELS)))
    np.testing.assert_allclose(np.abs(row), expected, atol=1e-4)
    assert row[LEVELS.index(0.1)] < 0 < row[LEVELS.index(0.9)]


def test_tails_thinner_than_a_group_are_never_nearer_than_students():
    scores = np.tile(np.array([-1.0, 1.0])[:, None], (20, 3))
    row = conformal_scores(scores, np.ones_like(scores), 40)
    np.testing.assert_allclose(row[LEVELS.index(0.995)], stats.t.ppf(0.995, 40), atol=1e-4)
    assert row[LEVELS.index(0.95)] == 1.0  # two of the forty lie there: counted, not assumed
    np.testing.assert_allclose(row[LEVELS.index(0.01)], stats.t.ppf(0.01, 40), atol=1e-4)


def test_quantiles_of_student_are_those_of_scipy():
    for freedom in (1, 2, 7, 18, 200):
        np.testing.assert_allclose(calibration._student_levels(freedom), stats.t.ppf(LEVELS, freedom), atol=2e-4)


def test_coverage_strays_as_the_beta_distribution_of_split_conformal_prediction():
    """With n points and the k-th smallest as end, coverage is Beta(k, n + 1 - k)."""
    assert coverage_spread(0.8, 9) == pytest.approx(stats.beta(8, 2).std())
    assert coverage_spread(0.5, 299) == pytest.approx(stats.beta(150, 150).std())


def test_large_groups_count_no_more_than_small_ones():
    scores = np.tile([[-1.0, -1.0, -1.0, -1.0], [1.0, 0.0, 0.0, 0.0]], (20, 1))
    weight = np.tile([[1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 0.0, 0.0]], (20, 1))
    row = conformal_scores(scores, weight, 40)
    assert row[LEVELS.index(0.7)] == 1.0
    assert row[LEVELS.index(0.3)] == -1.0
    assert row[LEVELS.index(0.55)] == 1.0  # by rows, 80 % would lie at -1


def test_levels_rise_and_go_on_beyond_the_last_one_fitted():
    row = conformal_scores(groups_of_scores(40, 10, seed=3), np.ones((40, 10)), 40)
    found = scores_at(Calibration((5,), (1.0,), (row,), 40), 5, [0.0005, 0.005, 0.1, 0.5, 0.9, 0.995, 0.9995])
    assert (np.diff(found) >= 0).all()
    gap = stats.norm.ppf(0.9995) - stats.norm.ppf(0.995)
    np.testing.assert_allclose(found[-1] - found[-2], gap, rtol=1e-3)


def test_between_shot_counts_it_goes_straight_in_the_logarithm():
    made = Calibration((0, 3, 15), (4.0, 2.0, 1.0), ((1.0,) * len(LEVELS), (0.0,) * len(LEVELS), (2.0,) * len(LEVELS)))
    found = made.at(np.array([0, 1, 3, 7, 15, 100])).temperature
    np.testing.assert_allclose(found, [4.0, 2 * 2**0.5, 2.0, 2**0.5, 1.0, 1.0], rtol=1e-5)
    middle = np.asarray(made.at(np.array([1, 7])).scores)[:, LEVELS.index(0.5)]
    np.testing.assert_allclose(middle, [0.5, 1.0], atol=1e-5)


def test_without_fitted_scores_levels_are_those_of_the_normal():
    plain = scores_at(Calibration((0,), (1.0,)), 3, [0.05, 0.5, 0.95])
    np.testing.assert_allclose(plain, stats.norm.ppf([0.05, 0.5, 0.95]), atol=1e-5)
    np.testing.assert_allclose(normal_score(np.array(LEVELS)), stats.norm.ppf(LEVELS), atol=1e-4)


def test_it_survives_json():
    calibration = Calibration((0, 5), (1.0, 2.0), ((0.0,) * len(LEVELS), (1.0,) * len(LEVELS)), 7)
    assert Calibration.from_json(json.loads(json.dumps(calibration.to_json()))) == calibration


def test_a_class_belongs_to_the_set_from_the_floor_on_and_the_likeliest_always():
    p = np.array([[0.5, 0.3, 0.2], [0.9, 0.06, 0.04], [0.34, 0.33, 0.33]])
    inside = class_sets(p, np.array([0.25, 0.95, 0.0]))
    np.testing.assert_array_equal(inside, [[True, True, False], [True, False, False], [True, True, True]])


def test_with_one_row_a_group_the_floor_is_that_of_split_conformal():
    """The true class of a tenth group is likelier than the least likely of nine others in 9 of 10 cases."""
    p = np.linspace(0.1, 0.9, 9)[:, None]
    row = conformal_floors(p, np.ones_like(p), 9)
    assert row[SET_LEVELS.index(0.9)] == pytest.approx(0.1)
    assert row[SET_LEVELS.index(0.8)] == pytest.approx(0.2)
    assert row[SET_LEVELS.index(0.5)] == pytest.approx(0.5)
    assert row[SET_LEVELS.index(0.95)] == 0.0  # nine groups cannot promise it: all classes


@pytest.mark.parametrize("coverage", [0.8, 0.9])
def test_sets_hold_on_new_groups_where_overconfident_probabilities_do_not(coverage):
    """Probabilities of three classes sharpened beyond the truth, and rows of a group share an offset."""

    def drawn(groups: int, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        shared = draw(stats.norm, size=(groups, 1, 3), random_state=seed)
        logits = shared + draw(stats.norm, size=(groups, rows, 3), random_state=seed + 1)
        truth = (logits + draw(stats.gumbel_r, size=logits.shape, random_state=seed + 2)).argmax(-1)
        claimed = np.exp(6 * (logits - shared * 0.5))
        return claimed / claimed.sum(-1, keepdims=True), truth

    def holds(p: np.ndarray, truth: np.ndarray, floor: float) -> float:
        inside = class_sets(p, np.full(p.shape[:2], floor))
        return float(np.take_along_axis(inside, truth[..., None], -1).mean())

    new_p, new_truth = drawn(4000, 5, seed=50_000)
    assert holds(new_p, new_truth, 1 - coverage) < coverage - 0.05
    held = []
    for seed in range(40):
        p, truth = drawn(60, 10, seed=3 * seed)
        of_truth = np.take_along_axis(p, truth[..., None], -1)[..., 0]
        row = conformal_floors(of_truth, np.ones_like(of_truth), 60)
        made = Calibration((5,), (1.0,), (), 60, (row,))
        held.append(holds(new_p, new_truth, float(made.at(5).floor(coverage))))
    assert coverage - 0.005 < np.mean(held) < coverage + 0.03


def test_without_a_fit_every_class_is_in_the_set_and_floors_survive_json():
    assert Calibration((0,), (1.0,)).at(3).floor(0.9) == 0.0
    row = conformal_floors(np.linspace(0.05, 0.95, 40)[:, None], np.ones((40, 1)), 40)
    made = Calibration((2, 10), (1.0, 1.0), (), 40, (row, tuple(np.array(row) / 2)))
    assert Calibration.from_json(json.loads(json.dumps(made.to_json()))) == made
    low, middle, high = made.at(np.array([2, 5, 10])).floor(0.9)
    assert high == pytest.approx(low / 2)
    share = (np.log(6) - np.log(3)) / (np.log(11) - np.log(3))
    assert middle == pytest.approx(low + share * (high - low))


def test_temperatures_and_levels_are_what_they_should_be():
    """Twelve temperatures to an octave, 1 among them; levels rise, and each has its like on the other side."""
    assert (TEMPERATURES[0], TEMPERATURES[-1]) == pytest.approx((0.25, 8.0))
    assert np.isclose(TEMPERATURES, 1.0).any()
    assert np.isclose(TEMPERATURES, 2 ** (1 / 12)).any()
    for levels in (LEVELS, SET_LEVELS):
        assert all(0 < low < high < 1 for low, high in pairwise(levels))
    np.testing.assert_allclose(np.add(LEVELS, LEVELS[::-1]), 1.0)


GOOD = {"shots": [0, 1], "temperature": [1.0, 0.5], "groups": 0, "floors": [[1.0] * 9 + [0.0]] * 2}
GOOD = {**GOOD, "scores": [[0.0] * len(LEVELS)] * 2}
FALLING = [[0.5, *[0.0] * (len(LEVELS) - 1)]] * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shots": []}, "'shots' that rise from 0 or more"),
        ({"shots": [-1, 1]}, "'shots' that rise from 0 or more"),
        ({"shots": [3, 3]}, "'shots' that rise from 0 or more"),
        ({"shots": [3, 2]}, "'shots' that rise from 0 or more"),
        ({"temperature": [1.0]}, "a 'temperature' above 0 for each of 'shots'"),
        ({"temperature": [1.0, 0.0]}, "a 'temperature' above 0 for each of 'shots'"),
        ({"temperature": [1.0, 1.0, 1.0]}, "a 'temperature' above 0 for each of 'shots'"),
        ({"groups": -1}, "a number of 'groups' of 0 or more"),
        ({"scores": [[0.0] * len(LEVELS)]}, f"{len(LEVELS)} 'scores' for each of 'shots'"),
        ({"scores": [[0.0] * 3] * 2}, f"{len(LEVELS)} 'scores' for each of 'shots'"),
        ({"scores": FALLING}, "'scores' that rise from level to level"),
        ({"floors": [[0.5] * 9] * 2}, "10 'floors' for each of 'shots'"),
        ({"floors": [[0.5] * 9 + [-0.1]] * 2}, "'floors' from 0 to 1"),
        ({"floors": [[1.1] + [0.5] * 9] * 2}, "'floors' from 0 to 1"),
    ],
)
def test_a_calibration_that_nobody_fitted_is_refused(change, message):
    with pytest.raises(RunError, match=re.escape(f"a calibration must have {message}, and this one has not.")):
        Calibration.from_json({**GOOD, **change})


def test_a_calibration_at_the_edge_of_what_can_be_is_read():
    """Equal scores, floors of 0 and 1, numbers of rows from 0 on that rise by one; or nothing but temperatures."""
    assert Calibration.from_json(GOOD).temperature == (1.0, 0.5)
    assert Calibration.from_json({**GOOD, "scores": [], "floors": []}).scores == ()
    almost = [[0.0, -5e-7, *[0.0] * (len(LEVELS) - 2)]] * 2  # as rounding may leave them
    assert Calibration.from_json({**GOOD, "scores": almost}).scores[0][1] == -5e-7


def test_without_a_fit_there_are_no_groups_and_no_floors():
    plain = Calibration((0,), (1.0,))
    assert (plain.groups, hash(plain)) == (0, hash(Calibration((0,), (1.0,))))
    np.testing.assert_array_equal(plain.at(3).floors, np.zeros(len(SET_LEVELS)))
    assert len(jax.tree.leaves(plain.at(3))) == 3  # whether it was fitted is no number


def test_beyond_the_levels_fitted_floors_go_on_to_none_and_all():
    """The likeliest class alone promises nothing, all classes everything."""
    row = tuple(np.linspace(0.6, 0.1, len(SET_LEVELS)))
    finish = Calibration((5,), (1.0,), (), 60, (row,)).at(5)
    for coverage, floor in ((0.0, 1.0), (0.25, (1 + 0.6) / 2), (0.5, 0.6), (0.995, 0.05), (1.0, 0.0)):
        assert finish.floor(coverage) == pytest.approx(floor, abs=1e-5)
    several = Calibration((2, 5), (1.0, 1.0), (), 60, (row, row)).at(np.array([[2, 3, 5]]))
    np.testing.assert_allclose(several.floor(0.5), np.full((1, 3), 0.6), rtol=1e-5)


def test_a_class_just_at_the_floor_is_in_the_set():
    np.testing.assert_array_equal(class_sets(np.array([[0.5, 0.25, 0.25]]), np.array([0.25])), [[True, True, True]])


def test_the_likeliest_class_of_each_row_is_always_in_its_set():
    """Rows of two tasks, and a single one: the likeliest is that of a row, not of a column."""
    p = np.array([[[0.7, 0.2, 0.1], [0.1, 0.6, 0.3]], [[0.8, 0.1, 0.1], [0.3, 0.3, 0.4]]])
    np.testing.assert_array_equal(class_sets(p, np.full((2, 2), 0.9)).argmax(-1), p.argmax(-1))
    np.testing.assert_array_equal(class_sets(p, np.full((2, 2), 0.9)).sum(-1), 1)
    np.testing.assert_array_equal(class_sets(p[0, 0], np.array(0.9)), [True, False, False])


def test_pooled_quantiles_are_counted_by_hand():
    """Four scores worth three free ones: each holds 3/16 of what is to come, either end 1/8 and what lies beyond."""
    scores = np.array([[30.0, 99.0], [10.0, -99.0], [20.0, 99.0], [40.0, -99.0]])
    weight = np.array([[1.0, 0.0]] * 4)  # up to each: 0.3125, 0.5, 0.6875, 0.875
    found = dict(zip(LEVELS, calibration._pooled_scores(scores, weight, 3.0), strict=True))
    wanted = {0.005: 10.0, 0.3: 10.0, 0.35: 20.0, 0.45: 20.0, 0.5: 20.0, 0.55: 30.0, 0.65: 30.0, 0.7: 40.0, 0.995: 40.0}
    assert {level: found[level] for level in wanted} == wanted


def test_free_rows_follow_from_the_spread_of_means():
    """Written out, where neither bound is met: rows tied somewhat, one of them padding, groups drawn twice."""
    values = draw(stats.norm, size=(8, 1), random_state=1) * 0.5 + draw(stats.norm, size=(8, 6), random_state=2) + 3
    weight = np.ones((8, 6))
    values[2, 5], weight[2, 5] = 50.0, 0.0
    real = [np.concatenate([values[i][weight[i] > 0], values[i + 4][weight[i + 4] > 0]]) for i in range(4)]
    mean = np.concatenate(real).mean()
    spread = np.var([one.mean() for one in real], ddof=1)
    want = 4 * np.mean([np.square(one - mean).mean() for one in real]) / spread
    assert 4 < want < 47
    assert free_rows(values, weight, 4) == pytest.approx(want)


@pytest.mark.parametrize(("is_class", "what"), [(True, "sets of classes"), (False, "intervals")])
def test_too_few_groups_to_calibrate_on_are_said(is_class, what):
    (said,) = caution(16, is_class)  # the root of 0.8 0.2 / 18 is 9.43 %
    assert said.startswith(f"{what} without labelled rows rest on 16 groups to calibrate on and may not hold")
    assert "typically hold 9 points more or fewer; 19 groups or more would be better" in said
    assert len(caution(18, is_class)) == 1
    assert caution(19, is_class) == []
