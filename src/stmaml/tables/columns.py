"""The kinds of columns, and how the cells of each become numbers a network can read."""

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import polars as pl
from jaxtyping import Float32, Shaped

from stmaml.tables.cells import as_flags, as_levels, as_numbers, as_text, check_are_numbers, check_finite, check_range
from stmaml.tables.dates import ISO_DAY, SECONDS_A_DAY, as_dates, as_day, check_days, check_zones

MAX_SCALED = 8.0  # an outlier beyond so many spreads tells no more than that it is one
PERIODS = {"year": 365.2425, "week": 7.0, "day": 1.0}
# None for rows known before: they were checked when they came, and part of them may be all odd.
Notes = list[str] | None
Cells = tuple[pl.Series, Shaped[np.ndarray, "n k"]]  # what was read, null where missing, and the numbers made of it


class _Input(abc.ABC):
    """A column that is read: its cells become numbers, with one more for each cell that is missing, if any was."""

    name: str
    has_missing: bool

    @property
    def outputs(self) -> list[str]:
        """Names of the numbers it becomes."""
        return [*self._names(), *([f"{self.name} is missing"] if self.has_missing else [])]

    def encode(self, series: pl.Series, missing: Sequence[str], notes: Notes) -> Float32[np.ndarray, "n k"]:
        """The numbers a network reads."""
        values, columns = self._read(series, missing, notes)
        if notes is not None and not self.has_missing and values.null_count():
            notes.append(f"'{self.name}' is missing in {values.null_count()} rows; in training it never was")
        parts = [columns, values.is_null().to_numpy()[:, None]] if self.has_missing else [columns]
        return np.concatenate([part.astype(np.float32) for part in parts], axis=1)

    @abc.abstractmethod
    def likely(self, count: int) -> list[str]:
        """Cells such as training had, spread over its values."""

    @abc.abstractmethod
    def _names(self) -> list[str]: ...

    @abc.abstractmethod
    def _read(self, series: pl.Series, missing: Sequence[str], notes: Notes) -> Cells: ...


@dataclass(frozen=True)
class Numeric(_Input):
    """A column of numbers: scaled, with the median where a cell is missing."""

    name: str
    fill: float
    mean: float
    std: float
    low: float
    high: float
    has_missing: bool
    kind: str = "numeric"

    def _names(self) -> list[str]:
        return [self.name]

    def _read(self, series: pl.Series, missing: Sequence[str], notes: Notes) -> Cells:
        numbers = as_numbers(series, missing)
        check_finite(numbers)
        if notes is not None:
            check_are_numbers(series, numbers, missing, notes)
            check_range(self.name, numbers, self.low, self.high)
        filled = numbers.fill_null(self.fill).to_numpy()
        return numbers, np.clip((filled - self.mean) / self.std, -MAX_SCALED, MAX_SCALED)[:, None]

    def describe(self) -> str:
        """What was learnt, in words."""
        return f"{self.low:.4g} to {self.high:.4g}, mean {self.mean:.4g}"

    def likely(self, count: int) -> list[str]:
        """Numbers from the lowest to the highest."""
        return [f"{value:.4g}" for value in np.linspace(self.low, self.high, count)]


@dataclass(frozen=True)
class Boolean(_Input):
    """A column of yes and no: 1 and 0, with the usual share of yes where a cell is missing."""

    name: str
    fill: float
    has_missing: bool
    kind: str = "boolean"

    def _names(self) -> list[str]:
        return [self.name]

    def _read(self, series: pl.Series, missing: Sequence[str], notes: Notes) -> Cells:
        flags = as_flags(series, missing)
        if notes is not None:
            check_are_numbers(series, flags, missing, notes, wanted="yes and no")
        return flags, flags.fill_null(self.fill).to_numpy()[:, None]

    def describe(self) -> str:
        """What was learnt, in words."""
        return f"{100 * self.fill:.0f} % yes"

    def likely(self, count: int) -> list[str]:
        """Yes and no in turn."""
        return [("yes", "no")[i % 2] for i in range(count)]


@dataclass(frozen=True)
class Categorical(_Input):
    """A column of names: one number for each frequent one, and one for all others, new and missing ones included."""

    name: str
    levels: tuple[str, ...]
    num_values: int
    has_missing: bool
    numbers: bool = False
    kind: str = "categorical"

    def _names(self) -> list[str]:
        return [f"{self.name} is {level}" for level in (*self.levels, "other")]

    def _read(self, series: pl.Series, missing: Sequence[str], notes: Notes) -> Cells:
        text, count = as_levels(series, missing, numbers=self.numbers), len(self.levels)
        codes = text.replace_strict(list(self.levels), range(count), default=count, return_dtype=pl.Int64).to_numpy()
        new = text.filter(~text.is_in(list(self.levels))).drop_nulls()
        if notes is not None and self.num_values == count and new.len():
            notes.append(f"'{self.name}' has values that training did not, such as '{new[0]}'; they count as other")
        return text, np.eye(count + 1, dtype=np.float32)[codes]

    def describe(self) -> str:
        """What was learnt, in words."""
        shown = ", ".join(self.levels[:4])
        rest = self.num_values - min(4, len(self.levels))
        return f"{shown} and {rest} more" if rest > 0 else shown

    def likely(self, count: int) -> list[str]:
        """Its levels in turn."""
        return [self.levels[i % len(self.levels)] for i in range(count)]


@dataclass(frozen=True)
class Ordinal(_Input):
    """A column of levels that have an order: their ranks, scaled, with the median where a cell is missing or new."""

    name: str
    levels: tuple[str, ...]
    order: str
    fill: float
    mean: float
    std: float
    has_missing: bool
    numbers: bool = False
    kind: str = "ordinal"

    def _names(self) -> list[str]:
        return [self.name]

    def _read(self, series: pl.Series, missing: Sequence[str], notes: Notes) -> Cells:
        text = as_levels(series, missing, numbers=self.numbers)
        ranks = self.ranks(text)
        if notes is not None and (new := text.filter(ranks.is_null()).drop_nulls()).len():
            notes.append(f"'{self.name}' has levels that training did not, such as '{new[0]}'; taken as missing")
        return ranks, ((ranks.fill_null(self.fill).to_numpy() - self.mean) / self.std)[:, None]

    def ranks(self, text: pl.Series) -> pl.Series:
        """The place of each level, from 0 for the lowest; null for what is none."""
        places = [float(place) for place in range(len(self.levels))]
        return text.replace_strict(list(self.levels), places, default=None, return_dtype=pl.Float64)

    def describe(self) -> str:
        """What was learnt, in words."""
        shown = self.levels if len(self.levels) <= 6 else (*self.levels[:3], "...", self.levels[-1])
        return f"{' < '.join(shown)}, {self.order}"

    def likely(self, count: int) -> list[str]:
        """Its levels in turn."""
        return [self.levels[i % len(self.levels)] for i in range(count)]


@dataclass(frozen=True)
class Date(_Input):
    """A column of dates: linear time, and where the moment lies in the year, the week and the day."""

    name: str
    date_format: str | None
    mean: float
    std: float
    low: float
    high: float
    parts: tuple[str, ...]
    has_missing: bool
    zoned: bool | None = None
    """Whether its moments had a zone; None for days alone, for moments of both kinds, and in runs that do not say."""
    kind: str = "date"

    def _names(self) -> list[str]:
        cycles = [f"{self.name} {part} {wave}" for part in self.parts for wave in ("sin", "cos", "sin 2", "cos 2")]
        return [self.name, *cycles]

    def _read(self, series: pl.Series, missing: Sequence[str], notes: Notes) -> Cells:
        present = series.set(as_text(series, missing).is_null(), None)
        days = as_dates(present, self.date_format)
        if notes is not None:
            such_as = f" as in training, such as {self.example()}"
            check_are_numbers(series, days, missing, notes, wanted="dates", such_as=such_as)
        if self.zoned is not None:
            days = check_zones(present, days, self.zoned, self.example(), notes)
        if notes is not None:
            check_days(self.name, days, self.low, self.high, notes)
        known = days.is_not_null().to_numpy()[:, None]
        values = days.fill_null(self.mean).to_numpy()
        columns = [np.clip((values - self.mean) / self.std, -MAX_SCALED, MAX_SCALED)]
        for part in self.parts:
            angle = 2 * np.pi * values / PERIODS[part]
            columns += [np.sin(angle), np.cos(angle), np.sin(2 * angle), np.cos(2 * angle)]
        return days, np.stack(columns, axis=1) * known

    def example(self) -> str:
        """The first date of training as it may be written."""
        return self._written([self.low])[0]

    def likely(self, count: int) -> list[str]:
        """Dates from the first to the last."""
        return self._written(np.linspace(self.low, self.high, count).tolist())

    def _written(self, days: Sequence[float]) -> list[str]:
        """Moments as training wrote them."""
        known = self.date_format or ISO_DAY
        if self.zoned:
            known = "%Y-%m-%d %H:%M:%S+00:00"
        elif known.startswith(ISO_DAY):
            known = "%Y-%m-%d %H:%M:%S" if "day" in self.parts else ISO_DAY
        moments = pl.Series([round(day * 1e6 * SECONDS_A_DAY) for day in days]).cast(pl.Datetime("us"))
        return moments.dt.strftime(known).to_list()

    def describe(self) -> str:
        """What was learnt, in words."""
        cycles = f"; as time and place in the {', '.join(self.parts)}" if self.parts else ""
        return f"{as_day(self.low)} to {as_day(self.high)}{cycles}"


@dataclass(frozen=True)
class Dropped:
    """A column that is not used."""

    name: str
    reason: str
    kind: str = "dropped"
    has_missing: ClassVar[bool] = False

    @property
    def outputs(self) -> list[str]:
        """None."""
        return []

    def describe(self) -> str:
        """Why."""
        return self.reason


Used = Numeric | Boolean | Categorical | Ordinal | Date
Column = Used | Dropped
KINDS: dict[str, type] = {kind.kind: kind for kind in (Numeric, Boolean, Categorical, Ordinal, Date, Dropped)}
