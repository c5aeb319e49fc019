"""Boosted trees of all rows, which ignore labelled ones; and the same with effects that labelled rows tell."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Shaped

from stmaml.pool.base import Arrays, Draw, Fitted, Forecast, GroupedRows, Tasks, fit_one_by_one
from stmaml.pool.boosted.effects import estimate, sums_of
from stmaml.pool.boosted.growing import grow, limited
from stmaml.pool.boosted.objectives import Squares
from stmaml.pool.boosted.remembered import Remembered
from stmaml.pool.boosted.roots import Root, Rooted
from stmaml.pool.boosted.simulated import Joined, simulate
from stmaml.pool.boosted.spread import Said, Spread, learn_spread
from stmaml.pool.boosted.trees import Trees, part, prefixed

SPREAD_ROWS = 4_000
"""Asked rows of simulated tasks that variances are learnt from."""


@dataclass(frozen=True)
class Pooled:
    """Trees of the columns."""

    trees: Trees
    spread: Spread
    levels: float
    """Variance between groups of what trees leave."""

    def predict(self, tasks: Tasks) -> Forecast:
        """The same, whatever labelled rows there are."""
        x = tasks.rows.x[tasks.asked.astype(int)]
        return self.spread.forecast(_pooled(self.trees.predict(x)[:, 0], self.levels, x))

    def state(self) -> Arrays:
        """As arrays."""
        parts = {**prefixed(self.trees.state(), "trees"), **prefixed(self.spread.state(), "spread")}
        return {**parts, "levels": np.array(self.levels)}


def _pooled(mean: np.ndarray, levels: float, x: np.ndarray) -> Said:
    size = len(mean)
    return Said(mean, np.full(size, levels), np.ones(size), np.zeros(size), x)


@dataclass(frozen=True)
class PooledNumbers:
    """The member `boosting` for numbers."""

    name: str = "boosting"

    def suits(self, rows: GroupedRows) -> bool:
        """Numbers."""
        return rows.num_classes == 0

    def fit(self, rows: GroupedRows, draw: Draw) -> Pooled:
        """Trees, as many as serve held-out groups."""
        rows = limited(rows, draw.seed)
        grown = grow(rows.x, Squares(rows.y), rows.group, draw.seed)
        held_out = grown.held_out[:, 0]
        sums = sums_of(np.ones((len(rows.y), 1)), rows.y - held_out, rows.group, rows.num_groups)
        levels = float(estimate(sums).covariance[0, 0])
        spread = learn_spread(_pooled(held_out, levels, rows.x), rows.y, rows.group, draw.seed)
        return Pooled(grown.trees, spread, levels)

    def fit_each(self, rows: GroupedRows, parts: Sequence[Shaped[np.ndarray, " _"]], draw: Draw) -> list[Fitted]:
        """One fit for each part."""
        return fit_one_by_one(self, rows, parts, draw)

    def restore(self, state: Arrays) -> Pooled:
        """Back from its arrays."""
        trees, spread = Trees.restored(part(state, "trees")), Spread.restored(part(state, "spread"))
        return Pooled(trees, spread, float(state["levels"]))


@dataclass(frozen=True)
class WithEffects:
    """Trees, and effects of groups."""

    root: Root
    spread: Spread

    def predict(self, tasks: Tasks) -> Forecast:
        """Trees and what labelled rows tell of the group."""
        joined = Joined.of(tasks)
        return self.spread.forecast(self.root.said(tasks.rows, self.root.shared(tasks.rows, joined), joined))

    def state(self) -> Arrays:
        """As arrays."""
        return {**prefixed(self.root.state(), "root"), **prefixed(self.spread.state(), "spread")}


@dataclass(frozen=True)
class EffectsMember:
    """The member `boosting-effects`."""

    roots: Remembered[Rooted]
    name: str = "boosting-effects"

    def suits(self, rows: GroupedRows) -> bool:
        """Numbers."""
        return rows.num_classes == 0

    def fit_each(self, rows: GroupedRows, parts: Sequence[Shaped[np.ndarray, " _"]], draw: Draw) -> list[Fitted]:
        """One fit for each part."""
        return [with_effects(rooted, draw) for rooted in self.roots.of_each(rows, parts, draw)]

    def restore(self, state: Arrays) -> WithEffects:
        """Back from its arrays."""
        return WithEffects(Root.restored(part(state, "root")), Spread.restored(part(state, "spread")))


def with_effects(rooted: Rooted, draw: Draw) -> WithEffects:
    """A root with variances that simulated tasks of held-out groups tell."""
    tasks = simulate(rooted.rows, draw, SPREAD_ROWS)
    joined = Joined.of(tasks)
    said = rooted.root.said(rooted.rows, rooted.held_out, joined)
    asked = joined.asked
    return WithEffects(rooted.root, learn_spread(said, rooted.rows.y[asked], rooted.rows.group[asked], draw.seed))
