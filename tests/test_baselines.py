"""Baselines against scikit-learn, closed forms and problems with a known answer."""

import inspect
import warnings
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import LogisticRegression, Ridge
from threadpoolctl import threadpool_limits

from stmaml.baselines import (
    Boosting,
    BoostingConfig,
    Logistic,
    Normal,
    NumpyTask,
    OffsetBoosting,
    Pooled,
    SummaryBoosting,
    SupportFrequency,
    class_baselines,
    gaussian_process,
    numpy_tasks,
    regression_baselines,
    ridge,
    score_baseline,
    support_mean,
)
from stmaml.baselines.base import Fitted, Spread, fit_spread
from stmaml.baselines.boosting import boost, row_shares, simulate, squared_loss
from stmaml.benchmarks.sources import TaskSet
from stmaml.errors import SettingError, SourceError
from stmaml.metrics import score_task
from stmaml.outcomes import CategoricalOutcome, NormalOutcome
from stmaml.prediction import Prediction
from stmaml.progress import Told, listening
from stmaml.tasks import Examples, Task, TaskBatch, pad

FEW = BoostingConfig(
    learning_rate=(0.2,), max_leaf_nodes=(8,), min_samples_leaf=(10,), max_iter=60, first_look=20, max_passes=4
)


def rows_of_a_table(time_input: int | None = None) -> tuple[Any, ...]:
    return regression_baselines(time_input=time_input, boosting=FEW)


def draw_group(rng: np.random.Generator, count: int, *, noise: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    """Three inputs, of which the first is a time of the year; groups differ by an offset of spread 5."""
    x = rng.normal(size=(count, 3)).astype(np.float32)
    x[:, 0] = rng.uniform(size=count)
    y = rng.normal(0, 5) + 2 * x[:, 1] + np.sin(2 * np.pi * x[:, 0]) + rng.normal(0, noise, count)
    return x, y.astype(np.float32)


def draw_tasks(rng: np.random.Generator, count: int, *, shots: int = 10, query: int = 20) -> list[NumpyTask]:
    groups = (draw_group(rng, shots + query) for _ in range(count))
    return [NumpyTask(x[:shots], y[:shots], x[shots:], y[shots:]) for x, y in groups]


def pool(groups: list[tuple[np.ndarray, np.ndarray]]) -> Pooled:
    sizes = [len(y) for _, y in groups]
    x, y = (np.concatenate([group[i] for group in groups]) for i in (0, 1))
    return Pooled(x, y, np.repeat(np.arange(len(groups)), sizes))


def frozen(tasks: list[NumpyTask], *, size: int | None = None, filler: float = 0.0) -> TaskSet:
    """The tasks as a frozen set, with `filler` in rows of weight 0 up to `size` rows."""

    def examples(x: np.ndarray, y: np.ndarray) -> Examples:
        real = Examples.of(jnp.asarray(x), jnp.asarray(y if np.issubdtype(y.dtype, np.integer) else y[:, None]))
        padded = pad(real, size or len(x))
        keep = padded.weight > 0
        return Examples(jnp.where(keep[:, None], padded.x, filler), padded.y, padded.weight)

    made = [Task(examples(t.support_x, t.support_y), examples(t.query_x, t.query_y)) for t in tasks]
    batch = TaskBatch(jax.tree.map(lambda *leaves: jnp.stack(leaves), *made), jnp.arange(len(tasks)) % 2)
    return TaskSet(jax.tree.map(np.asarray, batch), "digest")


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Many small fits: threads would only wait for each other."""
    with threadpool_limits(1):
        yield


@pytest.fixture(scope="module")
def train() -> Pooled:
    rng = np.random.default_rng(0)
    return pool([draw_group(rng, 40) for _ in range(60)])


@pytest.fixture(scope="module")
def val() -> list[NumpyTask]:
    return draw_tasks(np.random.default_rng(1), 40)


@pytest.fixture(scope="module")
def test() -> list[NumpyTask]:
    return draw_tasks(np.random.default_rng(2), 40)


@pytest.fixture(scope="module")
def fitted(train: Pooled, val: list[NumpyTask]) -> dict[str, Any]:
    return {one.name: one.fit(train, val) for one in regression_baselines(time_input=0, boosting=FEW)}


def mse(baseline: Any, tasks: list[NumpyTask]) -> float:
    answers = [baseline.predict(t.support_x, t.support_y, t.query_x) for t in tasks]
    return float(np.mean([(t.query_y - a.mean) ** 2 for t, a in zip(tasks, answers, strict=True)]))


# Per task


def test_the_rows_of_a_table_are_these(fitted):
    assert list(fitted) == [
        "support-mean",
        "ridge",
        "gaussian-process",
        "ridge-seasonal",
        "gaussian-process-seasonal",
        "gradient-boosting",
        "gradient-boosting-offset",
        "gradient-boosting-summaries",
    ]
    assert not any("seasonal" in one.name for one in regression_baselines())


def test_the_support_mean_is_exact(train, val, test):
    task = test[0]
    answer = support_mean().fit(train, val).predict(task.support_x, task.support_y, task.query_x)
    np.testing.assert_allclose(answer.mean, np.full(20, task.support_y.astype(float).mean()), rtol=1e-12)


def test_the_noise_of_the_support_mean_shrinks_the_supports_variance(train, val, test):
    """Variance (1 + 1/n) (strength prior + squares) / (strength + n - 1), with squares about the mean."""
    task, model = test[0], support_mean().fit(train, val)
    spread = model._spread
    y = task.support_y.astype(float)
    noise = (spread.strength * spread.variance + ((y - y.mean()) ** 2).sum()) / (spread.strength + 9)
    answer = model.predict(task.support_x, task.support_y, task.query_x)
    np.testing.assert_allclose(answer.std, np.full(20, np.sqrt(noise * 1.1)), rtol=1e-10)


def test_ridge_is_that_of_scikit_learn_on_standardised_inputs(train, val, test):
    model, task = ridge().fit(train, val), test[0]
    mean, std = train.x.mean(0, dtype=float), train.x.std(0, dtype=float)
    reference = Ridge(alpha=model.setting[0]).fit((task.support_x - mean) / std, task.support_y.astype(float))
    answer = model.predict(task.support_x, task.support_y, task.query_x)
    np.testing.assert_allclose(answer.mean, reference.predict((task.query_x - mean) / std), rtol=1e-8)


def test_the_spread_of_ridge_is_that_of_bayesian_regression(train, val, test):
    """In weights, not in kernels: 1 + 1/n + d' (X'X + alpha)^-1 d with inputs about the support's mean."""
    model, task = ridge().fit(train, val), test[0]
    mean, std = train.x.mean(0, dtype=float), train.x.std(0, dtype=float)
    support, query = ((x - mean) / std for x in (task.support_x, task.query_x))
    centred, apart, y = support - support.mean(0), query - support.mean(0), task.support_y.astype(float)
    inverse = np.linalg.inv(centred.T @ centred + model.setting[0] * np.eye(3))
    shape = 1 + 1 / 10 + np.einsum("qi,ij,qj->q", apart, inverse, apart)
    weights = inverse @ centred.T @ (y - y.mean())
    squares = ((y - y.mean() - centred @ weights) ** 2).sum() + model.setting[0] * weights @ weights
    spread = model._spread
    noise = (spread.strength * spread.variance + squares) / (spread.strength + 9)
    answer = model.predict(task.support_x, task.support_y, task.query_x)
    np.testing.assert_allclose(answer.std, np.sqrt(noise * shape), rtol=1e-8)


def test_seasonal_ridge_sees_the_sine_and_cosine_of_time_alone(train, val, test):
    model, task = ridge(0).fit(train, val), test[0]

    def circle(x):
        angle = 2 * np.pi * x[:, 0].astype(float)
        return np.stack([np.sin(angle), np.cos(angle)], 1)

    reference = Ridge(alpha=model.setting[0]).fit(circle(task.support_x), task.support_y.astype(float))
    answer = model.predict(task.support_x, task.support_y, task.query_x)
    np.testing.assert_allclose(answer.mean, reference.predict(circle(task.query_x)), rtol=1e-8)


def test_the_gaussian_process_is_that_of_scikit_learn(train, val, test):
    """A free level is a constant kernel of great variance."""
    model, task = gaussian_process().fit(train, val), test[0]
    signal, length = model.setting
    free = 1e6
    kernel = ConstantKernel(free) + ConstantKernel(signal) * RBF(length * 3**0.5) + WhiteKernel(1.0)
    mean, std = train.x.mean(0, dtype=float), train.x.std(0, dtype=float)
    reference = GaussianProcessRegressor(kernel, optimizer=None)  # pyright: ignore
    reference.fit((task.support_x - mean) / std, task.support_y.astype(float))
    want_mean, want_std = np.asarray(reference.predict((task.query_x - mean) / std, return_std=True))
    answer = model.predict(task.support_x, task.support_y, task.query_x)
    np.testing.assert_allclose(answer.mean, want_mean, rtol=1e-4, atol=1e-4)
    # Both know the noise up to one factor for the whole task.
    np.testing.assert_allclose(answer.std / answer.std[0], want_std / want_std[0], rtol=1e-4)
    fitted = model._fitted(task.support_x, task.support_y, task.query_x, model.setting)
    np.testing.assert_allclose(fitted.shape, want_std**2, rtol=1e-4)
    y = task.support_y.astype(float)
    np.testing.assert_allclose(fitted.squares, y @ reference.alpha_, rtol=1e-3)


def test_settings_are_those_with_the_smallest_error_on_validation_tasks(train, val):
    model = ridge().fit(train, val)
    errors = {}
    for setting in model.grid:
        errors[setting] = mse(replace(ridge(), grid=(setting,)).fit(train, val), val)
    assert model.setting == min(errors, key=lambda setting: errors[setting])
    assert len(set(errors.values())) == len(errors)


def test_the_season_decides_where_only_time_matters():
    """Groups with their own amplitude and phase: what the seasonal rows are for."""
    rng = np.random.default_rng(3)

    def group(count):
        x = rng.normal(size=(count, 8)).astype(np.float32)
        x[:, 4] = rng.uniform(size=count)
        y = rng.uniform(5, 20) * np.sin(2 * np.pi * (x[:, 4] + rng.uniform())) + rng.normal(0, 1, count)
        return x, y.astype(np.float32)

    def tasks(count):
        return [NumpyTask(x[:10], y[:10], x[10:], y[10:]) for x, y in (group(30) for _ in range(count))]

    train, val, test = pool([group(30) for _ in range(20)]), tasks(25), tasks(25)
    for seasonal, plain in ((ridge(4), ridge()), (gaussian_process(4), gaussian_process())):
        assert mse(seasonal.fit(train, val), test) < 0.1 * mse(plain.fit(train, val), test)


# Spread


def test_the_spread_finds_noise_that_all_tasks_share():
    rng = np.random.default_rng(0)
    y = [rng.normal(0, 3, 200) for _ in range(100)]
    squares = (9 * rng.chisquare(4, 100)).tolist()
    spread = fit_spread([Fitted(np.zeros(200), np.ones(200), s, 4) for s in squares], y, 1e-3)
    assert spread.variance == pytest.approx(9, rel=0.1)
    assert spread.strength > 30


def test_the_spread_follows_tasks_whose_noise_differs():
    rng = np.random.default_rng(0)
    noise = np.exp(rng.normal(0, 1.5, 300))
    y = [rng.normal(0, s, 50) for s in noise]
    squares = noise**2 * rng.chisquare(20, 300)
    fitted = [Fitted(np.zeros(50), np.ones(50), float(s), 20) for s in squares]
    spread = fit_spread(fitted, y, 1e-3)
    assert spread.strength <= 4
    got = np.array([spread.normal(one).std[0] for one in fitted])
    assert np.median(np.abs(np.log(got / noise))) < 0.2


def test_the_spread_has_a_floor():
    answer = Spread(0.0, 1.0, 0.25).normal(Fitted(np.zeros(2), np.ones(2), 0.0, 3))
    np.testing.assert_array_equal(answer.std, [0.25, 0.25])


def test_intervals_cover_what_they_promise(fitted):
    """90 % intervals on 2,000 query targets of tasks that no setting was chosen on."""
    tasks = draw_tasks(np.random.default_rng(5), 100)
    for name, baseline in fitted.items():
        answers = [baseline.predict(t.support_x, t.support_y, t.query_x) for t in tasks]
        score = np.array([(t.query_y - a.mean) / a.std for t, a in zip(tasks, answers, strict=True)])
        assert np.mean(np.abs(score) < 1.645) == pytest.approx(0.9, abs=0.05), name
        assert np.mean(score**2) == pytest.approx(1, abs=0.3), name


# Gradient boosting


def test_the_offset_is_the_shrunk_mean_residual(fitted, test):
    plain, offset, task = fitted["gradient-boosting"], fitted["gradient-boosting-offset"], test[0]
    value = plain.predict(task.support_x, task.support_y, task.query_x).mean
    residual = task.support_y - plain.predict(task.support_x, task.support_y, task.support_x).mean
    want = value + residual.sum() / (10 + offset.shrinkage)
    answer = offset.predict(task.support_x, task.support_y, task.query_x)
    np.testing.assert_allclose(answer.mean, want, rtol=1e-6)
    moved = offset.predict(task.support_x, task.support_y + np.float32(11), task.query_x).mean
    np.testing.assert_allclose(moved - answer.mean, 11 * 10 / (10 + offset.shrinkage), rtol=1e-4)


def test_the_noise_of_the_offset_is_that_of_a_random_offset(fitted, test):
    """Squares r' (I + 11'/shrinkage)^-1 r and variance 1 + 1/(n + shrinkage), by matrices."""
    offset, task = fitted["gradient-boosting-offset"], test[0]
    plain = offset.plain
    residual = task.support_y - plain.value(task.support_x)
    covariance = np.eye(10) + np.ones((10, 10)) / offset.shrinkage
    squares = residual @ np.linalg.solve(covariance, residual)
    shape = 1 + 1 / offset.shrinkage - (10 / offset.shrinkage**2) / (1 + 10 / offset.shrinkage)
    spread = offset._spread
    noise = (spread.strength * spread.variance + squares) / (spread.strength + 10)
    answer = offset.predict(task.support_x, task.support_y, task.query_x)
    np.testing.assert_allclose(answer.std, np.sqrt(noise * shape), rtol=1e-5)


def test_what_the_support_says_beats_the_plain_model_where_groups_differ_by_an_offset(fitted, test):
    """Offsets of variance 25 against noise of 0.25: the plain model cannot know the first."""
    plain, offset, summaries = (
        mse(fitted[name], test)
        for name in ("gradient-boosting", "gradient-boosting-offset", "gradient-boosting-summaries")
    )
    assert plain > 10
    assert summaries < 0.1 * plain
    assert offset < 0.1 * plain
    assert summaries < 0.5 * mse(fitted["support-mean"], test)


def test_the_plain_model_ignores_the_support(fitted, test):
    task, plain = test[0], fitted["gradient-boosting"]
    one = plain.predict(task.support_x, task.support_y, task.query_x)
    other = plain.predict(task.support_x[:2], task.support_y[:2] + 100, task.query_x)
    np.testing.assert_array_equal(one.mean, other.mean)
    np.testing.assert_array_equal(one.std, other.std)


def test_learning_again_from_the_same_data_costs_nothing(train, val):
    plain = Boosting(FEW).fit(train, val)
    model = plain._model
    OffsetBoosting(plain).fit(train, val)
    assert plain._model is model
    assert plain.fit(train, list(val))._model is not model


def test_summaries_are_what_they_say(train, fitted):
    """Two labelled days, one of them across the turn of the year from the query."""
    model = fitted["gradient-boosting-summaries"]
    support_x = np.array([[0.95, 1.0, 0.0], [0.4, 0.0, 0.0]], dtype=np.float32)
    support_y = np.array([10.0, 4.0], dtype=np.float32)
    query = np.array([[0.05, 0.0, 0.0]], dtype=np.float32)
    row = model.features(support_x, support_y, query)[0]
    np.testing.assert_array_equal(row[:3], query[0])
    np.testing.assert_allclose(row[3:8], [2, 7, 3, -3, 3])
    std = train.x.std(0, dtype=float)
    distances = np.sqrt((((support_x - query) / std) ** 2).sum(1))
    assert distances.argmin() == 1  # far in time, near in all
    np.testing.assert_allclose(row[8:10], [-3, distances[1]], rtol=1e-5)
    np.testing.assert_allclose(row[10:12], [3, 0.1], rtol=1e-5)  # 0.95 is 0.1 from 0.05
    lines = [one.predict(support_x, support_y, query).mean[0] - 7 for one in model._linear]
    np.testing.assert_allclose(row[12:14], lines, rtol=1e-5)
    np.testing.assert_allclose(row[14:], (query - support_x.mean(0))[0], rtol=1e-5)
    silent = model.features(support_x[:0], support_y[:0], query)[0]
    assert silent.shape == row.shape
    assert silent[3] == 0
    assert np.isnan(silent[4:]).all()


def test_without_a_time_input_the_first_input_counts_as_it_is(train, val):
    model = SummaryBoosting(FEW).fit(train, val)
    support_x = np.array([[0.95, 0.0, 0.0], [0.4, 0.0, 0.0]], dtype=np.float32)
    row = model.features(support_x, np.array([10.0, 4.0], dtype=np.float32), np.zeros((1, 3), np.float32) + 0.05)[0]
    np.testing.assert_allclose(row[10:12], [-3, 0.35], rtol=1e-5)
    assert len(row) == 3 + 5 + 4 + 1 + 3


def test_a_simulated_task_has_one_group_and_no_row_twice():
    """Targets are row numbers, so that a row in its own support would show."""
    sizes = (1, 5, 50, 200)
    group = np.repeat(np.arange(4), sizes)[::-1].copy()
    rows = np.arange(sum(sizes))
    train = Pooled(rows[:, None].astype(np.float32), rows.astype(np.float32), group)
    config = replace(FEW, shots=(2, 40), max_passes=30)
    seen: set[int] = set()
    for task in simulate(train, [], config):
        support, query = task.support_y.astype(int), task.query_y.astype(int)
        assert not set(support) & set(query)
        assert len({*group[support], *group[query]}) == 1
        assert len(query) == len(set(query)) >= 1
        seen.add(len(support))
        np.testing.assert_array_equal(task.query_x[:, 0], task.query_y)
    assert {0, 2, 40} <= seen
    assert max(seen) == 40


def test_simulated_tasks_have_the_supports_of_validation_tasks_unless_told(train, val):
    sizes = {len(task.support_y) for task in simulate(train, val, FEW)}
    assert sizes == {0, 10}
    told = {len(task.support_y) for task in simulate(train, val, replace(FEW, shots=(3, 4)))}
    assert told == {0, 3, 4}


def test_simulated_rows_are_bounded(train, val):
    rows = sum(len(task.query_y) for task in simulate(train, val, replace(FEW, max_rows=100)))
    assert 100 <= rows < 100 + FEW.rows_per_draw


def test_a_row_never_sees_its_own_target():
    """Pure noise cannot be predicted from other rows; a model that saw a row's own target would learn to copy it."""
    rng = np.random.default_rng(0)

    def group(count):
        return np.repeat(rng.normal(size=(1, 2)), count, 0).astype(np.float32), rng.normal(size=count).astype(
            np.float32
        )

    train = pool([group(12) for _ in range(100)])
    tasks = [NumpyTask(x[:4], y[:4], x[4:], y[4:]) for x, y in (group(24) for _ in range(60))]
    model = SummaryBoosting(FEW).fit(train, tasks[:30])
    assert mse(model, tasks[30:]) > 0.9


def test_the_support_never_predicts_itself_in_the_spread():
    """Held-out residuals of pure noise keep their size: the predicted spread stays that of the noise."""
    rng = np.random.default_rng(0)
    make = lambda count: (rng.normal(size=(count, 2)).astype(np.float32), rng.normal(size=count).astype(np.float32))  # noqa: E731
    tasks = [NumpyTask(x[:8], y[:8], x[8:], y[8:]) for x, y in (make(28) for _ in range(60))]
    model = SummaryBoosting(FEW).fit(pool([make(30) for _ in range(60)]), tasks[:30])
    squares = [model._fitted(t.support_x, t.support_y, t.query_x).squares / 8 for t in tasks]
    assert np.mean(squares) == pytest.approx(1.0, abs=0.25)


def test_query_targets_never_reach_predict():
    for one in (*regression_baselines(), *class_baselines(2)):
        assert list(inspect.signature(one.predict).parameters) == ["support_x", "support_y", "query_x"]


def test_the_same_seed_gives_the_same_answers(train, val, test):
    task = test[0]
    one, again, other = (
        SummaryBoosting(replace(FEW, seed=seed, max_iter=20))
        .fit(train, val[:10])
        .predict(task.support_x, task.support_y, task.query_x)
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(one.mean, again.mean)
    np.testing.assert_array_equal(one.std, again.std)
    assert np.abs(one.mean - other.mean).max() > 1e-6


def test_boosting_takes_the_setting_with_the_lowest_validation_loss(train, val):
    x, loss = np.concatenate([t.query_x for t in val]), squared_loss(val)
    config = replace(FEW, learning_rate=(1e-4, 0.3))
    model = boost("real", train.x, train.y, lambda model: loss(model.predict(x)), config)
    assert model.learning_rate == 0.3


def test_boosting_keeps_the_last_look_that_gained(train):
    losses, seen = iter([5.0, 4.0, 3.0, 3.5, 1.0]), []

    def loss(model):
        seen.append(model.n_iter_)
        return next(losses)

    model = boost("real", train.x, train.y, loss, replace(FEW, max_iter=1000, first_look=10))
    assert seen == [10, 20, 30, 45]
    assert model.n_iter_ == 30


def test_boosting_ends_with_the_most_trees(train):
    losses = iter([3.0, 2.0, 1.0])
    assert boost("real", train.x, train.y, lambda model: next(losses), replace(FEW, max_iter=50)).n_iter_ == 50


def test_boosting_trains_on_a_bounded_number_of_rows(train, monkeypatch):
    sizes = []
    monkeypatch.setattr(
        "sklearn.ensemble.HistGradientBoostingRegressor.fit", lambda self, x, y: sizes.append(len(y)) or self
    )
    config = replace(FEW, learning_rate=(0.1, 0.2), max_iter=10, max_rows=300, tuning_rows=100)
    boost("real", train.x, train.y, lambda model: 0.0, config)
    assert sizes == [100, 100, 300]


def test_boosting_leaves_the_filters_of_warnings_alone(train, monkeypatch):
    """Threads of scikit-learn that enter `catch_warnings` at once can leave the list of filters empty."""

    def fit(self, x, y):
        del x, y
        warnings.filters = []
        warnings.warn("filters are lost", stacklevel=1)
        return self

    before = list(warnings.filters)
    monkeypatch.setattr("sklearn.ensemble.HistGradientBoostingRegressor.fit", fit)
    boost("real", train.x, train.y, lambda model: 0.0, FEW)
    assert list(warnings.filters) == before


def test_tasks_count_alike_whatever_their_size():
    x = np.zeros((0, 1), np.float32)
    tasks = [NumpyTask(x, np.zeros(0), np.zeros((n, 1), np.float32), np.arange(n, dtype=float)) for n in (1, 4)]
    np.testing.assert_allclose(row_shares(tasks), [0.5, 0.125, 0.125, 0.125, 0.125])
    assert squared_loss(tasks)(np.ones(5)) == pytest.approx((1 + (1 + 0 + 1 + 4) / 4) / 2)


# Odd data


def test_an_empty_support_is_answered_from_the_training_rows(fitted, train):
    query = np.array([[0.25, 1.0, 0.0], [0.75, -1.0, 0.0]], dtype=np.float32)
    none_x, none_y = np.zeros((0, 3), np.float32), np.zeros(0, np.float32)
    for name, baseline in fitted.items():
        answer = baseline.predict(none_x, none_y, query)
        assert np.isfinite(answer.mean).all()
        assert (answer.std > 0).all()
        if not name.startswith("gradient"):
            np.testing.assert_allclose(answer.mean, train.y.mean(), rtol=1e-4)
            np.testing.assert_allclose(answer.std, train.y.std(), rtol=1e-4)
        else:  # the inputs still tell: 3 in the mean between these two, to which trees come near
            assert answer.mean[0] - answer.mean[1] > 2, name


def test_validation_tasks_without_support_do_not_stop_a_fit(train, val):
    none = [NumpyTask(t.support_x[:0], t.support_y[:0], t.query_x, t.query_y) for t in val[:8]]
    for baseline in rows_of_a_table(0):
        answer = baseline.fit(train, none).predict(none[0].support_x, none[0].support_y, none[0].query_x)
        assert np.isfinite(np.stack(answer)).all()


@pytest.mark.parametrize("shots", [0, 2])
def test_a_constant_target_gives_a_small_spread_above_zero(shots):
    x = np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32)
    y = np.full(30, 50.0, dtype=np.float32)
    task = NumpyTask(x[:shots], y[:shots], x[10:], y[10:])
    for baseline in rows_of_a_table():
        answer = baseline.fit(Pooled(x, y, np.arange(30) // 10), [task]).predict(x[:shots], y[:shots], x[:3])
        np.testing.assert_allclose(answer.mean, 50, rtol=1e-5)
        assert ((answer.std > 0) & (answer.std < 1e-3)).all()
    scores = score_baseline(support_mean().fit(Pooled(x, y, np.arange(30) // 10), [task]), frozen([task]))
    assert all(np.isfinite(values).all() for values in scores.values.values())


def test_constant_inputs_and_equal_rows_are_no_obstacle(val):
    x, y = np.ones((40, 3), np.float32), np.arange(40, dtype=np.float32)
    for baseline in rows_of_a_table(0):
        answer = baseline.fit(Pooled(x, y, np.arange(40) // 10), val[:8]).predict(x[:5], y[:5], x[:2])
        assert np.isfinite(np.stack(answer)).all()
        assert answer.mean[0] == answer.mean[1]


def test_one_group_is_enough(val):
    x, y = draw_group(np.random.default_rng(0), 100)
    for baseline in rows_of_a_table(0):
        task = val[0]
        answer = baseline.fit(Pooled(x, y, np.zeros(100, int)), val[:8]).predict(
            task.support_x, task.support_y, task.query_x
        )
        assert np.isfinite(np.stack(answer)).all()


@pytest.mark.parametrize("make", [support_mean, Boosting, OffsetBoosting, SummaryBoosting, lambda: Logistic(2)])
def test_numbers_that_cannot_be_learnt_from_are_refused(train, val, make):
    broken = train.x.copy()
    broken[3, 1] = np.nan
    with pytest.raises(SourceError, match=r"the training table holds NaN or infinity. Drop or fill those rows."):
        make().fit(replace(train, x=broken), val)
    bad = replace(val[2], query_y=np.full_like(val[2].query_y, np.inf))
    with pytest.raises(SourceError, match="validation task 2 holds NaN or infinity"):
        make().fit(train, [val[0], val[1], bad])
    with pytest.raises(SourceError, match="got 2400 rows and 0 tasks"):
        make().fit(train, [])
    with pytest.raises(SourceError, match="got 0 rows and 40 tasks"):
        make().fit(Pooled(train.x[:0], train.y[:0], train.group[:0]), val)
    with pytest.raises(SourceError, match="validation task 0 has 3 inputs; expected 2 as in training"):
        make().fit(replace(train, x=train.x[:, :2].copy()), val)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"shots": (5, 2)}, r"shots must be a range of support sizes, such as \(2, 40\); got \(5, 2\)"),
        ({"shots": (-1, 2)}, "shots must be a range"),
        ({"max_rows": 0}, "max_rows must be 1 or more; got 0"),
        ({"first_look": 0}, "first_look must be 1 or more; got 0"),
        ({"learning_rate": ()}, "each need a value to try"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong, message):
    with pytest.raises(SettingError, match=message):
        BoostingConfig(**wrong)


@pytest.mark.parametrize("time_input", [3, -1])
def test_a_time_input_that_does_not_exist_is_refused(train, val, time_input):
    for baseline in (ridge(time_input), gaussian_process(time_input), SummaryBoosting(FEW, time_input)):
        with pytest.raises(SettingError, match=f"time_input must be 0 to 2, an input's index; got {time_input}"):
            baseline.fit(train, val)


# Scores


def test_scores_are_those_of_the_metrics(fitted, test):
    tasks, baseline = frozen(test[:3]), fitted["ridge"]
    scores = score_baseline(baseline, tasks)
    task = test[2]
    answer = baseline.predict(task.support_x, task.support_y, task.query_x)
    loc, scale = (jnp.asarray(a, dtype=jnp.float32)[None, :, None] for a in answer)
    want = score_task(Prediction(NormalOutcome(loc, scale)), jnp.asarray(task.query_y)[:, None], jnp.ones(20))
    assert scores.values.keys() == want.keys()
    assert next(iter(scores.values)) == "mse"
    for name, value in want.items():
        np.testing.assert_allclose(scores.values[name][2], value, rtol=1e-4, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(scores.values["mse"][2], np.mean((task.query_y - answer.mean) ** 2), rtol=1e-4)
    np.testing.assert_array_equal(scores.family, [0, 1, 0])
    assert (scores.digest, scores.num_samples) == ("digest", 1)


def test_clean_targets_are_scored_where_known(fitted, test):
    tasks = frozen(test[:3])
    clean = jnp.asarray(tasks.batch.tasks.query.y) + 1
    scores = score_baseline(
        fitted["ridge"], replace(tasks, stored=TaskBatch(tasks.batch.tasks, jnp.zeros(3, dtype=int), clean))
    )
    assert "mse_clean" in scores.values
    assert np.abs(scores.values["mse_clean"] - scores.values["mse"]).min() > 1e-3


def test_rows_of_no_weight_change_nothing(fitted, test):
    for name in ("ridge", "gradient-boosting-offset", "gradient-boosting-summaries"):
        baseline = fitted[name]
        plain, padded = (score_baseline(baseline, frozen(test[:3], size=s, filler=1e3)) for s in (None, 33))
        for metric, values in plain.values.items():
            np.testing.assert_allclose(padded.values[metric], values, rtol=1e-4, atol=1e-6, err_msg=f"{name} {metric}")


def test_tasks_lose_their_padding_and_keep_their_rows(test):
    back = numpy_tasks(frozen(test[:3], size=25, filler=7.0))
    for got, want in zip(back, test[:3], strict=True):
        for name in ("support_x", "support_y", "query_x", "query_y"):
            np.testing.assert_array_equal(getattr(got, name), getattr(want, name))


def test_inputs_of_any_shape_become_rows():
    x, y = np.arange(48.0).reshape(1, 2, 4, 6), np.zeros((1, 2, 1))
    (task,) = numpy_tasks(TaskSet(TaskBatch.of(x, y, x, y), "d"))
    np.testing.assert_array_equal(task.query_x, np.arange(48.0).reshape(2, 24))


def test_progress_is_told(fitted, test):
    heard = []
    with listening(heard.append):
        score_baseline(fitted["ridge"], frozen(test[:3]))
    assert heard == [Told("scoring ridge", done, 3) for done in (1, 2, 3)]


def test_what_a_baseline_cannot_predict_is_refused(fitted, test):
    x = np.zeros((2, 3, 4))
    with pytest.raises(SettingError, match="these tasks have 2 targets an example; the baselines predict one"):
        numpy_tasks(TaskSet(TaskBatch.of(x, np.zeros((2, 3, 2)), x, np.zeros((2, 3, 2))), "d"))
    classes = [replace(t, support_y=(t.support_y > 0).astype(int), query_y=(t.query_y > 0).astype(int)) for t in test]
    with pytest.raises(SettingError, match="ridge predicts real numbers, but the targets here are classes"):
        score_baseline(fitted["ridge"], frozen(classes))
    model = SupportFrequency(2).fit(Pooled(np.zeros((2, 3)), np.array([0, 1]), np.array([0, 0])), classes)
    with pytest.raises(SettingError, match="support-frequency predicts classes, but the targets here are real"):
        score_baseline(model, frozen(test))


# Classes


def draw_classes(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Three classes in two inputs; each group has its own centres, so that the inputs alone say little."""
    centres = rng.normal(0, 2, (3, 2))
    y = rng.integers(0, 3, count)
    return (centres[y] + rng.normal(0, 0.5, (count, 2))).astype(np.float32), y


@pytest.fixture(scope="module")
def class_data() -> tuple[Pooled, list[NumpyTask], list[NumpyTask]]:
    rng = np.random.default_rng(0)
    tasks = [NumpyTask(x[:12], y[:12], x[12:], y[12:]) for x, y in (draw_classes(rng, 32) for _ in range(60))]
    return pool([draw_classes(rng, 40) for _ in range(60)]), tasks[:30], tasks[30:]


@pytest.fixture(scope="module")
def class_fitted(class_data) -> dict[str, Any]:
    return {one.name: one.fit(*class_data[:2]) for one in class_baselines(3, boosting=FEW)}


def test_what_the_support_says_about_classes_beats_the_plain_model(class_data, class_fitted):
    train, val, test = class_data
    scores = {
        b.name: score_baseline(b.fit(train, val), frozen(test)).summary() for b in class_baselines(3, boosting=FEW)
    }
    assert list(scores) == ["support-frequency", "logistic", "gradient-boosting", "gradient-boosting-summaries"]
    accuracy = {name: score["accuracy"]["mean"] for name, score in scores.items()}
    nll = {name: score["nll"]["mean"] for name, score in scores.items()}
    assert accuracy["support-frequency"] < 0.5
    assert accuracy["gradient-boosting"] < 0.5
    assert accuracy["logistic"] > 0.85
    assert accuracy["gradient-boosting-summaries"] > 0.85
    assert nll["support-frequency"] == pytest.approx(np.log(3), abs=0.1)
    assert max(nll["logistic"], nll["gradient-boosting-summaries"]) < 0.6 * nll["gradient-boosting"]


def test_class_scores_are_those_of_the_metrics(class_data, class_fitted):
    model, test = class_fitted["logistic"], class_data[2]
    scores, task = score_baseline(model, frozen(test[:3])), test[1]
    answer = model.predict(task.support_x, task.support_y, task.query_x)
    outcome = CategoricalOutcome(jnp.log(jnp.asarray(answer, dtype=jnp.float32))[None])
    want = score_task(Prediction(outcome), jnp.asarray(task.query_y), jnp.ones(20))
    np.testing.assert_allclose(scores.values["accuracy"][1], np.mean(answer.argmax(1) == task.query_y), rtol=1e-6)
    for name, value in want.items():
        np.testing.assert_allclose(scores.values[name][1], value, rtol=1e-4, err_msg=name)


def test_class_shares_are_smoothed(class_data, class_fitted):
    train, model = class_data[0], class_fitted["support-frequency"]
    counts = np.bincount(train.y, minlength=3) + 1
    want = (np.array([2, 1, 0]) + model.prior_count * counts / counts.sum()) / (3 + model.prior_count)
    answer = model.predict(train.x[:3], np.array([0, 1, 0]), train.x[:2])
    np.testing.assert_allclose(answer, np.stack([want, want]))


def test_logistic_regression_is_that_of_scikit_learn_mixed_with_class_shares(class_data, class_fitted):
    train, _, test = class_data
    model, task = class_fitted["logistic"], test[0]
    mean, std = train.x.mean(0, dtype=float), train.x.std(0, dtype=float)
    penalty, blend = model.setting
    reference = LogisticRegression(C=penalty, max_iter=1000).fit((task.support_x - mean) / std, task.support_y)
    shares = model._shares.predict(task.support_x, task.support_y, task.query_x)
    want = (1 - blend) * reference.predict_proba((task.query_x - mean) / std) + blend * shares
    answer = model.predict(task.support_x, task.support_y, task.query_x)
    np.testing.assert_allclose(answer, want, atol=1e-5)


def test_class_summaries_are_what_they_say(class_data, class_fitted):
    train, model = class_data[0], class_fitted["gradient-boosting-summaries"]
    std = train.x.std(0, dtype=float)
    support_x = np.array([[0, 0], [2, 0], [0, 1], [9, 9]], dtype=np.float32)
    row = model.features(support_x, np.array([0, 0, 2, 2]), np.array([[0.1, 0.0]], dtype=np.float32))[0]
    np.testing.assert_allclose(row[:3], [0.1, 0, 4], rtol=1e-6)
    np.testing.assert_allclose(row[3:6], [0.5, 0, 0.5])
    np.testing.assert_allclose(row[6:9], [1, 0, 0])
    np.testing.assert_allclose(row[9:12], [2 / 3, 0, 1 / 3], rtol=1e-6)
    to_means = [np.linalg.norm(np.array([0.9, 0]) / std), np.nan, np.linalg.norm(np.array([4.4, 5]) / std)]
    np.testing.assert_allclose(row[12:], to_means, rtol=1e-4)


def test_supports_without_a_class_or_any_row_still_get_probabilities(class_data):
    train, val, test = class_data
    task = test[0]
    for baseline in class_baselines(4, boosting=FEW):  # the fourth class is never seen
        baseline.fit(train, val[:10])
        for rows in (task.support_y == 1, task.support_y < 0, task.support_y < 2):
            answer = np.asarray(baseline.predict(task.support_x[rows], task.support_y[rows], task.query_x))
            assert answer.shape == (20, 4)
            assert (answer > 0).all()
            np.testing.assert_allclose(answer.sum(1), 1, rtol=1e-9)


def test_a_single_class_in_training_is_no_obstacle(class_data):
    train, _, test = class_data
    one = replace(train, y=np.zeros_like(train.y))
    tasks = [replace(t, support_y=t.support_y * 0, query_y=t.query_y * 0) for t in test]
    for baseline in class_baselines(2, boosting=FEW):
        scores = score_baseline(baseline.fit(one, tasks), frozen(tasks[:2]))
        np.testing.assert_allclose(scores.values["accuracy"], [1, 1], rtol=1e-6)


def test_targets_that_are_no_classes_are_refused(class_data, train, val):
    with pytest.raises(SourceError, match="the classes are float32 numbers; expected integers from 0 to 1"):
        SupportFrequency(2).fit(train, val)
    pooled, tasks, _ = class_data
    with pytest.raises(SourceError, match="the classes must be 0 to 1; found 0 to 2"):
        Logistic(2).fit(pooled, tasks)
    with pytest.raises(SettingError, match="num_classes must be 2 or more; got 1"):
        class_baselines(1)


def test_an_answer_is_a_normal(fitted, test):
    task = test[0]
    for baseline in fitted.values():
        answer = baseline.predict(task.support_x, task.support_y, task.query_x)
        assert isinstance(answer, Normal)
        assert answer.mean.shape == answer.std.shape == (20,)
