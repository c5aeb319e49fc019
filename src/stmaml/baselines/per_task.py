"""Models fitted to one support set alone: its mean, ridge regression, a Gaussian process.

All three are a Gaussian process with a free level and noise, under another kernel: none, linear, squared exponential.
What they have in common is written once; ratios of variances are chosen for the smallest squared error on validation
tasks, after which the noise variance is set for the highest density there.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from stmaml.baselines import base
from stmaml.errors import SettingError
from stmaml.tasks import TargetKind

TUNING_TASKS = 300  # validation tasks on which settings are compared
ALPHAS = tuple((alpha,) for alpha in (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0))
SIGNALS_AND_LENGTHS = tuple(product((0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0), (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)))

Setting = tuple[float, ...]
Kernel = Callable[[np.ndarray, np.ndarray, Setting], np.ndarray]
"""Covariances between the rows of two sets, in units of the noise variance."""


def no_kernel(a: Float[np.ndarray, "*b n d"], b: Float[np.ndarray, "*b m d"], setting: Setting) -> np.ndarray:
    """Zeros: nothing but the level is learnt."""
    del setting
    return np.zeros((*a.shape[:-1], b.shape[-2]))


def linear_kernel(a: Float[np.ndarray, "*b n d"], b: Float[np.ndarray, "*b m d"], setting: Setting) -> np.ndarray:
    """Inner products over alpha: the kernel of ridge regression."""
    return a @ np.swapaxes(b, -1, -2) / setting[0]


def smooth_kernel(a: Float[np.ndarray, "*b n d"], b: Float[np.ndarray, "*b m d"], setting: Setting) -> np.ndarray:
    """A squared exponential; lengths are in units of the root of the number of inputs."""
    signal, length = setting
    return signal * np.exp(-squared_distance(a, b) / (2 * length**2 * a.shape[-1]))


def squared_distance(a: Float[np.ndarray, "*b n d"], b: Float[np.ndarray, "*b m d"]) -> np.ndarray:
    """Between each row of `a` and each row of `b`."""
    lengths = (a**2).sum(-1)[..., :, None] + (b**2).sum(-1)[..., None, :]
    return np.maximum(lengths - 2 * a @ np.swapaxes(b, -1, -2), 0.0)


@dataclass
class PerTask:
    """A level, a function under `kernel` and noise, fitted to the support of each task."""

    target: ClassVar[TargetKind] = "real"
    name: str
    kernel: Kernel = no_kernel
    grid: tuple[Setting, ...] = ((),)
    time_input: int | None = None
    """The input that is a fraction of a period: if given, its sine and cosine are all the model sees."""
    setting: Setting = field(init=False, default=())
    _inputs: Callable[[np.ndarray], np.ndarray] = field(init=False, repr=False)
    _targets: base.Targets = field(init=False, repr=False)
    _spread: base.Spread = field(init=False, repr=False)

    def fit(self, train: base.Pooled, val: base.Tasks) -> "PerTask":
        """Itself, with the settings that serve the validation tasks best; the training rows only give scales."""
        base.check(train, val)
        if self.time_input is not None and not 0 <= self.time_input < train.x.shape[1]:
            raise SettingError(
                f"time_input must be 0 to {train.x.shape[1] - 1}, an input's index; got {self.time_input}."
            )
        self._targets = base.Targets.of(train.y)
        self._inputs = base.Standardiser.of(train.x) if self.time_input is None else Seasonal(self.time_input)
        labelled = [task for task in val if len(task.support_y)]
        self.setting = min(self.grid, key=lambda setting: self._error(setting, labelled[:TUNING_TASKS]))
        fitted = [self._fitted(task.support_x, task.support_y, task.query_x, self.setting) for task in labelled]
        self._spread = base.Spread(self._targets.std**2, 1e9, self._targets.floor)
        if labelled:
            self._spread = base.fit_spread(fitted, [task.query_y for task in labelled], self._targets.floor)
        return self

    def predict(self, support_x: base.Inputs, support_y: base.Reals, query_x: base.Queries) -> base.Normal:
        """The posterior predictive; without a support the distribution of the training targets."""
        if not len(support_y):
            return self._targets.unknown(len(query_x))
        return self._spread.normal(self._fitted(support_x, support_y, query_x, self.setting))

    def _error(self, setting: Setting, tasks: base.Tasks) -> float:
        if len(self.grid) == 1 or not tasks:
            return 0.0
        means = (self._fitted(task.support_x, task.support_y, task.query_x, setting).mean for task in tasks)
        return base.mean_over_tasks([(task.query_y - mean) ** 2 for task, mean in zip(tasks, means, strict=True)])

    def _fitted(
        self, support_x: np.ndarray, support_y: np.ndarray, query_x: np.ndarray, setting: Setting
    ) -> base.Fitted:
        support, query, y = self._inputs(support_x), self._inputs(query_x), support_y.astype(float)
        cross = self.kernel(query, support, setting)
        noisy = self.kernel(support, support, setting) + np.eye(len(y))
        solved = np.linalg.solve(noisy, np.column_stack([y, np.ones(len(y)), cross.T]))
        for_y, for_one, for_query = solved[:, 0], solved[:, 1], solved[:, 2:]
        level = for_y.sum() / for_one.sum()  # generalised least squares: the level has no prior
        residual = for_y - level * for_one
        prior = self.kernel(query[:, None], query[:, None], setting)[:, 0, 0]
        known = (cross * for_query.T).sum(1) - (1 - cross @ for_one) ** 2 / for_one.sum()
        shape = np.maximum(1 + prior - known, 1.0)
        return base.Fitted(level + cross @ residual, shape, float((y - level) @ residual), len(y) - 1)


@dataclass(frozen=True)
class Seasonal:
    """The place in the period as a point on the unit circle."""

    time_input: int

    def __call__(self, x: Float[np.ndarray, "n dx"]) -> Float[np.ndarray, "n 2"]:
        """Sine and cosine of one input."""
        angle = 2 * np.pi * x[:, self.time_input].astype(float)
        return np.stack([np.sin(angle), np.cos(angle)], axis=1)


def support_mean() -> PerTask:
    """The mean of the support."""
    return PerTask("support-mean")


def ridge(time_input: int | None = None) -> PerTask:
    """Ridge regression on standardised inputs, or on the sine and cosine of one of them."""
    return PerTask("ridge" if time_input is None else "ridge-seasonal", linear_kernel, ALPHAS, time_input)


def gaussian_process(time_input: int | None = None) -> PerTask:
    """A Gaussian process over standardised inputs, or over the sine and cosine of one of them."""
    name = "gaussian-process" if time_input is None else "gaussian-process-seasonal"
    return PerTask(name, smooth_kernel, SIGNALS_AND_LENGTHS, time_input)
