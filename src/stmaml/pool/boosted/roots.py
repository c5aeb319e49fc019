"""Trees for all groups and effects for each: where the members that read labelled rows begin."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

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
