"""Members for classes: as good as the model that made the rows, and never lost for an answer."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import special

from stmaml.pool.base import Column, Draw, Forecast, GroupedRows, Tasks
from stmaml.pool.mixed.classes import MixedLogistic
from stmaml.pool.mixed.shares import FittedShares, Shares, strength

LOGISTIC, LEVELS, SHARES = MixedLogistic(), MixedLogistic("mixed-levels", plain=True), Shares()


def table(x, y, group, levels=None, num_classes=2) -> GroupedRows:
    columns = tuple(Column(f"c{i}", "number") for i in range(x.shape[1]))
    levels = np.zeros((len(x), 0), dtype=int) if levels is None else levels
    return GroupedRows(x, y.astype(float), group, levels, columns, num_classes)


def log_loss(forecast: Forecast, tasks: Tasks) -> float:
    y = tasks.rows.y[tasks.asked].astype(int)
    return float(-np.log(forecast.mean[np.arange(len(y)), y]).mean())


def simulated(seed: int, groups: int, rows: int) -> tuple[GroupedRows, np.ndarray]:
    """Levels with spread 1.5 and a common slope of 1."""
    random = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), rows)
    x = random.normal(size=(len(group), 2))
    common = 0.4 + x[:, 0]
    y = random.random(len(x)) < special.expit(common + 1.5 * random.normal(size=groups)[group])
    return table(x, y, group), common


def best(tasks: Tasks, common: np.ndarray) -> Forecast:
    """The predictor that knows how the rows were made, by integration on a grid."""
    grid = np.linspace(-8, 8, 321)
    prior, parts = -0.5 * (grid / 1.5) ** 2, []
    for support, query in zip(tasks.support, tasks.query, strict=True):
        sign = 2 * tasks.rows.y[support] - 1
        log_weight = prior + special.log_expit(sign[:, None] * (common[support][:, None] + grid)).sum(axis=0)
        weight = special.softmax(log_weight)
        chance = special.expit(common[query][:, None] + grid) @ weight
        parts.append(Forecast(np.stack([1 - chance, chance], axis=1), np.zeros(len(query)), np.zeros(len(query))))
    return Forecast.joined(parts)


def test_as_good_as_the_predictor_that_knows_the_variances():
    (train, _), (test, common) = simulated(0, 150, 12), simulated(1, 300, 12)
    (own,) = LOGISTIC.fit_each(train, [np.arange(150)], Draw(5))
    (plain,) = SHARES.fit_each(train, [np.arange(150)], Draw(5))
    for shots in (0, 4):
        tasks = Draw(shots).tasks(test, shots, 1)
        mine, known = own.predict(tasks), best(tasks, common)
        assert log_loss(mine, tasks) < log_loss(known, tasks) + 0.01
        assert log_loss(mine, tasks) < log_loss(plain.predict(tasks), tasks) - 0.05
        np.testing.assert_allclose(mine.mean, known.mean, atol=0.2)
        np.testing.assert_allclose(mine.mean.sum(axis=1), 1.0)


def test_levels_in_full_are_those_of_the_predictor_that_knows_the_variances():
    (train, _), (test, common) = simulated(0, 150, 12), simulated(1, 300, 12)
    (own,) = LEVELS.fit_each(train, [np.arange(150)], Draw(5))
    for shots in (0, 1, 4):
        tasks = Draw(shots).tasks(test, shots, 1)
        np.testing.assert_allclose(own.predict(tasks).mean, best(tasks, common).mean, atol=0.1)


def test_more_labelled_rows_make_the_task_variance_smaller():
    rows, _ = simulated(2, 60, 12)
    for member in (LOGISTIC, LEVELS, SHARES):
        (own,) = member.fit_each(rows, [np.arange(60)], Draw(5))
        sizes = [own.predict(Draw(shots).tasks(rows, shots, 1)).task_variance.mean() for shots in (0, 3, 8)]
        assert sizes[0] > sizes[1] > sizes[2]


def test_three_classes():
    random = np.random.default_rng(3)
    group = np.repeat(np.arange(80), 10)
    x = random.normal(size=(800, 1))
    lean = 1.5 * random.normal(size=(80, 3))[group] + np.stack([x[:, 0], 0 * x[:, 0], -x[:, 0]], axis=1)
    y = (lean + random.gumbel(size=(800, 3))).argmax(axis=1)
    rows = table(x, y, group, num_classes=3)
    tasks = Draw(5).tasks(rows.of_groups(np.arange(60, 80)), 5, 1)
    losses = [log_loss(m.fit_each(rows, [np.arange(60)], Draw(5))[0].predict(tasks), tasks) for m in (LOGISTIC, SHARES)]
    assert losses[0] < losses[1] - 0.05
    assert losses[1] < np.log(3)


def test_shares_are_those_of_the_dirichlet():
    rows = table(np.zeros((6, 0)), np.array([0, 0, 1, 2, 2, 0]), np.zeros(6, dtype=int), num_classes=3)
    tasks = Tasks(rows, (np.array([0, 1, 2]),), (np.array([3, 4]),))
    forecast = FittedShares(np.array([1.0, 2.0, 1.0])).predict(tasks)
    np.testing.assert_allclose(forecast.mean, np.tile([3 / 7, 3 / 7, 1 / 7], (2, 1)))
    np.testing.assert_allclose(forecast.task_variance, (3 / 7) * (4 / 7) / 8)


def test_strength_of_shares():
    random = np.random.default_rng(4)
    counts = np.stack([random.multinomial(30, random.dirichlet([2.0, 4.0])) for _ in range(400)]).astype(float)
    np.testing.assert_allclose(strength(counts, np.array([1 / 3, 2 / 3])), 6.0, rtol=0.15)


def odd_tables() -> dict[str, GroupedRows]:
    random = np.random.default_rng(5)
    group = np.repeat(np.arange(12), 6)
    x, y = random.normal(size=(72, 3)), random.integers(0, 2, size=72)
    levels = np.stack([group // 3, random.integers(-1, 4, size=72)], axis=1)
    return {
        "one row a group": table(x, y, np.arange(72)),
        "constant columns": table(np.ones_like(x), y, group),
        "duplicated columns": table(np.concatenate([x, x, -2 * x], axis=1), y, group),
        "separated by a column": table(x, x[:, 0] > 0, group),
        "separated by groups": table(x, group % 2, group),
        "one class alone": table(x, np.zeros(72), group),
        "a class that never comes": table(x, y, group, num_classes=3),
        "no columns": table(x[:, :0], y, group),
        "levels": table(x, y, group, levels),
        "unknown targets": replace(table(x, y, group), y=np.where(np.arange(72) % 3 == 0, np.nan, y)),
        "more columns than rows": table(random.normal(size=(72, 90)), y, group),
    }


@pytest.mark.parametrize("name", odd_tables())
def test_odd_tables(name):
    rows = odd_tables()[name]
    unseen = replace(rows, levels=np.where(np.arange(72)[:, None] % 7 == 0, -1, rows.levels))
    for member in (LOGISTIC, LEVELS, SHARES):
        assert member.suits(rows) or name == "one class alone"
        (own,) = member.fit_each(rows, [np.arange(rows.num_groups)], Draw(3))
        again = member.restore({key: array.copy() for key, array in own.state().items()})
        for shots in (0, 3):
            tasks = Draw(shots).tasks(unseen, shots, 1)
            forecast, twin = own.predict(tasks), again.predict(tasks)
            assert np.all(np.isfinite(forecast.mean))
            assert np.all(forecast.mean >= 0)
            assert np.all(np.isfinite(forecast.variance))
            np.testing.assert_allclose(forecast.mean.sum(axis=1), 1.0)
            np.testing.assert_array_equal(forecast.mean, twin.mean)
            np.testing.assert_array_equal(forecast.variance, twin.variance)
