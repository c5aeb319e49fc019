"""How much the noise of groups differs: an inverse-gamma prior of its variance.

Smyth, "Linear models and empirical Bayes methods for assessing differential expression", 2004, sec. 6.2: the moments of
logarithms of the groups' residual variances."""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from jaxtyping import Float
from scipy import special

Squares = TypeVar("Squares", float, np.ndarray)
LEAST = 5.0
"""Degrees of freedom a prior is worth at least, so that variances exist."""
MOST = 1000.0
"""Above, groups are alike."""


@dataclass(frozen=True)
class NoisePrior:
    """Of a group's noise variance, in units of the common one."""

    dof: float
    """Rows it is worth."""
    scale: float

    def shrunk(self, squares: Squares, dof: Squares) -> Squares:
        """The expected variance of a group whose residuals have this sum of squares on so many degrees of freedom; of
        several, where these are arrays."""
        if self.dof >= MOST:
            return squares * 0.0 + 1.0
        return (self.dof * self.scale + squares) / (self.dof + dof - 2.0)


ALIKE = NoisePrior(MOST, 1.0)


def noise_prior(squares: Float[np.ndarray, " g"], dof: Float[np.ndarray, " g"]) -> NoisePrior:
    """From groups' residual sums of squares, in units of the common variance, and their degrees of freedom."""
    enough = (dof >= 2.0) & (squares > 1e-10 * dof)
    if enough.sum() < 8:
        return ALIKE
    squares, dof = squares[enough], dof[enough]
    logs = np.log(squares / dof) - special.digamma(dof / 2.0) + np.log(dof / 2.0)
    chance = special.polygamma(1, dof / 2.0)
    weight = 1.0 / (chance + 0.1)  # groups of many rows tell more
    weight = weight / weight.sum()
    mean = float(weight @ logs)
    excess = float(weight @ ((logs - mean) ** 2 * len(logs) / (len(logs) - 1.0) - chance))
    if excess <= 2.0 / MOST:
        return ALIKE
    prior = max(2.0 * _inverse_trigamma(excess), LEAST)
    if prior >= MOST:
        return ALIKE
    return NoisePrior(prior, float(np.exp(mean + special.digamma(prior / 2.0) - np.log(prior / 2.0))))


def _inverse_trigamma(value: float) -> float:
    """Newton on 1 / trigamma, which is convex and almost straight."""
    at = 0.5 + 1.0 / value
    for _ in range(30):
        trigamma = special.polygamma(1, at)
        at += trigamma * (1.0 - trigamma / value) / special.polygamma(2, at)
    return float(at)
