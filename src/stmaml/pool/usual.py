"""Whether a group looks like those a pool has learnt from: how far its labelled rows lie from what is expected of a
group of which nothing is known."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from stmaml.border.typed import from_dict
from stmaml.errors import RunError
from stmaml.pool.base import Forecast
from stmaml.pool.crossfit import HeldOut
from stmaml.pool.pooling import Pooling

REPEATS = 20
SIZES = (1, 2, 5, 10, 20, 50)
UNUSUAL = 0.95
KEPT = 201  # of the surprises of a size, evenly ranked


@dataclass(frozen=True)
class Usual:
    """How surprising held-out groups were, by the number of their rows that were looked at."""

    sizes: tuple[int, ...]
    surprise: tuple[tuple[float, ...], ...]
    """For each size, in rising order, the mean surprise of so many rows of held-out groups."""

    def novelty(self, surprise: Float[np.ndarray, " m"], shots: Int[np.ndarray, " m"]) -> Float[np.ndarray, " m"]:
        """The share of held-out groups that were less surprising; NaN without labelled rows."""
        found = np.full(len(shots), np.nan)
        nearest = np.abs(np.log1p(shots)[:, None] - np.log1p(np.array(self.sizes))[None]).argmin(1)
        for i in np.flatnonzero(shots > 0):
            known = np.array(self.surprise[nearest[i]])
            found[i] = np.searchsorted(known, surprise[i]) / max(len(known), 1)
        return found

    @staticmethod
    def from_json(content: dict[str, Any]) -> "Usual":
        """Back from the dictionary of its fields."""
        found = from_dict(Usual, content)
        rising = all(row and list(row) == sorted(row) and math.isfinite(sum(row)) for row in found.surprise)
        sizes = found.sizes
        if not rising or len(sizes) != len(found.surprise) or min(sizes, default=1) < 1 or sorted({*sizes}) != [*sizes]:
            raise RunError("what is usual of groups must be numbers in rising order for each of some sizes")
        return found


def in_words(novelty: float) -> str:
    """What a share means to a reader."""
    if np.isnan(novelty):
        return "no labelled rows"
    if novelty < UNUSUAL:
        return "usual"
    return f"unusual: further from expectation than {100 * novelty:.0f} % of held-out groups"


def surprise_of(
    pooling: Pooling, forecasts: dict[str, Forecast], y: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """How surprising each row is to the pool that knows nothing of its group: a squared normal score, or the
    logarithm of one over its class's probability."""
    shots = np.zeros(len(y), dtype=int)
    if next(iter(forecasts.values())).mean.ndim == 2:
        odds = pooling.odds(forecasts, shots)
        return -np.log(np.maximum(odds[np.arange(len(y)), y.astype(int)], 1e-12))
    return pooling.mixture(forecasts, shots).normal_scores(y) ** 2


def learn_usual(pooling: Pooling, blind: HeldOut, seed: int = 0) -> Usual:
    """From the rows of held-out groups that were predicted without any labelled row."""
    each = surprise_of(pooling, blind.forecasts, blind.y)
    group = blind.tasks.group[blind.tasks.task]
    groups = [each[group == one] for one in np.unique(group)]
    random = np.random.default_rng(seed)
    sizes = tuple(size for size in SIZES if any(len(one) >= size for one in groups))
    found = []
    for size in sizes:
        large = [one for one in groups if len(one) >= size]
        means = [random.permutation(one)[:size].mean() for one in large for _ in range(REPEATS)]
        found.append(tuple(float(value) for value in np.quantile(means, np.linspace(0, 1, KEPT)).round(5)))
    return Usual(sizes, tuple(found))
