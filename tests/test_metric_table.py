"""The one table of metrics: order, direction, and how tasks make one number."""

import numpy as np
import pytest

from stmaml.metric_table import METRICS, in_order, judged, metric
from stmaml.metrics import calibration_error, summarise


@pytest.mark.parametrize(
    ("name", "better", "worse"),
    [
        ("mse", 1.0, 2.0),
        ("nll", -1.0, 1.0),
        ("accuracy", 0.8, 0.7),
        ("coverage", 3.0, 1.0),
        ("coverage90", 0.88, 0.99),
        ("coverage90", 0.93, 0.85),
        ("ece", 0.0, 0.1),
    ],
)
def test_badness_is_lower_for_what_is_better(name, better, worse):
    assert metric(name).badness(better) < metric(name).badness(worse)


def test_what_is_neither_good_nor_bad_is_not_judged():
    assert judged(["width90", "mse", "diversity", "coverage90", "of my own"]) == ["mse", "coverage90"]


def test_metrics_come_in_the_order_of_the_table_and_others_last():
    assert in_order(["zeta", "width90", "nll", "alpha", "mse", "accuracy"]) == [
        *("accuracy", "mse", "nll", "width90"),
        *("zeta", "alpha"),
    ]


def test_the_calibration_error_is_of_all_tasks_together_and_other_scores_are_means():
    gaps = np.array([[0.2, 0.0], [-0.2, 0.1], [0.0, 0.2]])
    assert METRICS["ece"].pool(gaps) == calibration_error(gaps)
    np.testing.assert_allclose(METRICS["ece"].pool(gaps)["mean"], 0.1)
    values = np.array([1.0, 2.0, 6.0])
    assert METRICS["mse"].pool(values) == summarise(values)


def test_axes_are_labelled_in_words_with_their_unit():
    assert metric("nll").words == "negative log-likelihood (nats)"
    assert metric("mse").words == "mean squared error"
    assert metric("of my own").words == "of my own"
