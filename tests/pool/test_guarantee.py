"""Intervals that hold in nine groups of ten: simulated pools whose truth is known, by hand, and by the command."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtri

from stmaml.errors import RunError
from stmaml.pool.base import Column, Draw, Forecast, GroupedRows, Tasks
from stmaml.pool.crossfit import HeldOut, folds_of, held_out_tasks
from stmaml.pool.guarantee import Reaches, _shuffled, ends_at, learn_reaches, normal_scores, notes_on, reach_of
from stmaml.pool.pooling import Finished, Pooling, learn_pooling
from stmaml.pool.scoring import fold_poolings
from stmaml.tables.calibration import LEVELS

COUNTS, SPREAD, NEW = (0, 1, 3), 0.5, 40
GROUPS, ROWS = 40, 33


class Expects:
    """A member that knows how groups' levels vary, and believes that all scatter alike."""

    def predict(self, tasks: Tasks) -> Forecast:
        shots, each = tasks.shots, [tasks.rows.y[rows].sum() for rows in tasks.support]
        variance = SPREAD**2 / (1 + shots * SPREAD**2)
        mean = (np.array(each) * variance)[tasks.task]
        return Forecast(mean, variance[tasks.task], np.ones(len(mean)))


def drawn(random: np.random.Generator, groups: int) -> tuple[GroupedRows, np.ndarray, np.ndarray]:
    """Rows of groups with a level and a scale of their own, and both."""
    level, scale = SPREAD * random.standard_normal(groups), np.exp(SPREAD * random.standard_normal(groups))
    y = level[:, None] + scale[:, None] * random.standard_normal((groups, ROWS))
    group = np.repeat(np.arange(groups), ROWS)
    nothing = np.zeros((groups * ROWS, 0), dtype=int)
    rows = GroupedRows(np.zeros((groups * ROWS, 1)), y.ravel(), group, nothing, (Column("x", "number"),))
    return rows, level, scale


def held_out(rows: GroupedRows, seed: int, ordered: bool = False) -> list[HeldOut]:
    fold = folds_of([str(i) for i in range(rows.num_groups)])
    tasks = held_out_tasks(rows, Draw(COUNTS[-1], ordered=ordered, seed=seed), COUNTS)
    member = Expects()
    return [
        HeldOut(shots, one, {"one": member.predict(one)}, fold[one.group])
        for shots, one in zip(COUNTS, tasks, strict=True)
    ]


def told_by(tasks: Tasks) -> dict[str, Forecast]:
    return {"one": Expects().predict(tasks)}


def new_tasks(rows: GroupedRows, shots: int) -> Tasks:
    """Of each group the first rows are labelled, and one other is asked for."""
    each = rows.by_group()
    return Tasks(rows, tuple(mine[:shots] for mine in each), tuple(mine[-1:] for mine in each))


def covered(seed: int) -> np.ndarray:
    """The share of all rows of new groups that lies within their guaranteed interval and within the usual one, for each
    number of labelled rows."""
    random = np.random.default_rng(seed)
    held = held_out(drawn(random, GROUPS)[0], seed)
    pooling, reaches = learn_pooling(held), learn_reaches(fold_poolings(held))
    rows, level, scale = drawn(random, NEW)
    assert reaches is not None
    shares = []
    for shots in COUNTS:
        tasks, number = new_tasks(rows, shots), np.full(NEW, shots)
        reach = reach_of(reaches, pooling, told_by, tasks, ordered=False)
        finished = pooling.finished(pooling.mixture(told_by(tasks), number), number)
        for low, high in (ends_at(finished, reach), finished.quantiles([0.05, 0.95])):
            shares.append(stats.norm.cdf((high - level) / scale) - stats.norm.cdf((low - level) / scale))
    return np.array(shares).reshape(len(COUNTS), 2, NEW)


def in_tables(count: int) -> np.ndarray:
    """For each number of labelled rows, the share of new groups that get their 90 %, with the guarantee and without."""
    return (np.array([covered(seed) for seed in range(count)]) >= 0.9).mean((0, 3))


def test_nine_groups_of_ten_get_their_coverage():
    """In a dozen tables here, in a thousand below: their mean is known to 1.4 points."""
    found = in_tables(12)
    assert (found[:, 0] >= 0.86).all()
    assert (found[:, 0] <= 0.99).all()
    assert (found[:, 1] < 0.72).all()


@pytest.mark.slow
def test_nine_groups_of_ten_get_their_coverage_in_a_thousand_tables():
    found = in_tables(1000)
    assert (found[:, 0] >= 0.9).all()
    assert (found[:, 0] <= 0.97).all()
    assert (found[:, 1] < 0.7).all()


def test_labelled_rows_that_lie_far_off_widen_it():
    """A group whose rows scatter more than others gets more room for it."""
    held = held_out(drawn(np.random.default_rng(3), GROUPS)[0], 3)
    pooling, reaches = learn_pooling(held), learn_reaches(fold_poolings(held))
    rows, _, _ = drawn(np.random.default_rng(4), 2)
    wild = replace(rows, y=np.where(rows.group == 1, 4 * rows.y, rows.y / 4))
    assert reaches is not None
    calm, wide = reach_of(reaches, pooling, told_by, new_tasks(wild, 3), ordered=False)
    assert wide > 1.3 * calm
    blind = reach_of(reaches, pooling, told_by, new_tasks(wild, 0), ordered=False)
    assert blind[0] == blind[1]


def test_neither_other_groups_nor_the_order_of_rows_matter():
    held = held_out(drawn(np.random.default_rng(3), GROUPS)[0], 3)
    pooling, reaches = learn_pooling(held), learn_reaches(fold_poolings(held))
    rows, _, _ = drawn(np.random.default_rng(4), 6)
    tasks = new_tasks(rows, 3)
    assert reaches is not None
    each = reach_of(reaches, pooling, told_by, tasks, ordered=False)
    for i in range(6):
        turned = Tasks(rows, (tasks.support[i][::-1],), (tasks.query[i],))
        assert reach_of(reaches, pooling, told_by, turned, ordered=False) == pytest.approx(each[i], rel=1e-12)


def test_which_rows_are_looked_at_is_left_to_chance():
    """Of rows sorted by the target, as files may be: each has the same chance to be looked at."""
    rows, _, _ = drawn(np.random.default_rng(0), 900)
    first = [_shuffled(rows, mine[:3][np.argsort(rows.y[mine[:3]])])[0] for mine in rows.by_group()]
    rank = [(rows.y[mine[:3]] < rows.y[one]).sum() for mine, one in zip(rows.by_group(), first, strict=True)]
    assert stats.chisquare(np.bincount(rank)).pvalue > 1e-3


def test_what_is_kept_is_what_held_out_rows_show():
    """Ordered rows: the first is looked at from none, the second and third from the first; each by its own pooling."""
    rows, _, _ = drawn(np.random.default_rng(5), 12)
    held = held_out(rows, 0, ordered=True)
    folds = fold_poolings(held)
    reaches = learn_reaches(folds)
    assert reaches is not None
    assert (reaches.counts, reaches.looked) == (COUNTS, (0, 1, 2))
    fold = folds_of([str(i) for i in range(12)])
    for group in (0, 7):
        pooling = folds[fold[group]][0]
        mine = rows.by_group()[group]
        tasks = Tasks(rows, (mine[:1],), (mine[1:3],))
        scores = normal_scores(pooling, told_by(tasks), rows.y[mine[1:3]], np.ones(2, dtype=int))
        assert reaches.size[2][group] == pytest.approx(np.sqrt(np.square(scores).mean()), abs=2e-6)
        later = Tasks(rows, (mine[:3],), (mine[3:],))
        others = normal_scores(pooling, told_by(later), rows.y[mine[3:]], np.full(30, 3))
        assert reaches.reach[2][group] == pytest.approx(np.sort(np.abs(others))[27], abs=2e-6)  # 27.9 of 31


def finished_normal() -> Finished:
    """A pool of one normal member whose quantiles were moved by nothing."""
    held = held_out(drawn(np.random.default_rng(0), 12)[0], 0)
    pooling = learn_pooling(held)
    plain = replace(pooling.calibration, temperature=(1.0,) * 3, scores=(tuple(ndtri(np.array(LEVELS))),) * 3)
    pooling = Pooling(("one",), COUNTS, ((1.0,),) * 3, ((1.0,),) * 3, plain)
    said = {"one": Forecast(np.arange(3.0), np.zeros(3), np.ones(3))}
    return pooling.finished(pooling.mixture(said, np.zeros(3, dtype=int)), np.zeros(3, dtype=int))


def test_ends_lie_so_many_scores_from_the_median_and_nowhere_where_that_is_not_known():
    ends = ends_at(finished_normal(), np.array([1.0, 4.0, np.inf]))
    np.testing.assert_allclose(ends[:, :2], [[-1.0, -3.0], [1.0, 5.0]], atol=1e-5)
    assert np.isnan(ends[:, 2]).all()


def test_too_few_groups_promise_nothing_and_say_so():
    rows, _, _ = drawn(np.random.default_rng(5), 8)
    held = held_out(rows, 0)
    reaches = learn_reaches(fold_poolings(held))
    assert reaches is not None
    tasks = new_tasks(rows, 2)
    reach = reach_of(reaches, learn_pooling(held), told_by, tasks, ordered=False)
    assert np.isinf(reach).all()
    notes = notes_on(reaches, tasks.shots, reach, 3)
    assert notes[0].startswith("guaranteed_low to guaranteed_high hold 90% of a group's rows in 90% of new groups")
    assert "8 groups have no such interval" in notes[1]
    assert "8 groups have another number of labelled rows than 0, 1, 3" in notes[2]
    assert notes[3] == "3 groups are known from before; the guarantee is for new ones"


def test_it_survives_json_and_numbers_that_nobody_learnt_are_refused():
    good = Reaches((0, 2), (0, 1), ((1.0, 1.0), (0.5, 0.25)), ((2.0, 1.0), (1.5, 1.25)))
    assert Reaches.from_json(json.loads(json.dumps(good.to_json()))) == good
    bad = [
        {"counts": (1, 2)},
        {"counts": (0, 0)},
        {"looked": (0,)},
        {"looked": (0, -1)},
        {"size": ((1.0, 1.0), (0.5,))},
        {"size": ((1.0, 1.0), (0.5, -0.25))},
        {"reach": ((2.0, 1.0), (1.5, float("nan")))},
    ]
    for change in bad:
        with pytest.raises(RunError, match="a pool's reaches must be numbers of at least 0"):
            replace(good, **change)
