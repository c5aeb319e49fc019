"""Recalibration on held-out groups: a temperature, then quantiles shifted to where held-out targets fell.

Classes get sets instead of quantiles: all whose probability reaches what that of the true class mostly reached
(Sadinle, Lei, Wasserman, "Least ambiguous set-valued classifiers", 2019).

Rows of one group are not independent of each other, groups are: every group has the same weight whatever its size. The
finite-sample margin of split-conformal prediction counts groups where the rows of each err alike (Lee, Barber, Willett,
"Distribution-free inference with hierarchical data", 2023), and up to as many as there are rows where they do not:
how many free rows the held-out ones are worth follows from the spread of the groups' means (Kish's design effect). Of
the weight of what is to come, half is put beyond either end.

No count of groups tells where a tail lies that holds less than one of them. There, and everywhere with fewer than
FEW_GROUPS, quantiles come from Student's distribution instead: groups err like normal variables about the learner's own
median, by as much as the held-out ones did.
"""

import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betainc, log_ndtr, ndtr, ndtri
from jaxtyping import Array, Bool, Float, Int

from stmaml.tasks import weighted_mean

TEMPERATURES = np.geomspace(0.25, 8.0, 61)
_LOW = (0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45)
LEVELS = (*_LOW, 0.5, *(round(1 - level, 3) for level in reversed(_LOW)))
SET_LEVELS = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99)
"""Coverages for which sets of classes are fitted."""
FEW_GROUPS = 19
"""With fewer, one group to come in twenty may lie beyond them all, so that they cannot tell where 5 % lie."""


@dataclass(frozen=True)
class Calibration:
    """What makes predictions hold on new groups, by the number of labelled rows."""

    shots: tuple[int, ...]
    """Numbers of labelled rows it was fitted at, rising."""
    temperature: tuple[float, ...]
    """Factor on the spread of a real target; for classes, divisor of the log-probabilities."""
    scores: tuple[tuple[float, ...], ...] = ()
    """For each number of rows, the normal score at which each of LEVELS is reached; none for classes."""
    groups: int = 0
    """Groups it was fitted on."""
    floors: tuple[tuple[float, ...], ...] = ()
    """For classes, at each number of rows: the probability from which a class is in the set, for each of SET_LEVELS."""

    def temperature_at(self, shots: Int[np.ndarray, " m"]) -> Float[np.ndarray, " m"]:
        """The temperature for each number of labelled rows."""
        return np.exp(self._between(np.log(np.array(self.temperature)), shots)).astype(np.float32)

    def scores_at(self, shots: Int[np.ndarray, " m"], levels: Float[np.ndarray, " l"]) -> Float[np.ndarray, "m l"]:
        """The normal scores that give quantiles of these levels, for each number of labelled rows."""
        target = normal_score(np.asarray(levels, dtype=float))
        if not self.scores:
            return np.tile(target, (len(shots), 1)).astype(np.float32)
        known = normal_score(np.array(LEVELS))
        table = np.stack([_extended(target, known, np.array(row)) for row in self.scores])
        return self._between(table, shots).astype(np.float32)

    def floor_at(self, shots: Int[np.ndarray, " m"], coverage: float) -> Float[np.ndarray, " m"]:
        """The probability from which a class belongs to the set that holds the true one with that coverage."""
        if not self.floors:
            return np.zeros(len(shots))  # nothing was fitted, so only the set of all classes is safe
        ends = ((0.0, 1.0), (1.0, 0.0))  # the likeliest class alone promises nothing, all classes everything
        known = np.array([ends[0][0], *SET_LEVELS, ends[1][0]])
        table = np.array([np.interp(coverage, known, [ends[0][1], *row, ends[1][1]]) for row in self.floors])
        return self._between(table, shots)

    def to_json(self) -> dict[str, Any]:
        """The calibration as plain lists and dictionaries."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(content: dict[str, Any]) -> "Calibration":
        """The calibration back from `to_json`."""
        scores = tuple(tuple(row) for row in content["scores"])
        floors = tuple(tuple(row) for row in content.get("floors", ()))
        return Calibration(tuple(content["shots"]), tuple(content["temperature"]), scores, content["groups"], floors)

    def _between(self, table: Float[np.ndarray, "k *l"], shots: Int[np.ndarray, " m"]) -> Float[np.ndarray, "m *l"]:
        """Linear in log(1 + shots) between the numbers fitted; beyond them as at the end."""
        knots, at = np.log1p(np.array(self.shots, dtype=float)), np.log1p(np.asarray(shots, dtype=float))
        flat = table.reshape(len(knots), -1)
        mixed = np.stack([np.interp(at, knots, flat[:, i]) for i in range(flat.shape[1])], axis=1)
        return mixed.reshape(len(at), *table.shape[1:])


def _extended(
    target: Float[np.ndarray, " l"], known: Float[np.ndarray, " k"], found: Float[np.ndarray, " k"]
) -> Float[np.ndarray, " l"]:
    """Linear interpolation that goes on outside at a slope of 1: as far out as the uncorrected quantile goes."""
    beyond = np.where(target < known[0], target - known[0], 0.0) + np.where(target > known[-1], target - known[-1], 0.0)
    return np.interp(target, known, found) + beyond


def normal_score(levels: Float[np.ndarray, " l"]) -> Float[np.ndarray, " l"]:
    """Where the standard normal distribution reaches each level."""
    return np.asarray(ndtri(jnp.asarray(levels, dtype=jnp.float32)), dtype=float)


def student_score(levels: Float[np.ndarray, " l"], freedom: int) -> Float[np.ndarray, " l"]:
    """Where Student's distribution with that many degrees of freedom reaches each level, by bisection."""
    tail = jnp.asarray(np.minimum(levels, 1 - np.asarray(levels)), dtype=jnp.float32)
    low, high = jnp.zeros_like(tail), jnp.full_like(tail, 1e3)
    for _ in range(40):
        middle = (low + high) / 2
        beyond = betainc(freedom / 2, 0.5, freedom / (freedom + jnp.square(middle))) / 2
        low, high = jnp.where(beyond > tail, middle, low), jnp.where(beyond > tail, high, middle)
    return np.sign(np.asarray(levels) - 0.5) * np.asarray(low, dtype=float)


def mixture_score(loc: Float[Array, "s n"], scale: Float[Array, "s n"], y: Float[Array, " n"]) -> Float[Array, " n"]:
    """The normal score of each target under a mixture of normals: standard normal if the mixture is right.

    Either tail is taken where it is the small one, so that far targets keep their digits.
    """
    z = (y[None] - loc) / scale
    below = jax.nn.logsumexp(log_ndtr(z), axis=0) - jnp.log(z.shape[0])
    above = jax.nn.logsumexp(log_ndtr(-z), axis=0) - jnp.log(z.shape[0])
    return jnp.where(below < above, _score_of_log(below), -_score_of_log(above))


def _score_of_log(log_p: Float[Array, " n"]) -> Float[Array, " n"]:
    """The normal score of a probability up to one half, given its logarithm; 12 spreads are as far as floats reach."""
    return ndtri(jnp.exp(jnp.maximum(log_p, -80.0)))


def mixture_quantile(
    loc: Float[Array, "s n"], scale: Float[Array, "s n"], score: Float[Array, ""]
) -> Float[Array, " n"]:
    """The value of that normal score under a mixture of normals, by bisection between those of its components."""
    each = loc + score * scale
    side = jnp.where(score > 0, -1.0, 1.0)  # the smaller tail, where floats have digits to spare
    tail = ndtr(side * score)

    def halve(_: Int[Array, ""], bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        middle = (low + high) / 2
        found = ndtr(side * (middle[None] - loc) / scale).mean(0)
        below = side * (found - tail) < 0
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    low, high = jax.lax.fori_loop(0, 22, halve, (each.min(0), each.max(0)))
    return (low + high) / 2


def spread_by(
    loc: Float[Array, "s n"], scale: Float[Array, "s n"], temperature: Float[Array, ""]
) -> tuple[Float[Array, "s n"], Float[Array, "s n"]]:
    """The mixture stretched about its mean."""
    mean = jnp.broadcast_to(loc.mean(0), loc.shape)
    return mean + temperature * (loc - mean), temperature * scale


def soften(probabilities: Float[Array, "n c"], temperature: Float[Array, ""]) -> Float[Array, "n c"]:
    """Class probabilities with their logarithms divided by the temperature."""
    return jax.nn.softmax(jnp.log(jnp.maximum(probabilities, 1e-12)) / temperature)


def real_nll(
    loc: Float[Array, "s n"],
    scale: Float[Array, "s n"],
    y: Float[Array, " n"],
    weight: Float[Array, " n"],
    temperature: Float[Array, ""],
) -> Float[Array, ""]:
    """Minus the mean log-density of a group's targets under the stretched mixture."""
    loc, scale = spread_by(loc, scale, temperature)
    each = -jnp.square((y[None] - loc) / scale) / 2 - jnp.log(scale)
    return -weighted_mean(jax.nn.logsumexp(each, axis=0) - jnp.log(loc.shape[0]), weight)


def class_nll(
    probabilities: Float[Array, "n c"],
    y: Int[Array, " n"],
    weight: Float[Array, " n"],
    temperature: Float[Array, ""],
) -> Float[Array, ""]:
    """Minus the mean log-probability of a group's classes after softening."""
    log_p = jnp.log(soften(probabilities, temperature))
    return -weighted_mean(jnp.take_along_axis(log_p, y[:, None], axis=1)[:, 0], weight)


def best_temperature(nll: Float[np.ndarray, "m t"]) -> float:
    """The one of TEMPERATURES with the lowest mean over groups."""
    return float(TEMPERATURES[int(nll.mean(0).argmin())])


def conformal_scores(
    scores: Float[np.ndarray, "m n"], weight: Float[np.ndarray, "m n"], groups: int
) -> tuple[float, ...]:
    """The normal score at which each of LEVELS holds for a group to come.

    Args:
        scores: normal scores of held-out targets, a row for each task; all groups in turn, as often as there are tasks.
        weight: 0 for padding.
        groups: how many groups the tasks came from; a group drawn twice is still one.
    """
    student = _student_scores(scores, weight, groups)
    if groups < FEW_GROUPS:
        return tuple(student.tolist())
    # Groups may differ in where their targets lie or in how far they scatter: whichever is worth less counts.
    worth = min(free_rows(scores, weight, groups), free_rows(np.abs(scores), weight, groups))
    found, levels = _pooled_scores(scores, weight, worth), np.array(LEVELS)
    outer = np.where(levels < 0.5, np.minimum(found, student), np.maximum(found, student))
    thin = np.minimum(levels, 1 - levels) < 1 / (worth + 1) - 1e-12
    return tuple(np.where(thin, outer, found).tolist())


def free_rows(values: Float[np.ndarray, "m n"], weight: Float[np.ndarray, "m n"], groups: int) -> float:
    """How many independent rows would tell the mean of these values as well.

    As many as there are groups if the rows of each are all alike, and as there are rows if nothing ties them. A row
    that was drawn in several tasks counts once, for its group's mean varies no less.
    """
    mean, square = (_group_means(v, weight, groups) for v in (values, np.square(values - values[weight > 0].mean())))
    spread = mean.var(ddof=1)
    if spread == 0:
        return float((weight > 0).sum())
    return float(np.clip(groups * square.mean() / spread, groups, (weight > 0).sum()))


def _group_means(
    values: Float[np.ndarray, "m n"], weight: Float[np.ndarray, "m n"], groups: int
) -> Float[np.ndarray, " g"]:
    """The mean of each group over all its tasks."""
    by_group, shares = values.reshape(-1, groups, values.shape[1]), weight.reshape(-1, groups, values.shape[1])
    return (by_group * shares).sum((0, 2)) / shares.sum((0, 2))


def _pooled_scores(
    scores: Float[np.ndarray, "m n"], weight: Float[np.ndarray, "m n"], worth: float
) -> Float[np.ndarray, " l"]:
    """Quantiles of all scores together, as split-conformal prediction takes them of so many free ones."""
    values, mass = _sorted_mass(scores, weight)
    total = worth / (worth + 1)
    below = np.cumsum(mass) * total + (1 - total) / 2  # half of what is to come lies below all others
    found = []
    for level in LEVELS:
        # Low levels: the largest value with at most `level` below it; high ones: the smallest with that much up to it.
        index = int(np.searchsorted(below, level, side="right" if level < 0.5 else "left"))
        found.append(float(values[min(index, len(values) - 1)]))
    return np.maximum.accumulate(found)


def _student_scores(
    scores: Float[np.ndarray, "m n"], weight: Float[np.ndarray, "m n"], groups: int
) -> Float[np.ndarray, " l"]:
    """Quantiles about 0 where the means of groups, and rows about them, are normal.

    Only the spread of means is uncertain: it rests on `groups` of them, while rows are many.
    """
    mean = _group_means(scores, weight, groups)
    about = scores - np.tile(mean, len(scores) // groups)[:, None]
    within = _group_means(np.square(about), weight, groups).mean()
    levels = np.array(LEVELS)
    spread = np.square(_student_levels(groups)) * np.square(mean).mean() + np.square(normal_score(levels)) * within
    return np.sign(levels - 0.5) * np.sqrt(spread)


@lru_cache
def _student_levels(groups: int) -> Float[np.ndarray, " l"]:
    return student_score(np.array(LEVELS), groups)


def coverage_spread(coverage: float, groups: int) -> float:
    """How far the coverage of intervals fitted on so many groups strays from nominal, where rows of a group err alike.

    It is the standard deviation of the beta distribution that split-conformal prediction has.
    """
    return float(np.sqrt(coverage * (1 - coverage) / (groups + 2)))


def caution(groups: int, is_class: bool) -> list[str]:
    """What to say where too few groups calibrated for intervals without labelled rows to be relied on."""
    if groups >= FEW_GROUPS:
        return []
    what = "sets of classes" if is_class else "intervals"
    points = 100 * coverage_spread(0.8, groups)
    return [
        f"{what} without labelled rows rest on {groups} groups to calibrate on and may not hold: those of 80 % "
        f"typically hold {points:.0f} points more or fewer; {FEW_GROUPS} groups or more would be better"
    ]


def conformal_floors(
    probability: Float[np.ndarray, "m n"], weight: Float[np.ndarray, "m n"], groups: int
) -> tuple[float, ...]:
    """The probability that the true class of a group to come reaches with each of SET_LEVELS.

    Args:
        probability: of the true class of each held-out row, a row of the array for each task.
        weight: 0 for padding.
        groups: how many groups the tasks came from.
    """
    values, mass = _sorted_mass(-probability, weight)
    worth = free_rows(probability, weight, groups)
    below = np.cumsum(mass) * worth / (worth + 1)  # what is to come lies beyond all others
    places = np.searchsorted(below, np.array(SET_LEVELS) - 1e-12)
    return tuple(float(-values[place]) if place < len(values) else 0.0 for place in places)


def _sorted_mass(
    values: Float[np.ndarray, "m n"], weight: Float[np.ndarray, "m n"]
) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """The values in rising order and the share of each: every task has the same, whatever its size."""
    shares = weight / weight.sum(1, keepdims=True) / len(weight)
    values, mass = values[weight > 0], shares[weight > 0]
    order = np.argsort(values)
    return values[order], mass[order]


def class_sets(probabilities: Float[np.ndarray, "*n c"], floor: Float[np.ndarray, "*n"]) -> Bool[np.ndarray, "*n c"]:
    """Which classes are in the set of each row: those that reach the floor, and always the likeliest."""
    best = probabilities >= probabilities.max(-1, keepdims=True)
    return best | (probabilities >= floor[..., None])
