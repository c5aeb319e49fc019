"""Panels: curves of groups as the normal distribution has them, places that are found, and answers without labels."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from stmaml.pool.base import Column, Draw, GroupedRows, Tasks
from stmaml.pool.panels import MEMBERS
from stmaml.pool.panels.covariance import Cells, Curves, learn_curves, learn_smooth_curves, pulled, smooth_curves
from stmaml.pool.panels.places import places_of
from stmaml.pool.panels.smooth import learn_smooth

BY_NAME = {member.name: member for member in MEMBERS}
TIMES = np.linspace(-1.0, 1.0, 6)


def covariance_of(seed: int, size: int = 6) -> np.ndarray:
    half = np.random.default_rng(seed).normal(size=(size, size))
    return half @ half.T / size


def panel(seed: int, groups: int, covariance: np.ndarray, noise: float = 0.2, missing: float = 0.0) -> GroupedRows:
    """A row of each group at each time, but for some; all groups share a curve."""
    random = np.random.default_rng(seed)
    own = random.multivariate_normal(np.zeros(len(TIMES)), covariance, size=groups)
    y = np.sin(2 * TIMES) + own + noise * random.normal(size=own.shape)
    kept = random.random(y.shape) >= missing
    kept[:, 0] = True
    group, place = np.nonzero(kept)
    return rows_of(TIMES[place][:, None], y[kept], group)


def rows_of(x: np.ndarray, y: np.ndarray, group: np.ndarray) -> GroupedRows:
    columns = tuple(Column(f"c{i}", "number") for i in range(x.shape[1]))
    return GroupedRows(x, y, group, np.zeros((len(y), 0), dtype=int), columns)


def cells_of(rows: GroupedRows) -> Cells:
    place = np.searchsorted((TIMES[1:] + TIMES[:-1]) / 2, rows.x[:, 0])
    return Cells.of(rows.y, place, rows.group, (rows.num_groups, len(TIMES)))


def test_what_rows_tell_is_what_the_joint_normal_distribution_says():
    random, covariance, noise = np.random.default_rng(3), covariance_of(0), 0.3
    place, group = random.integers(0, 6, 20), np.sort(random.integers(0, 3, 20))  # some places twice, some never
    left = random.normal(size=20)
    known = Curves.of(covariance, noise).known(Cells.of(left, place, group, (4, 6)))
    for g in range(4):  # of the last there is no row
        mine = place[group == g]
        among = covariance[np.ix_(mine, mine)] + noise * np.eye(len(mine))
        gain = covariance[:, mine] @ np.linalg.inv(among)
        np.testing.assert_allclose(known.mean[g], gain @ left[group == g], atol=1e-6)
        left_over = covariance - gain @ covariance[mine]
        np.testing.assert_allclose(known.variance[g], np.diag(left_over), atol=1e-6)
        law: Any = stats.multivariate_normal  # whose stubs know of numbers alone
        density = law(np.zeros(len(mine)), among).logpdf(left[group == g]) if len(mine) else 0.0
        assert known.log_density[g] == pytest.approx(density, abs=1e-5)
    moment = sum(np.outer(m, m) for m in known.mean) + sum(h @ h.T for h in known.half[known.which])
    np.testing.assert_allclose(known.second_moment(), moment, atol=1e-12)


def test_whitened_rows_are_independent():
    covariance, noise, place = covariance_of(1), 0.3, np.array([0, 2, 2, 5])
    white = Curves.of(covariance, noise).whitened(np.eye(4), place, np.zeros(4, dtype=int))
    among = covariance[np.ix_(place, place)] + noise * np.eye(4)
    np.testing.assert_allclose(white @ among @ white.T, noise * np.eye(4), atol=1e-6)
    apart = Curves.of(covariance, noise).whitened(np.eye(4), place, np.arange(4))
    np.testing.assert_allclose(apart, np.diag(np.diag(apart)), atol=1e-12)


def test_each_step_makes_groups_likelier():
    cells = cells_of(panel(4, 40, covariance_of(2), missing=0.3))
    start = smooth_curves(np.log([0.5, 0.3, 0.4, 0.7, 0.2]), TIMES)
    steps = [pulled(cells, start, 1e-9, steps).known(cells).log_density.sum() for steps in range(6)]
    assert np.all(np.diff(steps) > 0)
    strong = pulled(cells, start, 1e9, 3)
    np.testing.assert_allclose(strong.covariance, start.covariance, rtol=1e-5, atol=1e-6)


def test_many_groups_tell_their_covariance_and_smooth_ones_stay_smooth():
    truth = covariance_of(5)
    cells = cells_of(replace_mean(panel(6, 600, truth)))
    smooth = smooth_curves(learn_smooth_curves(cells, TIMES, None), TIMES)
    found = learn_curves(cells, smooth, 0)
    total = found.covariance + found.noise * np.eye(6)
    np.testing.assert_allclose(total, truth + 0.04 * np.eye(6), atol=0.15)
    assert np.abs(total - truth).mean() < np.abs(smooth.covariance - truth).mean() / 2
    theta = np.log([0.8, 0.4, 0.3, 0.5, 0.2])
    simple = smooth_curves(theta, TIMES)
    few = cells_of(replace_mean(panel(7, 300, simple.covariance)))
    likeliest = smooth_curves(learn_smooth_curves(few, TIMES, None), TIMES)
    assert likeliest.known(few).log_density.mean() > simple.known(few).log_density.mean() - 0.01


def replace_mean(rows: GroupedRows) -> GroupedRows:
    return replace(rows, y=rows.y - np.sin(2 * rows.x[:, 0]))


def test_places_are_values_that_come_again_or_equal_parts_of_those_that_nearly_do():
    random, group = np.random.default_rng(0), np.repeat(np.arange(20), 6)
    other = random.normal(size=120)
    times = np.tile(TIMES, 20)
    exact = places_of(rows_of(np.stack([other, times], axis=1), other, group))
    assert exact is not None
    assert exact.column == 1
    np.testing.assert_allclose(exact.centers, TIMES)
    nearly = times + random.uniform(-0.1, 0.1, 120)
    found = places_of(rows_of(np.stack([np.repeat(other[:20], 6), nearly], axis=1), other, group))
    assert found is not None
    assert found.column == 1
    np.testing.assert_array_equal(found.of(np.stack([other, nearly], axis=1)), np.tile(np.arange(6), 20))
    assert places_of(rows_of(other[:, None], other, group)) is None  # as likely anywhere


def test_the_mean_of_an_unknown_group_is_that_of_plain_least_squares():
    """Groups with more of the column are higher: between unknown groups the line is steeper than within one."""
    random, group = np.random.default_rng(1), np.repeat(np.arange(200), 10)
    x = random.normal(size=(2000, 1)) + random.normal(size=200)[group, None]
    level = 0.9 * (np.bincount(group, x[:, 0]) / 10)[group]
    rows = rows_of(x, 0.5 * x[:, 0] + level + 0.1 * random.normal(size=2000), group)
    line = np.polynomial.Polynomial.fit(x[:, 0], rows.y, 1)
    smooth, held_out = learn_smooth(rows, 0)
    ends = smooth(np.array([[-1.0], [1.0]]))
    assert (ends[1] - ends[0]) / 2 == pytest.approx((line(1.0) - line(-1.0)) / 2, rel=0.1)
    assert np.mean((held_out - rows.y) ** 2) < 1.03 * np.mean((line(x[:, 0]) - rows.y) ** 2)
    steps = learn_smooth(rows, 0, lambda values: values - _means(values, group)[group])[0](np.array([[-1.0], [1.0]]))
    assert (steps[1] - steps[0]) / 2 == pytest.approx(0.5, rel=0.1)  # rows less their group's mean: the line within


def _means(values: np.ndarray, group: np.ndarray) -> np.ndarray:
    return np.stack([np.bincount(group, column) / np.bincount(group) for column in values.T], axis=1)


@pytest.mark.parametrize("shots", [0, 2, 4])
def test_panel_is_near_the_best_possible_and_its_variances_hold(shots: int):
    truth = covariance_of(5)
    train, new = panel(8, 200, truth), panel(9, 300, truth)
    draw = Draw(4)
    fitted = BY_NAME["panel"].fit_each(train, [np.arange(200)], draw)[0]
    tasks = draw.tasks(new, shots, 1)
    said, y = fitted.predict(tasks), new.y[tasks.asked]
    best = np.concatenate([_conditional(tasks, i, truth, 0.04) for i in range(len(tasks))])
    ours, limit = np.mean((said.mean - y) ** 2), np.mean((best - y) ** 2)
    assert ours < 1.1 * limit
    assert np.mean((said.mean - y) ** 2 / said.variance) == pytest.approx(1.0, abs=0.15)


def _conditional(tasks: Tasks, task: int, covariance: np.ndarray, noise: float) -> np.ndarray:
    x, y = tasks.rows.x[:, 0], tasks.rows.y
    told, asked = (np.searchsorted(TIMES, x[rows] - 1e-9) for rows in (tasks.support[task], tasks.query[task]))
    among = covariance[np.ix_(told, told)] + noise * np.eye(len(told))
    left = y[tasks.support[task]] - np.sin(2 * x[tasks.support[task]])
    return np.sin(2 * x[tasks.query[task]]) + covariance[np.ix_(asked, told)] @ np.linalg.solve(among, left)


@pytest.mark.parametrize("name", BY_NAME)
def test_members_see_no_asked_label_and_come_back_from_their_arrays(name: str):
    rows = panel(10, 30, covariance_of(5), missing=0.2)
    draw, member = Draw(3), BY_NAME[name]
    assert member.suits(rows)
    fitted = member.fit_each(rows, [np.arange(20), np.arange(30)], draw)[0]
    tasks = draw.tasks(rows.of_groups(np.arange(20, 30)), 2, 1)
    said = fitted.predict(tasks)
    again = member.restore(fitted.state()).predict(tasks)
    hidden = tasks.rows.y.copy()
    hidden[tasks.asked] = np.nan
    blind = fitted.predict(replace(tasks, rows=replace(tasks.rows, y=hidden)))
    for one in (again, blind):
        np.testing.assert_array_equal(one.mean, said.mean)
        np.testing.assert_array_equal(one.variance, said.variance)
    assert np.isfinite(said.mean).all()
    assert said.variance.min() > 0


@pytest.mark.parametrize("name", BY_NAME)
def test_odd_tables(name: str):
    member, random = BY_NAME[name], np.random.default_rng(2)
    few = panel(11, 9, covariance_of(5))
    constant = replace(few, y=np.zeros(len(few.y)))
    far = rows_of(np.tile([[1e3]], (4, 1)), random.normal(size=4), np.zeros(4, dtype=int))
    for rows in (few, constant):
        if not member.suits(rows):
            assert name == "panel-log"  # targets that are all the same have no logarithm
            continue
        fitted = member.fit_each(rows, [np.arange(rows.num_groups)], Draw(5))[0]
        for asked in (rows, far):
            for shots in (0, 3):
                said = fitted.predict(Draw(5).tasks(asked, shots, 1))
                assert np.isfinite(said.mean).all()
                assert np.isfinite(said.variance).all()
    classes = replace(few, y=(few.y > 0).astype(float), num_classes=2)
    lonely = few.of_groups(np.arange(2))
    assert not member.suits(classes)
    assert not member.suits(lonely)
