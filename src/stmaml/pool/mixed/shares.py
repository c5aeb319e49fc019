"""The plainest member for classes: shares of the labelled rows, shrunk to those of all groups."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Shaped
from scipy import special

from stmaml.pool.base import Arrays, Draw, Fitted, Forecast, GroupedRows, Tasks, fit_one_by_one
from stmaml.pool.mixed.fit import labelled


@dataclass(frozen=True)
class FittedShares:
    """A Dirichlet distribution of a group's shares."""

    prior: Float[np.ndarray, " c"]
    """Rows of each class that it is worth."""

    def predict(self, tasks: Tasks) -> Forecast:
        """The expected shares after the labelled rows."""
        counts = np.stack([self._counts(tasks, rows) for rows in tasks.support] or [self.prior])
        weight = (counts + self.prior)[tasks.task]
        total = weight.sum(axis=1, keepdims=True)
        mean = weight / total
        top = mean.max(axis=1)
        return Forecast(mean, top * (1.0 - top) / (total[:, 0] + 1.0), np.zeros(len(mean)))

    def state(self) -> Arrays:
        """The prior."""
        return {"prior": self.prior}

    def _counts(self, tasks: Tasks, rows: np.ndarray) -> np.ndarray:
        y = tasks.rows.y[rows]
        return np.bincount(y[np.isfinite(y)].astype(int), minlength=len(self.prior)).astype(float)


@dataclass(frozen=True)
class Shares:
    """Class shares as a member of a pool."""

    name: str = "shares"

    def suits(self, rows: GroupedRows) -> bool:
        """Any classes."""
        return rows.num_classes > 0

    def fit_each(self, rows: GroupedRows, parts: Sequence[Shaped[np.ndarray, " _"]], draw: Draw) -> list[Fitted]:
        """One fit for each part."""
        return fit_one_by_one(self, rows, parts, draw)

    def fit(self, rows: GroupedRows, draw: Draw) -> Fitted:
        """The overall shares, and by how much groups differ, by maximum likelihood."""
        del draw
        rows = labelled(rows)
        counts = np.zeros((rows.num_groups, rows.num_classes))
        np.add.at(counts, (rows.group, rows.y.astype(int)), 1.0)
        overall = (counts.sum(axis=0) + 0.5) / (counts.sum() + 0.5 * rows.num_classes)
        return FittedShares(overall * strength(counts, overall))

    def restore(self, state: Arrays) -> Fitted:
        """What was fitted, back from its arrays."""
        return FittedShares(state["prior"])


def strength(counts: Float[np.ndarray, "g c"], overall: Float[np.ndarray, " c"]) -> float:
    """How many rows the overall shares are worth: the likeliest of the Dirichlet-multinomial."""
    from scipy import optimize  # takes long to import, and predictions need none

    def loss(log_strength: float) -> float:
        prior = np.exp(log_strength) * overall
        told = special.gammaln(counts + prior) - special.gammaln(prior)
        total = special.gammaln(prior.sum()) - special.gammaln(counts.sum(axis=1) + prior.sum())
        return -float(told.sum() + total.sum())

    return float(np.exp(optimize.fminbound(loss, -3.0, 7.0)))
