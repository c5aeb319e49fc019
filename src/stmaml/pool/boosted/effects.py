"""What groups have of their own: a level and slopes with a normal prior, whose variances groups themselves tell."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from stmaml.pool.base import Arrays

CANDIDATES = 6
"""Columns that are tried as slopes."""
MAX_SLOPES = 2


@dataclass(frozen=True)
class Sums:
    """All that groups of rows tell about their effects."""

    zz: Float[np.ndarray, "g q q"]
    zr: Float[np.ndarray, "g q"]
    rr: Float[np.ndarray, " g"]
    count: Float[np.ndarray, " g"]


@dataclass(frozen=True)
class Belief:
    """What is known of the effects of each group."""

    mean: Float[np.ndarray, "g q"]
    covariance: Float[np.ndarray, "g q q"]

    def at(self, z: Float[np.ndarray, "n q"], group: Int[np.ndarray, " n"]) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of what the effects add to rows."""
        variance = np.einsum("np,npq,nq->n", z, self.covariance[group], z)
        return (z * self.mean[group]).sum(1), np.maximum(variance, 0.0)


@dataclass(frozen=True)
class Prior:
    """The effects of a group nothing is known of, and the noise of a row."""

    covariance: Float[np.ndarray, "q q"]
    noise: float

    def belief(self, sums: Sums) -> Belief:
        """The effects of each group, given its rows."""
        size = len(self.covariance)
        inverse = _inverses(np.eye(size)[None] + sums.zz @ self.covariance / self.noise)
        covariance = self.covariance[None] @ inverse
        covariance = (covariance + covariance.transpose(0, 2, 1)) / 2
        return Belief(np.einsum("gpq,gq->gp", covariance, sums.zr) / self.noise, covariance)

    def log_density(self, sums: Sums) -> float:
        """Of all rows, up to a constant: their effects are integrated out."""
        mean = self.belief(sums).mean
        quadratic = (sums.rr - (sums.zr * mean).sum(1)) / self.noise
        inner = np.eye(len(self.covariance))[None] + sums.zz @ self.covariance / self.noise
        return -0.5 * float((quadratic + sums.count * np.log(self.noise) + np.linalg.slogdet(inner)[1]).sum())

    def state(self) -> Arrays:
        """As arrays."""
        return {"covariance": self.covariance, "noise": np.array(self.noise)}

    @staticmethod
    def restored(state: Arrays) -> "Prior":
        """A prior from its arrays."""
        return Prior(state["covariance"], float(state["noise"]))


def _inverses(matrices: Float[np.ndarray, "g q q"]) -> Float[np.ndarray, "g q q"]:
    """Of many small matrices; a library's call for each single number would take longer than the rest of a fit."""
    return 1.0 / matrices if matrices.shape[1] == 1 else np.linalg.inv(matrices)


def sums_of(
    z: Float[np.ndarray, "n q"], r: Float[np.ndarray, " n"], group: Int[np.ndarray, " n"], num_groups: int
) -> Sums:
    """Sums over the rows of each group."""

    def total(value: np.ndarray) -> np.ndarray:
        return np.bincount(group, value, num_groups).astype(float)  # of no rows, counts are whole numbers

    size = z.shape[1]
    zz = np.empty((num_groups, size, size))
    for p in range(size):
        for q in range(p + 1):
            zz[:, p, q] = zz[:, q, p] = total(z[:, p] * z[:, q])
    zr = np.stack([total(z[:, p] * r) for p in range(size)], axis=1)
    return Sums(zz, zr, total(r * r), total(np.ones(len(r))))


def design(x: Float[np.ndarray, "n d"], slopes: Sequence[int]) -> Float[np.ndarray, "n q"]:
    """One for the level, and the columns that have a slope."""
    return np.column_stack([np.ones(len(x)), x[:, list(slopes)]])


def estimate(sums: Sums, start: Prior | None = None, *, steps: int = 40, diagonal: bool = False) -> Prior:
    """The prior under which the rows are likeliest, by expectation maximisation. Groups without rows say nothing."""
    has = sums.count > 0
    sums = Sums(sums.zz[has], sums.zr[has], sums.rr[has], sums.count[has])
    prior = first_guess(sums) if start is None else start
    for _ in range(steps):
        prior = _better(prior, sums, diagonal)
    return prior


def first_guess(sums: Sums) -> Prior:
    """Half of the variance for the effects, half for the noise."""
    variance = max(float(sums.rr.sum() / sums.count.sum()), 1e-8)
    size = np.maximum(np.einsum("gqq->q", sums.zz) / sums.count.sum(), 1e-3)
    return Prior(np.diag(variance / 2 / size / len(size)), variance / 2)


def _better(prior: Prior, sums: Sums, diagonal: bool) -> Prior:
    belief = prior.belief(sums)
    second = belief.covariance + belief.mean[:, :, None] * belief.mean[:, None, :]
    covariance = second.mean(0)
    squares = sums.rr - 2 * (belief.mean * sums.zr).sum(1) + np.einsum("gpq,gqp->g", sums.zz, second)
    noise = max(float(squares.sum() / sums.count.sum()), 1e-6 * float(sums.rr.sum() / sums.count.sum()), 1e-10)
    return Prior(np.diag(np.diag(covariance)) if diagonal else covariance, noise)


@dataclass(frozen=True)
class Chosen:
    """A prior and the columns that have slopes in it."""

    prior: Prior
    slopes: tuple[int, ...]


def choose(x: Float[np.ndarray, "n d"], r: Float[np.ndarray, " n"], group: Int[np.ndarray, " n"]) -> Chosen:
    """A level, and slopes as far as they make rows likelier by more than what their number explains."""
    num_groups = int(group.max()) + 1
    best = Chosen(_fitted(x, r, group, ()), ())
    best_score = _score(best, x, r, group)
    for _ in range(min(MAX_SLOPES, num_groups // 8)):
        tried = [(*best.slopes, j) for j in varying(x, group, CANDIDATES) if j not in best.slopes]
        options = [Chosen(_fitted(x, r, group, slopes), slopes) for slopes in tried]
        scores = [_score(option, x, r, group) for option in options]
        if not scores or max(scores) <= best_score:
            break
        best, best_score = options[int(np.argmax(scores))], max(scores)
    return best


def varying(x: Float[np.ndarray, "n d"], group: Int[np.ndarray, " n"], most: int) -> list[int]:
    """The columns that differ most within groups; none that hardly does."""
    counts = np.maximum(np.bincount(group), 1)
    means = [(np.bincount(group, column) / counts)[group] for column in x.T]
    within = np.array([((column - mean) ** 2).mean() for column, mean in zip(x.T, means, strict=True)])
    order = np.argsort(-within, kind="stable")[:most]
    return [int(j) for j in order if within[j] > 1e-3]


def _fitted(x: np.ndarray, r: np.ndarray, group: np.ndarray, slopes: tuple[int, ...]) -> Prior:
    return estimate(sums_of(design(x, slopes), r, group, int(group.max()) + 1))


def _score(chosen: Chosen, x: np.ndarray, r: np.ndarray, group: np.ndarray) -> float:
    """Log-density less what as many numbers would gain by chance."""
    num_groups, size = int(group.max()) + 1, len(chosen.slopes) + 1
    sums = sums_of(design(x, chosen.slopes), r, group, num_groups)
    return chosen.prior.log_density(sums) - size * (size + 1) / 2 * np.log(max(num_groups, 3))
