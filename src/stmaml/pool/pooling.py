"""The pool's one answer: members widened to what held-out groups showed, weighted by labelled rows, recalibrated."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.special import ndtr, ndtri

from stmaml.border.typed import need
from stmaml.errors import RunError
from stmaml.pool.base import Forecast
from stmaml.pool.crossfit import HeldOut
from stmaml.pool.mixture import Mixture
from stmaml.pool.steady import padded, softened, steady_best_temperature, steady_scores, steady_temperature, tempered
from stmaml.pool.tails import Tail, learn_tail, with_tails
from stmaml.pool.weights import Costs, Weights, class_weights, crps_costs, learn_weights
from stmaml.tables.calibration import LEVELS, TEMPERATURES, Calibration, conformal_floors

WIDENED_BY = 2.0  # groups' worth of belief that a member's own spread is right
SMALLEST_SHARE = 0.01  # a member with less weight everywhere is not asked
FLOOR = 1e-4  # the smallest variance, in spreads of the targets squared


KINDS = ((tuple[int, ...], "counts"), (tuple[str, ...], "members"))


@dataclass(frozen=True)
class Pooling:
    """How the forecasts of members become one prediction."""

    members: tuple[str, ...]
    counts: tuple[int, ...]
    """Numbers of labelled rows at which all else was learnt; between them it is interpolated."""
    spread: tuple[tuple[float, ...], ...]
    """For each of `counts`, the factor on each member's standard deviation."""
    weight: tuple[tuple[float, ...], ...]
    calibration: Calibration
    tails: tuple[tuple[float, float], ...] = ()
    """For each of `counts`, with which probability the spread is how many times as wide; none of pools of old."""

    def used(self) -> tuple[str, ...]:
        """The members that have a say."""
        top = np.array(self.weight).max(0)
        return tuple(name for name, most in zip(self.members, top, strict=True) if most >= SMALLEST_SHARE)

    def mixture(self, forecasts: dict[str, Forecast], shots: Int[np.ndarray, " n"]) -> Mixture:
        """The pooled distribution of each row of numbers, before recalibration."""
        places = [i for i, name in enumerate(self.members) if name in forecasts]
        weight, spread = self._between(self.weight, shots)[places], self._between(self.spread, shots)[places]
        said = [forecasts[self.members[i]] for i in places]
        std = np.sqrt(np.maximum(np.stack([one.variance for one in said]), FLOOR)) * spread
        return Mixture(weight / weight.sum(0), np.stack([one.mean for one in said]), std)

    def spread_at(self, shots: Int[np.ndarray, " n"]) -> Float[np.ndarray, "k n"]:
        """The factor on each member's standard deviation."""
        return self._at(np.array(self.spread), shots)

    def odds(self, forecasts: dict[str, Forecast], shots: Int[np.ndarray, " n"]) -> Float[np.ndarray, "n c"]:
        """The pooled probability of each class, at the fitted temperature."""
        raw = self.plain_odds(forecasts, shots)
        temperature = np.exp(self._at(np.log(np.array(self.calibration.temperature))[:, None], shots)[0])
        return softened(raw, temperature[:, None])

    def plain_odds(self, forecasts: dict[str, Forecast], shots: Int[np.ndarray, " n"]) -> Float[np.ndarray, "n c"]:
        """The same before recalibration."""
        places = [i for i, name in enumerate(self.members) if name in forecasts]
        weight = self._between(self.weight, shots)[places]
        said = np.stack([forecasts[self.members[i]].mean for i in places])
        return np.einsum("kn,knc->nc", weight / weight.sum(0), said)

    def usual(self, mixture: Mixture, shots: Int[np.ndarray, " n"]) -> Mixture:
        """The pooled distribution of each row at the fitted spread, without tails."""
        return tempered(mixture, np.exp(self._at(np.log(np.array(self.calibration.temperature))[:, None], shots)[0]))

    def finished(self, mixture: Mixture, shots: Int[np.ndarray, " n"]) -> "Finished":
        """The recalibrated prediction of each row."""
        whole = with_tails(self.usual(mixture, shots), *self.tail_at(shots))
        return Finished(whole, self._at(np.array(self.calibration.scores), shots))

    def tail_at(self, shots: Int[np.ndarray, " n"]) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """For each row, with which probability its spread is how many times as wide."""
        tails = self.tails or ((0.0, 1.0),) * len(self.counts)
        share, log_width = self._at(np.array([(share, np.log(width)) for share, width in tails]), shots)
        return share, np.exp(log_width)

    def _between(self, table: Sequence[Sequence[float]], shots: Int[np.ndarray, " n"]) -> Float[np.ndarray, "k n"]:
        return self._at(np.array(table), shots)

    def _at(self, table: Float[np.ndarray, "c k"], shots: Int[np.ndarray, " n"]) -> Float[np.ndarray, "k n"]:
        """Linear in log(1 + shots) between the numbers learnt at; beyond them as at the end."""
        knots = np.log1p(np.array(self.counts, dtype=float))
        distinct, place = np.unique(shots, return_inverse=True)
        found = [np.interp(np.log1p(distinct.astype(float)), knots, column) for column in table.T]
        return np.stack(found)[:, place]

    def to_json(self) -> dict[str, Any]:
        """All of it as plain lists and dictionaries."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(content: dict[str, Any]) -> "Pooling":
        """Back from `to_json`."""
        counts, names = (need(kind, content[name], name) for kind, name in KINDS)
        spread, weight = (need(tuple[tuple[float, ...], ...], content[name], name) for name in ("spread", "weight"))
        tails = need(tuple[tuple[float, float], ...], content.get("tails", ()), "tails")
        found = Pooling(names, counts, spread, weight, Calibration.from_json(content["calibration"]), tails)
        if not names or not counts or counts[0] < 0 or sorted({*counts}) != [*counts]:
            raise RunError("a pool must have members, and numbers of labelled rows that rise from 0 or more")
        shape = (len(counts), len(names))
        for rows, least in ((spread, 1e-12), (weight, 0.0)):
            if np.shape(rows) != shape or not np.isfinite(rows).all() or np.min(rows) < least:
                raise RunError("a pool must have a spread above 0 and a weight of each member for each of its counts")
        if not np.sum(weight, axis=1).all():
            raise RunError("weights of 0 alone")
        if tails and not (len(tails) == len(counts) and all(0 <= s < 1 <= w < np.inf for s, w in tails)):
            raise RunError("'tails' must be a share below 1 and a width of at least 1 for each of a pool's counts")
        return found


@dataclass(frozen=True)
class Finished:
    """A mixture for each row whose quantiles are moved to where held-out targets fell."""

    mixture: Mixture
    scores: Float[np.ndarray, "l n"]
    """The normal score at which each of LEVELS holds, for each row."""

    def quantiles(self, levels: Sequence[float]) -> Float[np.ndarray, "q n"]:
        """The recalibrated quantiles of each row."""
        wanted = np.repeat(ndtri(np.array(levels))[:, None], self.scores.shape[1], axis=1)
        return self.mixture.at_scores(self.moved(wanted))

    def recalibrated(self, drawn: Float[np.ndarray, "d n"]) -> Float[np.ndarray, "d n"]:
        """What was drawn from the mixture of each row, moved as its quantiles are: order within a row stays."""
        return self.mixture.at_scores(self.moved(np.stack([self.mixture.normal_scores(one) for one in drawn])))

    def cdf(self, y: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """The level whose quantile each value is."""
        at, known = self.mixture.normal_scores(y), ndtri(np.array(LEVELS))
        place = np.clip((self.scores <= at).sum(0), 1, len(LEVELS) - 1)
        rows = np.arange(len(at))
        low, high = self.scores[place - 1, rows], self.scores[place, rows]
        part = np.clip((at - low) / np.maximum(high - low, 1e-12), 0, 1)
        inside = known[place - 1] + part * (known[place] - known[place - 1])
        return ndtr(inside + np.minimum(at - self.scores[0], 0) + np.maximum(at - self.scores[-1], 0))

    def moved(self, wanted: Float[np.ndarray, "l n"]) -> Float[np.ndarray, "l n"]:
        """The mixture's scores for normal scores wanted of each row; outside of LEVELS it goes on at a slope of 1."""
        known, rows = ndtri(np.array(LEVELS)), np.arange(wanted.shape[1])
        place = np.clip(np.searchsorted(known, wanted), 1, len(known) - 1)
        part = np.clip((wanted - known[place - 1]) / (known[place] - known[place - 1]), 0, 1)
        low, high = self.scores[place - 1, rows], self.scores[place, rows]
        beyond = np.minimum(wanted - known[0], 0) + np.maximum(wanted - known[-1], 0)
        return low + part * (high - low) + beyond


def learn_pooling(held: Sequence[HeldOut]) -> Pooling:
    """Weights and calibration from what members said of held-out groups."""
    names = tuple(held[0].forecasts)
    is_class = held[0].tasks.rows.num_classes > 0
    spread = [_spreads(one, names) if not is_class else np.ones(len(names)) for one in held]
    if is_class:
        weights = [_class_weights(one, names) for one in held]
    else:
        weights = list(learn_weights([costs_of(one, names, each) for one, each in zip(held, spread, strict=True)]))
    counts = tuple(one.shots for one in held)
    rough = Calibration(counts, (1.0,) * len(held), groups=held[0].num_groups)
    plain = Pooling(names, counts, _tuples(spread), _tuples(weights), rough)
    if is_class:
        return dataclasses.replace(plain, calibration=_class_calibration(plain, held))
    return _calibrated(plain, held)


def _tuples(rows: Sequence[Float[np.ndarray, " k"]]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(float(value) for value in row) for row in rows)


def _spreads(held: HeldOut, names: Sequence[str]) -> Weights:
    """The factor on each member's spread that makes held-out errors as large as it says, every group alike."""
    groups = held.tasks.group[held.tasks.task]
    count = np.bincount(groups)
    squares = []
    for name in names:
        said = held.forecasts[name]
        ratio = (held.y - said.mean) ** 2 / np.maximum(said.variance, FLOOR)
        by_group = np.bincount(groups, ratio)[count > 0] / count[count > 0]
        squares.append((by_group.sum() + WIDENED_BY) / (len(by_group) + WIDENED_BY))
    return np.sqrt(np.array(squares))


def costs_of(held: HeldOut, names: Sequence[str], factor: Weights) -> Costs:
    """What any weights would have cost in each group, with members' spreads multiplied by a factor each."""
    said = [held.forecasts[name] for name in names]
    std = np.sqrt(np.maximum(np.stack([each.variance for each in said]), FLOOR)) * factor[:, None]
    group = np.unique(held.tasks.group, return_inverse=True)[1]
    return crps_costs(np.stack([each.mean for each in said]), std, held.y, group[held.tasks.task], int(group.max()) + 1)


def _class_weights(held: HeldOut, names: Sequence[str]) -> Weights:
    truth, rows = held.y.astype(int), np.arange(len(held.y))
    likelihood = np.stack([np.maximum(held.forecasts[name].mean[rows, truth], 1e-9) for name in names])
    return class_weights(likelihood, held.tasks.group[held.tasks.task])


def _calibrated(plain: Pooling, held: Sequence[HeldOut]) -> Pooling:
    """With tails, spread and quantiles that held-out targets show."""
    temperatures, tails, scores = [], [], []
    for one in held:
        raw = plain.mixture(one.forecasts, np.full(len(one.y), one.shots))
        values, weight = padded(raw.normal_scores(one.y), one.tasks.task)
        shown = learn_tail(raw, one.y, one.tasks.group[one.tasks.task])
        temperature, tail = shown or (steady_temperature(values, weight, one.num_groups), Tail())
        every = np.ones(len(one.y))
        mended = with_tails(tempered(raw, temperature * every), tail.share * every, tail.width * every)
        again, _ = padded(mended.normal_scores(one.y), one.tasks.task)
        temperatures.append(temperature)
        tails.append((tail.share, tail.width))
        scores.append(steady_scores(again, weight, one.num_groups))
    calibration = Calibration(plain.counts, tuple(temperatures), tuple(scores), held[0].num_groups)
    return dataclasses.replace(plain, calibration=calibration, tails=tuple(tails))


def _class_calibration(plain: Pooling, held: Sequence[HeldOut]) -> Calibration:
    temperatures, floors = [], []
    for one in held:
        odds, truth = plain.plain_odds(one.forecasts, np.full(len(one.y), one.shots)), one.y.astype(int)
        rows = np.arange(len(truth))
        nll = np.stack([-np.log(softened(odds, np.array(t))[rows, truth] + 1e-12) for t in TEMPERATURES], axis=1)
        by_task = np.stack([np.bincount(one.tasks.task, column) for column in nll.T], axis=1)
        by_task /= np.bincount(one.tasks.task)[:, None]
        best = steady_best_temperature(by_task.reshape(-1, one.num_groups, len(TEMPERATURES)).mean(0))
        temperatures.append(best)
        values, weight = padded(softened(odds, np.array(best))[rows, truth], one.tasks.task)
        floors.append(conformal_floors(values, weight, one.num_groups))
    return Calibration(plain.counts, tuple(temperatures), (), held[0].num_groups, tuple(floors))
