"""The scikit-learn face of pools: groups by name, cross-validation over groups, routing, and runs of the command."""

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
import pytest
import sklearn
from sklearn.base import clone as sklearn_clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from stmaml import FewShotClassifier, FewShotRegressor
from stmaml.errors import RunError, SettingError
from stmaml.estimators import wanted
from tests.table_data import classes, lines

MEMBERS = ("mean", "mixed", "ridge")


def regressor(**settings: Any) -> FewShotRegressor:
    return FewShotRegressor(**{"members": MEMBERS, **settings})


def clone(estimator: Any) -> Any:
    return sklearn_clone(estimator)


@pytest.fixture(scope="module")
def table() -> pl.DataFrame:
    return lines(15, 8)


@pytest.fixture(scope="module")
def asked() -> pl.DataFrame:
    """Rows of two known groups and of a new one, mixed."""
    return pl.concat([lines(2, 4), lines(1, 4, seed=9, prefix="new")])[[8, 0, 4, 9, 1, 5, 10, 2, 6, 11, 3, 7]]


@pytest.fixture(scope="module")
def fitted(table) -> FewShotRegressor:
    return regressor().fit(table.select("x"), table["y"], groups=table["shop"])


@pytest.fixture(scope="module")
def class_table() -> pl.DataFrame:
    frame = classes(15, 8)
    return frame.with_columns(pl.when(pl.col("label") == "high").then(7).otherwise(30).alias("label"))


@pytest.fixture(scope="module")
def classifier(class_table) -> FewShotClassifier:
    made = FewShotClassifier(members=("shares", "mixed-logistic"), shots=2)
    return made.fit(class_table.select("x"), class_table["label"], groups=class_table["shop"])


@pytest.fixture
def seen(fitted, monkeypatch) -> list[pl.DataFrame]:
    """The rows that each fit learns from; what it has learnt is what `fitted` has."""
    rows: list[pl.DataFrame] = []
    monkeypatch.setattr(wanted, "learn_pool", lambda frame, *_, seed: rows.append(frame) or fitted.learnt_)
    return rows


def check_folds(seen: list[pl.DataFrame], table: pl.DataFrame) -> None:
    """Each group is held out in one of three fits, with all of its rows."""
    held = [set(table["shop"]) - set(rows["group"]) for rows in seen]
    assert sorted(name for part in held for name in part) == sorted(set(table["shop"]))
    assert [rows.height for rows in seen] == [80, 80, 80]


@pytest.fixture
def routing() -> Iterator[None]:
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def test_known_groups_answer_with_what_was_learnt_of_them_and_others_are_new(fitted, table, asked):
    x, names = asked.select("x"), asked["shop"]
    known = names.is_in(table["shop"].to_list()).to_numpy()
    by_name, blind = fitted.predict(x, groups=names), fitted.predict(x)
    np.testing.assert_array_equal(by_name[~known], blind[~known])
    assert (by_name != blind)[known].all()
    for name in ("shop 0", "shop 1"):
        mine, theirs = names == name, table.filter(shop=name)
        adapted = copy.copy(fitted).fit(theirs.select("x"), theirs["y"])
        np.testing.assert_allclose(by_name[mine.to_numpy()], adapted.predict(x.filter(mine)), rtol=1e-10)
    truth = table["y"].to_numpy()
    assert fitted.score(table.select("x"), truth) < 0.3
    assert np.square(fitted.predict(table.select("x"), groups=table["shop"]) - truth).mean() < 0.3**2


def test_all_that_predicts_takes_groups(fitted, asked):
    x, names = asked.select("x"), asked["shop"].to_list()
    new = np.array([name == "new 0" for name in names])
    mean, std = fitted.predict(x, return_std=True, groups=names)
    assert std[new].min() > 2 * std[~new].max()
    quantiles = fitted.predict_quantiles(x, [0.1, 0.9], groups=names)
    assert ((quantiles[:, 0] < mean) & (mean < quantiles[:, 1])).all()
    drawn = fitted.sample_y(x, 2000, random_state=1, groups=names)
    np.testing.assert_allclose(drawn.mean(1), mean, atol=0.35)
    levels = np.corrcoef(drawn)
    assert levels[np.ix_(new, new)].min() > 0.8  # a draw has one level for all rows of a group
    assert np.abs(levels[np.ix_(new, ~new)]).max() < 0.2
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        fitted.predict(x, groups=names[:3])


def test_the_last_group_adapted_to_is_asked_without_names(fitted, asked):
    x, y = asked.select("x"), asked["y"]
    new = (asked["shop"] == "new 0").to_numpy()
    adapted = copy.copy(fitted).fit(x.filter(new), y.filter(new))
    error = np.square(adapted.predict(x) - y.to_numpy())
    assert error[new].max() < error[~new].mean()
    np.testing.assert_array_equal(adapted.fit().predict(x), fitted.predict(x))
    np.testing.assert_array_equal(adapted.predict(x, groups=asked["shop"]), fitted.predict(x, groups=asked["shop"]))


def test_classes_of_known_and_new_groups(classifier, class_table):
    x, label, shop = class_table.select("x"), class_table["label"].to_numpy(), class_table["shop"]
    assert classifier.classes_.tolist() == [7, 30]
    known, blind = classifier.predict_proba(x, groups=shop), classifier.predict_proba(x)
    truth = (np.arange(len(label)), np.searchsorted([7, 30], label))
    assert np.log(known[truth]).mean() > np.log(blind[truth]).mean()
    np.testing.assert_array_equal(classifier.predict(x, groups=shop), np.array([7, 30])[known.argmax(1)])
    np.testing.assert_array_equal(classifier.predict_proba(x, groups=["new"] * len(label)), blind)
    sets = classifier.predict_set(x, 0.8, groups=shop)
    assert sets[truth].mean() > 0.7
    drawn = classifier.sample_y(x, 400, groups=shop)
    np.testing.assert_allclose((drawn == 30).mean(1), known[:, 1], atol=0.12)


def test_groups_are_cross_validated(seen, table):
    given = {"groups": table["shop"], "params": {"groups": table["shop"].to_numpy()}}
    scores = cross_val_score(regressor(), table.select("x"), table["y"], cv=GroupKFold(3), **given)
    assert np.isfinite(scores).all()
    check_folds(seen, table)
    with pytest.raises(ValueError, match=r'has learnt from no groups yet.*cross_val_score, give params=\{"groups"'):
        cross_val_score(regressor(), table.select("x"), table["y"], groups=table["shop"], cv=GroupKFold(3))


@pytest.mark.usefixtures("routing")
def test_routed_groups_reach_cross_validation_and_searches(seen, table):
    x, y, groups = table.select("x"), table["y"].to_numpy(), table["shop"].to_numpy()
    cross_val_score(regressor(), x, y, params={"groups": groups}, cv=GroupKFold(3))
    check_folds(seen, table)
    seen.clear()
    asks: Any = regressor()
    asks.set_fit_request(groups=True).set_predict_request(groups=True)
    search = GridSearchCV(asks, {"members": [("mean",), ("mean", "mixed")]}, cv=GroupKFold(3)).fit(x, y, groups=groups)
    check_folds(seen[:3], table)
    assert seen[-1].height == 120
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_estimator_.predict(x, groups=groups).shape == (120,)


def scaler() -> StandardScaler:
    return StandardScaler().set_output(transform="polars")


def check_pipeline(pipeline: Any, table: pl.DataFrame) -> None:
    x, groups = table.select("x"), table["shop"].to_numpy()
    assert pipeline[-1].n_features_in_ == 1
    known = pipeline.predict(x, groups=groups)
    np.testing.assert_array_equal(known, pipeline[-1].predict(pipeline[:-1].transform(x), groups=groups))
    assert np.abs(known - pipeline.predict(x)).max() > 1


@pytest.mark.usefixtures("routing")
def test_routed_groups_reach_the_last_step_of_a_pipeline(seen, table):
    x, y, groups = table.select("x"), table["y"].to_numpy(), table["shop"].to_numpy()
    check_pipeline(make_pipeline(scaler(), regressor()).fit(x, y, groups=groups), table)
    assert seen[0]["x"].mean() == pytest.approx(0, abs=1e-9)
    assert seen[0]["group"].to_list() == groups.tolist()


def test_pipelines_take_groups_without_routing(seen, table):
    x, y, groups = table.select("x"), table["y"].to_numpy(), table["shop"].to_numpy()
    steps = [("scale", scaler()), ("model", regressor())]
    check_pipeline(Pipeline(steps).fit(x, y, model__groups=groups), table)
    assert seen[0]["group"].to_list() == groups.tolist()


@pytest.mark.usefixtures("seen")
def test_a_clone_forgets_what_fit_learnt_and_keeps_what_meta_fit_did(fitted, table, asked):
    x = asked.select("x")
    assert clone(fitted).get_params() == fitted.get_params()
    with pytest.raises(NotFittedError, match="has learnt from no groups yet"):
        clone(fitted).fit(x, asked["y"])
    prior = clone(regressor().meta_fit(table.select("x"), table["y"], table["shop"]))
    with pytest.raises(NotFittedError, match="not adapted to a group yet"):
        prior.predict(x)
    np.testing.assert_array_equal(prior.fit().predict(x), fitted.predict(x))


def test_pickles_and_deep_copies_predict_the_same(fitted, classifier, asked):
    for made, answer in ((fitted, "predict"), (classifier, "predict_proba")):
        expected = getattr(made, answer)(asked.select("x"), groups=asked["shop"])
        for again in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
            np.testing.assert_array_equal(getattr(again, answer)(asked.select("x"), groups=asked["shop"]), expected)


def test_a_saved_run_predicts_by_command_and_comes_back(fitted, asked, stmaml, tmp_path):
    x, names = asked.select("x"), asked["shop"]
    fitted.save_run(tmp_path / "run")
    asked.drop("y").write_csv(tmp_path / "ask.csv")
    code, _, err = stmaml("predict", tmp_path / "run", "--query", tmp_path / "ask.csv", "--out", tmp_path / "out.csv")
    assert code == 0, err
    said = pl.read_csv(tmp_path / "out.csv")["prediction"].to_numpy()
    np.testing.assert_allclose(said, fitted.predict(x, groups=names), rtol=1e-5)
    again = FewShotRegressor.from_run(tmp_path / "run")
    assert again.get_params() == fitted.get_params()
    assert again.result_ == fitted.result_
    np.testing.assert_allclose(again.predict(x, groups=names), fitted.predict(x, groups=names), rtol=1e-12)
    np.testing.assert_allclose(clone(again).fit().predict(x.to_numpy()), fitted.predict(x), rtol=1e-12)
    with pytest.raises(RunError, match="already holds a run"):
        again.save_run(tmp_path / "run")
    stale = tmp_path / "run" / "members" / "boosting.npz"
    stale.write_bytes(b"of another pool")
    again.save_run(tmp_path / "run", force=True)
    assert not stale.exists()
    with pytest.raises(SettingError, match=r"predicts numbers\. Open it with FewShotRegressor\.from_run"):
        FewShotClassifier.from_run(tmp_path / "run")


def test_a_saved_classifier_names_its_own_classes(classifier, class_table, stmaml, tmp_path):
    classifier.save_run(tmp_path / "run")
    class_table.drop("label").write_csv(tmp_path / "ask.csv")
    code, out, _ = stmaml("predict", tmp_path / "run", "--query", tmp_path / "ask.csv")
    assert code == 0
    said = pl.read_csv(out.encode())
    odds = classifier.predict_proba(class_table.select("x"), groups=class_table["shop"])
    np.testing.assert_allclose(said.select("p_7", "p_30").to_numpy(), odds, atol=1e-5)
    again = FewShotClassifier.from_run(tmp_path / "run")
    assert again.classes_.tolist() == [7, 30]
    np.testing.assert_allclose(again.predict_proba(class_table.select("x"), groups=class_table["shop"]), odds)
    again.fit(class_table.select("x")[:4], class_table["label"][:4])


def test_with_an_order_the_first_rows_are_labelled(table):
    frame = table.with_columns(pl.int_range(pl.len()).reverse().alias("day"))
    made = regressor(members=("mean",), shots=1, order="day").fit(
        frame.select("x", "day"), frame["y"], groups=frame["shop"]
    )
    learnt: Any = made.meta_model_
    assert learnt.known["day"].is_sorted()
    with pytest.raises(ValueError, match="has no column 'night'"):
        regressor(order="night").fit(frame.select("x", "day"), frame["y"], groups=frame["shop"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 5}, "^steps is for one method alone; name it as method, or leave steps out"),
        ({"linear": False}, "^linear is for one method alone"),
        ({"method": "cnp"}, "^members is for a pool; use method='pool', or leave members out"),
        ({"method": "forest"}, "^there is no method 'forest'; choose pool, or one of"),
        ({"members": ("forest",)}, "^there is no member 'forest'"),
        ({"shots": 0}, "^shots must be at least 1; got 0"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(table, settings, message):
    with pytest.raises(ValueError, match=message):
        regressor(**settings).fit(table.select("x"), table["y"], groups=table["shop"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"groups": ["a"] * 120}, "has a single group.*groups has to tell several of them apart"),
        ({"groups": ["a", "b"] * 60}, "2 of 2 groups of 'group' have two rows or more; at least 4"),
        ({"y": None}, "requires y to be passed"),
        ({"X": None}, "requires X to be passed"),
        ({"y": np.ones(120)}, "^y is '1' in every row"),
    ],
)
def test_what_cannot_be_learnt_from_is_said(table, changes, message):
    given = {"X": table.select("x"), "y": table["y"].to_list(), "groups": table["shop"].to_list(), **changes}
    with pytest.raises(ValueError, match=message):
        regressor().fit(given["X"], given["y"], groups=given["groups"])


def test_columns_of_a_run_have_the_names_of_the_series(seen, table):
    regressor().fit(table.select("x"), table["y"], groups=table["shop"])
    plain = table.select("x").rename({"x": "group"})
    regressor().fit(plain, table["y"].to_list(), groups=table["shop"].to_list())
    assert [rows.columns for rows in seen] == [["x", "shop", "y"], ["group", "(group)", "target"]]
