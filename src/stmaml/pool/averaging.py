"""Fits of one member that answer together: the one to all groups, and those to all but a fold of them.

Each of them is made anyway, since held-out groups have to be predicted. Their mean varies less from table to table than
any of them: on the development tables boosted trees err a few per cent less, and mixed models with curves too."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stmaml.errors import RunError
from stmaml.pool.base import Arrays, Fitted, Forecast, GroupedRows, Member, Tasks
from stmaml.pool.guarded import Guarded
from stmaml.pool.prior import FittedPrior

MOST_ROWS = 10_000
"""Of a table whose members answer together: on larger ones fits hardly differ, and predictions take longer."""
_COUNT = "averaged_fits"


@dataclass(frozen=True)
class Averaged:
    """Fits of one member to much the same groups."""

    fits: tuple[Fitted, ...]
    """The one to all groups first."""

    def predict(self, tasks: Tasks) -> Forecast:
        """The mean of what they say. Variances are theirs too: those of a single fit are what is calibrated."""
        said = [one.predict(tasks) for one in self.fits]
        names = ("mean", "task_variance", "noise_variance")
        return Forecast(*(np.mean([getattr(one, name) for one in said], axis=0) for name in names))

    def state(self) -> Arrays:
        """The arrays of each, under its number."""
        each = {f"{i}:{name}": value for i, one in enumerate(self.fits) for name, value in one.state().items()}
        return {_COUNT: np.array(len(self.fits)), **each}


def averaged(whole: Fitted, folds: Sequence[Fitted], rows: GroupedRows) -> Fitted:
    """What answers for new groups: all fits together for a small table, the one to all groups for a large one, and for
    a member that is not trained, whose fits differ in what they read alone."""
    return whole if len(rows.y) > MOST_ROWS or isinstance(whole, FittedPrior) else Averaged((whole, *folds))


def whole_of(fitted: Fitted) -> Fitted:
    """The fit to all groups."""
    if isinstance(fitted, Guarded):
        return Guarded(whole_of(fitted.fitted), fitted.path)
    return fitted.fits[0] if isinstance(fitted, Averaged) else fitted


def restored(member: Member, state: Arrays) -> Fitted:
    """What was fitted, back from its arrays."""
    if _COUNT not in state:
        return member.restore(state)
    if not 0 < (count := int(state[_COUNT])) < len(state):
        raise RunError(f"{count} fits in {len(state)} arrays")
    starts = [f"{i}:" for i in range(count)]
    parts = [{k.removeprefix(start): v for k, v in state.items() if k.startswith(start)} for start in starts]
    return Averaged(tuple(member.restore(part) for part in parts))
