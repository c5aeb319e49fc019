"""Cross products of grouped rows: all that a linear mixed model reads of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse


@dataclass(frozen=True)
class Matrices:
    """Rows of a model: y = Z b + W w + X beta + noise."""

    z: Float[np.ndarray, "n q"]
    """What a group's own effects multiply."""
    codes: Int[np.ndarray, "n a"]
    """Which of the kept levels a row has in each further grouping, -1 for none; all groupings are counted together."""
    rest: Float[np.ndarray, "n r"]
    """Penalised columns, free columns, and the target last."""
    group: Int[np.ndarray, " n"]


@dataclass(frozen=True)
class Sums:
    """Cross products: per group, and of all rows. Columns are levels, penalised, free, target."""

    num_rows: int
    zz: Float[np.ndarray, "g q q"]
    zr: Float[np.ndarray, "g q r"]
    rr: Float[np.ndarray, "r r"]

    @property
    def flat(self) -> Float[np.ndarray, "gq r"]:
        """Products of effects and columns, group after group."""
        return self.zr.reshape(-1, self.zr.shape[2])


def sums_of(rows: Matrices, num_levels: int) -> Sums:
    """The cross products of some rows; groups are those that occur, in rising order."""
    present, group = np.unique(rows.group, return_inverse=True)
    size, num = rows.z.shape[1], len(present)
    effects = _spread(rows.z, group, num)
    levels = one_hot(rows.codes, num_levels)
    zz = np.asarray(effects @ rows.z).reshape(num, size, size)
    with_levels = sparse.csr_array(effects @ levels).toarray() if num_levels else np.zeros((num * size, 0))
    zr = np.concatenate([with_levels, np.asarray(effects @ rows.rest)], axis=1)
    return Sums(len(rows.z), zz, zr.reshape(num, size, -1), _products(levels, rows.rest))


def one_hot(codes: Int[np.ndarray, "n a"], num_levels: int) -> sparse.csr_array:
    """A column of 0 and 1 for each level."""
    rows, places = np.nonzero(codes >= 0)
    columns = codes[rows, places]
    return sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(codes), num_levels))


def _spread(z: np.ndarray, group: np.ndarray, num: int) -> sparse.csr_array:
    """Z' as one sparse matrix with a row for each effect of each group."""
    n, size = z.shape
    columns = group[:, None] * size + np.arange(size)
    start = np.arange(n + 1) * size
    wide = sparse.csr_array((z.ravel(), columns.ravel(), start), shape=(n, num * size))
    return sparse.csr_array(wide.T)


def _products(levels: sparse.csr_array, rest: np.ndarray) -> np.ndarray:
    inner = rest.T @ rest
    cross = np.asarray(levels.T @ rest)
    return np.block([[sparse.csr_array(levels.T @ levels).toarray(), cross], [cross.T, inner]])


def chunks(group: Int[np.ndarray, " n"], most: int) -> list[Int[np.ndarray, " k"]]:
    """Rows in parts of whole groups, of about `most` rows each."""
    order = np.argsort(group, kind="stable")
    ends = np.flatnonzero(np.diff(group[order], append=-1)) + 1
    part = (ends - 1) // max(most, 1)
    cuts = ends[np.flatnonzero(np.diff(part))]
    return np.split(order, cuts)


def thinned(counts: Sequence[int] | Int[np.ndarray, " g"], max_rows: int, max_groups: int) -> Int[np.ndarray, " k"]:
    """Groups, taken evenly, that together have at most so many rows; all of them where that is allowed."""
    counts = np.asarray(counts)
    share = max(len(counts) / max(max_groups, 1), counts.sum() / max(max_rows, 1), 1.0)
    return np.unique((np.arange(int(np.ceil(len(counts) / share))) * share).astype(int))
