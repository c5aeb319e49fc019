"""Products of columns: the line and the curve of one may change with another, as growth may with a diet."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from stmaml.pool.base import Arrays, GroupedRows
from stmaml.pool.mixed.splines import Wiggles

MOST_PAIRS = 8
MOST_CURVES = 32
"""Basis functions of all curves that change."""


@dataclass(frozen=True)
class Products:
    """Pairs of columns, of which the first bends."""

    pairs: Int[np.ndarray, "p 2"]
    ends: Float[np.ndarray, "2 d"]
    """The least and the most of each scaled column in training. Products stay what they are there: they would grow with
    the square of the distance."""

    def blocks(self, scaled: Float[np.ndarray, "n d"], bends: dict[int, Wiggles]) -> list[Float[np.ndarray, "n w"]]:
        """Changes of lines, then changes of curves; each block has one variance."""
        if not len(self.pairs):
            return []
        near = np.clip(scaled, self.ends[0], self.ends[1])
        first, second = self.pairs.T
        bent = [(int(i), int(j)) for i, j in self.pairs if int(i) in bends]
        total = np.cumsum([bends[i].tilt.shape[1] for i, _ in bent])
        chosen = [pair for pair, size in zip(bent, total, strict=True) if size <= MOST_CURVES]
        curves = {i: bends[i](near[:, i]) for i in {i for i, _ in chosen}}
        kept = [curves[i] * near[:, [j]] for i, j in chosen]
        return [near[:, first] * near[:, second], *([np.concatenate(kept, axis=1)] if kept else [])]

    def state(self) -> Arrays:
        """As arrays."""
        return {"product_pairs": self.pairs, "product_ends": self.ends}

    @staticmethod
    def restore(state: Arrays) -> "Products":
        """Back from its arrays."""
        return Products(state["product_pairs"], state["product_ends"])


def products_of(
    rows: GroupedRows, scaled: Float[np.ndarray, "n d"], live: Bool[np.ndarray, " d"], varies: Bool[np.ndarray, " d"]
) -> Products:
    """Each number that varies within groups with every other column, the most varying first."""
    numbers = np.array([column.kind == "number" for column in rows.columns], dtype=bool)
    firsts = np.flatnonzero(numbers & live & varies)
    order = firsts[np.argsort(-_within(rows, scaled[:, firsts]), kind="stable")]
    pairs = [(i, j) for place, i in enumerate(order) for j in np.flatnonzero(live) if j != i and j not in order[:place]]
    ends = np.stack([scaled.min(axis=0), scaled.max(axis=0)]) if len(scaled) else np.zeros((2, len(live)))
    return Products(np.array(pairs[:MOST_PAIRS], dtype=int).reshape(-1, 2), ends)


def _within(rows: GroupedRows, scaled: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " d"]:
    """The share of each column's variance that lies within groups."""
    means = [np.bincount(rows.group, column) / np.maximum(rows.counts, 1) for column in scaled.T]
    return np.array([(column - mean[rows.group]).var() for column, mean in zip(scaled.T, means, strict=True)])
