"""Scores against NumPy and SciPy, and their intervals."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import accuracy_score, log_loss

from stmaml.metrics import (
    calibration_error,
    calibration_gaps,
    of_each_task,
    paired_difference,
    score_task,
    summarise,
    summarise_crossed,
)
from stmaml.outcomes import BernoulliOutcome, CategoricalOutcome, NormalOutcome
from stmaml.prediction import Prediction

score = jax.jit(score_task)
several = hnp.arrays(float, st.integers(2, 30), elements=st.floats(-1e3, 1e3))


def normal(loc, scale) -> Prediction:
    return Prediction(NormalOutcome(jnp.asarray(loc, dtype=float), jnp.asarray(scale, dtype=float)))


@given(values=several)
def test_an_interval_is_students(values):
    summary = summarise(values)
    half = scipy.stats.t.ppf(0.975, len(values) - 1) * scipy.stats.sem(values)
    assert summary["mean"] == pytest.approx(values.mean(), abs=1e-9)
    assert summary["ci95"] == pytest.approx(half, rel=1e-9, abs=1e-9)


def held(draws: Any, mean: float) -> float:
    """The share of intervals, one for each row of draws, that hold the mean."""
    return float(np.mean([abs(one["mean"] - mean) <= one["ci95"] for one in map(summarise, draws)]))


@pytest.mark.parametrize("count", [2, 3, 5, 9, 40])
def test_intervals_of_normal_values_hold_however_few_they_are(count):
    draws = scipy.stats.norm.rvs(5, 2, size=(4000, count), random_state=count)
    assert held(draws, 5) == pytest.approx(0.95, abs=0.012)


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 4, 5, 6, 9, 20, 100])
def test_intervals_hold_within_a_point(count):
    draws = scipy.stats.norm.rvs(size=(40_000, count), random_state=count)
    assert held(draws, 0) == pytest.approx(0.95, abs=0.005)


@pytest.mark.parametrize(("count", "least"), [(5, 0.95), (20, 0.94), (100, 0.94)])
def test_heavy_tails_alone_do_no_harm(count, least):
    assert held(scipy.stats.t.rvs(3, size=(4000, count), random_state=count), 0) > least


@pytest.mark.parametrize(("count", "share"), [(5, 0.82), (20, 0.88), (50, 0.91), (200, 0.93)])
def test_intervals_of_skewed_values_hold_as_often_as_the_documentation_says(count, share):
    draws = scipy.stats.lognorm.rvs(1, size=(4000, count), random_state=count)
    assert held(draws, np.exp(0.5)) == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("rest", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("ratio", [0.0, 0.6, 1.0, 2.0, 6.0, 20.0])
def test_intervals_over_three_seeds_and_tasks_hold_whatever_varies_more(ratio, rest):
    """`ratio` is the error of the mean that seeds make over the one that tasks make."""
    seeds, tasks, draws = 3, 50, 3000
    normal = np.random.default_rng(1).normal(size=(draws, seeds + tasks + seeds * tasks))
    of_seed = normal[:, :seeds, None] * ratio * (seeds / tasks) ** 0.5
    of_task = normal[:, None, seeds : seeds + tasks]
    found = 7 + of_seed + of_task + rest * normal[:, seeds + tasks :].reshape(draws, seeds, tasks)
    hold = np.mean([abs(one["mean"] - 7) <= one["ci95"] for one in map(summarise_crossed, found)])
    assert hold == pytest.approx(0.95, abs=0.01 + 0.008)  # 94 to 96 %, and two errors of this count


def test_an_interval_over_seeds_and_tasks_is_students_where_only_one_of_them_varies():
    tasks, seeds = np.array([1.0, 2.0, 4.0, 9.0]), np.array([0.0, 1.0, 5.0])
    by_task = summarise_crossed(np.tile(tasks, (3, 1)))
    assert by_task["ci95"] == pytest.approx(summarise(tasks)["ci95"])
    assert summarise_crossed(np.tile(seeds[:, None], (1, 4)))["ci95"] == pytest.approx(summarise(seeds)["ci95"])
    assert summarise_crossed(tasks[None])["ci95"] == pytest.approx(summarise(tasks)["ci95"])
    assert summarise_crossed(np.zeros((3, 4))) == {"mean": 0.0, "ci95": 0.0}


def test_a_paired_difference_allows_for_seeds_and_a_baseline_has_none():
    tasks = np.array([1.0, 2.0, 4.0, 9.0])
    seeds = tasks[None] + np.array([[0.0], [1.0], [5.0]])
    assert paired_difference(seeds, tasks)["ci95"] == pytest.approx(summarise(np.array([0.0, 1.0, 5.0]))["ci95"])
    assert paired_difference(seeds, seeds[:2])["mean"] == 0


def test_one_value_has_no_interval():
    assert summarise(np.array([2.0]))["mean"] == 2.0
    assert np.isnan(summarise(np.array([2.0]))["ci95"])


@given(first=several, shift=st.floats(-10, 10))
def test_a_paired_difference_is_that_of_the_same_tasks(first, shift):
    """A constant shift is certain, however much the tasks differ from each other."""
    difference = paired_difference(first + shift, first)
    assert difference["mean"] == pytest.approx(shift, abs=1e-9)
    assert difference["ci95"] == pytest.approx(0, abs=1e-9)


def test_a_paired_interval_agrees_with_scipys_paired_test():
    first, second = np.asarray(jr.normal(jr.key(0), (2, 400)), dtype=float)
    first = first + 0.1
    difference = paired_difference(first, second)
    interval = scipy.stats.ttest_rel(first, second).confidence_interval(0.95)
    assert difference["mean"] - difference["ci95"] == pytest.approx(interval.low, rel=0.02, abs=2e-3)
    assert difference["mean"] + difference["ci95"] == pytest.approx(interval.high, rel=0.02, abs=2e-3)


def test_other_tasks_cannot_be_paired():
    with pytest.raises(ValueError, match="got 3 and 2 of them"):
        paired_difference(np.zeros(3), np.zeros(2))


def test_real_scores_are_means_over_real_rows():
    loc, scale = [[[0.0], [1.0], [5.0]]], [[[1.0], [2.0], [1.0]]]
    y, clean = jnp.array([[0.5], [4.0], [99.0]]), jnp.array([[0.25], [3.0], [99.0]])
    scores = score(normal(loc, scale), y, jnp.array([1.0, 1.0, 0.0]), clean)
    want = {
        "mse": (0.25 + 9) / 2,
        "mae": (0.5 + 3) / 2,
        "mse_clean": (0.0625 + 4) / 2,
        "nll": -scipy.stats.norm.logpdf([0.5, 4.0], [0.0, 1.0], [1.0, 2.0]).mean(),
        "coverage90": 1.0,
        "width90": 2 * scipy.stats.norm.ppf(0.95) * 1.5,
    }
    assert set(scores) == {*want, "crps"}
    for name, value in want.items():
        np.testing.assert_allclose(scores[name], value, rtol=1e-4, err_msg=name)


def test_a_true_model_covers_nine_of_ten(key):
    loc = jr.normal(key, (1, 20_000, 1))
    y = loc[0] + 0.7 * jr.normal(jr.fold_in(key, 1), (20_000, 1))
    scores = score(normal(loc, jnp.full_like(loc, 0.7)), y, jnp.ones(20_000))
    np.testing.assert_allclose(scores["coverage90"], 0.9, atol=0.01)
    assert "mse_clean" not in scores


def test_points_outside_the_band_are_not_covered():
    scores = score(normal([[[0.0]] * 2], [[[1.0]] * 2]), jnp.array([[1.7], [-1.7]]), jnp.ones(2))
    assert scores["coverage90"] == 0


def test_class_scores_agree_with_scikit_learn(key):
    logits, y = jr.normal(key, (3, 50, 4)), jr.randint(jr.fold_in(key, 1), (50,), 0, 4)
    prediction = Prediction(CategoricalOutcome(logits))
    scores = score(prediction, y, jnp.ones(50))
    probability = np.asarray(prediction.mean, dtype=float)
    probability /= probability.sum(1, keepdims=True)
    np.testing.assert_allclose(scores["accuracy"], accuracy_score(y, probability.argmax(1)), rtol=1e-5)
    np.testing.assert_allclose(scores["nll"], log_loss(y, probability, labels=range(4)), rtol=1e-4)


def calibration_by_hand(confidence: np.ndarray, right: np.ndarray) -> float:
    """The definition: in each bin the distance of mean confidence and accuracy, weighted by the bin's share."""
    total = 0.0
    for b in range(15):
        inside = (confidence > b / 15) & (confidence <= (b + 1) / 15)
        if inside.any():
            total += inside.mean() * abs(confidence[inside].mean() - right[inside].mean())
    return total


def test_the_calibration_error_of_many_tasks_is_that_of_all_their_predictions(key):
    logits, y = 2 * jr.normal(key, (30, 20, 5)), jr.randint(jr.fold_in(key, 1), (30, 20), 0, 5)
    p = jax.nn.softmax(logits)
    gaps = np.asarray(jax.vmap(calibration_gaps)(p, y, jnp.ones((30, 20))))
    flat = np.asarray(p).reshape(-1, 5)
    want = calibration_by_hand(flat.max(1), flat.argmax(1) == np.asarray(y).reshape(-1))
    found = calibration_error(gaps)
    np.testing.assert_allclose(found["mean"], want, rtol=1e-5)
    assert want > 0.2
    assert 0 < found["ci95"] < 0.1
    assert np.abs(gaps).sum(1).mean() > want + 0.02  # tasks one by one have errors that cancel out among them


def test_calibration_looks_at_rows_that_count_and_knows_both_directions():
    p = jnp.array([[0.8, 0.2], [0.8, 0.2], [0.1, 0.9], [1.0, 0.0]])
    y = jnp.array([0, 1, 1, 1])
    gaps = np.asarray(calibration_gaps(p, y, jnp.array([1.0, 1.0, 1.0, 0.0])))
    want = np.zeros(15)
    want[11] = (0.8 + 0.8 - 1) / 3  # too sure: 12 fifteenths is the upper end of a bin and belongs to it
    want[13] = (0.9 - 1) / 3  # not sure enough
    np.testing.assert_allclose(gaps, want, atol=1e-6)
    np.testing.assert_allclose(calibration_error(gaps[None])["mean"], (0.6 + 0.1) / 3, rtol=1e-5)


def test_the_interval_of_the_calibration_error_covers_it(key):
    """Confidence 0.7 of two classes, right in six of ten: the error is 0.1."""
    p = jnp.broadcast_to(jnp.array([0.7, 0.3]), (10, 2))
    y = (jr.uniform(key, (100 * 60, 10)) > 0.6).astype(int)
    gaps = np.asarray(jax.vmap(lambda y: calibration_gaps(p, y, jnp.ones(10)))(y)).reshape(100, 60, 15)
    found = [calibration_error(each) for each in gaps]
    assert 88 <= sum(abs(one["mean"] - 0.1) <= one["ci95"] for one in found) <= 100


def test_soft_targets_are_scored_by_cross_entropy(key):
    logits, y = jr.normal(key, (1, 6, 2)), jr.uniform(key, (6, 2))
    p = 1 / (1 + np.exp(-np.asarray(logits[0], dtype=float)))
    scores = score(Prediction(BernoulliOutcome(logits)), y, jnp.ones(6))
    np.testing.assert_allclose(scores["bce"], -(y * np.log(p) + (1 - y) * np.log(1 - p)).mean(), rtol=1e-4)
    np.testing.assert_allclose(scores["mse"], np.square(p - y).mean(), rtol=1e-4)


def test_grey_targets_are_scored_by_averaged_probabilities_single_draws_and_whole_sets(key):
    """Three sampled predictors, four grey targets and one row of padding, beside NumPy in double precision."""
    logits = 2 * jax.random.normal(key, (3, 5, 1))
    y = jax.random.uniform(jax.random.fold_in(key, 1), (5, 1))
    weight, seen = jnp.array([1.0, 1.0, 1.0, 1.0, 0.0]), jnp.array([1.0, 0.0, 0.0, 1.0, 0.0])
    scores = score(Prediction(BernoulliOutcome(logits)), y, weight, seen=seen)
    p, t = 1 / (1 + np.exp(-np.asarray(logits, dtype=float)[:, :4, 0])), np.asarray(y, dtype=float)[:4, 0]

    def cross_entropy(q):
        return -(t * np.log(q) + (1 - t) * np.log(1 - q))

    mean = p.mean(0)
    want = {
        "bce": cross_entropy(mean).mean(),
        "bce_unseen": cross_entropy(mean)[[1, 2]].mean(),
        "bce_single": cross_entropy(p).mean(),
        "mse": np.square(mean - t).mean(),
        "nll": -np.log(np.exp(-cross_entropy(p).sum(1)).mean()) / 4,
        "diversity": p.std(0).mean(),
    }
    assert set(scores) == set(want)
    for name, value in want.items():
        np.testing.assert_allclose(scores[name], value, rtol=1e-5, err_msg=name)


def test_the_absolute_error_is_that_of_the_mean():
    prediction = Prediction(NormalOutcome(jnp.array([[[1.0], [4.0]], [[3.0], [6.0]]]), jnp.ones((2, 2, 1))))
    scores = score(prediction, jnp.array([[5.0], [4.0]]), jnp.ones(2))
    np.testing.assert_allclose(scores["mae"], (3 + 1) / 2)
    np.testing.assert_allclose(scores["mse"], (9 + 1) / 2)


def crossed_by_hand(values: np.ndarray) -> float:
    """The half-width over seeds and tasks with every sum written out."""
    seeds, tasks = values.shape
    mean = sum(values.flat) / values.size
    rows, columns = [sum(row) / tasks for row in values], [sum(column) / seeds for column in values.T]
    of_seeds = tasks * sum((row - mean) ** 2 for row in rows) / (seeds - 1)
    rest = sum((values[i, j] - rows[i] - columns[j] + mean) ** 2 for i in range(seeds) for j in range(tasks))
    of_rest = rest / ((seeds - 1) * (tasks - 1))
    of_tasks = max(seeds * sum((column - mean) ** 2 for column in columns) / (tasks - 1) - of_rest, 0)
    whole, share = of_seeds + of_tasks, of_seeds / (of_seeds + of_tasks)
    free = whole**2 / (of_seeds**2 / (seeds - 1) + of_tasks**2 / (tasks - 1))
    pooled = scipy.stats.t.ppf(0.975, free) ** 2 * whole
    by_seeds, by_tasks = (scipy.stats.t.ppf(0.975, count - 1) ** 2 for count in (seeds, tasks))
    squared = (1 - share) * pooled + share * (by_seeds * of_seeds + by_tasks * of_tasks)
    return float(np.sqrt(squared / values.size))


@pytest.mark.parametrize("shape", [(2, 3), (2, 5), (3, 4), (4, 2)])
@pytest.mark.parametrize("size", [0.01, 1.0, 30.0])
def test_an_interval_over_seeds_and_tasks_is_the_one_written_out(shape, size):
    values = size * scipy.stats.norm.rvs(3, size=shape, random_state=shape[1])
    values = values + size * np.arange(shape[0])[:, None] ** 2
    found = summarise_crossed(values)
    assert found["mean"] == pytest.approx(values.mean())
    assert found["ci95"] == pytest.approx(crossed_by_hand(values), rel=1e-9)


@pytest.mark.parametrize("shape", [(2, 6), (6, 2), (2, 2)])
def test_two_seeds_or_two_tasks_are_enough_for_both_to_count(shape):
    values = np.arange(shape[0])[:, None] ** 2 + 5.0 * np.arange(shape[1]) ** 2 + 0.1 * np.eye(*shape)
    found = summarise_crossed(values)["ci95"]
    assert found == pytest.approx(crossed_by_hand(values), rel=1e-9)
    assert found > summarise(values.mean(1))["ci95"]


def test_where_tasks_differ_less_than_chance_has_it_only_seeds_count():
    """Tasks cancel out: their mean square lies below that of the rest, and a variance below 0 is none."""
    values = np.array([[0.0, 2.0], [3.0, 1.0]])
    seeds = summarise(np.array([1.0, 2.0]))
    assert summarise_crossed(values) == pytest.approx(seeds)


def test_one_task_leaves_the_seeds_and_what_is_not_finite_is_not_known():
    assert summarise_crossed(np.array([[1.0], [3.0]])) == pytest.approx(summarise(np.array([1.0, 3.0])))
    assert np.isnan(summarise_crossed(np.array([[1.0, np.inf], [3.0, 2.0]]))["ci95"])


def test_of_each_task_there_is_one_number():
    scores, gaps = np.array([1.0, 5.0]), np.array([[0.5, -0.25, 0.0], [0.25, -0.75, 0.0]])
    np.testing.assert_array_equal(of_each_task(scores), scores)
    np.testing.assert_array_equal(of_each_task(gaps), [0.75, 1.0])  # signs of the bins' means: +, -, none


def test_a_single_row_is_a_whole_set(key):
    logits, y = jr.normal(key, (2, 3, 1)), jnp.array([[0.25], [1.0], [0.0]])
    scores = score(Prediction(BernoulliOutcome(logits)), y, jnp.array([1.0, 0.0, 0.0]))
    p = 1 / (1 + np.exp(-np.asarray(logits, dtype=float)[:, 0, 0]))
    single = 0.25 * np.log(p) + 0.75 * np.log(1 - p)
    np.testing.assert_allclose(scores["nll"], -np.log(np.exp(single).mean()), rtol=1e-5)


def test_the_first_and_the_last_bin_take_what_lies_at_the_ends():
    """Twenty classes can be less sure than one in fifteen; rounding may be surer than sure."""
    unsure, sure = jnp.full((1, 20), 0.05), jnp.array([[1.0], [1.0000001]])
    low = np.asarray(calibration_gaps(unsure, jnp.array([3]), jnp.ones(1)))
    np.testing.assert_allclose(low, [0.05, *[0.0] * 14], atol=1e-6)  # not the first class, so wrong
    high = np.asarray(calibration_gaps(sure, jnp.array([1, 1]), jnp.ones(2)))
    np.testing.assert_allclose(high, [*[0.0] * 14, 1.0], atol=1e-6)


def test_several_targets_share_a_row(key):
    """Cross-entropies are of a target, whatever their number; squared errors too."""
    logits, y = jr.normal(key, (2, 4, 3)), jr.uniform(key, (4, 3))
    p, t = 1 / (1 + np.exp(-np.asarray(logits, dtype=float))), np.asarray(y, dtype=float)
    scores = score(Prediction(BernoulliOutcome(logits)), y, jnp.ones(4))
    each = -(t * np.log(p) + (1 - t) * np.log(1 - p))
    mean = p.mean(0)
    np.testing.assert_allclose(scores["bce_single"], each.mean(), rtol=1e-4)
    np.testing.assert_allclose(scores["bce"], -(t * np.log(mean) + (1 - t) * np.log(1 - mean)).mean(), rtol=1e-4)
    np.testing.assert_allclose(scores["mse"], np.square(mean - t).mean(), rtol=1e-4)
    np.testing.assert_allclose(scores["diversity"], p.std(0).mean(), rtol=1e-4)


def test_seeds_are_paired_as_far_as_both_have_them():
    first = np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 3.0]])
    second = np.array([[0.0, 1.0, 5.0], [1.0, 1.0, 1.0], [9.0, 9.0, 9.0]])
    assert paired_difference(first, second) == pytest.approx(summarise_crossed(first - second[:2]))
    assert paired_difference(first[0], second[0]) == pytest.approx(summarise(first[0] - second[0]))
