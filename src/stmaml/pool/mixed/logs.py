"""A mixed model of the target's logarithm: where groups grow, spreads and slopes grow with the level.

Targets come without a zero of their own, so how far from the least of them (or, with a tail below, from the most) the
logarithm begins is learnt by the likelihood, as Box and Cox do: "An analysis of transformations", 1964."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Shaped
from threadpoolctl import threadpool_limits

from stmaml.pool.base import Arrays, Draw, Fitted, Forecast, GroupedRows, Tasks
from stmaml.pool.mixed.fit import Kind, Model, Starts, fit_model, labelled, misfit, slopes_for
from stmaml.pool.mixed.numbers import MIXED_SLOPES
from stmaml.pool.mixed.posterior import predict
from stmaml.pool.mixed.sums import thinned

_BENDS = (0.05, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
BENDS = (*(-bend for bend in reversed(_BENDS)), *_BENDS)
"""Curvatures that are tried, in units of one over the spread of targets; about 0 the logarithm is a straight line."""
NO_BEND = len(_BENDS)
MOST_GROUPS = 50  # that the curvature is chosen on
KIND = Kind(columns=True, slopes=True, curves=True)
BEYOND = 0.5  # of the range of training targets: how far outside of it a mean may lie
WIDEST = 2.0  # variance of a logarithm: beyond, moments say nothing


@dataclass(frozen=True)
class Log:
    """y -> log(1 + bend (y - end)) / bend, which is y - end where the bend is small."""

    bend: float
    end: float
    """The least of the training targets; the most, where the bend is negative."""

    def __call__(self, y: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """On the scale of the logarithm; beyond the end it goes on straight."""
        inside = self.bend * (y - self.end)
        return np.where(inside < 0, inside, np.log1p(np.maximum(inside, 0.0))) / self.bend

    def log_slope(self, y: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """The logarithm of its derivative."""
        return -np.log1p(np.maximum(self.bend * (y - self.end), 0.0))

    def back(self, said: Forecast, limits: tuple[float, float]) -> Forecast:
        """Mean and variances of the target, which is log-normal, with means kept within limits."""
        task = np.minimum(said.task_variance * self.bend**2, WIDEST)
        noise = np.minimum(said.noise_variance * self.bend**2, WIDEST)
        grown = np.exp(np.minimum(self.bend * said.mean + (task + noise) / 2, 50.0))
        mean = np.clip(self.end + (grown - 1) / self.bend, *limits)
        square = (self.bend * (mean - self.end) + 1) ** 2 / self.bend**2
        return Forecast(mean, square * np.expm1(task), square * np.exp(task) * np.expm1(noise))


@dataclass(frozen=True)
class FittedLog:
    """A mixed model of the logarithm that has learnt from groups."""

    log: Log
    limits: tuple[float, float]
    model: Model

    def predict(self, tasks: Tasks) -> Forecast:
        """Each group's effects on the scale of the logarithm, then back."""
        rows = replace(tasks.rows, y=self.log(tasks.rows.y))
        with threadpool_limits(1, "blas"):
            return self.log.back(predict(self.model, replace(tasks, rows=rows)), self.limits)

    def state(self) -> Arrays:
        """The model's arrays, the logarithm's and the limits."""
        return {**self.model.state(), "log": np.array([self.log.bend, self.log.end, *self.limits])}


@dataclass(frozen=True)
class MixedLog:
    """The member `mixed-log`."""

    name: str = "mixed-log"

    def suits(self, rows: GroupedRows) -> bool:
        """Where slopes may differ, and targets do."""
        return MIXED_SLOPES.suits(rows) and float(np.ptp(labelled(rows).y)) > 0.0

    def fit_each(self, rows: GroupedRows, parts: Sequence[Shaped[np.ndarray, " _"]], draw: Draw) -> list[Fitted]:
        """For each part the curvature that fits best, then the model; a like part is searched from there."""
        del draw
        found, place, starts, tried = [], NO_BEND, Starts(), Starts()
        with threadpool_limits(1, "blas"):
            for part in parts:
                mine = labelled(rows.of_groups(part))
                place = best_bend(mine, place, tried)
                log = log_of(mine.y, BENDS[place])
                model = fit_model(replace(mine, y=log(mine.y)), KIND, starts)
                found.append(FittedLog(log, limits_of(mine.y), model))
        return found

    def restore(self, state: Arrays) -> Fitted:
        """What was fitted, back from its arrays."""
        bend, end, low, high = (float(value) for value in state["log"])
        return FittedLog(Log(bend, end), (low, high), Model.restore(state))


def limits_of(y: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """How low and how high a mean may be."""
    reach = BEYOND * float(np.ptp(y))
    return float(y.min()) - reach, float(y.max()) + reach


def log_of(y: Float[np.ndarray, " n"], bend: float) -> Log:
    """The logarithm of some targets with this curvature."""
    return Log(bend, float(y.min() if bend > 0 else y.max()))


def best_bend(rows: GroupedRows, start: int, starts: Starts) -> int:
    """The place in BENDS of the likeliest, downhill from a start; searches for variances have starts of their own."""
    few = rows.of_groups(thinned(rows.counts, len(rows.y), MOST_GROUPS))
    known, own = dict[int, float](), slopes_for(few, starts)

    def cost(place: int) -> float:
        if not 0 <= place < len(BENDS):
            return np.inf
        if place not in known:
            log = log_of(few.y, BENDS[place])
            known[place] = misfit(replace(few, y=log(few.y)), own, starts) - 2.0 * float(log.log_slope(few.y).sum())
        return known[place]

    while True:
        best = min((start, start - 1, start + 1), key=cost)
        if best == start:
            return start
        start = best
