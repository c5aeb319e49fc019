"""Few-shot learning in scikit-learn's manner.

`meta_fit` learns across groups, once; `fit` adapts to the few labelled rows of one new group; `predict` asks about
other rows of it.
"""

import abc
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import Any, TypeVar

import numpy as np
import polars as pl
from jaxtyping import Bool, Float, Shaped
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_consistent_length, column_or_1d

from stmaml.errors import SettingError, SourceError
from stmaml.tables.answers import SUPPORT_SIZES, level_name
from stmaml.tables.benchmark import Config, TableConfig
from stmaml.tables.calibration import class_sets
from stmaml.tables.groups import Sizes
from stmaml.tables.model import FewShotModel, fit_frame
from stmaml.tables.settings import table_recipe
from stmaml.tables.target import WantedTarget

GROUP, TARGET = "(group)", "(target)"
PARAMETERS = {"task": "groups", "target": "y", "features": "X"}
"""What the command line's flags are called here, where it is not the same name."""
Estimator = TypeVar("Estimator", bound="_FewShotEstimator")


class _FewShotEstimator(BaseEstimator, abc.ABC):
    """What regressor and classifier share."""

    _kind: WantedTarget

    def __init__(  # without types: scikit-learn wants nothing refused before fit
        self, *, method="st-maml", steps=None, shots=10, min_query=5, num_samples=20, random_state: Any = 0
    ):
        """Stores the settings.

        Args:
            method: a name of METHODS.
            steps: meta-steps of training; some minutes' worth by default.
            shots: most labelled rows to expect of a new group; any number up to it is trained for.
            min_query: a group needs this many rows beside, or `meta_fit` leaves it out.
            num_samples: predictors drawn for a group.
            random_state: seed of weights, tasks and draws; None, or a RandomState that gives a new one to each
                `meta_fit` and `fit`.
        """
        self.method = method
        self.steps = steps
        self.shots = shots
        self.min_query = min_query
        self.num_samples = num_samples
        self.random_state = random_state

    def meta_fit(self: Estimator, X: Any, y: Any, groups: Any) -> Estimator:
        """Itself, after learning across the groups that the rows belong to: `groups` names that of each row."""
        self._check_given(y, groups)
        frame = _frame(X)
        check_consistent_length(frame, y, groups)
        _check_no_gaps("y", y)
        with _in_own_words():
            seed, sizes = _seed(self.random_state), Sizes(shots=self.shots, min_query=self.min_query)
            table = Config(TableConfig(GROUP, TARGET, kind=self._kind, keep_codes=True, sizes=sizes))
            recipe = table_recipe(table, self.method, steps=self.steps)
            labelled = frame.with_columns(_group_names(groups), self._learn_labels(y))
            self.meta_model_ = fit_frame(labelled, recipe, seed=seed)
        self._remember(frame, X)
        self.support_ = None
        return self

    def fit(self: Estimator, X: Any = None, y: Any = None) -> Estimator:
        """Itself, adapted to the labelled rows of one group; without any, it predicts from all groups alike."""
        if (X is None) != (y is None):
            lacking = "X" if X is None else "y"
            raise ValueError(
                f"{type(self).__name__} requires {lacking} to be passed, but the "
                f"{'rows X are' if X is None else 'target y is'} None."
            )
        self._check_meta_fitted()
        if self.num_samples < 1:
            raise SettingError(f"num_samples must be at least 1; got {self.num_samples}.")
        seed = _seed(self.random_state)
        self.support_ = pl.DataFrame() if X is None else self._checked_support(X, y)
        self.seed_ = seed
        return self

    def _checked_support(self, X: Any, y: Any) -> pl.DataFrame:
        """The labelled rows of one group, if the model can use them."""
        frame = self._known_frame(X)
        check_consistent_length(frame, y)
        _check_no_gaps("y", y)
        support = frame.with_columns(self._labels(y))
        with _in_own_words():
            self._model().check_support(support)
        return support

    def __sklearn_is_fitted__(self) -> bool:
        """Whether `predict` may be called."""
        return getattr(self, "support_", None) is not None

    def __sklearn_clone__(self: Estimator) -> Estimator:
        """A copy that is not adapted to any group, but keeps what `meta_fit` learnt: a prior, not a fit."""
        settings: Any = {name: clone(value, safe=False) for name, value in self.get_params(deep=False).items()}
        copy = type(self)(**settings)
        for name in ("meta_model_", "n_features_in_", "feature_names_in_", "classes_"):
            if hasattr(self, name):
                setattr(copy, name, getattr(self, name))
        return copy

    def __sklearn_tags__(self) -> Any:
        """Missing values and text are welcome."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        return tags

    def _check_given(self, y: Any, groups: Any) -> None:
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        if groups is None:
            raise ValueError("meta_fit needs groups, the name of the group of each row; got None.")

    def _learn_labels(self, y: Any) -> pl.Series:
        """The target column of training rows."""
        return self._labels(y)

    @abc.abstractmethod
    def _labels(self, y: Any) -> pl.Series:
        """The target column of rows that `fit` is given."""

    def _check_meta_fitted(self) -> None:
        if not hasattr(self, "meta_model_"):
            raise NotFittedError(
                f"this {type(self).__name__} has learnt from no groups yet. Call meta_fit(X, y, groups) with the rows "
                "of many groups first; fit then adapts it to a new one."
            )

    def _remember(self, frame: pl.DataFrame, X: Any) -> None:
        self.n_features_in_ = frame.width
        if hasattr(X, "columns"):
            self.feature_names_in_ = np.array(frame.columns, dtype=object)

    def _known_frame(self, X: Any) -> pl.DataFrame:
        """The rows as a frame, whose columns must be those of `meta_fit`."""
        frame = _frame(X)
        if frame.width != self.n_features_in_:
            raise ValueError(
                f"X has {frame.width} features, but {type(self).__name__} is expecting {self.n_features_in_} features "
                "as input."
            )
        if hasattr(X, "columns") and not hasattr(self, "feature_names_in_"):
            return frame.rename(dict(zip(frame.columns, _numbered(frame.width), strict=True)))
        if hasattr(self, "feature_names_in_"):
            names = list(self.feature_names_in_)
            if not hasattr(X, "columns"):
                return frame.rename(dict(zip(frame.columns, names, strict=True)))
            if sorted(frame.columns) != sorted(names):
                odd = min(set(frame.columns) ^ set(names))
                raise ValueError(f"the columns of X are not those of meta_fit: '{odd}' is in only one of them.")
        return frame

    def _answer(self, X: Any, levels: tuple[float, ...]) -> pl.DataFrame:
        support = self._support()
        query = self._known_frame(X)
        with _in_own_words():
            answer = self._model().predict(query, support, num_samples=self.num_samples, levels=levels, seed=self.seed_)
        return answer.frame

    def _support(self) -> pl.DataFrame | None:
        self._check_meta_fitted()
        support: pl.DataFrame | None = getattr(self, "support_", None)
        if support is None:
            raise NotFittedError(f"this {type(self).__name__} is not adapted to a group yet. Call fit(X, y) first.")
        return support if support.width else None

    def _model(self) -> FewShotModel:
        return self.meta_model_

    def _draw(self, X: Any, n_samples: int, random_state: Any) -> Shaped[np.ndarray, "n d"]:
        if n_samples < 1:
            raise ValueError(f"n_samples must be at least 1; got {n_samples}.")
        support = self._support()
        seed = self.seed_ if random_state is None else _seed(random_state)
        query = self._known_frame(X)
        with _in_own_words():
            return self._model().sample(query, support, n_samples, seed=seed).T


class FewShotRegressor(RegressorMixin, _FewShotEstimator):
    """Predicts numbers for a new group from a few labelled rows, with intervals that hold on new groups."""

    _kind: WantedTarget = "regression"

    def predict(
        self, X: Any, return_std: bool = False
    ) -> Float[np.ndarray, " n"] | tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """The expected target of each row, and its standard deviation if asked for."""
        frame = self._answer(X, (0.5,))
        mean = frame["prediction"].to_numpy()
        return (mean, frame["std"].to_numpy()) if return_std else mean

    def predict_quantiles(
        self, X: Any, quantiles: Sequence[float | int] = (0.05, 0.5, 0.95)
    ) -> Float[np.ndarray, "n l"]:
        """The recalibrated quantiles of each row, a column for each level."""
        levels = tuple(float(level) for level in quantiles)
        if not levels:
            raise ValueError("quantiles needs at least one level, such as 0.5.")
        if not all(0 < level < 1 for level in levels):
            raise ValueError(f"quantiles must lie between 0 and 1; got {levels}.")
        frame = self._answer(X, levels)
        return np.stack([frame[level_name(level)].to_numpy() for level in levels], axis=1)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = None) -> Float[np.ndarray, "n d"]:
        """Targets drawn for all rows together, a column for each draw."""
        return self._draw(X, n_samples, random_state).astype(float)

    def _labels(self, y: Any) -> pl.Series:
        numbers = column_or_1d(np.asarray(y), dtype=np.float64, warn=True)
        return pl.Series(TARGET, numbers)


class FewShotClassifier(ClassifierMixin, _FewShotEstimator):
    """Predicts classes for a new group from a few labelled rows. All groups share the same classes."""

    _kind: WantedTarget = "classification"

    def predict(self, X: Any) -> Shaped[np.ndarray, " n"]:
        """The likeliest class of each row."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]

    def predict_proba(self, X: Any) -> Float[np.ndarray, "n c"]:
        """The probability of each class in each row, in the order of `classes_`."""
        frame = self._answer(X, ())
        return frame.select(f"p_{i}" for i in range(len(self.classes_))).to_numpy()

    def predict_set(self, X: Any, coverage: float = 0.9) -> Bool[np.ndarray, "n c"]:
        """Which classes are in a set that holds the true one with this coverage on new groups, a column for each."""
        if not 0 < coverage < 1:
            raise ValueError(f"coverage must lie between 0 and 1; got {coverage}.")
        support = self._support()
        shots = np.array([0 if support is None else min(support.height, SUPPORT_SIZES[-1])])
        probabilities = self.predict_proba(X)
        floor = self._model().calibration.at(shots).floor(coverage)
        return np.asarray(class_sets(probabilities, np.repeat(floor, len(probabilities))))

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = None) -> Shaped[np.ndarray, "n d"]:
        """Classes drawn for all rows together, a column for each draw."""
        drawn = self._draw(X, n_samples, random_state)
        return self.classes_[drawn]

    def _learn_labels(self, y: Any) -> pl.Series:
        check_classification_targets(y)
        self.classes_ = np.unique(column_or_1d(np.asarray(y)))
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class, {self.classes_.tolist()[0]!r}; at least two are needed to learn from.")
        return self._labels(y)

    def _labels(self, y: Any) -> pl.Series:
        labels = column_or_1d(np.asarray(y), warn=True)
        places = np.searchsorted(self.classes_, labels).clip(max=len(self.classes_) - 1)
        unknown = self.classes_[places] != labels
        if unknown.any():
            new = labels[unknown].tolist()[0]
            raise ValueError(f"y has the class {new!r}, which meta_fit did not see; it saw {self.classes_.tolist()}.")
        return pl.Series(TARGET, [str(place) for place in places])


def _frame(X: Any) -> pl.DataFrame:
    """Rows of any kind as a frame: polars, pandas, or an array whose columns are numbered."""
    if isinstance(X, pl.DataFrame):
        frame = X
    elif hasattr(X, "columns") and hasattr(X, "iloc"):
        names = [str(name) for name in X.columns]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"X has two columns named '{twice[0]}'. Rename or remove one of them.")
        frame = pl.DataFrame({name: _column(X.iloc[:, i]) for i, name in enumerate(names)})
    else:
        lenient: Any = {"dtype": None, "ensure_all_finite": "allow-nan"}
        array = check_array(X, **lenient)
        frame = pl.DataFrame({name: _column(array[:, i]) for i, name in enumerate(_numbered(array.shape[1]))})
    if not frame.width:
        raise ValueError("X has no columns; at least one is needed.")
    if not frame.height:
        raise ValueError("X has no rows; at least one is needed. To predict without labelled rows, call fit() alone.")
    return frame


def _numbered(count: int) -> list[str]:
    return [f"x{i}" for i in range(count)]


def _column(values: Any) -> pl.Series:
    """A column of a pandas frame or an array; objects as text, with None for missing ones."""
    array = np.asarray(values)
    if array.dtype.kind in "biufM":
        return pl.Series(array)
    return pl.Series([None if _is_missing(value) else str(value) for value in array], dtype=pl.String)


def _is_missing(value: Any) -> bool:
    """Whether it is None, not a number, or pandas' own NA, which compares to nothing."""
    return value is None or type(value).__name__ == "NAType" or bool(value != value)


def _check_no_gaps(name: str, values: Any) -> None:
    """Raises ValueError for a row without a value."""
    gaps = [i for i, value in enumerate(np.asarray(values, dtype=object).ravel()) if _is_missing(value)]
    if gaps:
        raise ValueError(
            f"Input {name} contains NaN or None in {len(gaps)} of its rows, first at index {gaps[0]}. Leave those out."
        )


def _group_names(groups: Any) -> pl.Series:
    """The column of groups; a blank is no name."""
    names = np.asarray(groups, dtype=object)
    if names.ndim != 1:
        raise ValueError(f"groups must be one name for each row; got an array of shape {names.shape}.")
    _check_no_gaps("groups", [name if str(name).strip() else None for name in names])
    return pl.Series(GROUP, [str(name) for name in names])


def _seed(random_state: Any) -> int:
    """An integer as it stands; else one drawn from the state, or at random for None."""
    drawn = check_random_state(random_state).randint(2**31 - 1)  # refuses what is no state
    return int(random_state) if isinstance(random_state, Integral) else int(drawn)


@contextmanager
def _in_own_words() -> Iterator[None]:
    """Errors that name parameters where those of the command line name flags."""
    try:
        yield
    except (SettingError, SourceError) as error:
        text = re.sub(f"(the target|column) '{re.escape(TARGET)}'", "y", str(error))
        text = re.sub(r"--([a-z-]*[a-z])", lambda flag: PARAMETERS.get(flag[1], flag[1].replace("-", "_")), text)
        raise type(error)(text) from error
