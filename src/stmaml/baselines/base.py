"""What a baseline reads and answers, and the parts that several of them share. Plain NumPy."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int, Shaped

from stmaml.benchmarks.sources import TaskSet
from stmaml.errors import SettingError, SourceError
from stmaml.tasks import TargetKind

SMALLEST_STD = 1e-3  # the smallest predictive standard deviation, as a part of the spread of the training targets


@dataclass(frozen=True)
class Pooled:
    """All training rows in one table, with the group (station, patient, machine) each one belongs to."""

    x: Float[np.ndarray, "n dx"]
    y: Shaped[np.ndarray, " n"]
    group: Int[np.ndarray, " n"]


@dataclass(frozen=True)
class NumpyTask:
    """One task without padding: labelled examples, and the ones to predict."""

    support_x: Float[np.ndarray, "n dx"]
    support_y: Shaped[np.ndarray, " n"]
    query_x: Float[np.ndarray, "q dx"]
    query_y: Shaped[np.ndarray, " q"]


class Normal(NamedTuple):
    """A normal distribution for the target of each query example."""

    mean: Float[np.ndarray, " q"]
    std: Float[np.ndarray, " q"]


Tasks = Sequence[NumpyTask]
Probabilities = Float[np.ndarray, "q c"]  # the probability of each class for each query example
Inputs = Float[np.ndarray, "n dx"]  # of labelled examples; their targets are `Reals` or `Labels`
Reals = Float[np.ndarray, " n"]
Labels = Int[np.ndarray, " n"]
Queries = Float[np.ndarray, "q dx"]  # inputs of those to predict
Features = Float[np.ndarray, "q k"]  # what a model reads of each of them


@runtime_checkable
class Baseline(Protocol):
    """Something a practitioner would use instead of a meta-learner."""

    target: ClassVar[TargetKind]  # what it predicts: real numbers or classes

    @property
    def name(self) -> str:
        """Its row in a table."""
        ...

    def fit(self, train: Pooled, val: Tasks) -> "Baseline":
        """Itself, after global models learnt from `train` and all settings were chosen on the tasks of `val`."""
        ...

    def predict(self, support_x: Inputs, support_y: Reals | Labels, query_x: Queries) -> Normal | Probabilities:
        """A normal (real targets) or class probabilities for each query example; the support may be empty."""
        ...


def numpy_tasks(task_set: TaskSet) -> list[NumpyTask]:
    """The tasks of a frozen set as plain arrays: padding dropped, inputs flat, one target an example."""
    sets = [_rows(part.x, part.y, part.weight) for part in (task_set.batch.tasks.support, task_set.batch.tasks.query)]
    return [NumpyTask(*support, *query) for support, query in zip(*sets, strict=True)]


def _rows(x: object, y: object, weight: object) -> list[tuple[np.ndarray, np.ndarray]]:
    inputs, targets, real = np.asarray(x), np.asarray(y), np.asarray(weight) > 0
    if targets.ndim == 3 and targets.shape[-1] != 1:
        raise SettingError(
            f"these tasks have {targets.shape[-1]} targets an example; the baselines predict one. Leave them out here."
        )
    flat = inputs.reshape(*real.shape, int(np.prod(inputs.shape[2:])))
    single = targets.reshape(real.shape)
    return [(flat[i][rows], single[i][rows]) for i, rows in enumerate(real)]


def check(train: Pooled, val: Tasks) -> None:
    """Raises SourceError if there is nothing to learn from, or numbers that cannot be learnt from."""
    if not len(train.y) == len(train.x) == len(train.group):
        raise SourceError(
            f"the training table has {len(train.x)} rows of inputs, {len(train.y)} targets and {len(train.group)} "
            "groups; expected one of each a row."
        )
    if not len(train.y) or not val:
        raise SourceError(
            f"baselines need training rows and validation tasks; got {len(train.y)} rows and {len(val)} tasks."
        )
    values = [(f"validation task {i}", (t.support_x, t.support_y, t.query_x, t.query_y)) for i, t in enumerate(val)]
    for where, arrays in [("the training table", (train.x, train.y)), *values]:
        if not all(np.isfinite(a).all() for a in arrays):
            raise SourceError(f"{where} holds NaN or infinity. Drop or fill those rows.")
        if arrays[0].shape[1] != train.x.shape[1]:
            raise SourceError(f"{where} has {arrays[0].shape[1]} inputs; expected {train.x.shape[1]} as in training.")


@dataclass(frozen=True)
class Standardiser:
    """Means and standard deviations of the training rows, taken out of inputs."""

    x_mean: Float[np.ndarray, " dx"]
    x_std: Float[np.ndarray, " dx"]

    @staticmethod
    def of(x: Float[np.ndarray, "n dx"]) -> "Standardiser":
        """That of a table; a column that never changes is only centred."""
        std = x.std(0, dtype=float)
        return Standardiser(x.mean(0, dtype=float), np.where(std > 1e-6, std, 1.0))

    def __call__(self, x: Float[np.ndarray, "n dx"]) -> Float[np.ndarray, "n dx"]:
        """The rows in units of the training rows' spread."""
        return (x - self.x_mean) / self.x_std


@dataclass(frozen=True)
class Targets:
    """What the training targets look like, for tasks without a labelled example."""

    mean: float
    std: float

    @staticmethod
    def of(y: Shaped[np.ndarray, " n"]) -> "Targets":
        """Mean and spread; for a constant target a spread above zero, so that densities stay finite."""
        mean, std = float(y.mean(dtype=float)), float(y.std(dtype=float))
        return Targets(mean, max(std, 1e-6 * max(1.0, abs(mean))))

    @property
    def floor(self) -> float:
        """The smallest standard deviation to predict."""
        return SMALLEST_STD * self.std

    def unknown(self, count: int) -> Normal:
        """The training distribution, `count` times."""
        return Normal(np.full(count, self.mean), np.full(count, self.std))


class Fitted(NamedTuple):
    """A prediction before its noise variance is known: that variance times `shape` is its variance."""

    mean: Float[np.ndarray, " q"]
    shape: Float[np.ndarray, " q"]
    squares: float
    """Sum of the support's squared residuals, in the model's own metric: `freedom` times the noise variance."""
    freedom: int


@dataclass(frozen=True)
class Spread:
    """The noise variance of a task: what is usual, moved towards what its support shows.

    The mean of the scaled inverse-chi-squared posterior with `strength` prior degrees of freedom."""

    variance: float
    strength: float
    floor: float

    def normal(self, fitted: Fitted) -> Normal:
        """The prediction with its standard deviation."""
        noise = (self.strength * self.variance + fitted.squares) / (self.strength + fitted.freedom)
        return Normal(fitted.mean, np.maximum(np.sqrt(noise * fitted.shape), self.floor))


def fit_spread(fitted: Sequence[Fitted], targets: Sequence[Float[np.ndarray, " q"]], floor: float) -> Spread:
    """The spread with the highest mean log-density of `targets`, over a grid."""
    errors = np.array([np.mean((y - f.mean) ** 2 / f.shape) for f, y in zip(fitted, targets, strict=True)])
    squares, freedom = np.array([f.squares for f in fitted]), np.array([f.freedom for f in fitted])

    def cost(spread: Spread) -> float:
        noise = (spread.strength * spread.variance + squares) / (spread.strength + freedom)
        noise = np.maximum(noise, spread.floor**2)
        return float((np.log(noise) + errors / noise).mean())

    usual = max(float(errors.mean()), floor**2)
    grid = product((1e9, 64.0, 32.0, 16.0, 8.0, 4.0, 2.0, 1.0), (1.0, *np.geomspace(1 / 256, 4, 41)))
    return min((Spread(usual * float(factor), strength, floor) for strength, factor in grid), key=cost)


def mean_over_tasks(losses: Sequence[Float[np.ndarray, " q"]]) -> float:
    """Each task's mean, averaged: tasks count alike, as in the scores."""
    return float(np.mean([loss.mean() for loss in losses]))
