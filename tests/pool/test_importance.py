"""Which columns matter, against what mixing up a column does to a known function."""

from dataclasses import dataclass

import numpy as np
import pytest

from stmaml.pool.base import Arrays, Column, Draw, Forecast, GroupedRows, Tasks
from stmaml.pool.importance import Places, are_of, importance_of, mixed_up, shake, shaken_arrays
from stmaml.pool.pooling import Pooling
from stmaml.tables.calibration import Calibration

PLACES = [Places("slope", (0,)), Places("useless", (1,)), Places("of the group", (2,))]
NOISE = 0.5


@dataclass(frozen=True)
class Known:
    """A member that knows the function: 3 times the first column, and twice the last."""

    def predict(self, tasks: Tasks) -> Forecast:
        x = tasks.rows.x[tasks.asked]
        mean = 3 * x[:, 0] + 2 * x[:, 2]
        return Forecast(mean, 0 * mean, 0 * mean + 1)

    def state(self) -> Arrays:
        return {}


@dataclass(frozen=True)
class Follows:
    """A member that fits a line through the first column of the labelled rows."""

    def predict(self, tasks: Tasks) -> Forecast:
        slopes = [np.polyfit(tasks.rows.x[rows, 0], tasks.rows.y[rows], 1) for rows in tasks.support]
        mean = np.concatenate([np.polyval(s, tasks.rows.x[q, 0]) for s, q in zip(slopes, tasks.query, strict=True)])
        return Forecast(mean, 0 * mean, 0 * mean + 1)

    def state(self) -> Arrays:
        return {}


def table(groups: int = 60, size: int = 12) -> GroupedRows:
    random = np.random.default_rng(0)
    group = np.repeat(np.arange(groups), size)
    x = random.standard_normal((groups * size, 3))
    x[:, 2] = random.standard_normal(groups)[group]
    y = 3 * x[:, 0] + 2 * x[:, 2] + NOISE * random.standard_normal(len(x))
    columns = tuple(Column(place.name, "number") for place in PLACES)
    return GroupedRows(x, y, group, np.zeros((len(x), 0), dtype=int), columns)


def pooling(*members: str) -> Pooling:
    even = ((1 / len(members),) * len(members),) * 2
    return Pooling(members, (0, 5), ((1.0,) * len(members),) * 2, even, Calibration((0, 5), (1.0, 1.0)))


def importance(member, shots: int = 0, scale: float = 1.0):
    rows = table()
    tasks = Draw(5).tasks(rows, shots, 1)
    shaken = shake(tasks, shots, np.arange(rows.num_groups) % 2, PLACES)
    assert shaken is not None
    said = {"known": shaken_arrays([shaken], [member, member])}
    return importance_of([shaken], said, pooling("known"), scale)[str(shots)]


def test_a_column_is_worth_what_mixing_it_up_costs():
    found = importance(Known(), scale=10.0)
    assert found["error"] == pytest.approx(100 * NOISE**2, rel=0.15)
    assert found["groups"] == 60
    # Two independent values of variance 1 differ by 2 in square: the error rises by twice the slope's square.
    rise = {name: each["mean"] * found["error"] / 100 for name, each in found["columns"].items()}
    assert rise["slope"] == pytest.approx(2 * 3**2, rel=0.2)
    assert rise["of the group"] == pytest.approx(2 * 2**2, rel=0.4)
    assert found["columns"]["useless"] == {"mean": 0.0, "ci95": 0.0}
    assert found["columns"]["slope"]["ci95"] > 0


def test_labelled_rows_are_mixed_up_as_well():
    found = importance(Follows(), shots=5)
    slope = found["columns"]["slope"]
    assert slope["mean"] > 5 * slope["ci95"] / 2
    assert found["columns"]["of the group"]["mean"] == pytest.approx(0.0, abs=1e-6), "it follows the labelled rows"


def test_a_column_that_is_the_same_within_groups_stays_so():
    rows = table()
    mixed = mixed_up(rows, PLACES[2], np.random.default_rng(0))
    assert all(np.ptp(mixed.x[mine, 2]) == 0 for mine in rows.by_group())
    assert not np.array_equal(mixed.x[:, 2], rows.x[:, 2])
    np.testing.assert_array_equal(np.sort(np.unique(mixed.x[:, 2])), np.sort(np.unique(rows.x[:, 2])))
    np.testing.assert_array_equal(mixed.x[:, :2], rows.x[:, :2])


def test_each_group_is_answered_by_the_fit_that_has_not_seen_it():
    @dataclass(frozen=True)
    class Says:
        value: float

        def predict(self, tasks: Tasks) -> Forecast:
            mean = np.full(len(tasks.asked), self.value)
            return Forecast(mean, 0 * mean, 0 * mean + 1)

        def state(self) -> Arrays:
            return {}

    rows = table(groups=6)
    fold = np.arange(6) % 2
    shaken = shake(Draw(5).tasks(rows, 0, 1), 0, fold, PLACES)
    assert shaken is not None
    means = shaken.means([Says(0.0), Says(1.0)])
    np.testing.assert_array_equal(means, np.tile(fold[shaken.task], (shaken.copies, 1)))


def test_too_few_groups_say_nothing():
    rows = table(groups=3)
    assert shake(Draw(5).tasks(rows, 0, 1), 0, np.zeros(3, dtype=int), PLACES) is None


def test_what_was_kept_of_other_copies_is_not_taken_for_these():
    """A version that mixed each column up more often kept more copies: the second of the first column is no other's."""
    rows = table()
    tasks, fold = Draw(5).tasks(rows, 0, 1), np.zeros(60, dtype=int)
    now = shake(tasks, 0, fold, PLACES[:1])
    before = shake(tasks, 0, fold, PLACES)
    assert now is not None
    assert before is not None
    kept = shaken_arrays([before], [Known()])
    assert are_of(kept, [before])
    assert not are_of(kept, [now])
    assert not are_of({}, [now])
    assert not are_of({"5": kept["0"]}, [now])
