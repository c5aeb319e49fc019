"""Further groupings of rows: outer ones, which a group lies in, and crossed ones, which a group has many levels of."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from stmaml.pool.base import Arrays, GroupedRows

MOST_LEVELS = 2000
"""Levels of all further groupings that have an effect each; rarer ones are as good as unseen."""


@dataclass(frozen=True)
class Levels:
    """Which levels have an effect."""

    place: Int[np.ndarray, "a l"]
    """The place of each level among all effects of levels, -1 for one without."""
    outer: Bool[np.ndarray, " a"]
    """Whether a group has one level: then rows of an unseen level share it."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Levels with an effect of each grouping."""
        return tuple(int((row >= 0).sum()) for row in self.place)

    @property
    def num(self) -> int:
        """All levels with an effect."""
        return sum(self.sizes)

    def codes(self, levels: Int[np.ndarray, "n a"]) -> Int[np.ndarray, "n a"]:
        """The place of each row's levels, -1 where a level is unseen."""
        width = self.place.shape[1]
        known = (levels >= 0) & (levels < width)
        if not known.any():
            return np.full(levels.shape, -1)
        places = np.take_along_axis(self.place.T, np.where(known, levels, 0), axis=0)
        return np.where(known, places, -1)

    def state(self) -> Arrays:
        """As arrays."""
        return {"level_place": self.place, "level_outer": self.outer}

    @staticmethod
    def restore(state: Arrays) -> "Levels":
        """Back from arrays."""
        return Levels(state["level_place"], state["level_outer"])

    @staticmethod
    def of(rows: GroupedRows, most: int = MOST_LEVELS) -> "Levels":
        """Those of some rows, the most frequent where there are more than `most`."""
        num, width = rows.levels.shape[1], int(rows.levels.max(initial=-1)) + 1
        place, outer, used = np.full((num, width), -1), np.zeros(num, dtype=bool), 0
        for index in range(num):
            mine = rows.levels[:, index]
            count = np.bincount(mine[mine >= 0], minlength=width)
            kept = np.sort(np.argsort(-count, kind="stable")[: min(most // num, int((count > 0).sum()))])
            place[index, kept] = used + np.arange(len(kept))
            used += len(kept)
            outer[index] = _one_a_group(mine, rows.group, rows.num_groups)
        return Levels(place, outer)


def _one_a_group(levels: np.ndarray, group: np.ndarray, num_groups: int) -> bool:
    low, high = np.full(num_groups, np.iinfo(int).max), np.full(num_groups, -1)
    np.minimum.at(low, group, levels)
    np.maximum.at(high, group, levels)
    return bool(np.all(low == high))
