"""Boosted members on simulated tables: near the best possible, honest about it, and blind to what is asked."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.random import default_rng

from stmaml.pool.base import Draw, Fitted, Forecast, GroupedRows, Member, Tasks
from stmaml.pool.boosted import MEMBERS
from tests.pool.boosted_tables import LEVEL, NOISE, classes_table, levels_table, table

BY_NAME = {member.name: member for member in MEMBERS}
DRAW = Draw(shots=10, seed=3)


def fit(member: Member, rows: GroupedRows, draw: Draw = DRAW) -> Fitted:
    (fitted,) = member.fit_each(rows, [np.arange(rows.num_groups)], draw)
    return fitted


@cache
def learnt(name: str, num_classes: int) -> Fitted:
    rows = classes_table(0, num_classes) if num_classes else levels_table(0)
    return fit(BY_NAME[name], rows)


@cache
def new_rows(num_classes: int) -> GroupedRows:
    return classes_table(9, num_classes, groups=150) if num_classes else levels_table(9, groups=150)


def poisoned(tasks: Tasks) -> Tasks:
    """The same tasks without any label but those of the support."""
    y = np.full(len(tasks.rows.y), np.nan)
    for rows in tasks.support:
        y[rows] = tasks.rows.y[rows]
    return replace(tasks, rows=replace(tasks.rows, y=y))


def same(a: Forecast, b: Forecast) -> bool:
    return all(np.array_equal(getattr(a, n), getattr(b, n)) for n in ("mean", "task_variance", "noise_variance"))


CASES = [(name, 0) for name in BY_NAME] + [(name, k) for name in ("boosting", "boosting-summaries") for k in (2, 4)]


@pytest.mark.parametrize("shots", [0, 2, 10])
@pytest.mark.parametrize("name", ["boosting-effects", "boosting-summaries"])
def test_errors_are_near_the_best_possible(name, shots):
    rows = new_rows(0)
    tasks = DRAW.tasks(rows, shots, 1)
    forecast = learnt(name, 0).predict(poisoned(tasks))
    error = rows.y[tasks.asked] - forecast.mean
    unknown = 1 / (1 / LEVEL**2 + shots / NOISE**2)
    level = np.bincount(rows.group, rows.y - rows.y.mean()) / rows.counts
    # Without labelled rows the error is that of these groups' own levels rather than of any.
    best = (unknown if shots else level.var()) + NOISE**2
    assert (error**2).mean() < 1.12 * best
    assert forecast.task_variance.mean() == pytest.approx(unknown, rel=0.4)


@pytest.mark.parametrize("shots", [0, 1, 4, 10])
@pytest.mark.parametrize("name", list(BY_NAME))
def test_intervals_hold_on_new_groups(name, shots):
    tasks = DRAW.tasks(new_rows(0), shots, 1)
    forecast = learnt(name, 0).predict(tasks)
    inside = np.abs(new_rows(0).y[tasks.asked] - forecast.mean) < 1.6449 * np.sqrt(forecast.variance)
    assert 0.84 < inside.mean() < 0.955


@pytest.mark.parametrize(("name", "num_classes"), CASES)
def test_members_see_no_asked_label_and_come_back_from_their_arrays(name, num_classes):
    fitted = learnt(name, num_classes)
    for shots in (0, 3, 15):
        tasks = DRAW.tasks(new_rows(num_classes), shots, 1)
        forecast = fitted.predict(poisoned(tasks))
        assert same(forecast, fitted.predict(tasks))
        assert same(forecast, BY_NAME[name].restore(fitted.state()).predict(tasks))
        assert np.isfinite(forecast.mean).all()
        assert (forecast.task_variance >= 0).all()
        assert (forecast.noise_variance == 0).all() if num_classes else (forecast.noise_variance > 0).all()


@pytest.mark.parametrize("num_classes", [2, 4])
def test_labelled_rows_teach_classes(num_classes):
    rows, scores = new_rows(num_classes), {}
    for name in ("boosting", "boosting-summaries"):
        for shots in (0, 10):
            tasks = DRAW.tasks(rows, shots, 1)
            share = learnt(name, num_classes).predict(tasks).mean
            np.testing.assert_allclose(share.sum(1), 1.0)
            assert share.min() > 0
            assert share.max() < 1
            scores[name, shots] = -np.log(share[np.arange(len(share)), rows.y[tasks.asked].astype(int)]).mean()
    assert scores["boosting", 0] < np.log(num_classes)
    assert scores["boosting-summaries", 0] < scores["boosting", 0] + 0.02
    assert scores["boosting-summaries", 10] < scores["boosting", 10] - 0.2


ODD = [("constant", True), ("single rows", False), ("five groups", True), ("no columns", False), ("one value", False)]


@pytest.mark.parametrize(("kind", "ordered"), ODD)
def test_odd_tables(kind, ordered):
    random = default_rng(1)
    x, group = random.normal(size=(40, 2)), np.repeat(np.arange(10), 4)
    y = random.normal(size=40)
    rows = {
        "constant": table(np.ones((40, 2)), y, group),
        "single rows": table(x, y, np.arange(40)),
        "five groups": table(x, y, np.repeat(np.arange(5), 8)),
        "no columns": table(x[:, :0], y, group),
        "one value": table(x, np.zeros(40), group),
    }[kind]
    for member in MEMBERS:
        fitted = fit(member, rows, Draw(shots=3, ordered=ordered))
        for shots in (0, min(2, int(rows.counts.min()) - 1)):
            forecast = fitted.predict(Draw(3, ordered=ordered).tasks(rows, shots, 1))
            assert np.isfinite(forecast.mean).all()
            assert np.isfinite(forecast.variance).all()
            assert (forecast.variance > 0).all()


def test_a_class_may_be_missing_from_training():
    rows = classes_table(2, 3, groups=12, size=5)
    rows = replace(rows, y=np.minimum(rows.y, 1.0))
    for member in MEMBERS:
        if member.suits(rows):
            share = fit(member, rows, Draw(shots=2)).predict(Draw(2).tasks(rows, 1, 1)).mean
            assert share.shape[1] == 3
            assert (share > 0).all()


def test_parts_are_learnt_from_alone():
    """Targets of groups outside a part do not matter to it, and the same seed gives the same fit."""
    rows = levels_table(6, groups=10, size=5)
    part = np.arange(8)
    other = replace(rows, y=np.where(rows.group < 8, rows.y, 99.0))
    for member in MEMBERS:
        (one,), (two,) = (member.fit_each(each, [part], Draw(shots=3)) for each in (rows, other))
        assert all(np.array_equal(value, two.state()[key]) for key, value in one.state().items())
