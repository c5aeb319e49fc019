"""How the effects of a group vary together: one full block, and further blocks of one variance each."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

LARGEST = 1e3
"""Most spreads of noise that an effect may have; above, the noise is nothing."""


@dataclass(frozen=True)
class Covariance:
    """Sizes of the blocks. The covariance is that of Lambda u with independent u, in units of the noise."""

    full: int
    """Effects with any covariance: the level, and slopes."""
    shared: tuple[int, ...] = ()
    """Blocks of independent effects of one variance."""

    @property
    def size(self) -> int:
        """Effects of a group."""
        return self.full + sum(self.shared)

    @property
    def num(self) -> int:
        """Parameters theta: the lower triangle of the full block, then a spread for each other block."""
        return self.full * (self.full + 1) // 2 + len(self.shared)

    @property
    def spreads(self) -> Bool[np.ndarray, " t"]:
        """Which parameters are spreads, and so not below 0."""
        rows, columns = np.tril_indices(self.full)
        return np.concatenate([rows == columns, np.ones(len(self.shared), dtype=bool)])

    def start(self) -> Float[np.ndarray, " t"]:
        """Where a search begins: a level of the size of the noise, smaller slopes."""
        theta = np.where(self.spreads, 0.4, 0.0)
        theta[:1] = 1.0
        return theta

    def factor(self, theta: Float[np.ndarray, " t"]) -> Float[np.ndarray, "q q"]:
        """Lambda, a lower triangle."""
        diagonal = np.repeat(theta[self.num - len(self.shared) :], self.shared)
        out = np.diag(np.concatenate([np.zeros(self.full), diagonal]))
        out[np.tril_indices(self.full)] = theta[: self.num - len(self.shared)]
        return out

    def pull(self, gradient: Float[np.ndarray, "q q"]) -> Float[np.ndarray, " t"]:
        """The gradient by theta from that by Lambda."""
        return np.concatenate([gradient[np.tril_indices(self.full)], self.sum_blocks(np.diag(gradient)[self.full :])])

    def sum_blocks(self, values: Float[np.ndarray, " s"]) -> Float[np.ndarray, " b"]:
        """Sums over the effects of each shared block."""
        return sums_of_blocks(values, self.shared)


def sums_of_blocks(values: Float[np.ndarray, " s"], sizes: tuple[int, ...]) -> Float[np.ndarray, " b"]:
    """The sum of each of several blocks, one after the other."""
    ends = np.concatenate([[0.0], np.cumsum(values)])[np.cumsum((0, *sizes))]
    return np.diff(ends)
