"""What of a table becomes common effects, and what may differ between groups."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from stmaml.pool.base import Arrays, GroupedRows
from stmaml.pool.mixed.levels import MOST_LEVELS, Levels
from stmaml.pool.mixed.products import Products, products_of
from stmaml.pool.mixed.splines import Wiggles, wiggles
from stmaml.pool.mixed.sums import Matrices

MOST_WIGGLES = 8
"""Basis functions of a column."""
ALL_WIGGLES = 120
"""Of all columns together."""


@dataclass(frozen=True)
class Own:
    """What differs between groups beside the level."""

    slopes: Int[np.ndarray, " s"]
    """Columns whose slope does, the most telling first."""
    full: int
    """How many of these have any covariance with the level and each other."""
    curves: Int[np.ndarray, " c"]
    """Columns whose wiggles do."""

    @staticmethod
    def nothing() -> "Own":
        """The level alone."""
        return Own(np.zeros(0, dtype=int), 0, np.zeros(0, dtype=int))


@dataclass(frozen=True)
class Design:
    """Columns scaled to spread 1, wiggles of numbers, levels of further groupings."""

    center: Float[np.ndarray, " d"]
    inverse_scale: Float[np.ndarray, " d"]
    """0 for a column that is constant, which then says nothing."""
    bends: dict[int, Wiggles]
    """Columns that may bend."""
    ridged: bool
    """Whether straight lines are shrunk too: columns are many for the rows or groups."""
    levels: Levels
    products: Products
    reach: Float[np.ndarray, "2 d"]
    """How far each column counts: a line through one value of each group says little beyond the last of them, so that a
    column which is the same in all rows of a group ends where training ended; others go on."""

    def scaled(self, x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """Columns about 0 with spread 1."""
        return (np.clip(x, self.reach[0], self.reach[1]) - self.center) * self.inverse_scale

    def wide(self, scaled: Float[np.ndarray, "n d"]) -> list[Float[np.ndarray, "n w"]]:
        """Blocks of shrunk columns."""
        bent = [bend(scaled[:, column]) for column, bend in self.bends.items()]
        if len(bent) > 6:
            bent = [np.concatenate(bent, axis=1)]
        bent += self.products.blocks(scaled, self.bends)
        return [*bent, scaled] if self.ridged else bent

    def blocks(self) -> tuple[int, ...]:
        """Sizes of the blocks of shrunk columns: levels of each further grouping, then `wide`."""
        nothing = np.zeros((0, len(self.center)))
        return (*self.levels.sizes, *(block.shape[1] for block in self.wide(nothing)))

    def common(self, scaled: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n f"]:
        """All common columns but levels: shrunk ones, then the intercept and free ones."""
        ones = np.ones((len(scaled), 1))
        free = scaled[:, self.inverse_scale > 0.0][:, : 0 if self.ridged else None]
        return np.concatenate([*self.wide(scaled), ones, free], axis=1)

    def own(self, scaled: Float[np.ndarray, "n d"], own: Own) -> Float[np.ndarray, "n q"]:
        """What a group's own effects multiply: 1, slopes, curves."""
        curves = [self.bends[int(column)](scaled[:, column]) for column in own.curves]
        return np.concatenate([np.ones((len(scaled), 1)), scaled[:, own.slopes], *curves], axis=1)

    def curve_sizes(self, own: Own) -> tuple[int, ...]:
        """Basis functions of each own curve."""
        return tuple(self.bends[int(column)].tilt.shape[1] for column in own.curves)

    def matrices(self, rows: GroupedRows, own: Own) -> Matrices:
        """The rows of the model."""
        scaled = self.scaled(rows.x)
        rest = np.concatenate([self.common(scaled), rows.y[:, None]], axis=1)
        return Matrices(self.own(scaled, own), self.levels.codes(rows.levels), rest, rows.group)

    def state(self) -> Arrays:
        """As arrays; knots and lines of all bending columns one after the other."""
        bends = list(self.bends.values())
        empty = np.zeros((2, 0))
        return {
            "center": self.center,
            "inverse_scale": self.inverse_scale,
            "ridged": np.array(self.ridged),
            "reach": self.reach,
            "bend_column": np.array(list(self.bends), dtype=int),
            "bend_knots": np.concatenate([np.zeros(0), *(bend.knots for bend in bends)]),
            "bend_num": np.array([len(bend.knots) for bend in bends], dtype=int),
            "bend_tilt": np.concatenate([empty, *(bend.tilt for bend in bends)], axis=1),
            "bend_size": np.array([bend.size for bend in bends]),
            **self.levels.state(),
            **self.products.state(),
        }

    @staticmethod
    def restore(state: Arrays) -> "Design":
        """Back from its arrays."""
        ends = np.cumsum(state["bend_num"])[:-1]
        lines = np.split(state["bend_tilt"], np.cumsum(state["bend_num"] - 2)[:-1], axis=1)
        parts = zip(np.split(state["bend_knots"], ends), lines, state["bend_size"], strict=False)
        bends = [Wiggles(knots, tilt, float(size)) for knots, tilt, size in parts]
        columns = [int(column) for column in state["bend_column"]]
        bent = dict(zip(columns, bends, strict=True))
        rest = (bool(state["ridged"]), Levels.restore(state), Products.restore(state), state["reach"])
        return Design(state["center"], state["inverse_scale"], bent, *rest)


def design_of(
    rows: GroupedRows,
    *,
    columns: bool = True,
    products: bool = True,
    curves: bool = True,
    most_levels: int = MOST_LEVELS,
) -> Design:
    """The design that suits some rows; without columns, levels alone."""
    kept = _kept(rows.x, columns)
    center, spread = kept.mean(axis=0), kept.std(axis=0)
    live = spread > 1e-9 * (1.0 + np.abs(center))
    inverse = np.where(live, 1.0 / np.where(live, spread, 1.0), 0.0)
    scaled = (kept - center) * inverse
    bends = _bends(scaled, [curves and column.kind == "number" for column in rows.columns])
    num = int(live.sum())
    ridged = num > 7 or 10 * num > rows.num_groups
    varies = varies_within(rows)
    joined = products_of(rows, scaled, live & products, varies)
    return Design(center, inverse, bends, ridged, Levels.of(rows, most_levels), joined, _reach(rows, varies))


def _reach(rows: GroupedRows, varies: Bool[np.ndarray, " d"]) -> Float[np.ndarray, "2 d"]:
    """From the least to the most of each column that does not vary within groups; without end for others."""
    ends = np.stack([rows.x.min(axis=0), rows.x.max(axis=0)]) if len(rows.x) else np.zeros((2, rows.x.shape[1]))
    return np.where(varies, [[-np.inf], [np.inf]], ends)


def _kept(x: Float[np.ndarray, "n d"], columns: bool) -> Float[np.ndarray, "n d"]:
    """The columns, or as many that say nothing."""
    return x if columns else np.zeros_like(x)


def _bends(scaled: np.ndarray, numbers: list[bool]) -> dict[int, Wiggles]:
    """Wiggles of the numbers, as many as the rows can tell."""
    can = [column for column, number in enumerate(numbers) if number]
    most = min(MOST_WIGGLES, len(scaled) // 15, ALL_WIGGLES // max(len(can), 1))
    if most < 2:
        return {}
    made = {column: wiggles(scaled[:, column], most) for column in can}
    return {column: bend for column, bend in made.items() if bend is not None}


def varies_within(rows: GroupedRows) -> Bool[np.ndarray, " d"]:
    """Which columns differ between rows of one group, in three groups at least, by more than a thousandth."""
    counts = np.maximum(rows.counts, 1)
    within = np.zeros((rows.num_groups, rows.x.shape[1]))
    for column, values in enumerate(rows.x.T):
        mean = np.bincount(rows.group, values, rows.num_groups) / counts
        within[:, column] = np.bincount(rows.group, (values - mean[rows.group]) ** 2, rows.num_groups)
    total = rows.x.var(axis=0) * len(rows.x)
    enough = (within > 1e-6 * total / max(rows.num_groups, 1)).sum(axis=0) >= 3
    return enough & (within.sum(axis=0) > 1e-3 * total) & (total > 0.0)
