"""Members for numbers: as good as the model that made the rows, and never lost for an answer."""

from dataclasses import replace

import numpy as np
import pytest

from stmaml.pool.base import Column, Draw, Forecast, GroupedRows, Tasks
from stmaml.pool.mixed import fit as fitting
from stmaml.pool.mixed.at_once import tasks_at_once
from stmaml.pool.mixed.noise import ALIKE, NoisePrior
from stmaml.pool.mixed.numbers import MEAN, MIXED, MIXED_CURVES, MIXED_SLOPES
from stmaml.pool.mixed.splines import wiggles

ALL = (MEAN, MIXED, MIXED_SLOPES, MIXED_CURVES)


def table(x, y, group, levels=None, kinds=None) -> GroupedRows:
    columns = tuple(Column(f"c{i}", (kinds or {}).get(i, "number")) for i in range(x.shape[1]))
    levels = np.zeros((len(x), 0), dtype=int) if levels is None else levels
    return GroupedRows(x, y, group, levels, columns)


def simulated(seed: int, groups: int, rows: int, covariance: np.ndarray, noise: float) -> GroupedRows:
    """Level and slope of the first column differ between groups."""
    random = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), rows)
    x = random.normal(size=(len(group), 2))
    own = random.multivariate_normal(np.zeros(2), covariance, size=groups)[group]
    mean = 0.3 + 0.8 * x[:, 0] - 0.4 * x[:, 1] + own[:, 0] + own[:, 1] * x[:, 0]
    return table(x, mean + noise * random.normal(size=len(x)), group)


def bayes(tasks: Tasks, covariance: np.ndarray, noise: float) -> Forecast:
    """The predictor that knows how the rows were made."""
    x, parts = tasks.rows.x, []
    common = 0.3 + 0.8 * x[:, 0] - 0.4 * x[:, 1]
    z = np.stack([np.ones(len(x)), x[:, 0]], axis=1)
    for support, query in zip(tasks.support, tasks.query, strict=True):
        prior = z[query] @ covariance
        gain = (
            prior
            @ z[support].T
            @ np.linalg.inv(z[support] @ covariance @ z[support].T + noise**2 * np.eye(len(support)))
        )
        mean = common[query] + gain @ (tasks.rows.y[support] - common[support])
        variance = (prior * z[query]).sum(axis=1) - (gain * (prior @ z[support].T)).sum(axis=1)
        parts.append(Forecast(mean, variance, np.full(len(query), noise**2)))
    return Forecast.joined(parts)


def log_density(forecast: Forecast, tasks: Tasks) -> float:
    left = tasks.rows.y[tasks.asked] - forecast.mean
    return float(np.mean(-0.5 * np.log(2 * np.pi * forecast.variance) - 0.5 * left**2 / forecast.variance))


def squared_error(forecast: Forecast, tasks: Tasks) -> float:
    return float(np.mean((tasks.rows.y[tasks.asked] - forecast.mean) ** 2))


COVARIANCE = np.array([[1.0, 0.3], [0.3, 0.5]])


@pytest.mark.parametrize("member", [MIXED_SLOPES, MIXED_CURVES], ids=lambda member: member.name)
def test_as_good_as_the_predictor_that_knows_the_variances(member):
    train, test = (simulated(seed, 150, 15, COVARIANCE, 0.5) for seed in (0, 1))
    (own,) = member.fit_each(train, [np.arange(150)], Draw(5))
    for shots in (0, 3, 8):
        tasks = Draw(shots).tasks(test, shots, 1)
        mine, best = own.predict(tasks), bayes(tasks, COVARIANCE, 0.5)
        assert squared_error(mine, tasks) < 1.04 * squared_error(best, tasks)
        assert log_density(mine, tasks) > log_density(best, tasks) - 0.02
        np.testing.assert_allclose(mine.task_variance.mean(), best.task_variance.mean(), rtol=0.2)
        np.testing.assert_allclose(mine.noise_variance.mean(), 0.25, rtol=0.1)


def test_mean_is_the_shrunken_mean_of_the_labelled_rows():
    random = np.random.default_rng(5)
    group = np.repeat(np.arange(400), 10)
    y = 1.5 * random.normal(size=400)[group] + random.normal(size=4000)
    rows = table(np.zeros((4000, 0)), y, group)
    tasks = Draw(4).tasks(rows, 4, 1)
    (own,) = MEAN.fit_each(rows, [np.arange(400)], Draw(4))
    means = np.array([y[support].mean() for support in tasks.support])
    shrunken = y.mean() + (means - y.mean()) * 2.25 / (2.25 + 0.25)
    forecast = own.predict(tasks)
    np.testing.assert_allclose(forecast.mean, shrunken[tasks.task], atol=0.1)
    np.testing.assert_allclose(forecast.task_variance, 1.0 / (4.0 + 1.0 / 2.25), rtol=0.15)


def test_own_curves_are_found():
    random = np.random.default_rng(6)
    group = np.repeat(np.arange(160), 25)
    x = random.uniform(-2, 2, size=(4000, 2))
    y = random.normal(size=160)[group] * np.sin(2 * x[:, 0]) + 0.3 * random.normal(size=4000)
    rows = table(x, y, group)
    tasks = Draw(12).tasks(rows.of_groups(np.arange(100, 160)), 12, 1)
    fits = [member.fit_each(rows, [np.arange(100)], Draw(12))[0] for member in (MIXED_SLOPES, MIXED_CURVES)]
    slopes, curves = (squared_error(own.predict(tasks), tasks) for own in fits)
    assert curves < 0.5 * slopes
    assert curves < 0.2


def growing(seed: int, groups: int) -> GroupedRows:
    """A curve whose height depends on a flag that all rows of a group share."""
    random = np.random.default_rng(seed)
    group, flag = np.repeat(np.arange(groups), 8), random.integers(0, 2, groups)
    x = np.stack([random.uniform(-2, 2, len(group)), flag[group]], axis=1)
    mean = (1 + 2 * flag[group]) * (x[:, 0] + np.sin(2 * x[:, 0]))
    return table(x, mean + 0.2 * random.normal(size=len(group)), group, kinds={1: "flag"})


def test_curves_that_change_with_another_column_are_found_and_saved():
    train, test = growing(0, 40), growing(1, 40)
    (own,) = MIXED.fit_each(train, [np.arange(40)], Draw(2))
    tasks = Draw(0).tasks(test, 0, 1)
    assert squared_error(own.predict(tasks), tasks) < 1.25 * 0.04  # the noise, and what 40 groups leave open
    again = MIXED.restore(own.state()).predict(tasks)
    np.testing.assert_array_equal(again.mean, own.predict(tasks).mean)


def test_products_stay_what_they_are_at_the_ends_of_training():
    rows = growing(2, 40)
    joined = fitting.design_of(rows).products
    bends = fitting.design_of(rows).bends
    np.testing.assert_array_equal(joined.pairs, [[0, 1]])
    beyond = joined.ends[1] + np.array([[0.0, 0.0], [5.0, 0.0], [5.0, 7.0]])
    for block in joined.blocks(beyond, bends):
        np.testing.assert_allclose(block, block[[0]].repeat(3, 0))


def test_noise_of_a_group_is_learnt_from_its_rows():
    random = np.random.default_rng(7)
    group = np.repeat(np.arange(200), 20)
    spread = np.exp(0.7 * random.normal(size=200))
    rows = table(np.zeros((4000, 0)), random.normal(size=200)[group] + spread[group] * random.normal(size=4000), group)
    tasks = Draw(10).tasks(rows.of_groups(np.arange(100, 200)), 10, 1)
    (own,) = MEAN.fit_each(rows, [np.arange(100)], Draw(10))
    forecast = own.predict(tasks)
    pooled = replace(forecast, noise_variance=np.full(len(forecast.mean), forecast.noise_variance.mean()))
    assert log_density(forecast, tasks) > log_density(pooled, tasks) + 0.05


def test_outer_groups_help_and_unseen_ones_widen():
    random = np.random.default_rng(8)
    group = np.repeat(np.arange(120), 8)
    outer = np.arange(120) % 12
    y = 2.0 * random.normal(size=12)[outer][group] + 0.5 * random.normal(size=120)[group] + random.normal(size=960)
    rows = table(np.zeros((960, 0)), y, group, outer[group][:, None])
    (own,) = MEAN.fit_each(rows, [np.arange(96)], Draw(2))
    test = rows.of_groups(np.arange(96, 120))
    seen = Draw(0).tasks(test, 0, 1)
    unseen = replace(seen, rows=replace(test, levels=np.full_like(test.levels, -1)))
    forecasts = [own.predict(tasks) for tasks in (seen, unseen)]
    assert squared_error(forecasts[0], seen) < 0.5 * squared_error(forecasts[1], seen)
    assert forecasts[1].task_variance.min() > 5 * forecasts[0].task_variance.max()
    told = replace(unseen, support=tuple(query[:4] for query in unseen.query))
    assert own.predict(told).task_variance.max() < 0.2 * forecasts[1].task_variance.min()


def test_more_columns_than_rows():
    random = np.random.default_rng(9)
    x = random.normal(size=(60, 100))
    rows = table(x, x[:, 0] + 0.1 * random.normal(size=60), np.repeat(np.arange(12), 5))
    check(rows)


def odd_tables() -> dict[str, GroupedRows]:
    random = np.random.default_rng(10)
    group = np.repeat(np.arange(12), 6)
    x, y = random.normal(size=(72, 3)), random.normal(size=72)
    giant = np.concatenate([np.zeros(400, dtype=int), np.arange(1, 31).repeat(2)])
    big = random.normal(size=(460, 2))
    outlier = y.copy()
    outlier[5] = 1e6
    crossed = random.integers(-1, 4, size=(72, 2))
    five = np.repeat(np.arange(5), 4)
    flag = (x > 0.5).astype(float)
    return {
        "one row a group": table(x, y, np.arange(72)),
        "constant columns": table(np.ones_like(x), y, group),
        "duplicated columns": table(np.concatenate([x, x, -2 * x], axis=1), y, group),
        "constant within groups": table(x[group], y, group),
        "one giant group": table(big, big[:, 0] + giant % 3, giant),
        "five groups": table(x[:20], y[:20], five),
        "constant target": table(x, np.full(72, 3.0), group),
        "no noise": table(x, x[:, 0] + group, group),
        "huge offset": table(x, y + 1e9, group),
        "tiny target": table(x, 1e-9 * y, group),
        "columns far from 1": table(x * np.array([1e-8, 1.0, 1e8]) + np.array([0.0, 1e4, 0.0]), y, group),
        "outlier": table(x, outlier, group),
        "levels": table(x, y, group, crossed),
        "a level a row": table(x, y, group, np.arange(72)[:, None]),
        "unknown targets": table(x, np.where(np.arange(72) % 3 == 0, np.nan, y), group),
        "flags": table(flag, y, group, kinds={0: "flag", 1: "flag", 2: "wave"}),
        "no columns": table(x[:, :0], y, group),
        "two groups": table(x[:12], y[:12], group[:12]),
    }


def check(rows: GroupedRows) -> None:
    """Every member fits, answers with finite numbers, and comes back from its arrays as it was."""
    known = replace(rows, levels=np.where(np.arange(len(rows.y))[:, None] % 7 == 0, -1, rows.levels))
    for member in ALL:
        member.suits(rows)
        (own,) = member.fit_each(rows, [np.arange(rows.num_groups)], Draw(3))
        again = member.restore({name: array.copy() for name, array in own.state().items()})
        for shots in (0, 3):
            tasks = Draw(shots).tasks(known, shots, 1)
            forecast, twin = own.predict(tasks), again.predict(tasks)
            assert np.all(np.isfinite(forecast.mean))
            assert np.all(np.isfinite(forecast.variance))
            assert np.all(forecast.task_variance >= 0.0)
            np.testing.assert_array_equal(forecast.mean, twin.mean)
            np.testing.assert_array_equal(forecast.variance, twin.variance)


@pytest.mark.parametrize("name", odd_tables())
def test_odd_tables(name):
    check(odd_tables()[name])


def test_what_suits_which_table():
    tables = odd_tables()
    said = {name: [member.suits(tables[name]) for member in ALL] for name in tables}
    assert said["five groups"] == [True, True, True, False]
    assert said["levels"] == [True, True, True, True]
    assert said["constant within groups"] == [True, True, False, False]
    assert said["constant columns"] == [True, False, False, False]
    assert said["flags"] == [True, True, True, False]
    assert not MEAN.suits(replace(tables["levels"], num_classes=2))


def test_many_groups_are_thinned_for_variances_and_chunked_for_effects(monkeypatch):
    train, test = (simulated(seed, 150, 15, COVARIANCE, 0.5) for seed in (2, 3))
    tasks = Draw(3).tasks(test, 3, 1)
    (whole,) = MIXED_SLOPES.fit_each(train, [np.arange(150)], Draw(3))
    monkeypatch.setattr(fitting, "CHUNK_SIZE", 5000)
    (chunked,) = MIXED_SLOPES.fit_each(train, [np.arange(150)], Draw(3))
    np.testing.assert_allclose(chunked.predict(tasks).mean, whole.predict(tasks).mean, rtol=1e-6, atol=1e-6)
    monkeypatch.setattr(fitting, "VARIANCE_ROWS", 1000)
    (thin,) = MIXED_SLOPES.fit_each(train, [np.arange(150)], Draw(3))
    assert squared_error(thin.predict(tasks), tasks) < 1.05 * squared_error(whole.predict(tasks), tasks)


def test_many_labelled_rows_give_what_the_dense_solve_gives():
    rows = simulated(4, 30, 80, COVARIANCE, 0.5)
    (own,) = MIXED_SLOPES.fit_each(rows, [np.arange(30)], Draw(3))
    tasks = Draw(60).tasks(rows, 60, 1)
    few, best = own.predict(tasks), bayes(tasks, COVARIANCE, 0.5)
    np.testing.assert_allclose(few.mean, best.mean, atol=0.2)
    np.testing.assert_allclose(few.task_variance.mean(), best.task_variance.mean(), rtol=0.25)


def test_wiggles_have_no_line_and_are_straight_outside():
    x = np.sort(np.random.default_rng(11).normal(size=200))
    bend = wiggles(x, 6)
    assert bend is not None
    basis = bend(x)
    line = np.stack([np.ones(200), x], axis=1)
    np.testing.assert_allclose(line.T @ basis, 0.0, atol=1e-8)
    far = bend(x[-1] + np.array([0.1, 0.6, 1.1]))
    np.testing.assert_allclose(far[2] - 2 * far[1] + far[0], 0.0, atol=1e-9)
    second = np.diff(bend(np.linspace(x[0], x[-1], 20001)), 2, axis=0) * (20000 / (x[-1] - x[0])) ** 2
    energy = second.T @ second * (x[-1] - x[0]) / 20000 * bend.size**2
    np.testing.assert_allclose(energy, np.eye(len(energy)), atol=1e-3)


def test_columns_that_repeat_each_other_do_not_explain_the_noise_away():
    random = np.random.default_rng(0)
    group = np.repeat(np.arange(60), 100)
    a, flag = random.normal(size=6000), (random.random(6000) < 0.3).astype(float)
    x = np.column_stack([a, a, flag, 1 - flag, a + 1e-9 * random.normal(size=6000), random.normal(size=6000)])
    level, slope = random.normal(size=(2, 60))
    y = level[group] + slope[group] * a + 0.5 * flag + 0.2 * random.normal(size=6000)
    rows = table((x - x.mean(0)) / x.std(0), y, group)
    model = fitting.fit_model(rows, fitting.Kind(columns=True, slopes=True))
    assert model.scale == pytest.approx(0.2, rel=0.03)
    assert np.abs(model.beta).max() < 100


@pytest.mark.parametrize("member", [MIXED, MIXED_CURVES], ids=lambda member: member.name)
def test_a_column_of_groups_ends_where_training_ended_and_one_of_rows_goes_on(member):
    random = np.random.default_rng(3)
    group = np.repeat(np.arange(12), 8)
    x = np.stack([random.normal(size=12)[group], random.normal(size=96)], axis=1)
    rows = table(x, x.sum(axis=1) + 0.1 * random.normal(size=96), group)
    fitted = member.fit_each(rows, [np.arange(12)], Draw(3))[0]
    edge = x[:, 0].max()

    def said(of_group: float, of_row: float) -> float:
        asked = table(np.array([[of_group, of_row]]), np.array([np.nan]), np.zeros(1, dtype=int))
        return float(fitted.predict(Tasks(asked, (np.zeros(0, dtype=int),), (np.zeros(1, dtype=int),))).mean[0])

    assert said(edge + 5, 0.0) == said(edge, 0.0)
    assert said(edge, 0.0) > said(edge - 1, 0.0) + 0.5
    assert said(0.0, x[:, 1].max() + 2) > said(0.0, x[:, 1].max()) + 1


@pytest.mark.parametrize("noisy", [False, True])
def test_groups_at_once_are_answered_as_one_by_one(noisy):
    """Against normal conditioning of each task on its own, with groups that share their noise or have their own."""
    random = np.random.default_rng(4)
    unknown, target = random.normal(size=(60, 3)), random.normal(size=60)
    target[7] = np.nan
    support = [np.arange(4), np.zeros(0, dtype=int), np.arange(4, 9), np.arange(9, 40), np.arange(5, 6)]
    query = [np.arange(40, 45), np.arange(45, 47), np.arange(47, 50), np.arange(50, 60), np.arange(50, 53)]
    prior = NoisePrior(6.0, 0.8) if noisy else ALIKE
    found = tasks_at_once(prior, unknown, target, support, query)
    place = 0
    for told, asked in zip(support, query, strict=True):
        told = told[np.isfinite(target[told])]

        def solved(ratio, told=told, asked=asked):
            inverse = np.linalg.inv(unknown[told] @ unknown[told].T + ratio * np.eye(len(told)))
            across = unknown[asked] @ unknown[told].T
            residual = ratio * inverse @ target[told]
            answer = (
                across @ inverse @ target[told],
                (unknown[asked] ** 2).sum(1) - ((across @ inverse) * across).sum(1),
            )
            return answer, float(residual @ residual) / ratio, ratio * float(np.trace(inverse))

        _, squares, dof = solved(1.0)
        ratio = prior.shrunk(squares, dof)
        (mean, variance), _, _ = solved(ratio)
        mine = slice(place, place + len(asked))
        for ours, want in zip(found, (mean, variance, ratio), strict=True):
            np.testing.assert_allclose(ours[mine], want, rtol=1e-8, atol=1e-10)
        place += len(asked)
