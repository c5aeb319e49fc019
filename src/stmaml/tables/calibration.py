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
from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, Bool, Float, Int

from stmaml.border.typed import from_dict
from stmaml.errors import RunError
from stmaml.prediction import Prediction, Recalibrated
from stmaml.quantiles import student_at

TEMPERATURES = np.geomspace(0.25, 8.0, 61)
_LOW = (0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45)
LEVELS = (*_LOW, 0.5, *(round(1 - level, 3) for level in reversed(_LOW)))
SET_LEVELS = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99)  # coverages for which sets of classes are fitted
Rows = Float[np.ndarray, "m n"]  # a number for each held-out row, by tasks; weights are 0 for padding
Levels = Float[np.ndarray, " l"]
FEW_GROUPS = 19
"""With fewer, one group to come in twenty may lie beyond them all, so that they cannot tell where 5 % lie."""


@dataclass(frozen=True)
class Calibration:
    """What makes predictions hold on new groups, by the number of labelled rows."""

    shots: tuple[int, ...]  # numbers of labelled rows it was fitted at, rising
    temperature: tuple[float, ...]
    """Factor on the spread of a real target; for classes, divisor of the log-probabilities."""
    scores: tuple[tuple[float, ...], ...] = ()
    """For each number of rows, the normal score at which each of LEVELS is reached; none for classes."""
    groups: int = 0  # groups it was fitted on
    floors: tuple[tuple[float, ...], ...] = ()
    """For classes, at each number of rows: the probability from which a class is in the set, for each of SET_LEVELS."""

    def at(self, shots: int | Int[np.ndarray, "*m"]) -> "Recalibration":
        """What to do with predictions from so many labelled rows; with an axis for each of several numbers."""
        plain = [normal_score(np.array(LEVELS))] * len(self.shots)
        nothing = [(0.0,) * len(SET_LEVELS)] * len(self.shots)  # only the set of all classes is safe
        parts = (
            np.exp(self._between(np.log(np.array(self.temperature)), shots)),
            self._between(np.array(self.scores or plain), shots),
            self._between(np.array(self.floors or nothing), shots),
        )
        return Recalibration(*(jnp.asarray(part, dtype=jnp.float32) for part in parts), fitted=bool(self.floors))

    def to_json(self) -> dict[str, Any]:
        """The calibration as plain lists and dictionaries."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(content: dict[str, Any]) -> "Calibration":
        """The calibration back from `to_json`; RunError if it is none that was ever fitted."""
        read = from_dict(Calibration, content)
        read._check()
        return read

    def _check(self) -> None:
        count = len(self.shots)
        temperatures = all(0 < temperature < np.inf for temperature in self.temperature)
        tables = {"scores": (self.scores, LEVELS), "floors": (self.floors, SET_LEVELS)}
        _need(count > 0 and self.shots[0] >= 0 and _rising(self.shots, 1), "'shots' that rise from 0 or more")
        _need(len(self.temperature) == count and temperatures, "a 'temperature' above 0 for each of 'shots'")
        _need(self.groups >= 0, "a number of 'groups' of 0 or more")
        for name, (rows, levels) in tables.items():
            sizes = [len(row) for row in rows]
            _need(not rows or sizes == [len(levels)] * count, f"{len(levels)} '{name}' for each of 'shots'")
            _need(bool(np.isfinite([value for row in rows for value in row]).all()), f"finite '{name}'")
        _need(all(_rising(row) for row in self.scores), "'scores' that rise from level to level")
        _need(all(0 <= floor <= 1 for row in self.floors for floor in row), "'floors' from 0 to 1")

    def _between(
        self, table: Float[np.ndarray, "k *l"], shots: int | Int[np.ndarray, "*m"]
    ) -> Float[np.ndarray, "*m_and_l"]:
        """Linear in log(1 + shots) between the numbers fitted; beyond them as at the end."""
        knots, at = np.log1p(np.array(self.shots, dtype=float)), np.log1p(np.asarray(shots, dtype=float))
        flat = table.reshape(len(knots), -1)
        mixed = np.stack([np.interp(at, knots, flat[:, i]) for i in range(flat.shape[1])], axis=-1)
        return mixed.reshape((*at.shape, *table.shape[1:]))


def _rising(values: tuple[int | float, ...], least: int | float = -1e-6) -> bool:
    """Whether each value is above the one before, by `least` or more."""
    return all(high - low >= least for low, high in pairwise(values))


def _need(holds: bool, what: str) -> None:
    if not holds:
        raise RunError(f"a calibration must have {what}, and this one has not. Restore it from a copy, or fit again.")


class Recalibration(eqx.Module):
    """What makes predictions from one number of labelled rows hold: called with one, it gives the better one."""

    temperature: Float[Array, "*m"]
    scores: Float[Array, "*m l"]  # the normal score at which each of LEVELS is reached
    floors: Float[Array, "*m k"]  # the probability from which a class is in the set, for each of SET_LEVELS
    fitted: bool = eqx.field(static=True)
    """Whether sets of classes were fitted; if not, only the set of all classes is safe."""

    def __call__(self, prediction: Prediction) -> Recalibrated:
        """The tempered prediction with corrected quantiles."""
        plain = ndtri(jnp.array(LEVELS, dtype=jnp.float32))
        return Recalibrated(prediction.tempered(self.temperature).components, plain, self.scores)

    def floor(self, coverage: float) -> Float[Array, "*m"]:
        """The probability from which a class belongs to the set that holds the true one with that coverage."""
        if not self.fitted:
            return jnp.zeros(self.floors.shape[:-1])
        # The likeliest class alone promises nothing, all classes everything.
        known = jnp.array([0.0, *SET_LEVELS, 1.0])
        rows = jnp.pad(self.floors, [(0, 0)] * (self.floors.ndim - 1) + [(1, 1)], constant_values=((1.0, 0.0),))
        at = jax.vmap(lambda row: jnp.interp(coverage, known, row))(rows.reshape(-1, rows.shape[-1]))
        return at.reshape(rows.shape[:-1])


def normal_score(levels: Levels) -> Levels:
    """Where the standard normal distribution reaches each level."""
    return np.asarray(ndtri(jnp.asarray(levels, dtype=jnp.float32)), dtype=float)


def best_temperature(nll: Float[np.ndarray, "m t"]) -> float:
    """The one of TEMPERATURES with the lowest mean over groups."""
    return float(TEMPERATURES[int(nll.mean(0).argmin())])


def conformal_scores(scores: Rows, weight: Rows, groups: int) -> tuple[float, ...]:
    """The normal score at which each of LEVELS holds for a group to come, by the scores of held-out targets.

    Tasks are all `groups` in turn, as often as there are tasks; a group drawn twice is still one."""
    student = _student_scores(scores, weight, groups)
    if groups < FEW_GROUPS:
        return tuple(student.tolist())
    # Groups may differ in where their targets lie or in how far they scatter: whichever is worth less counts.
    worth = min(free_rows(scores, weight, groups), free_rows(np.abs(scores), weight, groups))
    found, levels = _pooled_scores(scores, weight, worth), np.array(LEVELS)
    outer = np.where(levels < 0.5, np.minimum(found, student), np.maximum(found, student))
    thin = np.minimum(levels, 1 - levels) < 1 / (worth + 1) - 1e-12
    return tuple(np.where(thin, outer, found).tolist())


def free_rows(values: Rows, weight: Rows, groups: int) -> float:
    """How many independent rows would tell the mean of these values as well.

    As many as there are groups if the rows of each are all alike, and as there are rows if nothing ties them. A row
    that was drawn in several tasks counts once, for its group's mean varies no less."""
    mean, square = (_group_means(v, weight, groups) for v in (values, np.square(values - values[weight > 0].mean())))
    spread = mean.var(ddof=1)
    if spread == 0:
        return float((weight > 0).sum())
    return float(np.clip(groups * square.mean() / spread, groups, (weight > 0).sum()))


def _group_means(values: Rows, weight: Rows, groups: int) -> Float[np.ndarray, " g"]:
    """The mean of each group over all its tasks."""
    by_group, shares = values.reshape(-1, groups, values.shape[1]), weight.reshape(-1, groups, values.shape[1])
    return (by_group * shares).sum((0, 2)) / shares.sum((0, 2))


def _pooled_scores(scores: Rows, weight: Rows, worth: float) -> Levels:
    """Quantiles of all scores together, as split-conformal prediction takes them of so many free ones."""
    values, mass = _sorted_mass(scores, weight)
    total = worth / (worth + 1)
    below = np.cumsum(mass) * total + (1 - total) / 2  # half of what is to come lies below all others
    # Low levels: the largest value with at most `level` below it; high ones: the smallest with that much up to it.
    places = [int(np.searchsorted(below, level, side="right" if level < 0.5 else "left")) for level in LEVELS]
    return np.maximum.accumulate([float(values[min(place, len(values) - 1)]) for place in places])


def _student_scores(scores: Rows, weight: Rows, groups: int) -> Levels:
    """Quantiles about 0 where the means of groups, and rows about them, are normal.

    Only the spread of means is uncertain: it rests on `groups` of them, while rows are many."""
    mean = _group_means(scores, weight, groups)
    about = scores - np.tile(mean, len(scores) // groups)[:, None]
    within = _group_means(np.square(about), weight, groups).mean()
    levels = np.array(LEVELS)
    spread = np.square(_student_levels(groups)) * np.square(mean).mean() + np.square(normal_score(levels)) * within
    return np.sign(levels - 0.5) * np.sqrt(spread)


@lru_cache
def _student_levels(groups: int) -> Levels:
    """Where Student's distribution with that many degrees of freedom reaches each of LEVELS."""
    levels = np.array(LEVELS)
    tails = jnp.asarray(np.minimum(levels, 1 - levels), dtype=jnp.float32)
    return np.sign(0.5 - levels) * np.asarray(student_at(tails, jnp.full_like(tails, groups)), dtype=float)


def coverage_spread(coverage: float, groups: int) -> float:
    """How far the coverage of intervals fitted on so many groups strays from nominal, where rows of a group err alike.

    It is the standard deviation of the beta distribution that split-conformal prediction has."""
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


def conformal_floors(probability: Rows, weight: Rows, groups: int) -> tuple[float, ...]:
    """The probability that the true class reaches with each of SET_LEVELS in a group to come, by held-out ones."""
    values, mass = _sorted_mass(-probability, weight)
    worth = free_rows(probability, weight, groups)
    below = np.cumsum(mass) * worth / (worth + 1)  # what is to come lies beyond all others
    places = np.searchsorted(below, np.array(SET_LEVELS) - 1e-12)
    return tuple(float(-values[place]) if place < len(values) else 0.0 for place in places)


def _sorted_mass(values: Rows, weight: Rows) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """The values in rising order and the share of each: every task has the same, whatever its size."""
    shares = weight / weight.sum(1, keepdims=True) / len(weight)
    values, mass = values[weight > 0], shares[weight > 0]
    order = np.argsort(values)
    return values[order], mass[order]


def class_sets(
    probabilities: Float[np.ndarray | Array, "*n c"], floor: Float[np.ndarray | Array, "*n"]
) -> Bool[np.ndarray | Array, "*n c"]:
    """Which classes are in the set of each row: those that reach the floor, and always the likeliest."""
    best = probabilities >= probabilities.max(-1, keepdims=True)
    return best | (probabilities >= floor[..., None])
