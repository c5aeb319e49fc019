"""One member for numbers and classes, each of which has its own way."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Shaped

from stmaml.pool.base import Arrays, Draw, Fitted, Forecast, GroupedRows, Member, Tasks
from stmaml.pool.boosted.trees import part, prefixed


@dataclass(frozen=True)
class OneWay:
    """What one of the two has fitted."""

    way: str
    fitted: Fitted

    def predict(self, tasks: Tasks) -> Forecast:
        """What it says of the asked rows."""
        return self.fitted.predict(tasks)

    def state(self) -> Arrays:
        """Its arrays, under its own name."""
        return prefixed(self.fitted.state(), self.way)


@dataclass(frozen=True)
class Either:
    """A member for numbers and one for classes, under one name."""

    name: str
    numbers: Member
    classes: Member

    def suits(self, rows: GroupedRows) -> bool:
        """Whether one of the two does."""
        return self.numbers.suits(rows) or self.classes.suits(rows)

    def fit_each(self, rows: GroupedRows, parts: Sequence[Shaped[np.ndarray, " _"]], draw: Draw) -> list[Fitted]:
        """One fit for each part."""
        way, member = ("classes", self.classes) if rows.num_classes else ("numbers", self.numbers)
        return [OneWay(way, fitted) for fitted in member.fit_each(rows, parts, draw)]

    def restore(self, state: Arrays) -> OneWay:
        """Back from its arrays."""
        way = next(iter(state)).split("/")[0]
        member = {"numbers": self.numbers, "classes": self.classes}[way]
        return OneWay(way, member.restore(part(state, way)))
