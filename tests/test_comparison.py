"""Better than all others or not: against SciPy, and how often it is said where there is no difference."""

import numpy as np
import pytest
from scipy import stats

from stmaml.comparison import compare, paired_statistics
from stmaml.tables.scoring import verdict
from tests.table_data import draw

SHAPES = {
    "normal": lambda size, seed: draw(stats.norm, size=size, random_state=seed),
    "squared": lambda size, seed: draw(stats.chi2, 1, size=size, random_state=seed),
    "wild": lambda size, seed: draw(stats.t, 3, size=size, random_state=seed),
}


def tables(shape: str, count: int, groups: int, rivals: int, seed: int) -> np.ndarray:
    """Losses without a true difference, for each table, model and group: groups differ, models do not."""
    difficulty = SHAPES["squared"]((count, 1, groups), seed)
    return 3 * difficulty + SHAPES[shape]((count, 1 + rivals, groups), seed + 1)


def said(losses: np.ndarray) -> dict[str, float]:
    """How often each thing is said."""
    found = [compare(table[0], table[1:]) for table in losses]
    return {word: found.count(word) / len(found) for word in ("better", "worse", "unclear")}


def test_the_statistics_are_those_of_paired_tests():
    first, others = draw(stats.norm, size=12, random_state=0), draw(stats.norm, size=(3, 12), random_state=1)
    want = stats.ttest_rel(np.broadcast_to(first, (3, 12)), others, axis=1).statistic
    np.testing.assert_allclose(paired_statistics(first[None] - others), want)


def test_with_one_rival_it_is_the_two_sided_test():
    for seed in range(200):
        first, second = draw(stats.norm, size=(2, 8), random_state=seed) + np.array([[0.0], [0.8]])
        clear = stats.ttest_rel(first, second).pvalue < 0.05
        want = ("better" if first.mean() < second.mean() else "worse") if clear else "unclear"
        assert compare(first, second[None]) == want


def test_a_shift_of_all_tasks_is_certain_and_none_is_none():
    base = np.array([1.0, 5.0, 2.0, 9.0])
    assert compare(base - 0.1, np.stack([base, base + 1])) == "better"
    assert compare(base + 0.1, np.stack([base, base + 1])) == "worse"
    assert compare(base, np.stack([base, base])) == "unclear"
    assert compare(base[:1], base[None, :1] - 1) == "unclear"


def test_two_tasks_are_enough_for_a_certain_shift():
    assert compare(np.array([1.0, 5.0]) - 0.1, np.array([[1.0, 5.0]])) == "better"


def test_no_difference_at_all_has_a_statistic_of_zero():
    assert paired_statistics(np.zeros((1, 4)))[0] == 0.0


@pytest.mark.parametrize(("statistic", "word"), [(7.0, "worse"), (5.9, "unclear")])
def test_the_level_is_shared_among_two_rivals(statistic, word):
    assert -stats.t.ppf(0.0125, 2) == pytest.approx(6.205, abs=1e-3)  # three tasks, half of 5 % for each rival
    own = np.array([-1.0, 0.0, 1.0])
    beaten = own - (statistic / 3**0.5 + own)  # differences of that mean, with a spread of one
    assert compare(own, np.stack([beaten, own[[1, 2, 0]]])) == word


def test_better_is_better_than_each():
    base = draw(stats.norm, size=30, random_state=0)
    far, near = base + 5 + draw(stats.norm, size=(2, 30), random_state=1) / 10 * np.array([[1.0], [50.0]])
    near = near - 5
    assert compare(base, far[None]) == "better"
    assert compare(base, np.stack([far, near])) == "unclear"


@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize("groups", [3, 6, 40])
def test_where_there_is_no_difference_none_is_said(shape, groups):
    found = said(tables(shape, 1500, groups, 5, seed=groups))
    assert found["better"] + found["worse"] <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize("rivals", [1, 2, 5, 9])
@pytest.mark.parametrize("groups", [3, 5, 9, 20, 80])
def test_where_there_is_no_difference_none_is_said_in_twenty_thousand_tables(shape, rivals, groups):
    found = said(tables(shape, 20_000, groups, rivals, seed=groups))
    assert found["better"] + found["worse"] <= 0.05 + 3 * 0.0016


def test_a_true_difference_is_found():
    losses = tables("normal", 300, 40, 5, seed=0)
    losses[:, 0] -= 1
    assert said(losses)["better"] > 0.9
    losses[:, 0] += 2
    assert said(losses)["worse"] > 0.9


def test_verdicts_of_tables_without_a_difference_are_wrong_in_one_of_twenty():
    names = ["st-maml", "ridge", "boosting", "offset", "summaries", "mean"]
    found = [
        verdict({name: {"mse": row} for name, row in zip(names, table, strict=True)}, "st-maml", 5)
        for table in tables("squared", 1000, 12, 5, seed=3)
    ]
    assert sum("no clear difference" not in one for one in found) <= 50


def test_what_is_certain_does_not_depend_on_the_unit():
    """The rounding of equal shifts is no spread, in large units or small; a true spread is one in any."""
    same = np.array([1.0, 5.0, 2.0, 9.0])
    for unit in (1e-9, 1e9):
        shift = (same * unit + 0.1 * unit) - same * unit
        assert np.isposinf(paired_statistics(shift[None]))
        spread = unit * np.array([[1.0, 1.001, 0.999, 1.0]])
        want = spread.mean() / (spread.std(ddof=1) / 2)  # the root of four
        np.testing.assert_allclose(paired_statistics(spread), want, rtol=1e-6)
