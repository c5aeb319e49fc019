"""Trees for all groups and effects for each: where the members that read labelled rows begin."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Shaped

from stmaml.pool.base import Arrays, Draw, GroupedRows
from stmaml.pool.boosted.effects import Belief, Chosen, Prior, choose, design, sums_of
from stmaml.pool.boosted.growing import grow, limited
from stmaml.pool.boosted.objectives import SharedSquares
from stmaml.pool.boosted.simulated import Joined
from stmaml.pool.boosted.spread import Said
from stmaml.pool.boosted.trees import Trees, part, prefixed


@dataclass(frozen=True)
class Root:
    """A mean that all groups share and what is known of their effects."""

    trees: Trees
    chosen: Chosen

    def mean(self, x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        """What is said of rows of a group nothing is known of."""
        return self.trees.predict(x)[:, 0]

    def shared(self, rows: GroupedRows, joined: Joined) -> Float[np.ndarray, " n"]:
        """That mean for the rows that tasks use; none for others."""
        shared, used = np.full(len(rows.y), np.nan), joined.used
        shared[used] = self.mean(rows.x[used])
        return shared

    def belief(self, rows: GroupedRows, shared: Float[np.ndarray, " n"], joined: Joined) -> Belief:
        """The effects of each task's group, given its labelled rows."""
        support, z = joined.support, design(rows.x, self.chosen.slopes)
        left = rows.y[support] - shared[support]
        return self.chosen.prior.belief(sums_of(z[support], left, joined.support_task, len(joined.shots)))

    def said(self, rows: GroupedRows, shared: Float[np.ndarray, " n"], joined: Joined) -> Said:
        """What labelled rows and trees say of the asked ones."""
        x = rows.x[joined.asked]
        effect, variance = self.belief(rows, shared, joined).at(design(x, self.chosen.slopes), joined.task)
        total = variance + self.chosen.prior.noise
        return Said(shared[joined.asked] + effect, variance, total, joined.log_shots, x)

    def state(self) -> Arrays:
        """As arrays."""
        slopes = {"slopes": np.array(self.chosen.slopes, dtype=int)}
        return {**prefixed(self.trees.state(), "trees"), **prefixed(self.chosen.prior.state(), "prior"), **slopes}

    @staticmethod
    def restored(state: Arrays) -> "Root":
        """A root from its arrays."""
        slopes = tuple(int(j) for j in state["slopes"])
        return Root(Trees.restored(part(state, "trees")), Chosen(Prior.restored(part(state, "prior")), slopes))


@dataclass(frozen=True)
class Rooted:
    """A root, the rows it has learnt from, and what trees that had not seen their group say of them."""

    root: Root
    rows: GroupedRows
    held_out: Float[np.ndarray, " n"]


def take_root(rows: GroupedRows, draw: Draw) -> Rooted:
    """A root for the groups of some rows."""
    rows = limited(rows, draw.seed)
    grown = grow(rows.x, SharedSquares.of(rows.x, rows.y, rows.group), rows.group, draw.seed)
    held_out = grown.held_out[:, 0]
    return Rooted(Root(grown.trees, choose(rows.x, rows.y - held_out, rows.group)), rows, held_out)


@dataclass
class Roots:
    """Roots of the table that was asked for last, so that two members need not grow the same trees."""

    _kept: tuple["weakref.ref[np.ndarray]", Draw, list[np.ndarray], list[Rooted]] | None = field(init=False, default=None)

    def of_each(
        self, rows: GroupedRows, parts: Sequence[Shaped[np.ndarray, " k"]], draw: Draw
    ) -> list[Rooted]:
        """One for each part of the groups."""
        if self._kept is None or not self._same(rows, parts, draw):
            found = [take_root(rows.of_groups(part), draw) for part in parts]
            self._kept = weakref.ref(rows.y), draw, [np.array(part) for part in parts], found
        return self._kept[3]

    def _same(self, rows: GroupedRows, parts: Sequence[np.ndarray], draw: Draw) -> bool:
        assert self._kept is not None
        y, drawn, before, _ = self._kept
        alike = len(parts) == len(before) and all(np.array_equal(a, b) for a, b in zip(parts, before, strict=True))
        return y() is rows.y and drawn == draw and alike
