"""The linear model that a meta-learned member starts from, fitted in closed form."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from stmaml.methods.on_linear import GAIN, MIN_NOISE

ITERATIONS = 40
MOST_GROUPS = 500
FEWEST_GROUPS = 100
WORK = 3_000_000  # groups that tell spreads, times the cube of coefficients: beyond, they cost more than they tell
PULL = 2.0  # of the spreads across groups: as if so many more groups had been seen that have the spreads below
LEVEL, SLOPES = 0.3, 0.1  # all slopes together
RIDGE = 1.0  # coefficients are as if drawn with a spread of 1, that of the targets


@dataclass(frozen=True)
class LinearStart:
    """Coefficients of a group, the level first: their mean and spread across groups; and the noise."""

    mean: Float[np.ndarray, "k c"]
    std: Float[np.ndarray, " k"]
    noise: float
    """A standard deviation."""

    def padded(self, num_inputs: int) -> "LinearStart":
        """The same with further columns of zeros, which say nothing."""
        more = num_inputs + 1 - len(self.std)
        mean = np.pad(self.mean, ((0, more), (0, 0)))
        return LinearStart(mean, np.pad(self.std, (0, more), constant_values=1e-3), self.noise)

    def arrays(self) -> tuple[Float[np.ndarray, "k c"], Float[np.ndarray, " k"], Float[np.ndarray, ""]]:
        """The fields of `on_linear.Prior`, in its units."""
        noise = np.log(max(self.noise**2 - MIN_NOISE**2, 1e-6)) / 2
        mean, log_std = self.mean / GAIN, np.log(self.std) / GAIN
        return mean.astype(np.float32), log_std.astype(np.float32), np.asarray(noise / GAIN, dtype=np.float32)


@dataclass
class _Sums:
    """What the fit needs to know of each group: products of its rows, the level first."""

    gram: Float[np.ndarray, "g k k"]
    cross: Float[np.ndarray, "g k c"]
    square: Float[np.ndarray, " g"]
    rows: int
    """Of all groups."""

    def thinned(self, most: int) -> "_Sums":
        """The same of so many groups at most, evenly spaced."""
        if len(self.square) <= most:
            return self
        kept = np.linspace(0, len(self.square) - 1, most).round().astype(int)
        rows = round(float(self.gram[kept, 0, 0].sum()))  # the level's own product is the number of rows
        return _Sums(self.gram[kept], self.cross[kept], self.square[kept], rows)


def linear_start(x: Float[np.ndarray, "n d"], y: Float[np.ndarray, "n c"], group: Int[np.ndarray, " n"]) -> LinearStart:
    """The linear mixed model of all rows, by expectation and maximisation with weak priors.

    Laird, Ware, "Random-Effects Models for Longitudinal Data", 1982; the mean is found by generalised least squares in
    each round, which takes far fewer of them."""
    every, slopes = _sums(x, y, group), x.shape[1]
    sums = every.thinned(max(WORK // (slopes + 1) ** 3, FEWEST_GROUPS))
    first = np.concatenate([[LEVEL**2], np.full(slopes, SLOPES**2 / max(1, slopes))])
    spread, noise = first.copy(), 0.5
    for _ in range(ITERATIONS):
        inverse = np.linalg.inv(sums.gram / noise + np.diag(1 / spread))
        mean, _ = _coefficients(sums, inverse, noise)
        left = sums.cross - sums.gram @ mean
        own = inverse @ left / noise
        spread = ((np.square(own).mean(2) + np.diagonal(inverse, axis1=1, axis2=2)).sum(0) + PULL * first) / (
            len(own) + PULL
        )
        noise = max(_noise(sums, mean, own, inverse), MIN_NOISE**2 * 1.1)
    mean, error = _coefficients(every, np.linalg.inv(every.gram / noise + np.diag(1 / spread)), noise)
    return LinearStart(mean, np.sqrt(spread + _unsure(every, error)), float(np.sqrt(noise)))


def _sums(x: np.ndarray, y: np.ndarray, group: np.ndarray) -> _Sums:
    rows = np.concatenate([np.ones((len(x), 1)), x.astype(float)], axis=1)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    each = [part for part in np.split(order, starts[1:]) if len(part)]
    if len(each) > MOST_GROUPS:
        each = [each[i] for i in np.linspace(0, len(each) - 1, MOST_GROUPS).round().astype(int)]
    gram = np.stack([rows[part].T @ rows[part] for part in each])
    cross = np.stack([rows[part].T @ y[part] for part in each])
    return _Sums(gram, cross, np.array([np.square(y[part]).sum() for part in each]), sum(map(len, each)))


def _coefficients(sums: _Sums, inverse: np.ndarray, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """The mean over groups by generalised least squares with a ridge, and its covariance."""
    weighed = sums.gram @ inverse / noise  # G P / s^2: what each group's own coefficients explain away
    gram = (sums.gram - weighed @ sums.gram).sum(0) / noise
    cross = (sums.cross - weighed @ sums.cross).sum(0) / noise
    ridge = RIDGE * np.eye(len(gram))
    ridge[0, 0] = 1e-6
    error = np.linalg.inv(gram + ridge)
    return error @ cross, error


def _noise(sums: _Sums, mean: np.ndarray, own: np.ndarray, inverse: np.ndarray) -> float:
    """The expected squared residual of a row, mean over targets."""
    both = mean + own
    explained = 2 * (both * sums.cross).sum() - (both * (sums.gram @ both)).sum()
    columns = mean.shape[1]
    return float((sums.square.sum() - explained) / columns + (sums.gram * inverse).sum()) / sums.rows


def _unsure(sums: _Sums, error: np.ndarray) -> np.ndarray:
    """How unsure the mean is, as variances of independent coefficients that spread answers as much on average."""
    gram, alone = sums.gram.sum(0), np.diag(error)
    return alone * (gram * error).sum() / (np.diag(gram) * alone).sum()
