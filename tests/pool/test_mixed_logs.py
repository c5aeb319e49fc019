"""The mixed model of logarithms: moments of log-normal targets, the scale that made the rows, and no runaways."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from stmaml.pool.base import Column, Draw, Forecast, GroupedRows
from stmaml.pool.mixed.fit import Starts
from stmaml.pool.mixed.logs import BENDS, NO_BEND, Log, MixedLog, best_bend
from stmaml.pool.mixed.numbers import MIXED_SLOPES

EVERYWHERE = (-np.inf, np.inf)


def grown(seed: int, groups: int = 60, rows: int = 12, bend: float = 2.0) -> GroupedRows:
    """Lines of their own on the scale of the logarithm, which is then undone; at 0 the targets end."""
    random = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), rows)
    x = random.uniform(-1, 1, (len(group), 1))
    own = random.normal(0, 0.3, (groups, 2))[group]
    line = 1.0 + 0.8 * x[:, 0] + own[:, 0] + own[:, 1] * x[:, 0] + 0.1 * random.normal(size=len(group))
    y = np.expm1(bend * line) / bend
    levels = np.zeros((len(group), 0), dtype=int)
    return GroupedRows(x, (y - y.mean()) / y.std(), group, levels, (Column("x", "number"),))


@pytest.mark.parametrize("bend", [0.5, 2.0, -1.0])
def test_moments_are_those_of_the_lognormal(bend: float):
    log, task, noise = Log(bend, 0.3), 0.04, 0.09
    said = log.back(Forecast(np.array([0.7]), np.array([task]), np.array([noise])), EVERYWHERE)
    law = stats.lognorm(abs(bend) * (task + noise) ** 0.5, scale=np.exp(bend * 0.7))
    assert said.mean[0] == pytest.approx(0.3 + (law.mean() - 1) / bend, rel=1e-12)
    assert said.variance[0] == pytest.approx(law.var() / bend**2, rel=1e-12)
    draws = np.random.default_rng(0).normal(0.7, task**0.5, 400_000)  # the mean of each group, then its variance
    means = 0.3 + np.expm1(bend * draws + bend**2 * noise / 2) / bend
    assert said.task_variance[0] == pytest.approx(means.var(), rel=0.02)


def test_the_logarithm_is_undone_and_goes_on_straight():
    y = np.linspace(0.0, 4.0, 9)
    for log in (Log(2.0, 0.0), Log(-0.5, 4.0)):
        known = log(y)
        np.testing.assert_allclose(log.back(Forecast(known, 0 * y, 0 * y), EVERYWHERE).mean, y, atol=1e-12)
        slope = (log(y + 1e-6) - log(y - 1e-6)) / 2e-6
        np.testing.assert_allclose(log.log_slope(y), np.log(slope), atol=1e-5)
    np.testing.assert_allclose(Log(2.0, 1.0)(np.array([0.0, 1.0])), [-1.0, 0.0])


def test_the_scale_of_the_rows_is_found():
    assert BENDS[best_bend(grown(0), NO_BEND, Starts())] >= 1.0
    turned = grown(0)
    assert BENDS[best_bend(replace(turned, y=-turned.y), NO_BEND, Starts())] <= -1.0
    straight = grown(0, bend=1e-6)
    assert abs(BENDS[best_bend(straight, NO_BEND, Starts())]) <= 0.2


def test_better_than_straight_targets_where_groups_grow():
    train, test = grown(1), grown(2)
    tasks = Draw(4).tasks(test, 4, 1)
    fits = [member.fit_each(train, [np.arange(60)], Draw(4))[0] for member in (MixedLog(), MIXED_SLOPES)]
    logs, lines = (((one.predict(tasks).mean - test.y[tasks.asked]) ** 2).mean() for one in fits)
    assert logs < 0.8 * lines
    again = MixedLog().restore(fits[0].state()).predict(tasks)
    np.testing.assert_array_equal(again.mean, fits[0].predict(tasks).mean)


def test_means_stay_near_the_targets_of_training():
    train = grown(3)
    (own,) = MixedLog().fit_each(train, [np.arange(60)], Draw(2))
    far = replace(train, x=100 * train.x)
    said = own.predict(Draw(2).tasks(far, 2, 1))
    reach = 0.5 * np.ptp(train.y)
    assert said.mean.max() <= train.y.max() + reach
    assert np.isfinite(said.variance).all()


def test_constant_targets_do_not_suit():
    rows = grown(4, groups=5)
    assert MixedLog().suits(rows)
    assert not MixedLog().suits(replace(rows, y=np.zeros(len(rows.y))))
