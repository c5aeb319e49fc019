"""Effects of groups and levels, with their errors, against lme4's `ranef(..., condVar = TRUE)`."""

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from stmaml.pool.base import Column, GroupedRows
from stmaml.pool.group_effects import independent
from stmaml.pool.mixed.effects import Effects, Units, effects_of
from stmaml.pool.mixed.fit import CANDIDATES, differing
from tests.pool.classics import machines, penicillin, sleepstudy


def rows_of(matrices, names: tuple[str, ...]) -> GroupedRows:
    """The same rows as a table: without the intercept and the target."""
    x, y = matrices.rest[:, 1:-1], matrices.rest[:, -1]
    return GroupedRows(x, y, matrices.group, matrices.codes, tuple(Column(name, "number") for name in names))


def test_sleep_study():
    own = effects_of(rows_of(sleepstudy(), ("Days",)))
    assert own.fixed_names == own.own_names == ("level", "Days")
    np.testing.assert_allclose(own.fixed, (251.405105, 10.467286), rtol=1e-6)
    np.testing.assert_allclose(own.fixed_error, (6.824597, 1.545790), rtol=1e-3)
    np.testing.assert_allclose(own.spread, (24.740658, 5.922138), rtol=1e-3)
    np.testing.assert_allclose(own.correlation, [[1, 0.065551], [0.065551, 1]], atol=1e-3)
    np.testing.assert_allclose(own.noise, 25.591796, rtol=1e-4)
    expected = [[2.258551, 9.198976], [-40.398738, -8.619681], [-38.960409, -5.448856]]
    np.testing.assert_allclose(own.groups[:3], expected, rtol=2e-3)
    np.testing.assert_allclose(own.groups_error[0], np.sqrt((145.705587, 5.312283)), rtol=1e-3)
    np.testing.assert_allclose(own.share_between, 612.1002 / (612.1002 + 654.9400), rtol=1e-3)


def test_levels_of_crossed_groups():
    own = effects_of(rows_of(penicillin(), ()))
    np.testing.assert_allclose(own.level_spread, [1.931614], rtol=1e-3)
    expected = (2.187058, -1.010476, 1.937900, -0.096895, -0.013842, -3.003745)
    np.testing.assert_allclose(own.levels, expected, atol=2e-4)
    np.testing.assert_allclose(own.levels_error, np.full(6, 0.202171), rtol=1e-3)
    np.testing.assert_allclose(own.groups[:3, 0], (0.804547, 0.804547, 0.181672), rtol=1e-3)
    np.testing.assert_allclose(own.groups_error[:3, 0], np.full(3, 0.271359), rtol=1e-3)
    np.testing.assert_array_equal(own.level_number, np.arange(6))


def machines_of_the_first_worker() -> list[int]:
    rows = machines()
    mine = rows.codes[:, 0] == rows.codes[0, 0]
    machine = rows.rest[:, 1:3] @ [1.0, 2.0]
    return [rows.group[mine & (machine == wanted)][0] for wanted in (0.0, 1.0, 2.0)]


def test_levels_of_nested_groups():
    own = effects_of(rows_of(machines(), ("B", "C")), slopes=())
    expected = (1.044546, -1.375856, 5.360777, -0.059820, 2.544643, -7.514291)
    np.testing.assert_allclose(own.levels, expected, rtol=2e-3)
    np.testing.assert_allclose(own.levels_error, np.full(6, 1.981256), rtol=1e-3)
    np.testing.assert_allclose(
        own.groups[machines_of_the_first_worker(), 0], (-0.750146, 1.499994, -0.114237), rtol=5e-3
    )
    np.testing.assert_allclose(own.groups_error[:3, 0], np.full(3, 2.014587), rtol=1e-3)


def test_back_from_arrays():
    own = effects_of(rows_of(penicillin(), ()))
    again = Effects.restore(own.state())
    assert again.fixed_names == own.fixed_names
    assert again.noise == own.noise
    np.testing.assert_array_equal(again.groups_error, own.groups_error)


def test_units():
    """Scaled rows give the effects of the values they were scaled from."""
    plain = rows_of(sleepstudy(), ("Days",))
    expected = effects_of(plain)
    middle, spread = plain.x.mean(0), plain.x.std(0)
    scaled = GroupedRows(
        (plain.x - middle) / spread, (plain.y - 298.5) / 56.3, plain.group, plain.levels, plain.columns
    )
    found = effects_of(scaled, units=Units(middle, spread, 298.5, 56.3))
    for name in ("fixed", "fixed_error", "spread", "noise", "groups", "groups_error", "correlation"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=2e-4, atol=1e-4)
    days = plain.x[:, 0]
    variance = 612.1002 + 2 * 0.065551 * 24.740658 * 5.922138 * days.mean() + 35.0717 * (days**2).mean()
    np.testing.assert_allclose(found.between**2, variance, rtol=2e-3)
    np.testing.assert_allclose(found.share_of_rows, variance / (variance + 654.94), rtol=1e-3)


def test_columns_that_others_tell_are_left_out():
    x = np.random.default_rng(0).normal(size=(50, 3))
    told = np.stack([x[:, 0], x[:, 1], 2 - x[:, 0] + 3 * x[:, 1], np.ones(50), x[:, 2]], axis=1)
    assert independent(told) == [0, 1, 4]


def two_columns(seed: int) -> GroupedRows:
    """`a` varies much within groups, with one slope for all; `b` varies little, with slopes that differ."""
    random = np.random.default_rng(seed)
    group = np.repeat(np.arange(40), 12)
    a = random.normal(0.0, 5.0, len(group))
    b = 3.0 * random.normal(size=40)[group] + random.normal(0.0, 0.5, len(group))
    level, slope = random.normal(0.0, 2.0, 40), random.normal(1.0, 2.0, 40)
    y = level[group] + 0.8 * a + slope[group] * b + random.normal(0.0, 0.5, len(group))
    columns = (Column("a", "number"), Column("b", "number"))
    return GroupedRows(np.stack([a, b], axis=1), y, group, np.zeros((len(group), 0), dtype=int), columns)


@pytest.mark.parametrize("seed", range(3))
def test_slopes_go_to_the_column_whose_slopes_differ(seed):
    own = effects_of(two_columns(seed))
    assert own.own_names == ("level", "b")
    np.testing.assert_allclose(own.spread[1], 2.0, rtol=0.35)
    np.testing.assert_allclose(own.noise, 0.5, rtol=0.1)


def test_slopes_that_differ_alike_are_all_found():
    """The clearest first; also beyond the number of columns that are judged at once."""
    random = np.random.default_rng(1)
    group = np.repeat(np.arange(60), 15)
    x = random.normal(size=(len(group), CANDIDATES + 2))
    slopes = random.normal(size=(60, 2)) * (0.6, 1.5)
    y = (slopes[group] * x[:, [2, CANDIDATES + 1]]).sum(axis=1) + random.normal(0.0, 0.5, len(group))
    columns = tuple(Column(f"c{i}", "number") for i in range(x.shape[1]))
    own = effects_of(GroupedRows(x, y, group, np.zeros((len(group), 0), dtype=int), columns))
    assert own.own_names == ("level", f"c{CANDIDATES + 1}", "c2")
    np.testing.assert_allclose(own.spread[1:], (1.5, 0.6), rtol=0.2)


def test_one_slope_for_all_is_seldom_taken_for_many():
    """One table in thirty: 2 of 60 are expected, and more than 7 hardly ever."""
    taken = 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        group = np.repeat(np.arange(15), 8)
        x = random.normal(size=(120, 2))
        y = random.normal(size=15)[group] + x @ [1.0, -0.5] + random.normal(size=120)
        rows = GroupedRows(x, y, group, np.zeros((120, 0), dtype=int), (Column("a", "number"), Column("b", "number")))
        with threadpool_limits(1, "blas"):  # threads cost small matrices ten times their work
            taken += len(differing(rows, np.arange(2), 2)) > 0
    assert taken <= 7


def test_the_best_of_many_columns_is_seldom_taken():
    """Of twenty columns, one would be beyond CLEAR in every other table."""
    taken = 0
    for seed in range(20):
        random = np.random.default_rng(seed)
        group = np.repeat(np.arange(40), 12)
        x = random.normal(size=(480, 20))
        y = random.normal(size=40)[group] + x[:, 0] + random.normal(size=480)
        columns = tuple(Column(f"c{i}", "number") for i in range(20))
        with threadpool_limits(1, "blas"):
            rows = GroupedRows(x, y, group, np.zeros((480, 0), dtype=int), columns)
            taken += len(differing(rows, np.arange(20), 3)) > 0
    assert taken <= 4


def test_a_group_has_no_more_effects_than_its_rows_tell():
    """Two rows a group: a level and a slope would leave no noise."""
    random = np.random.default_rng(2)
    group, x = np.repeat(np.arange(50), 2), random.normal(size=(100, 1))
    y = 3.0 * random.normal(size=50)[group] * x[:, 0]
    own = effects_of(GroupedRows(x, y, group, np.zeros((100, 0), dtype=int), (Column("a", "number"),)))
    assert own.own_names == ("level",)
