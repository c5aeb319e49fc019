"""Linear mixed models by REML or maximum likelihood: y = Z_g b_g + W w + X beta + noise.

Profiled as in Bates, Maechler, Bolker, Walker, "Fitting linear mixed-effects models using lme4", 2015, sec. 3.4.
Effects of groups are eliminated group by group: an evaluation costs the same for any number of rows."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float
from scipy import linalg

from stmaml.pool.mixed.covariance import LARGEST, Covariance, sums_of_blocks
from stmaml.pool.mixed.sums import Sums

Method = Literal["reml", "ml"]
TINY_RIDGE = 1e-10
"""Of a free column's square, so that columns that repeat each other share their effect instead of failing."""
BROKEN = 1e30
"""The deviance where columns explain more than there is: they repeat each other, and differences of large numbers say
anything."""
SMALLEST = 1e-12
"""Share of the target's square that is noise at least."""


@dataclass(frozen=True)
class Structure:
    """Which effects there are."""

    covariance: Covariance
    """Of a group's effects."""
    wide: tuple[int, ...]
    """Blocks of columns, levels first, whose effects have one variance each; free columns follow."""
    method: Method = "reml"

    @property
    def num_wide(self) -> int:
        """Penalised columns."""
        return sum(self.wide)

    def scales(self, theta: Float[np.ndarray, " t"], num_free: int) -> Float[np.ndarray, " f"]:
        """The spread of each column's effect, in units of the noise; 1 for free columns, which are not penalised."""
        return np.concatenate([np.repeat(theta[self.covariance.num :], self.wide), np.ones(num_free)])


@dataclass(frozen=True)
class Reduced:
    """Cross products of columns once groups' effects are integrated out."""

    num_rows: int
    s: Float[np.ndarray, "r r"]
    log_det: float

    def __add__(self, other: "Reduced") -> "Reduced":
        return Reduced(self.num_rows + other.num_rows, self.s + other.s, self.log_det + other.log_det)


@dataclass(frozen=True)
class Solved:
    """All columns' effects under given variances."""

    gamma: Float[np.ndarray, " f"]
    half: Float[np.ndarray, "f f"]
    """A root of their covariance in units of the noise's variance: half half'."""
    scales: Float[np.ndarray, " f"]
    lower: Float[np.ndarray, "f f"]
    rss: float
    dof: int
    deviance: float

    @property
    def sigma2(self) -> float:
        """The variance of the noise."""
        return self.rss / self.dof


@dataclass(frozen=True)
class Groups:
    """T_g = (I + Z'Z D)^-1, which turns Z'a into Z'V^-1 a."""

    factor: Float[np.ndarray, "q q"]
    t: Float[np.ndarray, "g q q"]
    shrink: Float[np.ndarray, "g q q"]
    """D T_g."""
    log_det: float
    """Of all I + Z'Z D."""


def groups_of(sums: Sums, factor: Float[np.ndarray, "q q"]) -> Groups:
    """What single groups contribute under the covariance D = factor factor'."""
    eye = np.eye(len(factor))
    # Symmetric, so that D T stays positive however large D is: differences of its products would say anything.
    inner = eye + factor.T @ sums.zz @ factor
    shrink = factor @ np.linalg.inv(inner) @ factor.T
    t = np.linalg.inv(eye + sums.zz @ (factor @ factor.T))
    return Groups(factor, t, shrink, float(np.linalg.slogdet(inner)[1].sum()))


def reduce(sums: Sums, groups: Groups) -> Reduced:
    """Columns after the groups' effects are integrated out."""
    explained = sums.flat.T @ (groups.shrink @ sums.zr).reshape(sums.flat.shape)
    s = sums.rr - 0.5 * (explained + explained.T)
    return Reduced(sums.num_rows, s, groups.log_det)


def solve(
    reduced: Reduced, structure: Structure, theta: Float[np.ndarray, " t"], squares: Float[np.ndarray, " r"]
) -> Solved:
    """The columns' effects; `squares` are the columns' sums of squares, by which tiny ridges are measured."""
    size, wide = len(reduced.s) - 1, structure.num_wide
    scales = structure.scales(theta, size - wide)
    inner = scales[:, None] * reduced.s[:size, :size] * scales
    ridge = np.concatenate([np.ones(wide), TINY_RIDGE * squares[wide:size] + 1e-300])
    lower = _cholesky(inner + np.diag(ridge))
    right = linalg.solve_triangular(lower, scales * reduced.s[:size, size], lower=True, check_finite=False)
    left = float(reduced.s[size, size] - right @ right)
    rss = max(left, SMALLEST * float(squares[size]), 1e-200)
    half = scales[:, None] * linalg.solve_triangular(lower, np.eye(size), lower=True, check_finite=False).T
    reml = structure.method == "reml"
    dof = max(reduced.num_rows - reml * (size - wide), 1)
    kept = size if reml else wide
    log_det = reduced.log_det + 2.0 * float(np.log(np.diag(lower)[:kept]).sum())
    deviance = log_det + dof * (1.0 + np.log(2.0 * np.pi * rss / dof))
    if left < -SMALLEST * float(squares[size]):  # rounding has the last word here: a search must not end in it
        deviance = BROKEN
    return Solved(half @ right, half, scales, lower, rss, dof, float(deviance))


def _cholesky(matrix: np.ndarray) -> np.ndarray:
    """The lower root; a matrix that rounding has made indefinite is lifted until it has one."""
    lift = 0.0
    for _ in range(12):
        try:
            return np.linalg.cholesky(matrix + lift * np.diag(np.diag(matrix)))
        except np.linalg.LinAlgError:
            lift = max(10.0 * lift, 1e-12)
    return np.diag(np.sqrt(np.maximum(np.diag(matrix), 1e-12)))


@dataclass(frozen=True)
class Slopes:
    """Derivatives of the deviance by variances: where one is below 0, more of that variance fits better."""

    effects: Float[np.ndarray, "q q"]
    wide: Float[np.ndarray, " w"]
    traces: Float[np.ndarray, " q"]
    """Spread of each effect's derivative under the model: what it must exceed to be more than chance."""


def slopes_of(sums: Sums, groups: Groups, reduced: Reduced, solved: Solved, structure: Structure) -> Slopes:
    """By the covariance of a group's effects, and by the variance of each penalised column."""
    size, wide = len(solved.gamma), structure.num_wide
    kept = size if structure.method == "reml" else wide
    seen = groups.t @ sums.zr  # Z'V^-1 [W X y]
    leftover = seen[:, :, size] - seen[:, :, :size] @ solved.gamma
    known = _solved(solved, seen[:, :, :size].reshape(-1, size))[:kept].reshape(kept, *leftover.shape)
    within = groups.t @ sums.zz
    noise = within.sum(axis=0) - np.einsum("kgi,kgj->ij", known, known, optimize=True)
    precision = solved.dof / solved.rss
    effects = noise - precision * leftover.T @ leftover
    columns = _solved(solved, reduced.s[:wide, :size])[:kept]
    scores = reduced.s[:wide, size] - reduced.s[:wide, :size] @ solved.gamma
    by_wide = np.diag(reduced.s)[:wide] - (columns**2).sum(axis=0) - precision * scores**2
    own = np.einsum("gii->gi", within) - (known**2).sum(axis=0)
    return Slopes(0.5 * (effects + effects.T), by_wide, np.sqrt(2.0 * (own**2).sum(axis=0)))


def _solved(solved: Solved, rows: np.ndarray) -> np.ndarray:
    return linalg.solve_triangular(solved.lower, (rows * solved.scales).T, lower=True, check_finite=False)


def deviance(
    theta: Float[np.ndarray, " t"], sums: Sums, structure: Structure
) -> tuple[float, Float[np.ndarray, " t"], Float[np.ndarray, " t"]]:
    """Minus twice the profiled log-likelihood, its gradient by theta, and that by the squares of spreads."""
    factor = structure.covariance.factor(theta[: structure.covariance.num])
    groups = groups_of(sums, factor)
    reduced = reduce(sums, groups)
    solved = solve(reduced, structure, theta, np.diag(sums.rr))
    slopes = slopes_of(sums, groups, reduced, solved, structure)
    by_wide = sums_of_blocks(slopes.wide, structure.wide)
    by_theta = structure.covariance.pull(2.0 * slopes.effects @ factor)
    squares = structure.covariance.pull(slopes.effects)
    own = theta[structure.covariance.num :]
    return solved.deviance, np.concatenate([by_theta, 2.0 * own * by_wide]), np.concatenate([squares, by_wide])


def estimate(
    sums: Sums,
    structure: Structure,
    *,
    start: Float[np.ndarray, " t"] | None = None,
    restarts: int = 2,
    tolerance: float = 1e-10,
) -> Float[np.ndarray, " t"]:
    """The variance parameters that fit best; a variance that the rows do not ask for is 0. Rows much like others are
    searched sooner from where those ended."""
    spreads = np.concatenate([structure.covariance.spreads, np.ones(len(structure.wide), dtype=bool)])
    theta = np.concatenate([structure.covariance.start(), np.full(len(structure.wide), 0.4)])
    if start is not None:
        theta = np.where(spreads, np.maximum(start, 0.02), start)
    # Open above: where all sides are closed, the first step of L-BFGS-B goes as far as they let it.
    bounds = [(0.0 if spread else None, None) for spread in spreads]

    def search(start: np.ndarray) -> np.ndarray:
        from scipy import optimize  # takes long to import, and predictions need none

        options = {"maxiter": 200, "ftol": tolerance, "gtol": 1e-5}
        loss = lambda at: deviance(at, sums, structure)[:2]  # noqa: E731
        found = optimize.minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
        return np.clip(found, -LARGEST, LARGEST)

    theta = search(theta)
    for _ in range(restarts):
        # At 0 the gradient by a spread vanishes whether or not the variance should grow: ask the variance.
        wanted = spreads & (theta < 1e-6) & (deviance(theta, sums, structure)[2] < -1e-4)
        if not wanted.any():
            break
        theta = search(np.where(wanted, 0.1, theta))
    return np.where(spreads & (theta < 1e-6), 0.0, theta)
