"""Made-up tables: what is promised of every one of them, and the best prediction of linear ones."""

from functools import partial

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stmaml.benchmarks.hierarchies import Shape, Table, bayes_limit, linear_tables, one_of, sample_tables, table_key
from stmaml.benchmarks.hierarchy_columns import FLAG, NUMBER, WAVE, scaled
from stmaml.benchmarks.hierarchy_rows import thinned

SHAPE = Shape(groups=10, new_groups=3, slots=8, columns=5)


@pytest.fixture(scope="module")
def tables() -> Table:
    return jax.jit(partial(sample_tables, SHAPE, 200))(key=table_key(0))


@pytest.fixture(scope="module")
def linear():
    return jax.jit(partial(linear_tables, SHAPE, 300))(key=table_key(2))


def test_all_is_finite_and_padding_is_zero(tables: Table):
    for part in (tables.x, tables.y, tables.clean):
        assert np.isfinite(part).all()
    assert not np.any(np.asarray(tables.x) * (1 - np.asarray(tables.row))[..., None])
    assert not np.any(np.asarray(tables.x) * (1 - np.asarray(tables.column))[:, None, None])
    assert not np.any(np.asarray(tables.y) * (1 - np.asarray(tables.row)))


def test_groups_to_learn_from_are_labelled_and_new_ones_in_part(tables: Table):
    train = np.asarray(tables.row)[:, :10]
    np.testing.assert_array_equal(train, np.asarray(tables.labelled)[:, :10])
    assert (train.sum((1, 2)) > 0).all()
    assert ((train.sum(2) > 0).sum(1) >= 3).all()
    asked, labelled = np.asarray(tables.asked), np.asarray(tables.labelled)[:, 10:]
    assert not asked[:, :10].any()
    assert (asked[:, 10:].sum(2) >= 1).all()  # each new group has a row to ask for
    shots = labelled.sum(2)
    assert shots.min() == 0
    assert shots.max() >= 5
    np.testing.assert_array_equal(asked[:, 10:] + labelled, np.asarray(tables.row)[:, 10:])


def test_numbers_of_columns_groups_and_rows_span_what_the_shape_allows(tables: Table):
    rows = np.asarray(tables.row)[:, :10].sum(2)
    assert set(np.asarray(tables.column).sum(1)) == {1, 2, 3, 4, 5}
    assert {3, 10} <= set((rows > 0).sum(1)) <= set(range(3, 11))
    assert {2, 8} <= set(rows[rows > 0]) <= set(range(2, 9))
    kinds = np.asarray(tables.kind)[np.asarray(tables.column) > 0]
    assert set(kinds) == {NUMBER, FLAG, WAVE}


def test_some_columns_are_constant_within_groups_and_most_are_not(tables: Table):
    weight, x = np.asarray(tables.row)[:, :10, :, None], np.asarray(tables.x)[:, :10]
    centre = (x * weight).sum(2, keepdims=True) / np.maximum(weight.sum(2, keepdims=True), 1)
    within = (np.square(x - centre) * weight).sum((1, 2))
    there = (np.asarray(tables.column) > 0) & (np.asarray(tables.kind) == NUMBER)
    assert 0.1 < (within[there] < 1e-8).mean() < 0.4  # a quarter of the columns; that of time is never


def test_targets_of_the_rows_to_learn_from_have_mean_0_and_variance_1(tables: Table):
    numbers = ~np.asarray(tables.is_class)
    weight = np.asarray(tables.row)[numbers, :10]
    y = np.asarray(tables.y)[numbers, :10]
    total = weight.sum((1, 2))
    mean = (y * weight).sum((1, 2)) / total
    far = np.abs(y).max((1, 2)) >= 11.99  # cut off there
    np.testing.assert_allclose(mean[~far], 0, atol=1e-3)
    np.testing.assert_allclose((y**2 * weight).sum((1, 2))[~far] / total[~far], 1, atol=5e-3)


def test_numbers_are_scaled_and_flags_are_0_or_1(tables: Table):
    weight = np.asarray(tables.row)[:, :10, :, None]
    x = np.asarray(tables.x)[:, :10]
    flags = (np.asarray(tables.kind) == FLAG) & (np.asarray(tables.column) > 0)
    values = np.moveaxis(x, -1, 1)[flags]
    assert set(np.unique(values)) == {0.0, 1.0}
    spread = (x**2 * weight).sum((1, 2)) / weight.sum((1, 2))
    numbers = (np.asarray(tables.kind) == NUMBER) & (np.asarray(tables.column) > 0)
    assert np.median(spread[numbers]) == pytest.approx(1, abs=0.02)


def test_classes_are_two_and_both_are_there(tables: Table):
    classes = np.asarray(tables.is_class)
    assert 0.15 < classes.mean() < 0.35
    y, weight = np.asarray(tables.y)[classes, :10], np.asarray(tables.row)[classes, :10]
    assert set(np.unique(y)) == {0.0, 1.0}
    share = (y * weight).sum((1, 2)) / weight.sum((1, 2))
    assert ((share > 0) & (share < 1)).mean() > 0.97


def test_groups_differ_much_in_some_tables_and_little_in_others(tables: Table):
    numbers = ~np.asarray(tables.is_class)
    weight, y = np.asarray(tables.row)[numbers, :10], np.asarray(tables.y)[numbers, :10]
    level = (y * weight).sum(2) / np.maximum(weight.sum(2), 1)
    between = (level[..., None] ** 2 * weight).sum((1, 2)) / weight.sum((1, 2))
    assert np.quantile(between, 0.1) < 0.25
    assert np.quantile(between, 0.9) > 0.75
    noise = (np.asarray(tables.y - tables.clean)[numbers, :10] ** 2 * weight).sum((1, 2)) / weight.sum((1, 2))
    assert np.quantile(noise, 0.1) < 0.03
    assert np.quantile(noise, 0.9) > 0.5


def test_the_same_key_gives_the_same_tables_and_another_others(tables: Table):
    again = jax.jit(partial(sample_tables, SHAPE, 200))
    np.testing.assert_array_equal(again(key=table_key(0)).y, tables.y)
    assert not np.array_equal(again(key=table_key(5)).y, tables.y)


def test_scaling_leaves_a_constant_column_at_0():
    values = jnp.stack([jnp.full((2, 3), 7.0), jnp.arange(6.0).reshape(2, 3)], axis=-1)
    found = np.asarray(scaled(values, jnp.ones((2, 3))))
    assert not found[..., 0].any()
    np.testing.assert_allclose([found[..., 1].mean(), found[..., 1].std()], [0, 1], atol=1e-5)


def limits(linear) -> list[np.ndarray]:
    tables, truth = linear
    found = [bayes_limit(one_of(tables, i), one_of(truth, i)) for i in range(len(tables.y))]
    return [np.stack(part) for part in zip(*found, strict=True)]


def test_the_limit_is_the_mixed_models_with_the_true_variances(linear):
    """By another way: the posterior of coefficients, of all groups and of each, from a joint normal prior."""
    tables, truth = linear
    mean, variance = limits(linear)
    for i in range(3):
        table, own = one_of(tables, i), jax.tree.map(lambda leaf: np.asarray(leaf, float), one_of(truth, i))
        groups, k = table.row.shape[0], len(own.slope)
        precision = np.diag(np.concatenate([1 / own.slope, np.tile(1 / np.maximum(own.group, 1e-9), groups)]))
        right = np.zeros(len(precision))

        def design(g: int, s: int, k: int = k, groups: int = groups, table: Table = table) -> np.ndarray:
            z, whole = np.append(1.0, np.asarray(table.x, float)[g, s]), np.zeros((groups + 1, k))
            whole[0] = whole[g + 1] = z
            return whole.ravel()

        for g, s in np.argwhere(np.asarray(table.labelled) > 0):
            row = design(g, s)
            precision += np.outer(row, row) / own.noise
            right += row * (float(table.y[g, s]) - own.mean) / own.noise
        covariance = np.linalg.inv(precision)
        for g, s in np.argwhere(np.asarray(table.asked) > 0):
            row = design(g, s)
            assert mean[i, g, s] == pytest.approx(own.mean + row @ covariance @ right, rel=1e-4, abs=1e-4)
            assert variance[i, g, s] == pytest.approx(row @ covariance @ row + own.noise, rel=1e-4)


def test_nothing_beats_the_limit_and_its_variance_is_that_of_its_errors(linear):
    tables, _ = linear
    mean, variance = limits(linear)
    asked = np.asarray(tables.asked) > 0
    y = np.asarray(tables.y)
    score = np.where(asked, (y - mean) ** 2 / np.where(asked, variance, 1), 0).sum((1, 2)) / asked.sum((1, 2))
    assert score.mean() == pytest.approx(1, abs=0.12)
    for other in (mean * 0.7, mean + 0.2):
        assert np.mean((y - other)[asked] ** 2) > np.mean((y - mean)[asked] ** 2)


def test_with_shots_every_group_is_whole():
    tables = sample_tables(Shape(3, 2, 4, 2), 2, shots=2, key=table_key(0))
    assert np.asarray(tables.row).all()
    np.testing.assert_array_equal(np.asarray(tables.labelled)[:, 3:], np.tile([1.0, 1, 0, 0], (2, 2, 1)))


def test_rows_of_a_group_share_what_is_constant_in_it():
    tables = jax.jit(partial(sample_tables, Shape(6, 1, 5, 4), 60))(key=jr.fold_in(table_key(2), 1))
    x, row = np.asarray(tables.x), np.asarray(tables.row)
    first = x[:, :, :1]
    constant = (np.abs(x - first) * row[..., None]).max((1, 2)) < 1e-5
    varies = (np.abs(x[:, :, 0] - x[:, :1, 0]) * row[:, :, 0, None]).max(1) > 1e-3
    assert 0.05 < (constant & varies).mean() < 0.6


LONG = Shape(groups=9, new_groups=2, slots=10, columns=30, most_groups=1000, longest=200)


@pytest.fixture(scope="module")
def long_tables() -> Table:
    return jax.jit(partial(sample_tables, LONG, 60, linear=20))(key=table_key(5))


def test_tables_of_30_columns_1000_groups_and_200_rows_are_read_within_the_budget(long_tables: Table):
    """All is as promised of small ones; more than half of them have as many groups as are read."""
    test_all_is_finite_and_padding_is_zero(long_tables)
    rows = np.asarray(long_tables.row)
    assert rows.shape == (60, 11, 10)
    assert ((rows[:, :9].sum(2) > 0).sum(1) == 9).mean() > 0.6
    assert np.asarray(long_tables.column).sum(1).max() > 25
    asked, labelled = np.asarray(long_tables.asked)[:, 9:].sum(2), np.asarray(long_tables.labelled)[:, 9:].sum(2)
    assert asked.min() >= 1
    assert labelled.max() >= 5


def test_a_generator_of_the_largest_tables_draws_them():
    """1,000 groups of up to 200 rows and 30 columns, nothing left out."""
    table = jax.jit(partial(sample_tables, Shape(1000, 2, 200, 30), 1))(key=table_key(1))
    assert table.x.shape == (1, 1002, 200, 30)
    assert np.isfinite(table.y).all()
    assert float(np.asarray(table.row)[0].sum(1).max()) > 100


def test_the_last_tables_are_linear_where_that_is_asked_for(long_tables: Table):
    """Without noise their targets lie on a line in each group: few columns leave nothing over."""
    assert not np.asarray(long_tables.is_class)[40:].any()
    small = jax.jit(partial(sample_tables, Shape(6, 1, 40, 3, longest=60), 40, linear=20))(key=table_key(6))
    left = []
    for place in range(40):
        here = np.asarray(small.row)[place, -1] > 0
        z = np.insert(np.asarray(small.x)[place, -1][here], 0, 1.0, axis=1)
        clean = np.asarray(small.clean)[place, -1][here]
        left.append(np.abs(clean - z @ np.linalg.lstsq(z, clean, rcond=None)[0]).max())
    assert max(left[20:]) < 1e-3
    assert np.mean(np.array(left[:20]) > 1e-3) > 0.3


def test_thinning_takes_the_first_the_last_and_evenly_between():
    rows = jnp.asarray(np.arange(9)[None] < np.array([[9], [5], [3]]), dtype=jnp.float32)
    values = jnp.arange(27.0).reshape(3, 9)
    np.testing.assert_array_equal(thinned(values, rows, 3), [[0, 4, 8], [9, 11, 13], [18, 19, 20]])
    np.testing.assert_array_equal(thinned(values, rows, 9), values)


def test_the_limit_holds_for_thinned_tables():
    """Its variance is that of its errors, as it is for tables that are read whole."""
    shape = Shape(8, 4, 5, 2, longest=40)
    tables, truth = jax.jit(partial(linear_tables, shape, 150))(key=table_key(8))
    ratio = []
    for place in range(150):
        one = one_of(tables, place)
        mean, variance = bayes_limit(one, one_of(truth, place))
        asked = np.asarray(one.asked) > 0
        ratio.append(np.mean((np.asarray(one.y) - mean)[asked] ** 2 / variance[asked]))
    assert np.mean(ratio) == pytest.approx(1.0, abs=0.1)
