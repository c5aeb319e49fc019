"""Members of a pool from files, which may be damaged or a stranger's: what they say is looked at before it is used."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from stmaml.errors import RunError, StmamlError
from stmaml.pool.base import Arrays, Fitted, Forecast, Tasks
from stmaml.run_files import why

DAMAGE = (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError, RecursionError, MemoryError)
"""What arrays of other shapes, kinds and numbers than those that were written end in; errors of linear algebra are
among them."""


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Turns the errors over what a file holds into one that names it."""
    try:
        yield
    except StmamlError as error:
        if str(path) in str(error):
            raise
        raise _refusal(path, what, str(error)) from error
    except DAMAGE as error:
        raise _refusal(path, what, why(error)) from error


def _refusal(path: Path, what: str, text: str) -> RunError:
    return RunError(f"{path} does not hold {what} ({text.rstrip('.')}). Restore it from a copy, or fit again.")


@dataclass(frozen=True)
class Guarded:
    """A member from a file."""

    fitted: Fitted
    path: Path

    def predict(self, tasks: Tasks) -> Forecast:
        """What it says, if that can be said: numbers for each asked row, variances of at least 0."""
        with reading(self.path, "a member that can answer"), np.errstate(all="ignore"):
            said = self.fitted.predict(tasks)
            self._check(said, len(tasks.asked), tasks.rows.num_classes)
        return said

    def state(self) -> Arrays:
        """Its arrays."""
        return self.fitted.state()

    @staticmethod
    def _check(said: Forecast, rows: int, classes: int) -> None:
        if said.mean.shape != ((rows, classes) if classes else (rows,)):
            raise RunError(f"{said.mean.shape} numbers for {rows} rows")
        if not all(np.isfinite(getattr(said, field.name)).all() for field in fields(said)):
            raise RunError("its predictions are not numbers")
        if min(said.task_variance.min(initial=0), said.noise_variance.min(initial=0)) < 0:
            raise RunError("a variance below 0")


def bare(fitted: Fitted) -> Fitted:
    """The member itself."""
    return fitted.fitted if isinstance(fitted, Guarded) else fitted
