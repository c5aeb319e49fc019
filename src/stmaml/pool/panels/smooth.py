"""What all groups share: lines, curves and products of columns, shrunk, by plain or by generalised least squares.

The former takes rows for independent; its line is that between rows of unknown groups. The latter knows how rows of a
group go together; its line is that within groups, where these tell it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from stmaml.pool.base import Arrays, GroupedRows
from stmaml.pool.boosted.growing import folds_of
from stmaml.pool.boosted.simulated import Joined
from stmaml.pool.boosted.trees import part, prefixed
from stmaml.pool.mixed.design import Design, design_of

LINES = (1e-4, 1e-3, 1e-2, 0.03, 0.1, 0.3, 1.0)
CURVES = (1e-3, 1e-2, 0.1, 1.0, 10.0, 1e6)
"""Ridge penalties that are tried, for each row."""
FOLDS = 5
BEYOND = 0.25
"""How far outside the range of training targets a mean may lie, in such ranges."""
Whiten = Callable[[Float[np.ndarray, "n k"]], Float[np.ndarray, "n k"]]


@dataclass(frozen=True)
class Smooth:
    """A mean for each row."""

    design: Design
    beta: Float[np.ndarray, " f"]
    limits: Float[np.ndarray, " 2"]

    def __call__(self, x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        """What is expected of rows of unknown groups."""
        return np.clip(self.design.common(self.design.scaled(x)) @ self.beta, self.limits[0], self.limits[1])

    def state(self) -> Arrays:
        """As arrays."""
        return {**prefixed(self.design.state(), "design"), "beta": self.beta, "limits": self.limits}

    @staticmethod
    def restored(state: Arrays) -> "Smooth":
        """Back from its arrays."""
        return Smooth(Design.restore(part(state, "design")), state["beta"], state["limits"])


def learn_smooth(
    rows: GroupedRows, seed: int, whitened: Whiten | None = None
) -> tuple[Smooth, Float[np.ndarray, " n"]]:
    """The mean under the penalties that serve held-out groups best, and what is then said of rows of such groups.
    `whitened` makes rows of columns independent of each other: squares are then those of generalised least squares."""
    design = design_of(rows)
    plain, fold = design.common(design.scaled(rows.x)), folds_of(rows.group, seed, FOLDS)
    both = np.column_stack([plain, rows.y])
    x, y = np.split(both if whitened is None else whitened(both), [plain.shape[1]], axis=1)
    reach = BEYOND * float(np.ptp(rows.y))
    limits, kinds = np.array([rows.y.min() - reach, rows.y.max() + reach]), _kinds(design, x.shape[1])
    here = [fold == f for f in range(int(fold.max()) + 1)]
    sums = [(x[mine].T @ x[mine], (x[mine].T @ y[mine])[:, 0]) for mine in here]
    square, cross = sum(one for one, _ in sums), sum(one for _, one in sums)

    def betas(penalty: Float[np.ndarray, " f"]) -> list[Float[np.ndarray, " f"]]:
        """Those of all groups but the ones of a fold."""
        return [
            np.linalg.solve(square - mine + np.diag(penalty * (len(y) - own.sum())), cross - with_y)
            for own, (mine, with_y) in zip(here, sums, strict=True)
        ]

    def cost(found: list[Float[np.ndarray, " f"]]) -> float:
        return sum(float(((y[own, 0] - x[own] @ beta) ** 2).sum()) for own, beta in zip(here, found, strict=True))

    curves = CURVES if (kinds == 2).any() else CURVES[-1:]
    penalties = [np.array([1e-9, line, curve])[kinds] for line in LINES for curve in curves]
    tried = [betas(penalty) for penalty in penalties]
    best = int(np.argmin([cost(found) for found in tried]))
    held_out = np.zeros(len(rows.y))
    for own, beta in zip(here, tried[best], strict=True):
        held_out[own] = plain[own] @ beta
    beta = np.linalg.solve(square + np.diag(penalties[best] * len(y)), cross)
    return Smooth(design, beta, limits), np.clip(held_out, limits[0], limits[1])


def _kinds(design: Design, width: int) -> Int[np.ndarray, " f"]:
    """0 for the intercept, 1 for lines, 2 for curves and products; as `Design.common` has them."""
    blocks = design.blocks()[len(design.levels.sizes) :]
    wide = sum(blocks)
    kinds = np.full(width, 2)
    kinds[wide - (blocks[-1] if design.ridged else 0) :] = 1
    kinds[wide] = 0
    return kinds


def shared_of(smooth: Smooth, rows: GroupedRows, joined: Joined) -> Float[np.ndarray, " n"]:
    """The mean of the rows that tasks use; none for others."""
    shared, used = np.full(len(rows.y), np.nan), joined.used
    shared[used] = smooth(rows.x[used])
    return shared
