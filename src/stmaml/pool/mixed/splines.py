"""Wiggles: natural cubic splines less their straight line. Independent coefficients make a smoothing spline of them."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import linalg


@dataclass(frozen=True)
class Wiggles:
    """A basis of one column. Outside the knots it is straight."""

    knots: Float[np.ndarray, " k"]
    tilt: Float[np.ndarray, "2 w"]
    """The straight line of each basis function, which the column itself stands for."""
    size: float
    """Root mean square of a row of the basis, before it is divided by it."""

    def __call__(self, x: Float[np.ndarray, " n"]) -> Float[np.ndarray, "n w"]:
        """The basis at some values."""
        reach = self.knots[-1] - self.knots[0]
        near = np.clip(x, self.knots[0] - reach, self.knots[-1] + reach)
        return (_bent(near, self.knots) - _line(near) @ self.tilt) / self.size


def wiggles(x: Float[np.ndarray, " n"], most: int) -> Wiggles | None:
    """A basis of at most so many functions with knots at quantiles; None for a column of few values."""
    knots = _knots(x, most)
    if len(knots) < 4:
        return None
    bent = _bent(x, knots)
    tilt = np.linalg.lstsq(_line(x), bent, rcond=None)[0]
    left = bent - _line(x) @ tilt
    size = float(np.sqrt((left**2).sum(axis=1).mean()))
    return Wiggles(knots, tilt, size) if size > 1e-9 else None


def _line(x: np.ndarray) -> np.ndarray:
    return np.stack([np.ones_like(x), x], axis=1)


def _knots(x: np.ndarray, most: int) -> np.ndarray:
    distinct = np.unique(x)
    if len(distinct) < 6:
        return distinct[:0]
    knots = np.unique(np.quantile(x, np.linspace(0.0, 1.0, most + 2)))
    gap = 0.02 * (knots[-1] - knots[0])  # knots that all but meet would make a corner
    kept = [knots[0]]
    for knot in knots[1:]:
        if knot - kept[-1] > gap:
            kept.append(knot)
    return np.array(kept)


def _bent(x: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """Double integrals of hats on the inner knots, rotated so that the integral of f''^2 is the sum of squares."""
    gaps = np.diff(knots)
    beyond = np.maximum(x[:, None] - knots, 0.0)
    cubes = beyond * beyond * beyond / 6.0  # a power of 3 takes ten times as long
    left, right = gaps[:-1], gaps[1:]
    hats = cubes[:, :-2] / left - cubes[:, 1:-1] * (1.0 / left + 1.0 / right) + cubes[:, 2:] / right
    mass = np.diag((left + right) / 3.0) + np.diag(gaps[1:-1] / 6.0, 1) + np.diag(gaps[1:-1] / 6.0, -1)
    root = np.linalg.cholesky(mass)
    return linalg.solve_triangular(root, hats.T, lower=True, check_finite=False).T
