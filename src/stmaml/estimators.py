"""Few-shot learning in scikit-learn's manner.

`meta_fit` learns across groups, once; `fit` adapts to the few labelled rows of one new group; `predict` asks about
other rows of it.
"""

import abc
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import polars as pl
from jaxtyping import Bool, Float, Shaped
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_consistent_length, column_or_1d

from stmaml.benchmarks.groups import Sizes
from stmaml.calibration import class_sets
from stmaml.data.schema import TargetKind
from stmaml.fewshot.answers import SUPPORT_SIZES
from stmaml.fewshot.fitting import TableConfig, finish, prepare, train
from stmaml.fewshot.model import FewShotModel
from stmaml.fewshot.settings import default_settings

GROUP, TARGET = "(group)", "(target)"
Estimator = TypeVar("Estimator", bound="_FewShotEstimator")


class _FewShotEstimator(BaseEstimator, abc.ABC):
    """What regressor and classifier share."""

    _kind: TargetKind

    def __init__(  # without types: scikit-learn wants nothing refused before fit
        self, *, method="st-maml", steps=None, shots=10, min_query=5, num_samples=20, random_state=0
    ):
        """Stores the settings.

        Args:
            method: a name of METHODS.
            steps: meta-steps of training; some minutes' worth by default.
            shots: most labelled rows to expect of a new group; any number up to it is trained for.
            min_query: a group needs this many rows beside, or `meta_fit` leaves it out.
            num_samples: predictors drawn for a group.
            random_state: seed of weights, tasks and draws.
        """
        self.method = method
        self.steps = steps
        self.shots = shots
        self.min_query = min_query
        self.num_samples = num_samples
        self.random_state = random_state

    def meta_fit(self: Estimator, X: Any, y: Any, groups: Any) -> Estimator:
        """Itself, after learning across the groups that the rows belong to."""
        frame = _frame(X)
        check_consistent_length(frame, y, groups)
        names = [str(name) for name in column_or_1d(np.asarray(groups, dtype=object))]
        settings = default_settings(self.method, steps=self.steps, seed=self.random_state)
        table = TableConfig(GROUP, TARGET, kind=self._kind, sizes=Sizes(shots=self.shots, min_query=self.min_query))
        labelled = frame.with_columns(pl.Series(GROUP, names), self._learn_labels(y))
        prepared = prepare(labelled, table, settings)
        self.meta_model_ = finish(prepared, settings, train(prepared, settings))
        self._remember(frame, X)
        self.support_ = None
        return self

    def fit(self: Estimator, X: Any = None, y: Any = None) -> Estimator:
        """Itself, adapted to the labelled rows of one group; without any, it predicts from all groups alike."""
        if X is not None and y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        self._check_meta_fitted()
        if X is None:
            self.support_ = pl.DataFrame()
            return self
        frame = self._known_frame(X)
        check_consistent_length(frame, y)
        self.support_ = frame.with_columns(self._labels(y))
        return self

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
        return (
            self._model()
            .predict(query, support, num_samples=self.num_samples, levels=levels, seed=self.random_state)
            .frame
        )

    def _support(self) -> pl.DataFrame | None:
        self._check_meta_fitted()
        support: pl.DataFrame | None = getattr(self, "support_", None)
        if support is None:
            raise NotFittedError(f"this {type(self).__name__} is not adapted to a group yet. Call fit(X, y) first.")
        return support if support.width else None

    def _model(self) -> FewShotModel:
        return self.meta_model_

    def _draw(self, X: Any, n_samples: int, random_state: int | None) -> Shaped[np.ndarray, "n d"]:
        support = self._support()
        seed = self.random_state if random_state is None else random_state
        return self._model().sample(self._known_frame(X), support, n_samples, seed=seed).T


class FewShotRegressor(RegressorMixin, _FewShotEstimator):
    """Predicts numbers for a new group from a few labelled rows, with intervals that hold on new groups."""

    _kind: TargetKind = "regression"

    def predict(
        self,
        X: Any,
        return_std: bool = False,
    ) -> Float[np.ndarray, " n"] | tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """The expected target of each row, and its standard deviation if asked for."""
        frame = self._answer(X, (0.5,))
        mean = frame["prediction"].to_numpy()
        return (mean, frame["std"].to_numpy()) if return_std else mean

    def predict_quantiles(
        self,
        X: Any,
        quantiles: Sequence[float | int] = (0.05, 0.5, 0.95),
    ) -> Float[np.ndarray, "n l"]:
        """The recalibrated quantiles of each row, a column for each level."""
        levels = tuple(float(level) for level in quantiles)
        if not all(0 < level < 1 for level in levels):
            raise ValueError(f"quantiles must lie between 0 and 1; got {levels}.")
        frame = self._answer(X, levels)
        first = frame.columns.index("std") + 1
        return frame.to_numpy()[:, first : first + len(levels)].astype(float)

    def sample_y(
        self,
        X: Any,
        n_samples: int = 1,
        random_state: int | None = None,
    ) -> Float[np.ndarray, "n d"]:
        """Targets drawn for all rows together, a column for each draw."""
        return self._draw(X, n_samples, random_state).astype(float)

    def _labels(self, y: Any) -> pl.Series:
        numbers = column_or_1d(np.asarray(y), dtype=np.float64, warn=True)
        return pl.Series(TARGET, numbers)


class FewShotClassifier(ClassifierMixin, _FewShotEstimator):
    """Predicts classes for a new group from a few labelled rows. All groups share the same classes."""

    _kind: TargetKind = "classification"

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
        floor = self._model().calibration.floor_at(shots, coverage)
        return class_sets(probabilities, np.repeat(floor, len(probabilities)))

    def sample_y(
        self,
        X: Any,
        n_samples: int = 1,
        random_state: int | None = None,
    ) -> Shaped[np.ndarray, "n d"]:
        """Classes drawn for all rows together, a column for each draw."""
        drawn = self._draw(X, n_samples, random_state)
        return self.classes_[drawn]

    def _learn_labels(self, y: Any) -> pl.Series:
        check_classification_targets(y)
        self.classes_ = np.unique(column_or_1d(np.asarray(y)))
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
        return X
    if hasattr(X, "columns") and hasattr(X, "iloc"):
        return pl.DataFrame({str(name): _column(X.iloc[:, i]) for i, name in enumerate(X.columns)})
    lenient: Any = {"dtype": None, "ensure_all_finite": "allow-nan"}
    array = check_array(X, **lenient)
    return pl.DataFrame({name: _column(array[:, i]) for i, name in enumerate(_numbered(array.shape[1]))})


def _numbered(count: int) -> list[str]:
    return [f"x{i}" for i in range(count)]


def _column(values: Any) -> pl.Series:
    """A column of a pandas frame or an array; objects as text, with None for missing ones."""
    array = np.asarray(values)
    if array.dtype.kind in "biufM":
        return pl.Series(array)
    return pl.Series([None if value is None or value != value else str(value) for value in array], dtype=pl.String)
