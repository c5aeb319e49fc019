"""The column by which rows of all groups can be compared: days, ages, doses that come again from group to group."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from stmaml.pool.base import GroupedRows
from stmaml.pool.mixed.design import varies_within

MOST_PLACES = 40
FEWEST_PLACES = 3
FULL = 0.4
"""The least share of groups that have a row at a place, on average over places."""
ALONE = 0.8
"""The least share of rows that are the only one of their group at their place."""


@dataclass(frozen=True)
class Places:
    """A column cut into places."""

    column: int
    edges: Float[np.ndarray, " e"]
    """Where one place ends and the next begins."""
    centers: Float[np.ndarray, " t"]

    def of(self, x: Float[np.ndarray, "n d"]) -> Int[np.ndarray, " n"]:
        """The place of each row."""
        return np.searchsorted(self.edges, x[:, self.column])


def places_of(rows: GroupedRows) -> Places | None:
    """Places where most groups have one row each: of the columns that have some, those of the most; None if none has.
    They are a column's values where these come again, else as many equal parts of the rows as a group has rows."""
    found: list[tuple[float, Places]] = []
    numbers = [column.kind == "number" for column in rows.columns]
    for column in np.flatnonzero(varies_within(rows) & np.array(numbers, dtype=bool)):
        for places in (_values(rows, int(column)), _parts(rows, int(column))):
            worth = 0.0 if places is None else _worth(rows, places)
            if places is not None and worth:
                found.append((worth, places))
                break
    return max(found, key=lambda one: one[0])[1] if found else None


def _values(rows: GroupedRows, column: int) -> Places | None:
    distinct = np.unique(np.round(rows.x[:, column], 6))
    if not FEWEST_PLACES <= len(distinct) <= MOST_PLACES:
        return None
    return Places(column, (distinct[1:] + distinct[:-1]) / 2, distinct)


def _parts(rows: GroupedRows, column: int) -> Places | None:
    count, values = int(np.median(rows.counts)), np.sort(rows.x[:, column])
    if not FEWEST_PLACES < count <= MOST_PLACES:
        return None
    cuts = np.linspace(0, len(values), count + 1).round().astype(int)[1:-1]
    edges = np.unique((values[cuts - 1] + values[cuts]) / 2)
    place = np.searchsorted(edges, values)
    size = np.bincount(place, minlength=len(edges) + 1)
    return Places(column, edges, np.bincount(place, values, len(size)) / size) if size.min() > 0 else None


def _worth(rows: GroupedRows, places: Places) -> float:
    """Places that a group has on average; 0 where rows crowd at some of them or most are empty."""
    number = len(places.centers)
    cells = len(np.unique(rows.group * number + places.of(rows.x)))
    full, alone = cells / (number * rows.num_groups), cells / len(rows.y)
    return number * full * alone if number >= FEWEST_PLACES and full >= FULL and alone >= ALONE else 0.0
