"""Members for rows that can be compared by their place: the mean of all groups, and a group's own curve about it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Shaped
from threadpoolctl import threadpool_limits

from stmaml.pool.base import Arrays, Draw, Fitted, Forecast, GroupedRows, Tasks
from stmaml.pool.boosted.growing import limited
from stmaml.pool.boosted.simulated import Joined, simulate
from stmaml.pool.boosted.spread import Said, Spread, learn_spread
from stmaml.pool.boosted.trees import part, prefixed
from stmaml.pool.mixed.fit import Starts, labelled
from stmaml.pool.mixed.logs import BENDS, NO_BEND, Log, MixedLog, best_bend, limits_of, log_of
from stmaml.pool.panels.covariance import MOST_GROUPS, Cells, Curves, learn_curves, learn_smooth_curves, smooth_curves
from stmaml.pool.panels.places import Places, places_of
from stmaml.pool.panels.smooth import Smooth, learn_smooth, shared_of

MOST_ROWS = 20_000
FEWEST_GROUPS = 8
SPREAD_ROWS = 3_000
"""Asked rows of simulated tasks that variances are learnt from."""
MEAN_ROWS = 3.0
"""Rows' worth of belief that the mean at a place is what curves of all rows say."""
TASKS = 1_000
"""Tasks that are answered at once."""


@dataclass(frozen=True)
class Model:
    """A mean that all groups share, and the distribution of a group's own curve."""

    smooth: Smooth
    places: Places
    level: Float[np.ndarray, " t"]
    """What all groups share at each place beside the smooth mean."""
    curves: Curves

    def said(self, rows: GroupedRows, shared: Float[np.ndarray, " n"], joined: Joined) -> Said:
        """What labelled rows tell of the asked ones."""
        x, support = rows.x[joined.asked], joined.support
        at, told = self.places.of(x), self.places.of(rows.x[support])
        left = rows.y[support] - shared[support] - self.level[told]
        shape = (len(joined.shots), len(self.level))
        cells = Cells.of(left, told, joined.support_task, shape)
        mean, variance = np.zeros(shape), np.zeros(shape)
        for first in range(0, shape[0], TASKS):
            known = self.curves.known(cells.at(np.arange(first, min(first + TASKS, shape[0]))))
            mean[first : first + TASKS], variance[first : first + TASKS] = known.mean, known.variance
        own = variance[joined.task, at]
        expected = shared[joined.asked] + self.level[at] + mean[joined.task, at]
        return Said(expected, own, own + self.curves.noise, joined.log_shots, x)

    def state(self) -> Arrays:
        """As arrays."""
        places = {"column": np.array(self.places.column), "edges": self.places.edges, "centers": self.places.centers}
        curves = {"root": self.curves.root, "noise": np.array(self.curves.noise), "level": self.level}
        return {**prefixed(self.smooth.state(), "smooth"), **places, **curves}

    @staticmethod
    def restored(state: Arrays) -> "Model":
        """Back from its arrays."""
        places = Places(int(state["column"]), state["edges"], state["centers"])
        curves = Curves(state["root"], float(state["noise"]))
        return Model(Smooth.restored(part(state, "smooth")), places, state["level"], curves)


@dataclass(frozen=True)
class FittedPanel:
    """A model with variances that hold for new groups; of the target or of its logarithm."""

    model: Model
    spread: Spread
    log: Log | None = None
    limits: tuple[float, float] = (-np.inf, np.inf)
    """Of means, where they come back from a logarithm."""

    def predict(self, tasks: Tasks) -> Forecast:
        """The shared mean, and what labelled rows tell of the group's curve."""
        rows, joined = tasks.rows, Joined.of(tasks)
        rows = rows if self.log is None else replace(rows, y=self.log(rows.y))
        with threadpool_limits(1, "blas"):
            said = self.spread.forecast(self.model.said(rows, shared_of(self.model.smooth, rows, joined), joined))
        return said if self.log is None else self.log.back(said, self.limits)

    def state(self) -> Arrays:
        """As arrays."""
        log = {} if self.log is None else {"log": np.array([self.log.bend, self.log.end, *self.limits])}
        return {**prefixed(self.model.state(), "model"), **prefixed(self.spread.state(), "spread"), **log}


@dataclass(frozen=True)
class Panel:
    """The member `panel`, or `panel-log` of the target's logarithm."""

    name: str = "panel"
    logarithm: bool = False

    def suits(self, rows: GroupedRows) -> bool:
        """Numbers of some groups, most of which have rows at the same places."""
        known = labelled(rows)
        if rows.num_classes or known.num_groups < FEWEST_GROUPS or (self.logarithm and not MixedLog().suits(rows)):
            return False
        return places_of(known) is not None

    def fit_each(self, rows: GroupedRows, parts: Sequence[Shaped[np.ndarray, " _"]], draw: Draw) -> list[Fitted]:
        """One fit for each part; a like part is searched from where another ended."""
        rows = labelled(rows)
        places, found, start, bend, tried = places_of(rows), [], None, NO_BEND, Starts()
        assert places is not None  # else it does not suit
        with threadpool_limits(1, "blas"):
            for chosen in parts:
                mine, log = limited(rows.of_groups(chosen), draw.seed, MOST_ROWS), None
                if self.logarithm:
                    bend = best_bend(mine, bend, tried)
                    log = log_of(mine.y, BENDS[bend])
                scaled = mine if log is None else replace(mine, y=log(mine.y))
                fitted, start = _learn(scaled, places, draw, start)
                found.append(replace(fitted, log=log, limits=limits_of(mine.y)))
        return found

    def restore(self, state: Arrays) -> Fitted:
        """Back from its arrays."""
        fitted = FittedPanel(Model.restored(part(state, "model")), Spread.restored(part(state, "spread")))
        if not self.logarithm:
            return fitted
        bend, end, low, high = (float(value) for value in state["log"])
        return replace(fitted, log=Log(bend, end), limits=(low, high))


def _learn(
    rows: GroupedRows, places: Places, draw: Draw, start: Float[np.ndarray, " 5"] | None
) -> tuple[FittedPanel, Float[np.ndarray, " 5"]]:
    """The mean, the distribution of curves about it in groups that it had not seen, and variances of simulated tasks.
    The mean is learnt twice: as if rows were independent, and then with the smooth covariance of what that left."""
    place = places.of(rows.x)
    held_out = learn_smooth(rows, draw.seed)[1]
    theta = learn_smooth_curves(_left(rows, held_out, places)[1], places.centers, start)
    rough = smooth_curves(theta, places.centers)
    smooth, held_out = learn_smooth(rows, draw.seed, lambda values: rough.whitened(values, place, rows.group))
    level, cells = _left(rows, held_out, places)
    if rows.num_groups > MOST_GROUPS:
        cells = cells.at(np.random.default_rng(draw.seed).permutation(rows.num_groups)[:MOST_GROUPS])
    again = learn_smooth_curves(cells, places.centers, theta)
    curves = learn_curves(cells, smooth_curves(again, places.centers), draw.seed)
    model, joined = Model(smooth, places, level, curves), Joined.of(simulate(rows, draw, SPREAD_ROWS))
    said, asked = model.said(rows, held_out, joined), joined.asked
    return FittedPanel(model, learn_spread(said, rows.y[asked], rows.group[asked], draw.seed)), theta


def _left(
    rows: GroupedRows, held_out: Float[np.ndarray, " n"], places: Places
) -> tuple[Float[np.ndarray, " t"], Cells]:
    """What all groups share at each place beside a mean, and what is then left of groups' rows."""
    place, number, left = places.of(rows.x), len(places.centers), rows.y - held_out
    level = np.bincount(place, left, number) / (np.bincount(place, minlength=number) + MEAN_ROWS)
    return level, Cells.of(left - level[place], place, rows.group, (rows.num_groups, number))
