"""Ours beside the paper's: every word a verdict can come to."""

import math

import pytest

from stmaml.metric_table import METRICS, Metric
from stmaml.reports.verdicts import Verdict, difference, judge

MSE, ACCURACY, COVERAGE = METRICS["mse"], METRICS["accuracy"], METRICS["coverage90"]
ALONE = "by our interval; the paper gives none"


def ours(mean: float, half: float) -> dict[str, float]:
    return {"mean": mean, "ci95": half}


@pytest.mark.parametrize(
    ("metric", "found", "paper", "expected"),
    [
        (MSE, ours(1.0, 0.1), (2.0, 0.1), Verdict("better")),
        (MSE, ours(3.0, 0.1), (2.0, 0.1), Verdict("worse")),
        (ACCURACY, ours(0.8, 0.01), (0.7, 0.01), Verdict("better")),
        (ACCURACY, ours(0.6, 0.01), (0.7, 0.01), Verdict("worse")),
        (COVERAGE, ours(0.89, 0.001), (0.99, 0.001), Verdict("better")),
        (COVERAGE, ours(0.99, 0.001), (0.89, 0.001), Verdict("worse")),
        (MSE, ours(2.13, 0.1), (2.0, 0.1), Verdict("reproduced", "within the interval")),
        (MSE, ours(2.15, 0.1), (2.0, 0.1), Verdict("worse")),  # 0.15 is more than 0.1 times the root of 2
        (MSE, ours(2.05, 0.1), (2.0, None), Verdict("reproduced", "within the interval")),
        (MSE, ours(2.15, 0.1), (2.0, None), Verdict("worse", ALONE)),
        (MSE, ours(1.0, math.nan), (2.0, 0.1), Verdict("better", "by the paper's interval; ours is unknown")),
        (MSE, ours(2.0, math.nan), (2.0, None), Verdict("not comparable", "neither side gives an interval")),
        (MSE, ours(math.nan, 0.1), (2.0, 0.1), Verdict("not comparable", "ours is no number")),
        (
            Metric("d", "d", None),
            ours(1.0, 0.1),
            (2.0, 0.1),
            Verdict("not comparable", "neither more nor less of it is better"),
        ),
    ],
)
def test_every_verdict(metric, found, paper, expected):
    assert judge(metric, found, paper) == expected


def test_the_difference_is_ours_less_the_papers_and_squares_of_half_widths_add():
    found = difference(ours(1.5, 0.3), (2.0, 0.4))
    assert found.summary == {"mean": -0.5, "ci95": pytest.approx(0.5)}
