"""What labelled rows tell, as columns that trees can read."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from stmaml.pool.base import GroupedRows
from stmaml.pool.boosted.simulated import Joined

AT_ONCE = 1 << 21
"""Numbers in the largest array that is made on the way."""
WIDTHS = (0.3, 1.0)
"""How far rows reach that count as near, in spreads of a column."""


@dataclass(frozen=True)
class Labelled:
    """Labelled rows side by side, a line for each task."""

    rows: Int[np.ndarray, "t s"]
    there: Bool[np.ndarray, "t s"]

    @staticmethod
    def of(joined: Joined) -> "Labelled":
        """Those of some tasks."""
        return Labelled(*joined.padded)

    def moments(self, value: Float[np.ndarray, " n"], empty: float) -> Float[np.ndarray, "t 5"]:
        """Mean, spread, last, least and most of what labelled rows have; `empty` where there are none."""
        held = np.where(self.there, value[self.rows], 0.0)
        count = np.maximum(self.there.sum(1), 1)
        mean = held.sum(1) / count
        spread = np.sqrt((np.where(self.there, held - mean[:, None], 0.0) ** 2).sum(1) / count)
        last = held[np.arange(len(held)), count - 1]
        least = np.where(self.there, held, np.inf).min(1)
        most = np.where(self.there, held, -np.inf).max(1)
        known = self.there.any(axis=1, keepdims=True)
        return np.where(known, np.stack([mean, spread, last, least, most], axis=1), [[empty, 0.0, empty, empty, empty]])

    def means(self, x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "t d"]:
        """The mean of each column over labelled rows; 0 without any."""
        held = np.where(self.there[:, :, None], x[self.rows], 0.0)
        return held.sum(1) / np.maximum(self.there.sum(1), 1)[:, None]


def nearby(
    rows: GroupedRows,
    joined: Joined,
    labelled: Labelled,
    columns: tuple[int, ...],
    values: Float[np.ndarray, "n v"],
    unit: Float[np.ndarray, " c"],
) -> Float[np.ndarray, "m f"]:
    """For each asked row the distance to the nearest labelled one, and means of what near ones have, shrunk to 0."""
    x = rows.x[:, list(columns)] / unit
    step = max(AT_ONCE // (labelled.rows.shape[1] * (len(columns) + values.shape[1] + 1)), 1)
    starts = range(0, max(len(joined.asked), 1), step)
    near = [slice(start, start + step) for start in starts]
    return np.concatenate([_near(x, joined.asked[s], joined.task[s], labelled, values) for s in near])


def _near(x: np.ndarray, asked: np.ndarray, task: np.ndarray, labelled: Labelled, values: np.ndarray) -> np.ndarray:
    rows, there = labelled.rows[task], labelled.there[task]
    distance = ((x[rows] - x[asked][:, None]) ** 2).mean(2) if x.shape[1] else np.zeros(rows.shape)
    distance = np.where(there, distance, np.inf)
    nearest = distance.argmin(1)
    closest = np.where(there.any(axis=1, keepdims=True), distance.min(axis=1, keepdims=True), -1.0)
    held = np.where(there[:, :, None], values[rows], 0.0)  # what is not labelled has no value
    smooth = [_smooth(distance, held, width) for width in WIDTHS]
    return np.column_stack([closest, held[np.arange(len(rows)), nearest], *smooth])


def _smooth(distance: np.ndarray, values: np.ndarray, width: float) -> np.ndarray:
    """Means by weights; a weight of a half says that there is nothing."""
    weight = np.exp(-0.5 * distance / width**2)
    return np.einsum("ns,nsv->nv", weight, values) / (weight.sum(1)[:, None] + 0.5)
