"""Members for targets that are numbers: levels; and common curves; and own slopes; and own curves."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Shaped
from threadpoolctl import threadpool_limits

from stmaml.pool.base import Arrays, Draw, Fitted, Forecast, GroupedRows, Tasks
from stmaml.pool.mixed.design import varies_within
from stmaml.pool.mixed.fit import Kind, Model, Starts, fit_model, labelled
from stmaml.pool.mixed.posterior import predict


@dataclass(frozen=True)
class FittedMixed:
    """A mixed model that has learnt from groups."""

    model: Model

    def predict(self, tasks: Tasks) -> Forecast:
        """Each group's effects from its labelled rows."""
        with threadpool_limits(
            1, "blas"
        ):  # threads that wait for each other on small matrices cost ten times their work
            return predict(self.model, tasks)

    def state(self) -> Arrays:
        """The model's arrays."""
        return self.model.state()


@dataclass(frozen=True)
class Mixed:
    """A linear mixed model as a member of a pool."""

    name: str
    kind: Kind

    def suits(self, rows: GroupedRows) -> bool:
        """Numbers, of two groups at least, with columns that can do what the model is for."""
        known = labelled(rows)
        if rows.num_classes or len(known.y) < 3 or known.num_groups < 2:
            return False
        varies = varies_within(known)
        bends = [self._bends(known, int(column)) for column in np.flatnonzero(varies)] if self.kind.curves else []
        needed = (self.kind.columns, bool(np.any(np.ptp(known.x, axis=0) > 0.0)))
        asked = (needed, (self.kind.slopes, bool(varies.any())), (self.kind.curves, any(bends)))
        return all(there or not wanted for wanted, there in asked)

    def _bends(self, rows: GroupedRows, column: int) -> bool:
        """Whether a column is a number of enough values in enough rows to bend."""
        return rows.columns[column].kind == "number" and len(rows.y) >= 30 and len(np.unique(rows.x[:, column])) >= 6

    def fit_each(self, rows: GroupedRows, parts: Sequence[Shaped[np.ndarray, " _"]], draw: Draw) -> list[Fitted]:
        """Variances and common effects of each part by REML; how tasks are drawn changes nothing."""
        del draw
        starts = Starts()
        with threadpool_limits(1, "blas"):
            return [FittedMixed(fit_model(rows.of_groups(part), self.kind, starts)) for part in parts]

    def restore(self, state: Arrays) -> Fitted:
        """What was fitted, back from its arrays."""
        return FittedMixed(Model.restore(state))


MEAN = Mixed("mean", Kind(columns=False))
MIXED = Mixed("mixed", Kind(columns=True))
MIXED_SLOPES = Mixed("mixed-slopes", Kind(columns=True, slopes=True))
MIXED_CURVES = Mixed("mixed-curves", Kind(columns=True, slopes=True, curves=True))
