"""The scikit-learn face of one method: manners, frames of all kinds, pipelines, and the estimator checks."""

import pickle
import runpy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone as sklearn_clone
from sklearn.base import is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from stmaml import FewShotClassifier, FewShotRegressor
from stmaml.errors import RunError, SettingError, SourceError
from stmaml.estimators import learning, wanted
from stmaml.estimators.frames import column_of, frame_of
from stmaml.estimators.learning import LearntMethod
from stmaml.experiments import fresh
from stmaml.recipes import Experiment
from stmaml.runs import Run
from stmaml.tables.benchmark import Config, target_scaling, task_spec
from stmaml.tables.calibration import Calibration
from stmaml.tables.model import FewShotModel
from stmaml.tables.novelty import Reference
from stmaml.tables.schema import infer_schema
from tests.table_data import classes, lines, quick


def clone(estimator: Any) -> Any:
    return sklearn_clone(estimator)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(wanted, "table_recipe", small)


def small(table: Config, method: str, *, steps: int | None, preset: str, linear: bool) -> Experiment:
    del method, preset, linear
    return quick(steps or 80, table)


@pytest.fixture(scope="module")
def table() -> pl.DataFrame:
    return lines(60, 12)


@pytest.fixture(scope="module")
def regressor(table) -> FewShotRegressor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wanted, "table_recipe", small)
        return FewShotRegressor(method="st-maml", shots=6, min_query=2).meta_fit(
            table.select("x").to_numpy(), table["y"].to_numpy(), table["shop"].to_numpy()
        )


@pytest.fixture(scope="module")
def group() -> tuple[np.ndarray, np.ndarray]:
    frame = lines(1, 20, seed=33)
    return frame.select("x").to_numpy(), frame["y"].to_numpy()


def test_it_adapts_predicts_and_says_how_sure_it_is(regressor, group):
    x, y = group
    fitted = clone(regressor).fit(x[:6], y[:6])
    mean, std = fitted.predict(x[6:], return_std=True)
    np.testing.assert_array_equal(mean, fitted.predict(x[6:]))
    assert (std > 0).all()
    zero_shot = clone(regressor).fit().predict(x[6:])
    assert np.square(mean - y[6:]).mean() < np.square(zero_shot - y[6:]).mean()
    quantiles = fitted.predict_quantiles(x[6:], [0.1, 0.5, 0.9])
    assert quantiles.shape == (14, 3)
    assert (np.diff(quantiles, axis=1) > 0).all()
    np.testing.assert_allclose(quantiles[:, ::-1], fitted.predict_quantiles(x[6:], [0.9, 0.5, 0.1]))
    drawn = fitted.sample_y(x[6:], 500, random_state=1)
    assert drawn.shape == (14, 500)
    np.testing.assert_allclose(drawn.mean(1), mean, atol=0.5)
    assert fitted.score(x[6:], y[6:]) > clone(regressor).fit().score(x[6:], y[6:])
    with pytest.raises(ValueError, match="quantiles must lie between 0 and 1"):
        fitted.predict_quantiles(x, [5])


def test_frames_of_pandas_and_polars_and_arrays_give_the_same(table, group):
    made = [
        FewShotRegressor(method="cnp", shots=6, min_query=2, steps=20).meta_fit(features, target, groups)
        for features, target, groups in (
            (table.select("x").to_numpy(), table["y"].to_numpy(), table["shop"].to_list()),
            (pd.DataFrame({"x": table["x"].to_numpy()}), table["y"].to_list(), table["shop"]),
            (table.select("x"), table["y"], table["shop"]),
        )
    ]
    x, y = group
    shapes = (x, pd.DataFrame({"x": x[:, 0]}), pl.DataFrame({"x": x[:, 0]}))
    answers = [one.fit(shape, y).predict(shape) for one, shape in zip(made, shapes, strict=True)]
    np.testing.assert_allclose(answers[1], answers[0], rtol=1e-5)
    np.testing.assert_allclose(answers[2], answers[0], rtol=1e-5)
    np.testing.assert_allclose(made[1].fit(x, y).predict(x), answers[0], rtol=1e-5)


def test_text_dates_and_gaps_in_a_frame_are_welcome(table):
    frame = pd.DataFrame(
        {
            "x": np.where(np.arange(720) % 9 == 0, np.nan, table["x"].to_numpy()),
            "colour": ["red", "blue", None] * 240,
            "day": pd.to_datetime("2020-01-01") + pd.to_timedelta(np.arange(720), unit="D"),
        }
    )
    made = FewShotRegressor(method="cnp", shots=6, min_query=2, steps=20).meta_fit(frame, table["y"], table["shop"])
    assert [column.kind for column in made.meta_model_.schema.columns] == ["numeric", "categorical", "date"]
    assert np.isfinite(made.fit(frame[:5], table["y"][:5]).predict(frame[5:9])).all()
    with pytest.raises(ValueError, match="'colour' is in only one of them"):
        made.predict(frame.rename(columns={"colour": "hue"}))


def test_a_pipeline_needs_a_frozen_scaler(table, group):
    """A pipeline's fit fits its scaler to the few rows of a group, and inputs then mean something else."""
    scaler = StandardScaler().fit(table.select("x").to_numpy())
    made = FewShotRegressor(method="cnp", shots=6, min_query=2, steps=20).meta_fit(
        scaler.transform(table.select("x").to_numpy()), table["y"], table["shop"]
    )
    x, y = group[0][:4], group[1][:4]
    expected = clone(made).fit(scaler.transform(x), y).predict(scaler.transform(x))
    frozen = make_pipeline(FrozenEstimator(scaler), made)
    np.testing.assert_allclose(frozen.fit(x, y).predict(x), expected, rtol=1e-5)
    np.testing.assert_allclose(clone(frozen).fit(x, y).predict(x), expected, rtol=1e-5)
    refitted = make_pipeline(StandardScaler(), clone(made)).fit(x, y)
    assert np.abs(refitted.predict(x) - expected).max() > 0.01


def test_known_groups_answer_with_their_rows(regressor, table):
    """As if it had been adapted to them; others are new."""
    x, names = table.select("x").to_numpy()[:24:3], table["shop"].to_list()[:24:3]
    found = regressor.predict(x, groups=[*names[:4], *["new"] * 4])
    theirs = table.filter(shop=names[0])
    adapted = clone(regressor).fit(theirs.select("x").to_numpy(), theirs["y"].to_numpy())
    assert names[0] == names[3]
    np.testing.assert_allclose(found[:4], adapted.predict(x[:4]), rtol=1e-4)
    np.testing.assert_allclose(found[4:], regressor.predict(x[4:]), rtol=1e-4)
    drawn = regressor.sample_y(x, 300, random_state=1, groups=names)
    np.testing.assert_allclose(drawn.mean(1), regressor.predict(x, groups=names), atol=0.5)


def test_a_run_of_one_method_is_opened_and_not_saved(regressor, group, tmp_path, monkeypatch):
    """Its rows are not kept, so that all groups are new."""
    monkeypatch.setattr(learning, "load_model", lambda folder: regressor.meta_model_)
    Run(tmp_path / "run").create({"seed": 3, "method": {"name": "cnp"}})
    made = FewShotRegressor.from_run(tmp_path / "run")
    given = {"method": "cnp", "steps": 80, "shots": 6, "min_query": 2, "order": None, "linear": True, "random_state": 3}
    assert {name: made.get_params()[name] for name in given} == given
    blind = clone(regressor).set_params(random_state=3).fit().predict(group[0])
    np.testing.assert_allclose(made.predict(pandas_of(group[0]).rename(columns={"x": "x0"})), blind, rtol=1e-5)
    np.testing.assert_allclose(made.predict(group[0], groups=["shop 0"] * 20), blind, rtol=1e-5)
    np.testing.assert_allclose(clone(made).fit().predict(group[0]), blind, rtol=1e-5)
    with pytest.raises(SettingError, match="save_run writes pools; this is cnp alone"):
        made.save_run(tmp_path / "other")
    with pytest.raises(RunError, match="there is no run folder"):
        FewShotRegressor.from_run(tmp_path / "nowhere")


def test_rows_of_one_group_are_cross_validated_without_meta_fitting_again(regressor, group):
    search = GridSearchCV(regressor, {"num_samples": [2, 5]}, cv=2).fit(*group)
    assert search.best_estimator_.meta_model_ is regressor.meta_model_
    assert search.best_score_ > 0


@pytest.mark.parametrize("state", [None, np.random.RandomState(3), np.int64(4), 2**32 - 1])
def test_every_random_state_of_scikit_learn_will_do(regressor, group, state):
    """One seed is drawn for each fit, so that asking twice gives one answer."""
    x, y = group
    fitted = clone(regressor).set_params(random_state=state).fit(x[:6], y[:6])
    np.testing.assert_array_equal(fitted.predict(x), fitted.predict(x))
    np.testing.assert_array_equal(fitted.sample_y(x, 2), fitted.sample_y(x, 2))
    assert fitted.sample_y(x, 2, random_state=state).shape == (20, 2)


def test_a_state_gives_meta_fit_a_seed(regressor, table, monkeypatch):
    seen = []
    monkeypatch.setattr(learning, "fit_frame", lambda frame, recipe, seed: seen.append(seed) or regressor.meta_model_)
    state = np.random.RandomState(3)
    made = FewShotRegressor(method="st-maml", shots=6, min_query=2)
    for random_state in (state, state, 5):
        made.set_params(random_state=random_state).meta_fit(table.select("x"), table["y"], table["shop"])
    assert len(set(seen)) == 3
    assert seen[2] == 5
    with pytest.raises(ValueError, match="'a' cannot be used to seed"):
        made.set_params(random_state="a").meta_fit(table.select("x"), table["y"], table["shop"])


def test_a_clone_keeps_what_was_learnt_across_groups_and_forgets_the_group(regressor, group):
    x, y = group
    fitted = clone(regressor).fit(x[:6], y[:6])
    check_is_fitted(fitted)
    copy = clone(fitted)
    with pytest.raises(NotFittedError, match=r"not adapted to a group yet\. Call fit"):
        copy.predict(x)
    np.testing.assert_array_equal(copy.fit(x[:6], y[:6]).predict(x), fitted.predict(x))


def test_a_pickle_predicts_the_same(regressor, group):
    x, y = group
    fitted = clone(regressor).fit(x[:6], y[:6])
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict(x), fitted.predict(x))
    np.testing.assert_array_equal(again.sample_y(x, 3), fitted.sample_y(x, 3))


def test_classes_keep_their_own_labels():
    frame = classes(60, 12)
    labels = np.where(frame["label"].to_numpy() == "high", 7, 3)
    made = FewShotClassifier(method="cnp", shots=6, min_query=2, steps=100).meta_fit(
        frame.select("x"), labels, frame["shop"]
    )
    assert made.classes_.tolist() == [3, 7]
    fresh = classes(1, 20, seed=5)
    truth = np.where(fresh["label"].to_numpy() == "high", 7, 3)
    made.fit(fresh.select("x")[:6], truth[:6])
    shares = made.predict_proba(fresh.select("x"))
    np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-5)
    np.testing.assert_array_equal(made.predict(fresh.select("x")), np.array([3, 7])[shares.argmax(1)])
    assert made.score(fresh.select("x"), truth) > 0.6
    assert set(np.unique(made.sample_y(fresh.select("x"), 50))) == {3, 7}
    sets = made.predict_set(fresh.select("x"), coverage=0.9)
    assert sets.shape == (20, 2)
    assert sets[np.arange(20), shares.argmax(1)].all()
    assert (made.predict_set(fresh.select("x"), coverage=0.99) >= sets).all()
    with pytest.raises(ValueError, match=r"coverage must lie between 0 and 1; got 90\.0"):
        made.predict_set(fresh.select("x"), coverage=90.0)
    with pytest.raises(ValueError, match="y has the class 5, which meta_fit did not see; it saw"):
        made.fit(fresh.select("x"), np.full(20, 5))


def test_what_is_wrong_is_said(regressor, table, group):
    x, y = group
    with pytest.raises(NotFittedError, match="has learnt from no groups yet"):
        FewShotRegressor().fit(x, y)
    with pytest.raises(NotFittedError, match="has learnt from no groups yet"):
        FewShotRegressor().predict(x)
    with pytest.raises(ValueError, match="X has 2 features, but FewShotRegressor is expecting 1 features"):
        regressor.fit(np.hstack([x, x]), y)
    with pytest.raises(ValueError, match="requires y to be passed"):
        regressor.fit(x)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        regressor.fit(x, y[:3])
    with pytest.raises(SourceError, match="single group"):
        FewShotRegressor(method="st-maml").meta_fit(x, y, ["one"] * 20)


def pandas_of(x: Any) -> pd.DataFrame:
    return pd.DataFrame({"x": np.asarray(x).ravel()})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": None}, "requires y to be passed, but the target y is None"),
        ({"groups": None}, "meta_fit needs groups, the name of the group of each row; got None"),
        ({"X": np.zeros((0, 1)), "y": [], "groups": []}, r"0 sample\(s\)"),
        ({"X": pandas_of([]), "y": [], "groups": []}, "X has no rows"),
        ({"X": pandas_of(np.zeros(720))[[]]}, "X has no columns"),
        ({"X": pd.concat([pandas_of(np.arange(720))] * 2, axis=1)}, "X has two columns named 'x'"),
        ({"X": np.zeros((720, 1))}, r"no column is left to predict from: 'x0' is dropped \(constant\)"),
        ({"y": np.zeros(720)}, "^y is '0' in every row"),
        ({"y": [float("nan"), *range(719)]}, "Input y contains NaN or None in 1 of its rows, first at index 0"),
        ({"groups": ["a", None] * 360}, "Input groups contains NaN or None in 360 of its rows, first at index 1"),
        ({"groups": ["a", " "] * 360}, "Input groups contains NaN or None in 360 of its rows, first at index 1"),
        ({"groups": [["a", "b"]] * 720}, r"groups must be one name for each row; got an array of shape \(720, 2\)"),
        ({"groups": ["a"] * 720}, "single group, 'a'.*groups has to tell several"),
    ],
)
def test_what_meta_fit_cannot_learn_from_is_said_in_words_of_its_own(table, changes, message):
    given = {"X": table.select("x").to_numpy(), "y": table["y"], "groups": table["shop"], **changes}
    with pytest.raises(ValueError, match=message) as error:
        FewShotRegressor(method="st-maml", shots=6, min_query=2).meta_fit(**given)
    assert "--" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shots": 0}, "^shots must be at least 1; got 0"),
        ({"min_query": 0}, "^min_query must be at least 1; got 0"),
        ({"shots": 50}, "0 of 60 groups have the 55 rows.*Use shots 7, or bring larger groups"),
    ],
)
def test_settings_are_called_by_the_names_of_parameters(table, settings, message):
    with pytest.raises(ValueError, match=message):
        FewShotRegressor(method="st-maml", **settings).meta_fit(table.select("x"), table["y"], table["shop"])


def test_labelled_rows_are_checked_by_fit_and_leave_it_as_it_was(regressor, group):
    """Another unit is noticed where the rows are given, not when something is asked."""
    x, y = group
    fitted = clone(regressor).fit(x[:6], y[:6])
    expected = fitted.predict(x)
    for rows, target, message in [
        (1000 * x, y, "column 'x0' holds values such as .*in training it went from"),
        (x, 1000 * y, "^y holds values such as .*Convert it to the unit"),
        (x, np.where(y > y[0], np.nan, y), "Input y contains NaN"),
        (x, np.where(y > y[0], np.inf, y), "^y holds infinity"),
        (pandas_of(x)[:0], y[:0], r"X has no rows.*call fit\(\) alone"),
        (None, y, "requires X to be passed"),
    ]:
        with pytest.raises(ValueError, match=message):
            fitted.fit(rows, target)
    np.testing.assert_array_equal(fitted.predict(x), expected)
    with pytest.raises(ValueError, match="num_samples must be at least 1; got 0"):
        clone(regressor).set_params(num_samples=0).fit(x, y)


def test_questions_without_an_answer_are_said(regressor, group):
    x, y = group
    fitted = clone(regressor).fit(x[:6], y[:6])
    with pytest.raises(ValueError, match="quantiles needs at least one level"):
        fitted.predict_quantiles(x, [])
    with pytest.raises(ValueError, match="X has no rows"):
        fitted.predict(pandas_of([]))
    with pytest.raises(ValueError, match="n_samples must be at least 1; got 0"):
        fitted.sample_y(x, 0)
    twice = fitted.predict_quantiles(x, [0.9, 0.5, 0.9])
    np.testing.assert_array_equal(twice[:, 0], twice[:, 2])
    np.testing.assert_array_equal(twice[:, [0, 1]], fitted.predict_quantiles(x, [0.9, 0.5]))


def test_gaps_of_pandas_are_gaps():
    column = column_of(pd.Series(["a", pd.NA, None], dtype="string"))
    assert column.to_list() == ["a", None, None]


def test_a_classifier_says_what_labels_it_needs(table):
    rows, groups = table.select("x"), table["shop"]
    with pytest.raises(ValueError, match="y has one class, 'a'; at least two are needed"):
        FewShotClassifier().meta_fit(rows, ["a"] * 720, groups)
    with pytest.raises(ValueError, match="Input y contains NaN or None in 1 of its rows, first at index 0"):
        FewShotClassifier().meta_fit(rows, [None, *["a", "b"] * 359, "a"], groups)


class NoReference(Reference):
    """Of a model that has seen no other group: no group is new to it, whatever the size of its codes."""

    def novelty(self, code: np.ndarray, shots: np.ndarray) -> np.ndarray:
        """Zeros."""
        del code
        return np.zeros(len(shots))


class _Untrained:
    """`fit` on rows without groups makes a model that has learnt nothing across groups, then adapts it as usual.

    scikit-learn's checks know no groups. This leaves all else of an estimator to be checked: the regression before the
    method adapts by itself, so that even its predictions are sensible.
    """

    def fit(self: Any, X: Any = None, y: Any = None, groups: Any = None) -> Any:
        del groups
        if X is not None and y is not None:
            frame = frame_of(X)
            check_consistent_length(frame, y)
            self._learn_classes(y)
            labelled = frame.with_columns(
                pl.Series("group", ["one"] * frame.height), pl.Series("target", self._labels(y))
            )
            every = np.ones(frame.height, dtype=bool)
            schema = infer_schema(labelled, "group", "target", train=every, kind=self._kind)
            experiment = quick()
            nothing = np.zeros((1, 1))
            reference = NoReference(np.array([1]), nothing, nothing[None], nothing, np.zeros(1))
            learner = fresh(experiment, task_spec(schema), target_scaling(schema))
            model = FewShotModel(schema, experiment, learner, Calibration((0,), (1.0,)), reference)
            self.learnt_ = LearntMethod(model, None)
            self._remember(frame, X)
        return super().fit(X, y)  # pyright: ignore[reportAttributeAccessIssue]


class CheckedRegressor(_Untrained, FewShotRegressor):
    pass


class CheckedClassifier(_Untrained, FewShotClassifier):
    def __sklearn_tags__(self) -> Any:
        """Its network was never trained, so its accuracy is not checked."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True
        return tags


VARIES = "meta_fit needs targets that vary, and is what these checks reach; fit itself takes any labelled rows"
EXCEPTIONS = {"check_fit2d_1sample": VARIES, "check_classifiers_one_label": VARIES}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [CheckedRegressor, CheckedClassifier])
def test_the_estimator_checks_pass(kind):
    """All of scikit-learn's checks but for the exceptions, on estimators that need no groups."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(kind(), expected_failed_checks=EXCEPTIONS, on_fail=None, on_skip=None)
    failed = {result["check_name"]: result["exception"] for result in results if result["status"] == "failed"}
    assert failed == {}
    assert sum(result["status"] == "passed" for result in results) >= 45


@pytest.mark.parametrize("kind", [FewShotRegressor, FewShotClassifier])
def test_what_needs_groups_says_so_and_the_rest_is_an_estimator(kind):
    assert is_regressor(kind()) != is_classifier(kind())
    params = kind().get_params()
    assert clone(kind(**params)).get_params() == params
    with pytest.raises(NotFittedError, match="has learnt from no groups yet"):
        kind().fit(np.zeros((3, 1)), [0, 1, 0])


@pytest.mark.slow
def test_the_example_predicts_new_shops(capsys, monkeypatch):
    """Noise has a spread of 2, shops differ by 12: four known days must have told most of that."""
    monkeypatch.undo()
    made = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "own_table.py"))
    assert np.shape(made["errors"]) == (20, 36)
    assert 2.0**2 < np.mean(made["errors"]) < 3.2**2
    assert np.mean(made["inside"]) == pytest.approx(0.8, abs=0.1)
    assert "20 new shops: typical error" in capsys.readouterr().out
