"""The estimator of numbers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from sklearn.base import RegressorMixin
from sklearn.utils.validation import column_or_1d

from stmaml.estimators.base import FewShotEstimator
from stmaml.tables.answers import level_name
from stmaml.tables.target import WantedTarget


class FewShotRegressor(RegressorMixin, FewShotEstimator):
    """Predicts numbers for a new group from a few labelled rows, with intervals that hold on new groups.

    With `groups`, all that predicts answers each row by the name of its group: from the rows that `fit` was given of
    it, or as that of a new group. Without, rows are of the group last adapted to, or else of a new one.
    """

    _kind: WantedTarget = "regression"

    def predict(
        self, X: Any, return_std: bool = False, *, groups: Any = None
    ) -> Float[np.ndarray, " n"] | tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """The expected target of each row, and its standard deviation if asked for."""
        frame = self._answer(X, groups, (0.5,))
        mean = frame["prediction"].to_numpy()
        return (mean, frame["std"].to_numpy()) if return_std else mean

    def predict_quantiles(
        self, X: Any, quantiles: Sequence[float | int] = (0.05, 0.5, 0.95), *, groups: Any = None
    ) -> Float[np.ndarray, "n l"]:
        """The recalibrated quantiles of each row, a column for each level."""
        levels = tuple(float(level) for level in quantiles)
        if not levels:
            raise ValueError("quantiles needs at least one level, such as 0.5.")
        if not all(0 < level < 1 for level in levels):
            raise ValueError(f"quantiles must lie between 0 and 1; got {levels}.")
        frame = self._answer(X, groups, levels)
        return np.stack([frame[level_name(level)].to_numpy() for level in levels], axis=1)

    def sample_y(
        self, X: Any, n_samples: int = 1, random_state: Any = None, *, groups: Any = None
    ) -> Float[np.ndarray, "n d"]:
        """Targets drawn for all rows of a group together, a column for each draw."""
        return self._draw(X, groups, n_samples, random_state).astype(float)

    def _learn_classes(self, y: Any) -> None:
        del y

    def _take_classes(self, names: tuple[str, ...]) -> None:
        del names

    def _class_words(self) -> tuple[str, ...]:
        return ()

    def _labels(self, y: Any) -> Float[np.ndarray, " n"]:
        return column_or_1d(np.asarray(y), dtype=np.float64, warn=True)
