"""The estimator of classes."""

from typing import Any, ClassVar

import numpy as np
import polars as pl
from jaxtyping import Bool, Float, Shaped
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from stmaml.estimators.base import FewShotEstimator
from stmaml.tables.calibration import class_sets
from stmaml.tables.cells import as_names
from stmaml.tables.target import WantedTarget


class FewShotClassifier(ClassifierMixin, FewShotEstimator):
    """Predicts classes for a new group from a few labelled rows. All groups share the same classes.

    With `groups`, all that predicts answers each row by the name of its group: from the rows that `fit` was given of
    it, or as that of a new group. Without, rows are of the group last adapted to, or else of a new one.
    """

    _kind: WantedTarget = "classification"
    __metadata_request__predict_proba: ClassVar = {"groups": True}

    def predict(self, X: Any, *, groups: Any = None) -> Shaped[np.ndarray, " n"]:
        """The likeliest class of each row."""
        best = self.predict_proba(X, groups=groups).argmax(1)
        return self.classes_[best]

    def predict_proba(self, X: Any, *, groups: Any = None) -> Float[np.ndarray, "n c"]:
        """The probability of each class in each row, in the order of `classes_`."""
        return self._odds(self._answer(X, groups, ()))

    def predict_set(self, X: Any, coverage: float = 0.9, *, groups: Any = None) -> Bool[np.ndarray, "n c"]:
        """Which classes are in a set that holds the true one with this coverage on new groups, a column for each."""
        if not 0 < coverage < 1:
            raise ValueError(f"coverage must lie between 0 and 1; got {coverage}.")
        frame = self._answer(X, groups, ())
        distinct, which = np.unique(frame["shots"].to_numpy(), return_inverse=True)
        floors = np.asarray(self.learnt_.model.calibration.at(distinct).floor(coverage))
        return np.asarray(class_sets(self._odds(frame), floors[which]))

    def sample_y(
        self, X: Any, n_samples: int = 1, random_state: Any = None, *, groups: Any = None
    ) -> Shaped[np.ndarray, "n d"]:
        """Classes drawn for all rows of a group together, a column for each draw."""
        drawn = self._draw(X, groups, n_samples, random_state)
        return self.classes_[self._places()][drawn]

    def _odds(self, frame: pl.DataFrame) -> Float[np.ndarray, "n c"]:
        return frame.select(f"p_{name}" for name in self.class_names_).to_numpy()

    def _places(self) -> list[int]:
        """Where in `classes_` each class of the model stands."""
        return [self.class_names_.index(name) for name in self.learnt_.schema.target.classes]

    def _learn_classes(self, y: Any) -> None:
        check_classification_targets(y)
        self.classes_ = np.unique(column_or_1d(np.asarray(y)))
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class, {self.classes_.tolist()[0]!r}; at least two are needed to learn from.")
        # Numbers: no two of them look alike, and none like a missing value.
        self.class_names_ = tuple(str(place) for place in range(len(self.classes_)))

    def _take_classes(self, names: tuple[str, ...]) -> None:
        known = np.array(names)
        if all(name.lstrip("-").isdecimal() for name in names):
            known = known.astype(int)
        order = np.argsort(known, kind="stable")
        self.classes_, self.class_names_ = known[order], tuple(names[i] for i in order)

    def _class_words(self) -> tuple[str, ...]:
        words = tuple(str(self.classes_[place]) for place in self._places())
        if as_names(pl.Series(words)).n_unique() < len(words):
            raise ValueError(f"the classes {self.classes_.tolist()} are not all distinct when written in a table.")
        return words

    def _labels(self, y: Any) -> list[str]:
        labels, which = np.unique(column_or_1d(np.asarray(y), warn=True), return_inverse=True)
        names = dict(zip(self.classes_.tolist(), self.class_names_, strict=True))
        for label in labels.tolist():
            if label not in names:
                known = self.classes_.tolist()
                raise ValueError(f"y has the class {label!r}, which meta_fit did not see; it saw {known}.")
        found = [names[label] for label in labels.tolist()]
        return [found[i] for i in which]
