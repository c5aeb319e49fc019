"""One gradient-boosting model for all groups: plain, with an offset fitted to the support, with summaries of it."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import product
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from stmaml.baselines import base
from stmaml.baselines.per_task import PerTask, ridge, squared_distance
from stmaml.errors import SettingError
from stmaml.tasks import TargetKind

SHRINKAGES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0)
"""How many examples the belief that a task has no offset is worth."""
EMPTY_SHARE = 0.05  # part of the simulated tasks that have no support, so that the model knows what to say without one


@dataclass(frozen=True)
class BoostingConfig:
    """Settings of the gradient-boosting baselines; of each grid the best on validation tasks is taken."""

    learning_rate: tuple[float, ...] = (0.05, 0.15)  # learning rates to try
    max_leaf_nodes: tuple[int, ...] = (15, 63)  # leaves of a tree to try
    min_samples_leaf: tuple[int, ...] = (20, 200)  # fewest rows of a leaf to try
    max_iter: int = 400  # most trees
    first_look: int = 25
    """Trees before the validation loss is first looked at; boosting stops at the first look without a gain."""
    max_rows: int = 400_000  # most rows to train on: a random choice of them, if there are more
    tuning_rows: int = 40_000  # most rows to compare settings on
    shots: tuple[int, int] | None = None
    """Fewest and most support examples of a simulated task; as in the validation tasks, if not given."""
    rows_per_draw: int = 16  # most rows to predict in a simulated task
    max_passes: int = 64  # most simulated tasks of a group
    seed: int = 0  # seed of all random choices

    def __post_init__(self) -> None:
        low, high = self.shots or (0, 0)
        if not 0 <= low <= high:
            raise SettingError(f"shots must be a range of support sizes, such as (2, 40); got ({low}, {high}).")
        for name in ("max_iter", "first_look", "max_rows", "tuning_rows", "rows_per_draw", "max_passes"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name} must be 1 or more; got {getattr(self, name)}.")
        if not (self.learning_rate and self.max_leaf_nodes and self.min_samples_leaf):
            raise SettingError("learning_rate, max_leaf_nodes and min_samples_leaf each need a value to try.")


Loss = Callable[[Any], float]  # the validation loss of a scikit-learn model


def boost(kind: TargetKind, x: np.ndarray, y: np.ndarray, loss: Loss, config: BoostingConfig) -> Any:
    """A scikit-learn model: the settings with the lowest `loss` on some rows, trained on up to `max_rows`."""
    grid = list(product(config.learning_rate, config.max_leaf_nodes, config.min_samples_leaf))
    order = random_state(config.seed).permutation(len(y))
    few, many = order[: config.tuning_rows], order[: config.max_rows]
    losses = [_boost_once(kind, x[few], y[few], loss, s, config)[1] for s in grid] if len(grid) > 1 else [0.0]
    return _boost_once(kind, x[many], y[many], loss, grid[int(np.argmin(losses))], config)[0]


def _boost_once(
    kind: TargetKind, x: np.ndarray, y: np.ndarray, loss: Loss, setting: tuple[float, int, int], config: BoostingConfig
) -> tuple[Any, float]:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    rate, leaves, samples = setting
    make: Any = HistGradientBoostingRegressor if kind == "real" else HistGradientBoostingClassifier
    model = make(
        learning_rate=rate,
        max_leaf_nodes=leaves,
        min_samples_leaf=min(samples, max(len(y) // 10, 1)),
        early_stopping=False,  # its own would hold out rows of groups it has trained on
        warm_start=True,
        random_state=config.seed,
    )
    x = np.where(np.isnan(x).all(0), np.float32(0), x)  # scikit-learn cannot bin a column without a number
    best, kept = np.inf, model
    for trees in _looks(config):
        with warnings.catch_warnings(record=True):  # its threads can lose Python's list of filters, and warn of that
            model.set_params(max_iter=trees).fit(x, y)
        now = loss(model)
        if now >= best:
            break
        best, kept = now, deepcopy(model)
    return kept, best


def _looks(config: BoostingConfig) -> Iterator[int]:
    """Numbers of trees, ever further apart: each look costs scikit-learn another pass over the rows."""
    trees = min(config.first_look, config.max_iter)
    yield trees
    while trees < config.max_iter:
        trees = min(trees + max(config.first_look, trees // 2), config.max_iter)
        yield trees


def random_state(seed: int) -> Any:
    """A generator of random numbers."""
    from sklearn.utils import check_random_state

    return check_random_state(seed)


@dataclass
class Boosting:
    """One model of all training rows that ignores the support."""

    target: ClassVar[TargetKind] = "real"
    config: BoostingConfig = field(default_factory=BoostingConfig)
    name: str = field(init=False, default="gradient-boosting")
    targets: base.Targets = field(init=False, repr=False)
    _model: Any = field(init=False, repr=False)
    _spread: base.Spread = field(init=False, repr=False)
    _learnt_from: tuple[base.Pooled, base.Tasks] | None = field(init=False, repr=False, default=None)

    def fit(self, train: base.Pooled, val: base.Tasks) -> "Boosting":
        """Itself, trained on all rows; nothing happens if it has learnt from the very same data before."""
        if self._learnt_from is not None and self._learnt_from[0] is train and self._learnt_from[1] is val:
            return self
        base.check(train, val)
        self.targets = base.Targets.of(train.y)
        query_x, loss = np.concatenate([task.query_x for task in val]), squared_loss(val)
        self._model = boost("real", train.x, train.y, lambda model: loss(model.predict(query_x)), self.config)
        fitted = [self._fitted(task.query_x) for task in val]
        self._spread = base.fit_spread(fitted, [task.query_y for task in val], self.targets.floor)
        self._learnt_from = train, val
        return self

    def predict(self, support_x: base.Inputs, support_y: base.Reals, query_x: base.Queries) -> base.Normal:
        """The model's value, with one standard deviation for all."""
        del support_x, support_y
        return self._spread.normal(self._fitted(query_x))

    def value(self, x: Float[np.ndarray, "n dx"]) -> Float[np.ndarray, " n"]:
        """The model's value at each row."""
        return self._model.predict(x)

    def _fitted(self, query_x: np.ndarray) -> base.Fitted:
        return base.Fitted(self.value(query_x), np.ones(len(query_x)), 0.0, 0)


@dataclass
class OffsetBoosting:
    """The plain model plus the support's mean residual, shrunk towards none."""

    target: ClassVar[TargetKind] = "real"
    plain: Boosting = field(default_factory=Boosting)
    name: str = field(init=False, default="gradient-boosting-offset")
    shrinkage: float = field(init=False, default=1.0)
    _spread: base.Spread = field(init=False, repr=False)

    def fit(self, train: base.Pooled, val: base.Tasks) -> "OffsetBoosting":
        """Itself, with the shrinkage that serves the validation tasks best."""
        self.plain.fit(train, val)
        values = [self.plain.value(np.concatenate([task.support_x, task.query_x])) for task in val]

        def fitted(shrinkage: float) -> list[base.Fitted]:
            return [self._fitted(value, task.support_y, shrinkage) for value, task in zip(values, val, strict=True)]

        def error(shrinkage: float) -> float:
            pairs = zip(fitted(shrinkage), val, strict=True)
            return base.mean_over_tasks([(task.query_y - one.mean) ** 2 for one, task in pairs])

        self.shrinkage = min(SHRINKAGES, key=error)
        self._spread = base.fit_spread(fitted(self.shrinkage), [t.query_y for t in val], self.plain.targets.floor)
        return self

    def predict(self, support_x: base.Inputs, support_y: base.Reals, query_x: base.Queries) -> base.Normal:
        """The model's value plus the offset; its spread follows the support's residuals."""
        value = self.plain.value(np.concatenate([support_x, query_x]))
        return self._spread.normal(self._fitted(value, support_y, self.shrinkage))

    @staticmethod
    def _fitted(value: np.ndarray, support_y: np.ndarray, shrinkage: float) -> base.Fitted:
        shots = len(support_y)
        residual = support_y - value[:shots]
        offset = residual.sum() / (shots + shrinkage)
        shape = np.full(len(value) - shots, 1 + 1 / (shots + shrinkage))
        squares = (residual**2).sum() - residual.sum() * offset
        return base.Fitted(value[shots:] + offset, shape, float(squares), shots)


@dataclass
class SummaryBoosting:
    """One model of inputs and summaries of the support, trained on simulated tasks of the training groups."""

    target: ClassVar[TargetKind] = "real"
    config: BoostingConfig = field(default_factory=BoostingConfig)
    time_input: int | None = None  # the input that is a fraction of a period, if one is
    name: str = field(init=False, default="gradient-boosting-summaries")
    _linear: list[PerTask] = field(init=False, repr=False)
    _scale: base.Standardiser = field(init=False, repr=False)
    _targets: base.Targets = field(init=False, repr=False)
    _model: Any = field(init=False, repr=False)
    _spread: base.Spread = field(init=False, repr=False)

    def fit(self, train: base.Pooled, val: base.Tasks) -> "SummaryBoosting":
        """Itself, trained to predict how far a target lies from the mean of its support."""
        base.check(train, val)
        self._targets, self._scale = base.Targets.of(train.y), base.Standardiser.of(train.x)
        ridges = [ridge()] if self.time_input is None else [ridge(), ridge(self.time_input)]
        self._linear = [one.fit(train, val) for one in ridges]
        features, deviation = zip(*(self._row(task) for task in simulate(train, val, self.config)), strict=True)
        val_features, val_deviation = zip(*(self._row(task) for task in val), strict=True)
        query_x, loss = np.concatenate(val_features), squared_loss(val, val_deviation)
        x, y = np.concatenate(features), np.concatenate(deviation)
        self._model = boost("real", x, y, lambda model: loss(model.predict(query_x)), self.config)
        fitted = [self._fitted(task.support_x, task.support_y, task.query_x) for task in val]
        self._spread = base.fit_spread(fitted, [task.query_y for task in val], self._targets.floor)
        return self

    def predict(self, support_x: base.Inputs, support_y: base.Reals, query_x: base.Queries) -> base.Normal:
        """The model's value; its spread follows the support's residuals, each predicted from the other examples."""
        return self._spread.normal(self._fitted(support_x, support_y, query_x))

    def features(self, support_x: base.Inputs, support_y: base.Reals, query_x: base.Queries) -> base.Features:
        """Each query's inputs and what the support says about it; what an empty support cannot say is missing."""
        count, inputs = len(query_x), query_x.shape[1]
        if not len(support_y):
            silent = np.full((count, 8 + len(self._linear) + inputs), np.nan)
            return np.concatenate([query_x, np.zeros((count, 1)), silent], axis=1, dtype=np.float32)
        level = support_y.mean()
        distance = squared_distance(self._scale(query_x), self._scale(support_x))
        apart = self._time_apart(support_x, query_x)
        same = [len(support_y), level, support_y.std(), support_y.min() - level, support_y.max() - level]
        each = [
            support_y[distance.argmin(1)] - level,
            np.sqrt(distance.min(1)),
            support_y[apart.argmin(1)] - level,
            apart.min(1),
            *(one.predict(support_x, support_y, query_x).mean - level for one in self._linear),
        ]
        differences = query_x - support_x.mean(0)
        return np.column_stack([query_x, np.tile(same, (count, 1)), *each, differences]).astype(np.float32)

    def _time_apart(self, support_x: np.ndarray, query_x: np.ndarray) -> np.ndarray:
        """How far examples lie apart in the first input, or in time, around the period."""
        apart = np.abs(query_x[:, None, self.time_input or 0] - support_x[None, :, self.time_input or 0])
        return apart if self.time_input is None else np.minimum(apart % 1, 1 - apart % 1)

    def _level(self, support_y: np.ndarray) -> float:
        return float(support_y.mean()) if len(support_y) else self._targets.mean

    def _row(self, task: base.NumpyTask) -> tuple[np.ndarray, np.ndarray]:
        features = self.features(task.support_x, task.support_y, task.query_x)
        return features, task.query_y - self._level(task.support_y)

    def _fitted(self, support_x: np.ndarray, support_y: np.ndarray, query_x: np.ndarray) -> base.Fitted:
        rows, shots = np.arange(len(support_y)), len(support_y)
        others = [(support_x[rows != i], support_y[rows != i]) for i in rows]
        held_out = [self.features(x, y, support_x[[i]]) for i, (x, y) in enumerate(others)]
        value = self._model.predict(np.concatenate([*held_out, self.features(support_x, support_y, query_x)]))
        levels = np.array([self._level(y) for _, y in others])
        squares = ((support_y - levels - value[:shots]) ** 2).sum()
        return base.Fitted(value[shots:] + self._level(support_y), np.ones(len(query_x)), float(squares), shots)


def squared_loss(val: base.Tasks, targets: Sequence[np.ndarray] | None = None) -> Callable[[np.ndarray], float]:
    """The mean over tasks of the mean squared error of predictions for all query rows, one task after another."""
    truth, share = np.concatenate(targets or [task.query_y for task in val]), row_shares(val)
    return lambda predicted: float(share @ (truth - predicted) ** 2)


def row_shares(val: base.Tasks) -> Float[np.ndarray, " n"]:
    """The weight of each query row under which tasks count alike; they sum to one."""
    return np.concatenate([np.full(len(t.query_y), 1 / (len(t.query_y) * len(val))) for t in val])


def simulate(train: base.Pooled, val: base.Tasks, config: BoostingConfig) -> Iterator[base.NumpyTask]:
    """Tasks of single training groups: some rows as support and other rows to predict, so that none sees itself."""
    random = random_state(config.seed)
    sizes = [len(task.support_y) for task in val]
    low, high = config.shots or (min(sizes), max(sizes))
    order = np.argsort(train.group, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(train.group[order])) + 1)
    done = 0
    for _ in range(config.max_passes):
        for group in random.permutation(len(groups)):
            rows = random.permutation(groups[group])
            shots = 0 if random.uniform() < EMPTY_SHARE else min(random.randint(low, high + 1), len(rows) - 1)
            support, query = rows[:shots], rows[shots : shots + config.rows_per_draw]
            yield base.NumpyTask(train.x[support], train.y[support], train.x[query], train.y[query])
            done += len(query)
            if done >= config.max_rows:
                return
