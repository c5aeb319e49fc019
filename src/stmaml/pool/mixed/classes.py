"""A member for classes: logistic mixed models, one for each class where there are more than two."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Shaped
from threadpoolctl import threadpool_limits

from stmaml.pool.base import Arrays, Draw, Fitted, Forecast, GroupedRows, Tasks, fit_one_by_one
from stmaml.pool.mixed.design import Design, Own, design_of
from stmaml.pool.mixed.fit import Kind, Starts, chosen, labelled
from stmaml.pool.mixed.odds import Odds, fit_odds, level_probabilities, probabilities, seen
from stmaml.pool.mixed.sums import thinned

MOST_ROWS = 40_000
"""Rows that are learnt from: every step of the fit reads them all."""
MOST_SLOPES = 2


@dataclass(frozen=True)
class FittedOdds:
    """Logistic mixed models that have learnt from groups: of class 1, or of each of several."""

    design: Design
    own: Own
    classes: tuple[Odds, ...]
    exact: bool = False
    """Levels alone differ between groups, and are integrated over."""

    def predict(self, tasks: Tasks) -> Forecast:
        """Probabilities of classes, averaged over what is unknown of each group."""
        support = np.concatenate([*tasks.support, np.zeros(0, dtype=int)]).astype(int)
        task_told = np.repeat(np.arange(len(tasks)), tasks.shots)
        known = np.isfinite(tasks.rows.y[support])
        support, task_told = support[known], task_told[known]
        rows, asked = tasks.rows, tasks.asked
        told_view = seen(self.design, self.own, rows.x[support], rows.levels[support])
        view = seen(self.design, self.own, rows.x[asked], rows.levels[asked])
        answers, probable = [], level_probabilities if self.exact else probabilities
        with threadpool_limits(1, "blas"):
            for number, odds in self._numbered():
                y = (rows.y[support] == number).astype(float)
                answers.append(probable(odds, self.design, told_view, y, task_told, view, tasks.task))
        return _joined([mean for mean, _ in answers], [variance for _, variance in answers])

    def state(self) -> Arrays:
        """Arrays of the design and, one above the other, of all classes."""
        parts = [odds.state() for odds in self.classes]
        stacked = {name: np.stack([part[name] for part in parts]) for name in parts[0]}
        own = {"slopes": self.own.slopes, "full": np.array(self.own.full), "curves": self.own.curves}
        return {**stacked, **own, **self.design.state()}

    def _numbered(self) -> list[tuple[int, Odds]]:
        return list(enumerate(self.classes, start=1 if len(self.classes) == 1 else 0))


def _joined(means: list[np.ndarray], variances: list[np.ndarray]) -> Forecast:
    """Probabilities that sum to 1."""
    if len(means) == 1:
        return Forecast(np.stack([1.0 - means[0], means[0]], axis=1), variances[0], np.zeros(len(means[0])))
    raw = np.stack(means, axis=1)
    total = raw.sum(axis=1, keepdims=True)
    top = raw.argmax(axis=1)
    variance = np.take_along_axis(np.stack(variances, axis=1), top[:, None], axis=1)[:, 0]
    return Forecast(raw / total, variance / total[:, 0] ** 2, np.zeros(len(raw)))


@dataclass(frozen=True)
class MixedLogistic:
    """Logistic mixed models as a member of a pool."""

    name: str = "mixed-logistic"
    plain: bool = False
    """Straight lines, and groups that differ in level alone, whose integral is then taken in full."""

    def suits(self, rows: GroupedRows) -> bool:
        """A few classes, two of which occur, in two groups at least."""
        known = labelled(rows)
        return 2 <= rows.num_classes <= 30 and known.num_groups >= 2 and len(np.unique(known.y)) >= 2

    def fit_each(self, rows: GroupedRows, parts: Sequence[Shaped[np.ndarray, " _"]], draw: Draw) -> list[Fitted]:
        """One fit for each part."""
        return fit_one_by_one(self, rows, parts, draw)

    def fit(self, rows: GroupedRows, draw: Draw) -> Fitted:
        """Common effects and the covariance of groups' effects, by Laplace's approximation."""
        del draw
        rows = labelled(rows)
        kept = thinned(rows.counts, MOST_ROWS, MOST_ROWS)
        rows = rows if len(kept) == rows.num_groups else rows.of_groups(kept)
        numbers = (1,) if rows.num_classes == 2 else range(rows.num_classes)
        with threadpool_limits(1, "blas"):
            design = design_of(rows, products=False, curves=not self.plain, most_levels=200)
            own = self._own(rows, design)
            targets = [(rows.y == number).astype(float) for number in numbers]
            fits = [fit_odds(rows, target, design, own, exact=self.plain) for target in targets]
        return FittedOdds(design, own, tuple(fits), self.plain)

    def restore(self, state: Arrays) -> Fitted:
        """What was fitted, back from its arrays."""
        own = Own(state["slopes"], int(state["full"]), state["curves"])
        parts = [state[name] for name in ("beta", "beta_covariance", "factor", "unseen")]
        classes = tuple(Odds(*part) for part in zip(*parts, strict=True))
        return FittedOdds(Design.restore(state), own, classes, self.plain)

    def _own(self, rows: GroupedRows, design: Design) -> Own:
        """Slopes that tell most in a linear model of the class numbers' most frequent class."""
        if self.plain or rows.num_groups < 20:
            return Own.nothing()
        common = np.bincount(rows.y.astype(int)).argmax()
        linear = GroupedRows(rows.x, (rows.y == common).astype(float), rows.group, rows.levels, rows.columns)
        slopes = chosen(linear, design, Kind(columns=True, slopes=True), Starts()).slopes[:MOST_SLOPES]
        return Own(slopes, len(slopes), slopes[:0])
