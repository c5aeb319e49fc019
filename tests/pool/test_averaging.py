"""Fits of a member that answer together, and how they are kept."""

import numpy as np
import pytest

from stmaml.pool.averaging import MOST_ROWS, Averaged, averaged, restored, whole_of
from stmaml.pool.base import Column, Draw, GroupedRows
from stmaml.pool.crossfit import fold_fits
from stmaml.pool.mixed.numbers import MIXED


def rows(groups: int = 12, each: int = 6) -> GroupedRows:
    random = np.random.default_rng(0)
    group = np.repeat(np.arange(groups), each)
    x = random.normal(size=(len(group), 1))
    y = random.normal(size=groups)[group] + x[:, 0] + 0.3 * random.normal(size=len(group))
    return GroupedRows(x, y, group, np.zeros((len(group), 0), dtype=int), (Column("x", "number"),))


def fitted(table: GroupedRows) -> Averaged:
    held, found = fold_fits(MIXED, table, np.arange(table.num_groups) % 3, Draw(3))
    assert isinstance(found, Averaged)
    assert len(found.fits) == len(held) + 1
    return found


def test_what_answers_is_the_mean_of_the_fit_to_all_groups_and_those_to_all_but_a_fold():
    table = rows()
    tasks, found = Draw(3).tasks(table, 3, 1), fitted(table)
    each = [MIXED.fit_each(table, [part], Draw(3))[0].predict(tasks) for part in _parts(table)]
    said = found.predict(tasks)
    np.testing.assert_allclose(said.mean, np.mean([one.mean for one in each], axis=0), atol=1e-4)
    np.testing.assert_allclose(said.variance, np.mean([one.variance for one in each], axis=0), rtol=1e-3)
    np.testing.assert_allclose(whole_of(found).predict(tasks).mean, each[0].mean, atol=1e-4)


def _parts(table: GroupedRows) -> list[np.ndarray]:
    every = np.arange(table.num_groups)
    return [every, *(every[every % 3 != fold] for fold in range(3))]


def test_fits_come_back_from_their_arrays_and_so_does_a_single_one():
    table = rows()
    tasks, found = Draw(3).tasks(table, 2, 1), fitted(table)
    for one in (found, whole_of(found)):
        again = restored(MIXED, one.state())
        assert type(again) is type(one)
        np.testing.assert_array_equal(again.predict(tasks).mean, one.predict(tasks).mean)


@pytest.mark.parametrize("length", [MOST_ROWS, MOST_ROWS + 1])
def test_on_a_large_table_the_fit_to_all_groups_answers_alone(length: int):
    table = rows(2, 4)
    fit = MIXED.fit_each(rows(), [np.arange(12)], Draw(3))[0]
    large = table.at(np.zeros(length, dtype=int))
    assert isinstance(averaged(fit, [fit], large), Averaged) == (length <= MOST_ROWS)
