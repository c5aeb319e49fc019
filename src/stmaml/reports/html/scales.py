"""Where values of an axis lie on paper, and where its ticks stand."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from stmaml.reports.charts import Axis

Values = Float[np.ndarray, "*n"]


@dataclass(frozen=True)
class Scale:
    """An axis with an extent, on a stretch of paper."""

    axis: Axis
    low: float
    high: float
    start: float | int
    end: float | int

    def __call__(self, values: Values | float | int) -> Values:
        """The places of values; those beyond the extent are at its end."""
        low, high = _bent(self.axis, self.low), _bent(self.axis, self.high)
        span = float(high - low) or 1.0
        part = (_bent(self.axis, values) - low) / span
        return np.asarray(self.start + np.clip(part, 0.0, 1.0) * (self.end - self.start))

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """Values and their names."""
        values = self.axis.ticks or self._round(most)
        names = self.axis.names or tuple(self.said(value) for value in values)
        return list(zip(values, names, strict=True))

    def said(self, value: float) -> str:
        """A value as the axis writes it."""
        return f"{100 * value:.4g} %" if self.axis.percent else f"{value:,.6g}"

    def _round(self, most: int) -> tuple[float, ...]:
        if self.axis.scale == "log":
            return log_ticks(self.low, self.high, most)
        return linear_ticks(self.low, self.high, most)


def _bent(axis: Axis, values: Values | float | int) -> Values:
    values = np.asarray(values, dtype=float)
    with np.errstate(invalid="ignore", divide="ignore"):
        match axis.scale:
            case "log":
                return np.asarray(np.log10(np.maximum(values, 1e-300)))
            case "count":
                return np.asarray(np.log1p(values))
            case "linear":
                return values


def linear_ticks(low: float, high: float, most: int) -> tuple[float, ...]:
    """Multiples of 1, 2 or 5 times a power of ten within the extent, at most so many of them."""
    rough = max(high - low, 1e-12) / max(most - 1, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10, 20) if m * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(round(i * step, 12) for i in range(first, last + 1))


def log_ticks(low: float, high: float, most: int) -> tuple[float, ...]:
    """Powers of ten, with as many multiples between them as there is room for."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found: tuple[float, ...] = ()
    for digits in ((1,), (1, 3), (1, 2, 5), (1, 2, 3, 4, 5, 6, 8)):
        tried = tuple(d * 10.0**k for k in decades for d in digits if low * 0.999 <= d * 10.0**k <= high * 1.001)
        if len(tried) <= most:
            found = tried
    powers = tuple(10.0**k for k in decades if low * 0.999 <= 10.0**k <= high * 1.001)
    found = found or powers[:: max(1, -(-len(powers) // max(most, 1)))]
    return found if len(found) > 1 else linear_ticks(low, high, most)


def extent(axis: Axis, values: Values, *, margin: float = 0.05) -> tuple[float, float]:
    """The least and the largest value, a little apart, unless the axis says where it ends."""
    known = values[np.isfinite(values)]
    known = known[known > 0] if axis.scale == "log" else known
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    low, high = _apart(axis, low, high, margin)
    return low if axis.low is None else axis.low, high if axis.high is None else axis.high


def _apart(axis: Axis, low: float, high: float, margin: float) -> tuple[float, float]:
    if axis.scale == "log":
        room = (high / low) ** margin if high > low else 1.5
        return low / room, high * room
    room = margin * (high - low) or 0.5 * abs(high) or 0.5
    return (low, high) if axis.scale == "count" and high > low else (low - room, high + room)
