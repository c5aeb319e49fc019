"""Baselines for classes: shares in the support, logistic regression on it, pooled gradient boosting."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Int

from stmaml.baselines import base
from stmaml.baselines.boosting import BoostingConfig, boost, row_shares, simulate
from stmaml.baselines.per_task import TUNING_TASKS, squared_distance
from stmaml.errors import SourceError
from stmaml.tasks import TargetKind

PRIOR_COUNTS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)  # how many examples the training shares of the classes are worth
PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0)  # inverse ones of logistic regression
BLENDS = (0.01, 0.03, 0.1, 0.3, 1.0)  # how much of the class shares is mixed in
SMALLEST = 1e-6  # no class is ruled out: one that a tree has never seen may come all the same


def check_classes(train: base.Pooled, val: base.Tasks, num_classes: int) -> None:
    """Raises SourceError if targets are not class indices below `num_classes`."""
    base.check(train, val)
    for y in (train.y, *(task.support_y for task in val), *(task.query_y for task in val)):
        if not np.issubdtype(y.dtype, np.integer):
            raise SourceError(f"the classes are {y.dtype} numbers; expected integers from 0 to {num_classes - 1}.")
        if len(y) and not 0 <= y.min() <= y.max() < num_classes:
            raise SourceError(f"the classes must be 0 to {num_classes - 1}; found {y.min()} to {y.max()}.")


def log_loss(answer: base.Probabilities, y: Int[np.ndarray, " q"]) -> Float[np.ndarray, " q"]:
    """Minus the log-probability of each example's class."""
    return -np.log(answer[np.arange(len(y)), y])


def task_loss(answers: Iterable[base.Probabilities], tasks: base.Tasks) -> float:
    """The log-loss of each task's queries, averaged."""
    return base.mean_over_tasks([log_loss(a, task.query_y) for a, task in zip(answers, tasks, strict=True)])


@dataclass
class SupportFrequency:
    """Class shares of the support, shrunk towards those of the training rows."""

    target: ClassVar[TargetKind] = "class"
    num_classes: int
    name: str = field(init=False, default="support-frequency")
    prior_count: float = field(init=False, default=1.0)
    _shares: Float[np.ndarray, " c"] = field(init=False, repr=False)

    def fit(self, train: base.Pooled, val: base.Tasks) -> "SupportFrequency":
        """Itself, with the shrinkage that serves the validation tasks best."""
        check_classes(train, val, self.num_classes)
        counts = np.bincount(train.y, minlength=self.num_classes) + 1.0
        self._shares = counts / counts.sum()

        def loss(prior_count: float) -> float:
            return task_loss((self._answer(task.support_y, len(task.query_y), prior_count) for task in val), val)

        self.prior_count = min(PRIOR_COUNTS, key=loss)
        return self

    def predict(self, support_x: base.Inputs, support_y: base.Labels, query_x: base.Queries) -> base.Probabilities:
        """The same shares for every query."""
        del support_x
        return self._answer(support_y, len(query_x), self.prior_count)

    def _answer(self, support_y: np.ndarray, count: int, prior_count: float) -> np.ndarray:
        seen = np.bincount(support_y, minlength=self.num_classes)
        return np.tile((seen + prior_count * self._shares) / (len(support_y) + prior_count), (count, 1))


@dataclass
class Logistic:
    """Logistic regression on the standardised inputs of the support, mixed with the class shares."""

    target: ClassVar[TargetKind] = "class"
    num_classes: int
    name: str = field(init=False, default="logistic")
    setting: tuple[float, float] = field(init=False, default=(1.0, 0.1))
    _shares: SupportFrequency = field(init=False, repr=False)
    _scale: base.Standardiser = field(init=False, repr=False)

    def fit(self, train: base.Pooled, val: base.Tasks) -> "Logistic":
        """Itself, with the penalty and the mixing that serve the validation tasks best."""
        self._shares = SupportFrequency(self.num_classes).fit(train, val)
        self._scale = base.Standardiser.of(train.x)
        few, losses = val[:TUNING_TASKS], []
        for penalty in PENALTIES:
            parts = [self._parts(task.support_x, task.support_y, task.query_x, penalty) for task in few]
            losses += [(task_loss((_mixed(*one, b) for one in parts), few), (penalty, b)) for b in BLENDS]
        self.setting = min(losses)[1]
        return self

    def predict(self, support_x: base.Inputs, support_y: base.Labels, query_x: base.Queries) -> base.Probabilities:
        """The mixture; where the support has fewer than two classes, the class shares alone."""
        penalty, blend = self.setting
        return _mixed(*self._parts(support_x, support_y, query_x, penalty), blend)

    def _parts(
        self, support_x: np.ndarray, support_y: np.ndarray, query_x: np.ndarray, penalty: float
    ) -> tuple[np.ndarray, np.ndarray]:
        from sklearn.linear_model import LogisticRegression

        shares = self._shares.predict(support_x, support_y, query_x)
        if len(np.unique(support_y)) < 2:
            return shares, shares
        model = LogisticRegression(C=penalty, max_iter=1000).fit(self._scale(support_x), support_y)
        return spread_out(model, self._scale(query_x), self.num_classes), shares


def _mixed(own: np.ndarray, shares: np.ndarray, blend: float) -> np.ndarray:
    return (1 - blend) * own + blend * shares


def spread_out(model: Any, x: Float[np.ndarray, "q k"], num_classes: int) -> base.Probabilities:
    """The class probabilities of a scikit-learn model, with a column for classes it has not seen too."""
    answer = np.full((len(x), num_classes), SMALLEST)
    answer[:, model.classes_] += model.predict_proba(x)
    return answer / answer.sum(1, keepdims=True)


@dataclass
class ClassBoosting:
    """One model of all training rows: of the inputs alone, or with summaries of the support as well."""

    target: ClassVar[TargetKind] = "class"
    num_classes: int
    config: BoostingConfig = field(default_factory=BoostingConfig)
    summaries: bool = False
    _scale: base.Standardiser = field(init=False, repr=False)
    _shares: SupportFrequency = field(init=False, repr=False)
    _model: Any = field(init=False, repr=False, default=None)

    @property
    def name(self) -> str:
        """Its row in a table."""
        return "gradient-boosting-summaries" if self.summaries else "gradient-boosting"

    def fit(self, train: base.Pooled, val: base.Tasks) -> "ClassBoosting":
        """Itself, trained on rows or on simulated tasks of the training groups."""
        self._shares = SupportFrequency(self.num_classes).fit(train, val)
        self._scale, self._model = base.Standardiser.of(train.x), None
        if len(np.unique(train.y)) < 2:  # nothing to tell apart: the shares are all there is to say
            return self
        x, y = train.x, train.y
        if self.summaries:
            tasks = list(simulate(train, val, self.config))
            x = np.concatenate([self.features(t.support_x, t.support_y, t.query_x) for t in tasks])
            y = np.concatenate([t.query_y for t in tasks])
        query_x = np.concatenate([self.features(t.support_x, t.support_y, t.query_x) for t in val])
        truth, share = np.concatenate([t.query_y for t in val]), row_shares(val)

        def loss(model: Any) -> float:
            return float(share @ log_loss(spread_out(model, query_x, self.num_classes), truth))

        self._model = boost("class", x, y, loss, self.config)
        return self

    def predict(self, support_x: base.Inputs, support_y: base.Labels, query_x: base.Queries) -> base.Probabilities:
        """The model's class probabilities."""
        if self._model is None:
            return self._shares.predict(support_x, support_y, query_x)
        return spread_out(self._model, self.features(support_x, support_y, query_x), self.num_classes)

    def features(self, support_x: base.Inputs, support_y: base.Labels, query_x: base.Queries) -> base.Features:
        """Each query's inputs and, with summaries, shares, neighbours and class distances in the support."""
        if not self.summaries:
            return query_x
        classes, count = np.arange(self.num_classes), len(query_x)
        if not len(support_y):
            silent = np.full((count, 4 * self.num_classes), np.nan)
            return np.concatenate([query_x, np.zeros((count, 1)), silent], axis=1, dtype=np.float32)
        support, query = self._scale(support_x), self._scale(query_x)
        belongs = (support_y[:, None] == classes).astype(float)
        order = squared_distance(query, support).argsort(1, kind="stable")
        # A class that the support lacks has no mean, and its distance is missing.
        means = np.stack([support[support_y == c].mean(0) if (support_y == c).any() else support[0] for c in classes])
        to_means = np.sqrt(squared_distance(query, means))
        to_means[:, ~belongs.any(0)] = np.nan
        same = [len(support_y), *belongs.mean(0)]
        nearest, three = belongs[order[:, 0]], belongs[order[:, :3]].mean(1)
        return np.column_stack([query_x, np.tile(same, (count, 1)), nearest, three, to_means]).astype(np.float32)
