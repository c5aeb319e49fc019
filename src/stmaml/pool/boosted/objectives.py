"""What boosting makes small: squares, squares among rows that share a group, surprise at classes or at squares."""

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from stmaml.pool.boosted.effects import Chosen, Prior, design, estimate, sums_of

Raw = Float[np.ndarray, "n k"]
TUNED = (0, 10, 20, 40, 80, 160)
"""Rounds at which an objective with numbers of its own looks at held-out groups."""


@runtime_checkable
class Objective(Protocol):
    """What boosting makes small on the rows it holds."""

    def start(self) -> Float[np.ndarray, " k"]:
        """The best outputs that are the same for all rows."""
        ...

    def at(self, rows: Int[np.ndarray, " m"]) -> "Objective":
        """The same on some of the rows."""
        ...

    def gradients(self, raw: Raw) -> tuple[Raw, Raw]:
        """First derivatives by the outputs, and second ones."""
        ...

    def leaf_values(self, raw: Raw, leaf: Int[np.ndarray, " n"], l2: float) -> Float[np.ndarray, " leaves"] | None:
        """What each leaf of a tree should add; none where sums of derivatives tell it."""
        ...

    def loss(self, raw: Raw) -> float:
        """How bad outputs are."""
        ...

    def tuned(self, held_out: Raw, rounds: int) -> "Objective":
        """With its own numbers fitted to what is said of held-out groups."""
        ...


@dataclass(frozen=True)
class Squares:
    """Squared distance from the targets."""

    y: Float[np.ndarray, " n"]

    def start(self) -> Float[np.ndarray, " k"]:
        """The mean."""
        return np.array([self.y.mean()])

    def at(self, rows: Int[np.ndarray, " m"]) -> "Squares":
        """The same on some of the rows."""
        return Squares(self.y[rows])

    def gradients(self, raw: Raw) -> tuple[Raw, Raw]:
        """How far outputs are above the targets."""
        return raw - self.y[:, None], np.ones_like(raw)

    def leaf_values(self, raw: Raw, leaf: Int[np.ndarray, " n"], l2: float) -> None:
        """Derivatives tell."""
        del raw, leaf, l2

    def loss(self, raw: Raw) -> float:
        """The mean square."""
        return float(((raw[:, 0] - self.y) ** 2).mean())

    def tuned(self, held_out: Raw, rounds: int) -> "Squares":
        """Itself."""
        del held_out, rounds
        return self


@dataclass(frozen=True)
class SharedSquares:
    """Squares of what is left when each group may have effects of its own: Sigrist, "Gaussian process boosting",
    JMLR 2022. Departure: variances come from held-out groups, so that trees cannot make them small."""

    x: Float[np.ndarray, "n d"]
    y: Float[np.ndarray, " n"]
    group: Int[np.ndarray, " n"]
    chosen: Chosen

    @staticmethod
    def of(x: Float[np.ndarray, "n d"], y: Float[np.ndarray, " n"], group: Int[np.ndarray, " n"]) -> "SharedSquares":
        """Before anything is known of the effects."""
        return SharedSquares(x, y, group, Chosen(Prior(np.eye(1), 1.0), ()))

    @property
    def _z(self) -> np.ndarray:
        return design(self.x, self.chosen.slopes)

    def _left(self, r: np.ndarray, *, groups: int) -> np.ndarray:
        """Residuals less the effects they tell of."""
        belief = self.chosen.prior.belief(sums_of(self._z, r, self.group, groups))
        return r - belief.at(self._z, self.group)[0]

    def start(self) -> Float[np.ndarray, " k"]:
        """The mean over groups of their means."""
        counts = np.bincount(self.group)
        return np.array([np.mean((np.bincount(self.group, self.y) / np.maximum(counts, 1))[counts > 0])])

    def at(self, rows: Int[np.ndarray, " m"]) -> "SharedSquares":
        """The same on some of the rows."""
        return SharedSquares(self.x[rows], self.y[rows], self.group[rows], self.chosen)

    def gradients(self, raw: Raw) -> tuple[Raw, Raw]:
        """How far outputs are above the targets; half of what the group's effects explain is left out."""
        # All of it left out is the derivative; trees then hardly find the columns in which only groups differ. Where
        # they split is all that this decides: leaves have values of their own.
        r = self.y - raw[:, 0]
        left = self._left(r, groups=int(self.group.max()) + 1)
        return -(r + left)[:, None] / 2, np.ones_like(raw)

    def leaf_values(self, raw: Raw, leaf: Int[np.ndarray, " n"], l2: float) -> Float[np.ndarray, " leaves"]:
        """Generalised least squares: rows of a group do not count as independent."""
        names, group = np.unique(self.group, return_inverse=True)
        z, leaves = self._z, int(leaf.max()) + 1
        sums = sums_of(z, self.y - raw[:, 0], group, len(names))
        belief = self.chosen.prior.belief(sums)
        left = self.y - raw[:, 0] - belief.at(z, group)[0]
        cell = group * leaves + leaf
        shared = np.stack([np.bincount(cell, c, len(names) * leaves).reshape(-1, leaves) for c in z.T], axis=1)
        explained = np.einsum("gpa,gpb->ab", shared, belief.covariance @ shared, optimize=True)
        matrix = np.diag(np.bincount(leaf, minlength=leaves) + l2) - explained / self.chosen.prior.noise
        return np.linalg.solve(matrix, np.bincount(leaf, left, leaves))

    def loss(self, raw: Raw) -> float:
        """The surprise at all rows, those of a group together."""
        sums = sums_of(self._z, self.y - raw[:, 0], self.group, int(self.group.max()) + 1)
        return -self.chosen.prior.log_density(sums) / len(self.y)

    def tuned(self, held_out: Raw, rounds: int) -> "SharedSquares":
        """With variances that fit what is left of held-out groups; slopes would stand in for trees not yet grown."""
        r = self.y - held_out[:, 0]
        if rounds in TUNED:
            sums = sums_of(np.ones((len(r), 1)), r, self.group, int(self.group.max()) + 1)
            return replace(self, chosen=Chosen(estimate(sums), ()))
        return self


@dataclass(frozen=True)
class LogVariance:
    """Surprise at squares under normal distributions about zero, whose log-variances are the outputs."""

    squares: Float[np.ndarray, " n"]

    def start(self) -> Float[np.ndarray, " k"]:
        """The logarithm of their mean."""
        return np.array([np.log(max(self.squares.mean(), 1e-12))])

    def at(self, rows: Int[np.ndarray, " m"]) -> "LogVariance":
        """The same on some of the rows."""
        return LogVariance(self.squares[rows])

    def gradients(self, raw: Raw) -> tuple[Raw, Raw]:
        """Fisher's information is the second: the true one vanishes with the squares."""
        return 0.5 - 0.5 * self.squares[:, None] * np.exp(-raw), np.full_like(raw, 0.5)

    def leaf_values(self, raw: Raw, leaf: Int[np.ndarray, " n"], l2: float) -> None:
        """Derivatives tell."""
        del raw, leaf, l2

    def loss(self, raw: Raw) -> float:
        """The mean surprise, up to a constant."""
        return float(0.5 * (raw[:, 0] + self.squares * np.exp(-raw[:, 0])).mean())

    def tuned(self, held_out: Raw, rounds: int) -> "LogVariance":
        """Itself."""
        del held_out, rounds
        return self


@dataclass(frozen=True)
class Surprise:
    """Surprise at classes. The outputs, added to what each row starts with, are logarithms of probabilities."""

    y: Int[np.ndarray, " n"]
    offset: Raw

    def start(self) -> Float[np.ndarray, " k"]:
        """Logarithms of shares, where rows start with nothing; else nothing is added."""
        if self.offset.any():
            return np.zeros(self.offset.shape[1])
        counts = np.bincount(self.y, minlength=self.offset.shape[1]) + 0.5
        return np.log(counts / counts.sum())

    def at(self, rows: Int[np.ndarray, " m"]) -> "Surprise":
        """The same on some of the rows."""
        return Surprise(self.y[rows], self.offset[rows])

    def gradients(self, raw: Raw) -> tuple[Raw, Raw]:
        """Probabilities less what came, and their variances."""
        share = softmax(raw + self.offset)
        came = np.eye(raw.shape[1])[self.y]
        return share - came, np.maximum(share * (1 - share), 1e-6)

    def leaf_values(self, raw: Raw, leaf: Int[np.ndarray, " n"], l2: float) -> None:
        """Derivatives tell."""
        del raw, leaf, l2

    def loss(self, raw: Raw) -> float:
        """The mean surprise."""
        share = softmax(raw + self.offset)[np.arange(len(raw)), self.y]
        return float(-np.log(np.maximum(share, 1e-12)).mean())

    def tuned(self, held_out: Raw, rounds: int) -> "Surprise":
        """Itself."""
        del held_out, rounds
        return self


def softmax(raw: Raw) -> Raw:
    """Probabilities from their logarithms, whatever those sum to."""
    size = np.exp(raw - raw.max(1, keepdims=True))
    return size / size.sum(1, keepdims=True)
