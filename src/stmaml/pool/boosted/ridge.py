"""Bayesian ridge regression on the labelled rows of a group alone, under a prior that all groups tell."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Shaped

from stmaml.pool.base import Arrays, Draw, Fitted, Forecast, GroupedRows, Tasks, fit_one_by_one
from stmaml.pool.boosted.effects import Prior, design, estimate, sums_of, varying
from stmaml.pool.boosted.growing import limited
from stmaml.pool.boosted.simulated import Joined, simulate
from stmaml.pool.boosted.spread import Said, Spread, learn_spread
from stmaml.pool.boosted.trees import part, prefixed

MAX_COLUMNS = 30
PRIOR_ROWS = 10_000
"""Rows that the prior is learnt from: it has few numbers."""
PRIOR_STEPS = 30
PRIOR_WORK = 3_000_000
"""Groups that tell the prior, times the cube of columns; but never fewer groups than a hundred."""
SPREAD_ROWS = 4_000


@dataclass(frozen=True)
class Line:
    """A level about the mean of all rows, and slopes, each with a variance between groups."""

    mean: float
    columns: tuple[int, ...]
    prior: Prior

    def said(self, rows: GroupedRows, joined: Joined) -> Said:
        """What labelled rows say of the asked ones."""
        support, z = joined.support, design(rows.x, self.columns)
        sums = sums_of(z[support], rows.y[support] - self.mean, joined.support_task, len(joined.shots))
        value, variance = self.prior.belief(sums).at(z[joined.asked], joined.task)
        x = rows.x[joined.asked]
        return Said(self.mean + value, variance, variance + self.prior.noise, joined.log_shots, x)

    def state(self) -> Arrays:
        """As arrays."""
        numbers = {"mean": np.array(self.mean), "columns": np.array(self.columns, dtype=int)}
        return {**numbers, **prefixed(self.prior.state(), "prior")}

    @staticmethod
    def restored(state: Arrays) -> "Line":
        """A line from its arrays."""
        columns = tuple(int(j) for j in state["columns"])
        return Line(float(state["mean"]), columns, Prior.restored(part(state, "prior")))


def learn_line(x: Float[np.ndarray, "n d"], y: Float[np.ndarray, " n"], group: Int[np.ndarray, " n"]) -> Line:
    """The line under whose prior groups are likeliest."""
    columns, mean = tuple(varying(x, group, MAX_COLUMNS)), float(y.mean())
    num_groups, most = int(group.max()) + 1, max(PRIOR_WORK // (len(columns) + 1) ** 3, 100)
    kept = np.isin(group, np.linspace(0, num_groups - 1, min(most, num_groups)).round().astype(int))
    sums = sums_of(design(x[kept], columns), y[kept] - mean, group[kept], num_groups)
    return Line(mean, columns, estimate(sums, steps=PRIOR_STEPS, diagonal=True))


@dataclass(frozen=True)
class Ridge:
    """A line for each group."""

    line: Line
    spread: Spread

    def predict(self, tasks: Tasks) -> Forecast:
        """What labelled rows of the same group say."""
        return self.spread.forecast(self.line.said(tasks.rows, Joined.of(tasks)))

    def state(self) -> Arrays:
        """As arrays."""
        return {**prefixed(self.line.state(), "line"), **prefixed(self.spread.state(), "spread")}


@dataclass(frozen=True)
class RidgeMember:
    """The member `ridge`."""

    name: str = "ridge"

    def suits(self, rows: GroupedRows) -> bool:
        """Numbers."""
        return rows.num_classes == 0

    def fit(self, rows: GroupedRows, draw: Draw) -> Ridge:
        """The prior, and variances that simulated tasks tell."""
        rows = limited(rows, draw.seed, PRIOR_ROWS)
        line, joined = learn_line(rows.x, rows.y, rows.group), Joined.of(simulate(rows, draw, SPREAD_ROWS))
        said, asked = line.said(rows, joined), joined.asked
        return Ridge(line, learn_spread(said, rows.y[asked], rows.group[asked], draw.seed, trees=False))

    def fit_each(self, rows: GroupedRows, parts: Sequence[Shaped[np.ndarray, " _"]], draw: Draw) -> list[Fitted]:
        """One fit for each part."""
        return fit_one_by_one(self, rows, parts, draw)

    def restore(self, state: Arrays) -> Ridge:
        """Back from its arrays."""
        return Ridge(Line.restored(part(state, "line")), Spread.restored(part(state, "spread")))
