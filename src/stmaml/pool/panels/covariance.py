"""How what is left of a group's rows at one place goes with what is left at another.

A group's own curve f, one number for each place, is normal with covariance K; a row has f at its place and noise. K is
pulled towards a smooth covariance: a level, a slope, and a process that forgets (Ornstein and Uhlenbeck). By how many
groups' worth, held-out groups say; the rest is an EM algorithm under an inverse Wishart prior (see Schafer, "Analysis
of incomplete multivariate data", 1997)."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import minimize

MOST_GROUPS = 1_000
"""Groups that tell a covariance."""
PULLS = (0.5, 1.0, 2.0, 5.0, 20.0)
"""Strengths of the pull that are tried, in groups for each place; and one that leaves nothing else."""
FOLDS = 4
STEPS, FIRST_STEPS = 12, 6
EVALUATIONS, FURTHER = 250, 80
"""Of the likelihood of smooth covariances: in a first search, and in one that begins where a like one ended."""
NOT_FAR = 0.02
"""The weight of a log-normal belief about the five numbers."""
ASIDE = 0.1
"""The part of the noise that is none of a curve while its covariance is learnt."""
LEAST = 1e-8


@dataclass(frozen=True)
class Cells:
    """Rows of groups at places: how many there are, and the sum of what is left of them."""

    count: Float[np.ndarray, "g t"]
    total: Float[np.ndarray, "g t"]
    squares: Float[np.ndarray, " g"]
    """Of what is left of a group's rows."""

    @staticmethod
    def of(
        left: Float[np.ndarray, " n"],
        place: Int[np.ndarray, " n"],
        group: Int[np.ndarray, " n"],
        shape: tuple[int, int],
    ) -> "Cells":
        """Those of rows, for so many groups and places."""
        cell, size = group * shape[1] + place, shape[0] * shape[1]
        count = np.bincount(cell, minlength=size).astype(float).reshape(shape)
        total, squares = np.bincount(cell, left, size), np.bincount(group, left**2, shape[0])
        return Cells(count, total.astype(float).reshape(shape), squares.astype(float))  # sums of nothing are integers

    def at(self, groups: np.ndarray) -> "Cells":
        """Of some groups."""
        return Cells(self.count[groups], self.total[groups], self.squares[groups])


@dataclass(frozen=True)
class Curves:
    """The distribution of a group's curve, and the noise of its rows."""

    root: Float[np.ndarray, "t t"]
    """K = root root'."""
    noise: float
    """A variance."""

    @staticmethod
    def of(covariance: Float[np.ndarray, "t t"], noise: float) -> "Curves":
        """With a root of the covariance, whose least parts are lifted."""
        lift = LEAST * max(float(np.trace(covariance)), LEAST) * np.eye(len(covariance))
        return Curves(np.linalg.cholesky(covariance + lift), max(noise, LEAST))

    @property
    def covariance(self) -> Float[np.ndarray, "t t"]:
        """K."""
        return self.root @ self.root.T

    def known(self, cells: Cells) -> "Known":
        """What the rows of each group tell."""
        alike, which = np.unique(cells.count, axis=0, return_inverse=True)  # groups seen at the same places
        weight = np.einsum("ji,aj,jk->aik", self.root, alike / self.noise, self.root, optimize=True)
        lower = np.linalg.cholesky(np.eye(len(self.root)) + weight)
        # Columns of `half` are those of root A^-1/2: the posterior covariance is half half'.
        half = np.linalg.solve(lower, np.broadcast_to(self.root.T, lower.shape)).swapaxes(1, 2)
        at = which.ravel()
        pulled = np.einsum("gtk,gt->gk", half[at], cells.total / self.noise)
        gain = (pulled**2).sum(1)
        logs = np.log(np.einsum("aii->ai", lower)).sum(1)[at]
        size = cells.count.sum(1)
        density = -0.5 * (cells.squares / self.noise - gain) - logs - 0.5 * size * np.log(2 * np.pi * self.noise)
        return Known(np.einsum("gtk,gk->gt", half[at], pulled), half, at, density)

    def whitened(
        self, values: Float[np.ndarray, "n k"], place: Int[np.ndarray, " n"], group: Int[np.ndarray, " n"]
    ) -> Float[np.ndarray, "n k"]:
        """Values of rows, made independent of others of their group, with noise of the usual spread."""
        found, covariance = np.zeros_like(values), self.covariance
        order = np.argsort(group, kind="stable")
        for mine in np.split(order, np.cumsum(np.bincount(group))[:-1]):
            among = covariance[np.ix_(place[mine], place[mine])] + self.noise * np.eye(len(mine))
            found[mine] = np.sqrt(self.noise) * np.linalg.solve(np.linalg.cholesky(among), values[mine])
        return found


@dataclass(frozen=True)
class Known:
    """Curves of groups, given their rows."""

    mean: Float[np.ndarray, "g t"]
    half: Float[np.ndarray, "a t t"]
    """Roots of posterior covariances, one for groups that are seen at the same places."""
    which: Int[np.ndarray, " g"]
    log_density: Float[np.ndarray, " g"]
    """Of each group's rows."""

    @property
    def variance(self) -> Float[np.ndarray, "g t"]:
        """At each place."""
        return (self.half**2).sum(2)[self.which]

    def second_moment(self) -> Float[np.ndarray, "t t"]:
        """The expected f f' of all groups together."""
        share = np.bincount(self.which, minlength=len(self.half)).astype(float)
        spread = np.einsum("a,aik,ajk->ij", share, self.half, self.half, optimize=True)
        return self.mean.T @ self.mean + spread


def smooth_curves(theta: Float[np.ndarray, " 5"], centers: Float[np.ndarray, " t"]) -> Curves:
    """Logarithms of five numbers: spreads of level, slope and process, how far the process remembers, the noise's."""
    level, slope, process, memory, noise = np.exp(np.clip(theta, -7.0, 4.0))
    time = (centers - centers.mean()) / max(float(centers.std()), LEAST)
    apart = np.abs(time[:, None] - time)
    covariance = level**2 + slope**2 * np.outer(time, time) + process**2 * np.exp(-apart / memory)
    return Curves.of(covariance, float(noise**2))


def learn_smooth_curves(
    cells: Cells, centers: Float[np.ndarray, " t"], start: Float[np.ndarray, " 5"] | None
) -> Float[np.ndarray, " 5"]:
    """The likeliest five numbers, or nearly so: those far from the spread of the rows are thought unlikely."""
    groups = len(cells.count)
    size = float(np.log(max(np.sqrt(cells.squares.sum() / max(cells.count.sum(), 1.0)), 1e-3)))

    def cost(theta: Float[np.ndarray, " 5"]) -> float:
        far = NOT_FAR * float(((theta - size) ** 2).sum())
        return (far - float(smooth_curves(theta, centers).known(cells).log_density.sum())) / groups

    first = size + np.log([0.5, 0.3, 0.4, 1.0, 0.3]) if start is None else start
    if start is None:
        first[3] = np.log(0.7)
    most = EVALUATIONS if start is None else FURTHER
    found = minimize(cost, first, method="Nelder-Mead", options={"maxfev": most, "xatol": 0.02, "fatol": 1e-3})
    return np.clip(found.x, -7.0, 4.0)


def learn_curves(cells: Cells, smooth: Curves, seed: int) -> Curves:
    """The covariance that rows tell, pulled towards a smooth one as strongly as held-out groups gain from it."""
    groups, places = cells.count.shape
    # Rows that are alone at their place cannot tell noise from curves: most of it is first counted among the latter.
    whole = Curves.of(smooth.covariance + (1 - ASIDE) * smooth.noise * np.eye(places), ASIDE * smooth.noise)
    fold = np.random.default_rng(seed).permutation(groups) % FOLDS
    gains = []
    for pull in PULLS:
        parts = [(cells.at(fold != f), cells.at(fold == f)) for f in np.unique(fold)]
        found = [pulled(seen, whole, pull * places, FIRST_STEPS).known(held).log_density for seen, held in parts]
        gains.append(float(np.concatenate(found).sum()))
    if max(gains) <= float(smooth.known(cells).log_density.sum()):
        return smooth
    told = pulled(cells, whole, PULLS[int(np.argmax(gains))] * places, STEPS)
    total = told.covariance + told.noise * np.eye(places)
    noise = min(smooth.noise, 0.95 * float(np.linalg.eigvalsh(total)[0]))
    return Curves.of(total - noise * np.eye(places), noise)


def pulled(cells: Cells, smooth: Curves, strength: float, steps: int) -> Curves:
    """The likeliest covariance when the smooth one is worth so many groups."""
    curves = smooth
    for _ in range(steps):
        moment = curves.known(cells).second_moment() + strength * smooth.covariance
        curves = Curves.of(moment / (len(cells.count) + strength), smooth.noise)
    return curves
