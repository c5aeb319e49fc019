"""2D regression: the six families, their ranges and noise, and the frozen test sets."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stmaml.benchmarks.regression2d import FAMILIES, Config, Curves, draw_coefficients, draw_inputs, evaluate_family
from stmaml.benchmarks.sources import Pool, check_batch, freeze, measure_scaling
from stmaml.errors import SettingError
from stmaml.tasks import TaskBatch

NAMES = [family.name for family in FAMILIES]
WIDE = Config(input_range=(-5.0, 5.0), query_size=10)


def draw(settings: Config, num_tasks: int, key, **source) -> TaskBatch:
    return jax.jit(lambda key: Curves(settings, **source).sample(num_tasks, key=key))(key)


@pytest.fixture(scope="module")
def many() -> TaskBatch:
    """2,000 tasks of each family in all, x in -5..5."""
    return draw(dataclasses.replace(WIDE, balanced=True), 12_000, jr.key(0))


def test_tasks_fit_their_spec(key):
    source = Curves(Config(shots=7, query_size=9))
    batch = source.sample(6, key=key)
    check_batch(batch, source.spec)
    assert batch.tasks.support.x.shape == (6, 7, 2)
    assert batch.tasks.query.y.shape == (6, 9, 1)
    assert batch.clean is not None
    assert batch.clean.shape == (6, 9, 1)


def test_the_same_key_gives_the_same_tasks_and_another_key_others(key):
    first, again, other = (draw(Config(), 6, k) for k in (key, key, jr.key(1)))
    for a, b, c in zip(*map(jax.tree.leaves, (first, again, other)), strict=True):
        np.testing.assert_array_equal(a, b)
        assert (a != c).any() or (a == 1).all()


def test_all_families_appear_about_equally_often(key):
    counts = np.bincount(draw(Config(), 3000, key).family, minlength=6)
    assert len(counts) == 6
    assert (np.abs(counts - 500) < 5 * np.sqrt(500 * 5 / 6)).all()


@pytest.mark.parametrize("num_tasks", [6, 36])
def test_balanced_batches_have_every_family_equally_often(num_tasks, key):
    for i in range(5):
        family = draw(dataclasses.replace(WIDE, balanced=True), num_tasks, jr.fold_in(key, i)).family
        np.testing.assert_array_equal(np.bincount(family, minlength=6), np.full(6, num_tasks // 6))


def test_balanced_batches_begin_anywhere(key):
    first = {int(Curves(Config(balanced=True)).sample(1, key=jr.fold_in(key, i)).family[0]) for i in range(40)}
    assert first == set(range(6))


def test_support_and_query_are_different_points(many):
    support, query = (np.asarray(part.x)[:, :, 0] for part in (many.tasks.support, many.tasks.query))
    assert not (support[:200, :, None] == query[:200, None, :]).any()


def test_inputs_fill_their_range(many, key):
    x1 = np.asarray(many.tasks.query.x)[..., 0]
    assert -5 <= x1.min() < -4.99 < 4.99 < x1.max() <= 5
    np.testing.assert_allclose(x1.var(), 100 / 12, rtol=0.02)
    low = np.asarray(draw(Config(), 500, key).tasks.support.x)[..., 0]
    assert 0 <= low.min() < 0.05 < 4.95 < low.max() <= 5


def test_x2_is_1_where_it_is_not_used(many):
    x2, family = np.asarray(many.tasks.support.x)[..., 1], np.asarray(many.family)
    assert (x2[family < 4] == 1).all()
    np.testing.assert_allclose(x2[family >= 4].var(), 100 / 12, rtol=0.03)


@pytest.mark.parametrize(
    ("name", "coefficients", "x", "want"),
    [
        ("sinusoid", (2.0, 1.1, 0.5), (3.0, 1.0), 2 * math.sin(1.1 * 3 + 0.5)),
        ("line", (-2.0, 0.5), (3.0, 1.0), -5.5),
        ("quadratic", (0.1, -1.0, 2.0), (-3.0, 1.0), 0.9 + 3.0 + 2.0),
        ("cubic", (0.1, -0.2, 1.5, -1.0), (2.0, 1.0), 0.8 - 0.8 + 3.0 - 1.0),
        ("surface", (0.5, -1.0), (2.0, 3.0), 2.0 - 9.0),
        ("ripple", (0.2, -1.0), (1.0, 2.0), math.sin(-1.0) - 1.0),
    ],
)
def test_each_family_has_its_formula(name, coefficients, x, want):
    padded = jnp.array([*coefficients, *[0.0] * (4 - len(coefficients))])
    got = evaluate_family(jnp.asarray(NAMES.index(name)), padded, jnp.array([x]))
    np.testing.assert_allclose(got, [want], rtol=1e-5)


RANGES = {
    "sinusoid": [(0.1, 5.0), (0.8, 1.2), (0.0, 2 * math.pi)],
    "line": [(-3, 3), (-3, 3)],
    "quadratic": [(-0.2, 0.2), (-2, 2), (-3, 3)],
    "cubic": [(-0.1, 0.1), (-0.2, 0.2), (-2, 2), (-3, 3)],
    "surface": [(-1, 1), (-1, 1)],
    "ripple": [(-0.2, 0.2), (-3, 3)],
}


@pytest.mark.parametrize("name", NAMES)
def test_coefficients_fill_their_ranges(name, key):
    """Uniform: 4,000 draws come within a hundredth of both ends, and have the mean of the range."""
    family = jnp.asarray(NAMES.index(name))
    drawn = np.asarray(jax.vmap(lambda k: draw_coefficients(family, key=k))(jr.split(key, 4000)))
    for i, (low, high) in enumerate(RANGES[name]):
        width = high - low
        assert low - 1e-6 <= drawn[:, i].min() < low + 0.01 * width
        assert high - 0.01 * width < drawn[:, i].max() <= high + 1e-6
        np.testing.assert_allclose(drawn[:, i].mean(), (low + high) / 2, atol=0.02 * width)
    assert (drawn[:, len(RANGES[name]) :] == 0).all()
    correlation = np.corrcoef(drawn[:, : len(RANGES[name])].T) - np.eye(len(RANGES[name]))
    assert np.abs(correlation).max() < 0.08


def test_targets_are_noisy_everywhere_and_clean_ones_are_not(many):
    assert many.clean is not None
    noise = np.asarray(many.tasks.query.y - many.clean)
    np.testing.assert_allclose(noise.std(), 0.3, rtol=0.01)
    np.testing.assert_allclose(noise.mean(), 0, atol=0.005)
    spread = [noise[np.asarray(many.family) == i].std() for i in range(6)]
    np.testing.assert_allclose(spread, 0.3, rtol=0.02)


def test_support_targets_have_the_same_noise(key):
    """Lines, fitted by least squares to twelve points: what is left has the noise of ten degrees of freedom."""
    batch = draw(dataclasses.replace(WIDE, shots=12, noise=0.7), 3000, key)
    rows = np.flatnonzero(np.asarray(batch.family) == NAMES.index("line"))
    left = []
    for i in rows:
        x, y = np.asarray(batch.tasks.support.x[i, :, 0]), np.asarray(batch.tasks.support.y[i, :, 0])
        left.append(np.polyfit(x, y, 1, full=True)[1][0] / 10)
    np.testing.assert_allclose(np.mean(left), 0.49, rtol=0.06)


SUPPORT_MEAN = {"sinusoid": 4.6, "line": 27.1, "quadratic": 13.5, "cubic": 21.9, "surface": 41.4, "ripple": 0.36}


def test_predicting_the_support_mean_costs_what_was_simulated_elsewhere(many):
    guess = many.tasks.support.y.mean(1, keepdims=True)
    error = np.square(np.asarray(many.tasks.query.y - guess)).mean((1, 2))
    for i, name in enumerate(NAMES):
        each = error[np.asarray(many.family) == i]
        slack = 4 * each.std() / len(each) ** 0.5
        np.testing.assert_allclose(each.mean(), SUPPORT_MEAN[name], atol=1.5 * slack + 0.01, err_msg=name)


def test_predicting_zero_costs_what_was_simulated_elsewhere(many):
    np.testing.assert_allclose(np.square(np.asarray(many.tasks.query.y)).mean(), 26.5, rtol=0.05)


def test_random_shots_lie_between_their_bounds_in_training_alone(key):
    config = Config(shots=6, min_shots=2)
    weight = np.asarray(draw(config, 600, key, random_shots=True).tasks.support.weight)
    counts = np.bincount(weight.sum(1).astype(int), minlength=7)
    assert counts[:2].sum() == 0
    assert (np.abs(counts[2:] - 120) < 5 * np.sqrt(120)).all()
    assert (np.diff(weight, axis=1) <= 0).all()
    built = config.open()
    assert np.asarray(built.test.sample(50, key=key).tasks.support.weight).min() == 1
    assert np.asarray(built.train.sample(50, key=key).tasks.support.weight).min() == 0


def test_a_pool_has_no_more_tasks_than_it_is_told(key):
    benchmark = Config(pool=3, shots=4, query_size=4).open()
    assert isinstance(benchmark.train, Pool)
    check_batch(benchmark.train.sample(5, key=key), benchmark.train.spec)
    drawn = np.asarray(benchmark.train.sample(60, key=key).tasks.support.y).reshape(60, -1)
    assert len(np.unique(drawn, axis=0)) == 3
    tested = np.asarray(benchmark.test.sample(10, key=key).tasks.support.y).reshape(10, -1)
    assert len(np.unique(tested, axis=0)) == 10


def test_a_frozen_set_is_known_by_its_digest():
    source = Curves(Config(shots=3, query_size=3))
    first, again, other = (freeze(source, 5, seed=seed) for seed in (2, 2, 3))
    assert first.digest == again.digest != other.digest
    assert len(first.digest) == 16
    assert first.batch.tasks.query.x.dtype == np.float32
    assert first.digest != freeze(Curves(Config(shots=3, query_size=3, noise=0.31)), 5, seed=2).digest


def test_the_test_set_of_the_paper_stays_the_same():
    """Scores of years apart are only comparable on the same tasks."""
    benchmark = Config().open()
    assert benchmark.conditions == {
        "input_range": (0.0, 5.0),
        "noise": 0.3,
        "shots": 10,
        "query": 40,
        "balanced": False,
    }
    assert freeze(benchmark.test, 20, seed=2).digest == "1a2aaa183b862b4c"


def test_scaling_is_measured_on_training_tasks():
    scaling = measure_scaling(Curves(WIDE), num_tasks=3000)
    # x2 is 1 in four families of six: its mean is 2/3, its variance 25/9 + 2/9.
    np.testing.assert_allclose(scaling.x_mean, [0, 2 / 3], atol=0.1)
    np.testing.assert_allclose(np.square(scaling.x_std), [100 / 12, 100 / 36 + 2 / 9], rtol=0.05)
    np.testing.assert_allclose(np.square(scaling.y_std), [26.5], rtol=0.15)


@given(family=st.integers(0, 5), seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=30)
def test_inputs_a_family_does_not_use_change_nothing(family, seed):
    index = jnp.asarray(family)
    x = draw_inputs(index, jr.uniform(jr.key(seed), (5, 2)))
    coefficients = draw_coefficients(index, key=jr.key(seed + 1))
    moved = evaluate_family(index, coefficients, x.at[:, 1].add(1.0))
    same = np.allclose(moved, evaluate_family(index, coefficients, x), rtol=1e-6)
    assert same != FAMILIES[family].uses_x2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_range": (1.0, 1.0)}, "--input-range needs a lower and a higher number; got 1.0 and 1.0"),
        ({"noise": 0.0}, "--noise must be above 0; got 0.0"),
        ({"shots": 0}, "--shots must be at least 1; got 0"),
        ({"query_size": 0}, "--query-size must be at least 1; got 0"),
        ({"min_shots": 11}, r"--min-shots must lie between 0 and --shots \(10\); got 11"),
        ({"pool": 0}, "--pool must be at least 1 task; got 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(change, message):
    with pytest.raises(SettingError, match=message):
        Config(**change)


def test_both_ranges_are_drawn_about_equally_often_in_training_alone(key):
    config = Config(both_ranges=True, shots=8, query_size=8)
    lowest = np.asarray(draw(config, 600, key, random_shots=True).tasks.query.x[:, :, 0]).min(1)
    assert abs((lowest < 0).sum() - 300 * (1 - 2**-8)) < 5 * np.sqrt(150)
    assert lowest.min() < -4.5
    held_out = np.asarray(config.open().test.sample(200, key=key).tasks.query.x)
    assert held_out.min() >= 0
    assert "both_ranges" not in config.open().conditions
