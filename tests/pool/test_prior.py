"""The prior as a member of a pool: what it reads of a table, what it answers, and what it keeps."""

import shutil

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import polars as pl
import pytest

from stmaml import FewShotRegressor
from stmaml.errors import RunError
from stmaml.pool.base import Column, Draw, GroupedRows
from stmaml.pool.crossfit import fold_fits, held_out_tasks
from stmaml.pool.model import PoolModel
from stmaml.pool.prior import FittedPrior, Prior, shares
from stmaml.pool.registry import usual_members
from stmaml.prior.learner import Learner, Sizes
from stmaml.prior.reading import MOST_COLUMNS, MOST_ROWS, MOST_SCALED, keep_rows, limits_said, questions
from stmaml.prior.tuning import Tuned
from stmaml.prior.weights import load_weights, save_weights, shipped_folder, shipped_learner


@pytest.fixture(scope="module")
def member(tmp_path_factory) -> Prior:
    """With weights that were never trained: it then says about what its linear model does."""
    path = tmp_path_factory.mktemp("prior") / "weights.npz"
    save_weights(Learner(Sizes(64, 1, 64, 1), key=jr.key(0)), path)
    return Prior(path)


def made_rows(groups: int, size: int, classes: int = 0, columns: int = 2, seed: int = 0) -> GroupedRows:
    random = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), size)
    x = random.standard_normal((len(group), columns))
    level = random.standard_normal(groups)[group]
    y = x[:, 0] + level + 0.2 * random.standard_normal(len(group))
    if classes:
        y = np.digitize(y, np.quantile(y, np.linspace(0, 1, classes + 1)[1:-1])).astype(float)
    kinds = tuple(Column(f"c{i}", "number") for i in range(columns))
    return GroupedRows(x, y, group, np.zeros((len(group), 0), dtype=int), kinds, classes)


def split(rows: GroupedRows, train: int) -> tuple[GroupedRows, GroupedRows]:
    return rows.of_groups(np.arange(train)), rows.of_groups(np.arange(train, rows.num_groups))


def fit(member: Prior, rows: GroupedRows, draw: Draw) -> FittedPrior:
    (fitted,) = member.fit_each(rows, [np.arange(rows.num_groups)], draw)
    assert isinstance(fitted, FittedPrior)
    return fitted


def test_labelled_rows_of_a_group_help(member: Prior):
    train, new = split(made_rows(12, 8), 8)
    fitted = fit(member, train, Draw(4))
    errors, task = [], []
    for shots in (0, 4):
        tasks = Draw(4).tasks(new, shots, 1)
        said = fitted.predict(tasks)
        errors.append(np.mean((said.mean - tasks.rows.y[tasks.asked]) ** 2))
        task.append(said.task_variance.mean())
        assert (said.task_variance > 0).all()
        assert (said.noise_variance > 0).all()
    assert errors[1] < 0.5 * errors[0]
    assert task[1] < task[0]


def test_the_unit_of_the_target_is_kept(member: Prior):
    train, new = split(made_rows(10, 6), 7)
    tasks = Draw(2).tasks(new, 2, 1)
    plain = fit(member, train, Draw(2)).predict(tasks)
    big = fit(member, _scaled(train), Draw(2)).predict(Draw(2).tasks(_scaled(new), 2, 1))
    np.testing.assert_allclose(big.mean, 50 + 10 * plain.mean, rtol=1e-3, atol=1e-2)
    np.testing.assert_allclose(big.variance, 100 * plain.variance, rtol=1e-2)


def _scaled(rows: GroupedRows) -> GroupedRows:
    return GroupedRows(rows.x, 50 + 10 * rows.y, rows.group, rows.levels, rows.columns)


@pytest.mark.parametrize("kind", ["collinear", "duplicate", "constant", "target", "wild", "level"])
def test_columns_that_say_the_same_are_no_trouble(member: Prior, kind: str):
    rows = _hostile(kind)
    train, new = split(rows, 9)
    fitted = fit(member, train, Draw(4))
    for shots in (0, 4):
        tasks = Draw(4).tasks(new, shots, 1)
        said = fitted.predict(tasks)
        assert (said.task_variance > 0).all()
        assert (said.noise_variance > 0).all()
        assert np.mean((said.mean - tasks.rows.y[tasks.asked]) ** 2) < 2 * rows.y.var()


def _hostile(kind: str) -> GroupedRows:
    """Fifteen groups of eight rows and four columns, all of one shape."""
    random = np.random.default_rng(3)
    group = np.repeat(np.arange(15), 8)
    level = random.standard_normal((15, 3))[group]
    part = np.exp(1.5 * level + 0.05 * random.standard_normal(level.shape))
    y = part.sum(1) ** 0.9
    columns, y = {
        "collinear": ((part, part.sum(1)), y),
        "duplicate": ((part[:, :2], part[:, :2]), y),
        "constant": ((part, np.full(len(group), 3.0)), y),
        "target": ((part, 5 * y + 1e-9 * random.standard_normal(len(y))), y),
        "wild": ((part**4, part.sum(1) ** 4), y),
        "level": ((level, level.sum(1)), level[:, 0]),
    }[kind]
    x = np.column_stack(columns)
    kinds = tuple(Column(f"c{i}", "number") for i in range(x.shape[1]))
    return GroupedRows(x, y, group, np.zeros((len(group), 0), dtype=int), kinds)


@pytest.mark.parametrize("classes", [2, 3])
def test_class_probabilities_sum_to_1(member: Prior, classes: int):
    train, new = split(made_rows(9, 6, classes), 7)
    tasks = Draw(2).tasks(new, 2, 1)
    said = fit(member, train, Draw(2)).predict(tasks)
    assert said.mean.shape == (len(tasks.asked), classes)
    np.testing.assert_allclose(said.mean.sum(1), 1, atol=1e-6)
    assert (said.mean > 0).all()


def test_what_was_kept_says_the_same(member: Prior):
    train, new = split(made_rows(8, 6), 6)
    fitted = fit(member, train, Draw(2))
    back = member.restore({name: np.asarray(value) for name, value in fitted.state().items()})
    tasks = Draw(2).tasks(new, 1, 1)
    np.testing.assert_array_equal(back.predict(tasks).mean, fitted.predict(tasks).mean)
    assert isinstance(back, FittedPrior)


def test_tables_that_are_too_large_are_thinned_and_that_is_said():
    rows = made_rows(60, 40, columns=MOST_COLUMNS + 4)
    kept = keep_rows(rows.x, rows.y, rows.group, np.zeros(MOST_COLUMNS + 4, dtype=int))
    assert len(kept.y) <= MOST_ROWS
    assert len(kept.chosen) == MOST_COLUMNS
    assert 0 in kept.chosen  # the column that the target follows
    assert len(limits_said(len(rows.y), 60, MOST_COLUMNS + 4)) == 2
    assert not limits_said(100, 10, 3)


def test_columns_are_read_in_spreads_of_the_rows_to_learn_from():
    rows = made_rows(6, 5, columns=3)
    x = np.column_stack([7 + 3 * rows.x[:, 0], np.ones(30), (rows.x[:, 1] > 0).astype(float)])
    kept = keep_rows(x, rows.y, rows.group, np.array([0, 0, 1]))
    np.testing.assert_array_equal(kept.chosen, [0, 2])  # the second says nothing
    read = kept.scaled(kept.x)
    np.testing.assert_allclose([read[:, 0].mean(), read[:, 0].std()], [0, 1], atol=1e-6)
    np.testing.assert_array_equal(read[:, 1], x[:, 2])
    assert kept.scaled(np.array([[1e6, 1.0]]))[0, 0] == MOST_SCALED


def test_rows_without_a_target_are_not_read():
    rows = made_rows(5, 4)
    y = np.where(np.arange(20) % 4 == 0, np.nan, rows.y)
    kept = keep_rows(rows.x, y, rows.group, np.zeros(2, dtype=int))
    assert len(kept.y) == 15
    asked = questions((np.arange(4),), (np.arange(4, 8),), y)
    np.testing.assert_array_equal(asked[0].labelled, [1, 2, 3])


def test_shares_of_two_and_of_several_classes():
    np.testing.assert_allclose(shares(np.array([[0.0, 100.0]])), [[0.5, 0.5], [0.0, 1.0]], atol=1e-9)
    np.testing.assert_allclose(shares(np.zeros((4, 1))), np.full((1, 4), 0.25))


def test_few_groups_have_the_prior_among_their_usual_members(monkeypatch):
    monkeypatch.setattr("stmaml.pool.registry.FEW_GROUPS", 5)
    names = [[member.name for member in usual_members(made_rows(groups, 4))] for groups in (2, 5, 6)]
    assert ["prior" in each for each in names] == [False, True, False]


def test_the_learner_of_the_package_is_the_one_that_was_shipped(monkeypatch, tmp_path):
    assert shipped_learner().sizes == Sizes()
    assert (shipped_folder() / "card.md").read_text().startswith("# tables\n")
    shutil.copytree(shipped_folder(), tmp_path / "tables")
    save_weights(Learner(Sizes(64, 1, 64, 1), key=jr.key(0)), tmp_path / "tables" / "weights.npz")
    monkeypatch.setattr("stmaml.prior.weights.shipped_folder", lambda: tmp_path / "tables")
    shipped_learner.cache_clear()
    with pytest.raises(RunError, match="digest"):
        shipped_learner()


@pytest.fixture
def shipped(member: Prior, monkeypatch):
    """The package's weights are those of the untrained learner."""
    assert member.weights is not None
    learner = load_weights(member.weights)
    monkeypatch.setattr("stmaml.pool.prior.shipped_learner", lambda: learner)


def frame_of(rows: GroupedRows) -> pl.DataFrame:
    columns = {f"c{i}": rows.x[:, i] for i in range(rows.x.shape[1])}
    return pl.DataFrame({**columns, "shop": [f"s{i}" for i in rows.group], "sold": 10 + 3 * rows.y})


def test_a_table_predicts_without_a_fit(stmaml, shipped, tmp_path):
    train, new = (frame_of(part) for part in split(made_rows(12, 8), 10))
    new = new.with_columns(("new " + pl.col("shop")).alias("shop"))
    for name, part in {"train": train, "known": new[::2], "ask": new[1::2]}.items():
        part.write_csv(tmp_path / f"{name}.csv")
    words = ["--train", tmp_path / "train.csv", "--task", "shop", "--target", "sold", "--query", tmp_path / "ask.csv"]
    code, out, _ = stmaml("predict", *words, "--support", tmp_path / "known.csv")
    assert code == 0
    found = pl.read_csv(out.encode())
    assert np.corrcoef(found["prediction"], found["sold"])[0, 1] > 0.8
    assert (found["q05"] < found["q95"]).all()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--query", "q.csv"], "needs the folder of a run"),
        (["--query", "q.csv", "--train", "t.csv", "--target", "y"], "--task is missing"),
        (["run", "--query", "q.csv", "--train", "t.csv"], "Leave one of them out"),
        (["run", "--query", "q.csv", "--steps", "3"], "--steps goes with --train"),
        (["run", "--query", "q.csv", "--order", "day"], "--order goes with --train"),
        (["run", "--query", "q.csv", "--task", "shop"], "--task goes with --train"),
    ],
)
def test_what_does_not_go_together_is_a_sentence(stmaml, words: list[str], said: str):
    code, _, err = stmaml("predict", *words)
    assert code == 2
    assert said in " ".join(err.split())


def test_columns_are_dropped_and_codes_are_missing_without_a_fit_too(stmaml, shipped, tmp_path):
    train, new = (frame_of(part) for part in split(made_rows(12, 8), 10))
    train = train.with_columns(leak=pl.col("sold") * 2, c0=pl.when(pl.col("c0") > 1).then(-999).otherwise("c0"))
    for name, part in {"train": train, "ask": new}.items():
        part.write_csv(tmp_path / f"{name}.csv")
    words = ["--train", tmp_path / "train.csv", "--task", "shop", "--target", "sold", "--query", tmp_path / "ask.csv"]
    code, _, err = stmaml("predict", *words, "--missing", "-999")
    assert code == 2
    assert "the query table lacks 'leak'" in " ".join(err.split())
    code, _, err = stmaml("predict", *words, "--missing", "-999", "--drop", "leak")
    assert code == 0
    assert "-999" not in err


def test_an_estimator_with_the_prior_needs_no_training(shipped):
    rows = made_rows(12, 8)
    train, new = split(rows, 10)
    made = FewShotRegressor(prior="tables").fit(train.x, train.y, groups=[f"g{i}" for i in train.group])
    mine = new.group == 0
    adapted = made.fit(new.x[mine][:4], new.y[mine][:4])
    assert np.corrcoef(adapted.predict(new.x[mine][4:]), new.y[mine][4:])[0, 1] > 0.8
    assert isinstance(made.meta_model_, PoolModel)
    assert list(made.meta_model_.members) == ["prior"]


@pytest.mark.parametrize("settings", [{"prior": "chairs"}, {"prior": "tables", "members": ("mixed",)}])
def test_an_estimator_refuses_another_prior_and_further_members(settings):
    rows = made_rows(6, 4)
    with pytest.raises(ValueError, match="prior"):
        FewShotRegressor(**settings).fit(rows.x, rows.y, groups=[f"g{i}" for i in rows.group])


def test_one_fit_of_the_prior_answers_for_new_groups(member: Prior):
    """Nothing is trained, so that five more of them would say much the same."""
    rows = made_rows(10, 6)
    _, whole = fold_fits(member, rows, np.arange(10) % 5, Draw(2))
    assert isinstance(whole, FittedPrior)
    assert len(whole.kept.y) == len(rows.y)


def test_fits_to_parts_of_a_table_share_their_programs(member: Prior):
    """What is padded is forgotten: memories of parts are of one size, and say what an exact one does."""
    rows = made_rows(20, 6)
    fits = member.fit_each(rows, [np.arange(15), np.arange(20)], Draw(2))
    assert all(isinstance(one, FittedPrior) for one in fits)
    shapes = [jax.tree.map(jnp.shape, one.memory) for one in fits if isinstance(one, FittedPrior)]
    assert shapes[0] == shapes[1]
    tasks = Draw(2).tasks(made_rows(4, 6, seed=1), 2, 1)
    (alone,) = member.fit_each(rows, [np.arange(15)], Draw(2))
    np.testing.assert_allclose(alone.predict(tasks).mean, fits[0].predict(tasks).mean, atol=1e-4)


def test_few_held_out_tasks_are_asked_where_that_is_said():
    rows = made_rows(60, 20)
    for tasks in held_out_tasks(rows, Draw(2, max_query=8), (0, 2), most=32):
        assert len(tasks) == 32
        assert len(np.unique(tasks.group)) == 32
        assert max(len(one) for one in tasks.query) == 8
    (tasks,) = held_out_tasks(made_rows(5, 20), Draw(2), (0,), most=32)
    assert len(tasks) == 30  # six of each group


def test_an_estimator_may_train_the_prior_further(shipped, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "stmaml.pool.prior.tune",
        lambda learner, kept, steps, *, seed: asked.append(steps) or Tuned(learner, (1.0, 0.9)),
    )
    rows = made_rows(25, 6)
    FewShotRegressor(prior="tables", steps=3).fit(rows.x, rows.y, groups=[f"g{i}" for i in rows.group])
    assert asked == [3] * 6  # five folds of 20 groups, and all groups
