"""Trees as arrays say what scikit-learn says; objectives and effects agree with their definitions."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.random import default_rng
from scipy.stats import multivariate_normal
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

from stmaml.pool.base import Draw
from stmaml.pool.boosted import MEMBERS
from stmaml.pool.boosted.effects import Chosen, Prior, choose, design, estimate, sums_of
from stmaml.pool.boosted.growing import FEW_BINS, Rule, folds_of, grow, limited, usual_rule
from stmaml.pool.boosted.objectives import LogVariance, SharedSquares, Squares, Surprise, softmax
from stmaml.pool.boosted.trees import Trees, trees_of
from tests.pool.boosted_tables import levels_table

NEVER: Any = False  # scikit-learn's own types know only "auto"


@pytest.mark.parametrize("classes", [0, 2, 4])
def test_trees_say_what_scikit_learn_says(classes):
    random = default_rng(0)
    x, new = random.normal(size=(500, 4)), random.normal(size=(200, 4))
    y = x[:, 0] + np.sin(3 * x[:, 1]) if not classes else (np.abs(x[:, 0] + x[:, 1]) * 2).astype(int) % classes
    make = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    with threadpool_limits(1, "openmp"):
        model = make(max_iter=20, early_stopping=NEVER).fit(x, y)
    trees = Trees.restored(trees_of(model._predictors, np.ravel(model._baseline_prediction)).state())
    raw = trees.predict(new)
    if classes == 0:
        np.testing.assert_allclose(raw[:, 0], model.predict(new), atol=1e-10)
    elif classes == 2:
        np.testing.assert_allclose(1 / (1 + np.exp(-raw[:, 0])), model.predict_proba(new)[:, 1], atol=1e-10)
    else:
        np.testing.assert_allclose(softmax(raw), model.predict_proba(new), atol=1e-10)


def test_growth_without_folds_is_scikit_learns():
    random = default_rng(1)
    x = random.normal(size=(400, 3))
    y = x[:, 0] * x[:, 1] + 0.1 * random.normal(size=400)
    rule = Rule(rate=0.1, leaves=7, min_leaf=10, l2=0.5, max_rounds=10, patience=100)
    grown = grow(x, Squares(y), np.arange(400) % 20, 0, rule)
    with threadpool_limits(1, "openmp"):
        model = HistGradientBoostingRegressor(
            max_iter=len(grown.trees.roots),
            learning_rate=0.1,
            max_leaf_nodes=7,
            min_samples_leaf=10,
            l2_regularization=0.5,
            max_bins=FEW_BINS - 1,
            early_stopping=NEVER,
        ).fit(x, y)
    np.testing.assert_allclose(grown.trees.predict(x)[:, 0], model.predict(x), atol=1e-6)


def test_no_trees_say_the_base():
    np.testing.assert_array_equal(trees_of([], np.array([1.0, 2.0])).predict(np.zeros((3, 5))), [[1.0, 2.0]] * 3)


def test_what_is_held_out_was_never_seen():
    """Targets of a group that is alone in its fold, moved far away, leave what is said of it as it was."""
    rows = levels_table(4, groups=4)
    fold = folds_of(rows.group, 0)
    before = grow(rows.x, Squares(rows.y), rows.group, 0, Rule(0.1, 4, 5, max_rounds=5)).held_out
    moved = np.where(fold == 0, rows.y + 1e-3 * rows.x[:, 0], rows.y)
    after = grow(rows.x, Squares(moved), rows.group, 0, Rule(0.1, 4, 5, max_rounds=5)).held_out
    start = moved.mean() - rows.y.mean()
    np.testing.assert_allclose(after[fold == 0], before[fold == 0] + start, atol=1e-3)


def _numeric(objective, raw, place):
    step = np.zeros_like(raw)
    step[place] = 1e-5
    return (objective.loss(raw + step) - objective.loss(raw - step)) / 2e-5 * len(raw)


def test_gradients_are_those_of_the_losses():
    random = default_rng(2)
    raw = random.normal(size=(6, 3))
    surprise = Surprise(np.array([0, 1, 2, 0, 1, 1]), random.normal(size=(6, 3)))
    assert surprise.gradients(raw)[0][2, 1] == pytest.approx(_numeric(surprise, raw, (2, 1)), abs=1e-6)
    spread = LogVariance(random.uniform(size=6))
    assert spread.gradients(raw[:, :1])[0][3, 0] == pytest.approx(_numeric(spread, raw[:, :1], (3, 0)), abs=1e-6)


def test_leaves_are_generalised_least_squares():
    random = default_rng(3)
    group, x = np.array([0, 0, 0, 1, 1, 2, 2, 2]), random.normal(size=(8, 2))
    y, raw, leaf = random.normal(size=8), random.normal(size=(8, 1)), np.array([0, 1, 1, 0, 1, 0, 0, 1])
    prior = Prior(np.array([[0.7, 0.1], [0.1, 0.3]]), 0.4)
    z = design(x, (1,))
    cover: Any = np.where(group[:, None] == group, z @ prior.covariance @ z.T, 0.0) + 0.4 * np.eye(8)
    leaves, inverse = np.eye(2)[leaf], np.linalg.inv(cover)
    wanted = np.linalg.solve(leaves.T @ inverse @ leaves + np.eye(2) / 0.4, leaves.T @ inverse @ (y - raw[:, 0]))
    values = SharedSquares(x, y, group, Chosen(prior, (1,))).leaf_values(raw, leaf, 1.0)
    np.testing.assert_allclose(values, wanted, atol=1e-10)


def test_beliefs_are_those_of_normal_distributions():
    random = default_rng(4)
    group, z, r = np.array([0, 0, 0, 1, 1]), random.normal(size=(5, 2)), random.normal(size=5)
    prior = Prior(np.array([[0.5, -0.2], [-0.2, 0.6]]), 0.3)
    sums = sums_of(z, r, group, 2)
    cover: Any = np.where(group[:, None] == group, z @ prior.covariance @ z.T, 0.0) + 0.3 * np.eye(5)
    expected = multivariate_normal(np.zeros(5), cover).logpdf(r) + 2.5 * np.log(2 * np.pi)
    assert prior.log_density(sums) == pytest.approx(expected)
    mean, variance = prior.belief(sums).at(z, group)
    signal = cover - 0.3 * np.eye(5)
    np.testing.assert_allclose(mean, signal @ np.linalg.solve(cover, r), atol=1e-10)
    np.testing.assert_allclose(variance, np.diag(signal - signal @ np.linalg.solve(cover, signal)), atol=1e-10)


def test_variances_and_slopes_are_found():
    random = default_rng(5)
    group, x = np.repeat(np.arange(300), 8), random.normal(size=(2400, 3))
    effects = random.normal(size=(300, 2)) * [1.0, 0.5]
    r = effects[group, 0] + effects[group, 1] * x[:, 1] + 0.3 * random.normal(size=2400)
    chosen = choose(x, r, group)
    assert chosen.slopes == (1,)
    np.testing.assert_allclose(np.diag(chosen.prior.covariance), effects.var(0), rtol=0.1)
    assert chosen.prior.noise == pytest.approx(0.09, rel=0.1)
    assert choose(x, effects[group, 0] + random.normal(size=2400), group).slopes == ()
    alone = estimate(sums_of(np.ones((2400, 1)), random.normal(size=2400), group, 300))
    assert alone.covariance[0, 0] < 0.03


def test_large_tables_are_cut_to_whole_groups():
    rows = levels_table(6, groups=300, size=10)
    cut = limited(rows, 0, 1_500)
    assert len(cut.y) == 1_500
    assert set(cut.counts) == {10}
    few = limited(levels_table(6, groups=4, size=500), 0, 1_000)
    assert len(few.y) == 1_000
    assert few.num_groups == 4


def test_more_rows_give_more_leaves():
    sizes = [usual_rule(rows).leaves for rows in (100, 400, 5_000, 50_000, 200_000, 300_000)]
    assert sizes == [4, 6, 9, 18, 112, 127]


NO_SKLEARN = """
import sys
import numpy as np
from stmaml.pool.base import Draw
from stmaml.pool.boosted import MEMBERS
from tests.pool.boosted_tables import levels_table
fitted = MEMBERS[0].restore(dict(np.load(sys.argv[1])))
assert np.isfinite(fitted.predict(Draw(2).tasks(levels_table(0, groups=6, size=5), 2, 1)).mean).all()
assert not any(name.split(".")[0] == "sklearn" for name in sys.modules)
"""


def test_neither_import_nor_prediction_needs_scikit_learn(tmp_path):
    rows = levels_table(0, groups=6, size=5)
    (fitted,) = MEMBERS[0].fit_each(rows, [np.arange(6)], Draw(2))
    np.savez(tmp_path / "state.npz", allow_pickle=False, **fitted.state())
    subprocess.run(
        [sys.executable, "-c", NO_SKLEARN, tmp_path / "state.npz"], check=True, cwd=Path(__file__).parents[2]
    )
