"""Numbers as people write them."""

import math
from collections.abc import Mapping

LARGEST = 1e9  # beyond it, and below the smallest, an exponent reads better
SMALLEST = 1e-4


def plain(value: float, digits: int = 3) -> str:
    """So many digits that count, commas between thousands: 1,270; 18.9; 0.0123. A dash for what is unknown."""
    if not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits}g}")
    if not SMALLEST <= abs(rounded) < LARGEST:
        return f"{rounded:.{digits - 1}e}"
    places = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return f"{rounded:,.{places}f}"


def share(value: float) -> str:
    """A part of one as per cent."""
    return f"{100 * value:.0f} %"


def with_interval(summary: Mapping[str, float]) -> str:
    """A mean and the half-width of its interval, to the same place: 1,300 ± 490; 18.9 ± 4.5."""
    mean, half = summary["mean"], summary["ci95"]
    if not math.isfinite(half) or half <= 0:
        return plain(mean)
    return f"{plain(mean)} ± {plain(half, 2)}"


def to_place(value: float, unit: float, digits: int = 2) -> str:
    """A value written to the place of the digits that count of `unit`, such as its error: 251.4 for an error of 6.8."""
    if not math.isfinite(value) or not unit > 0 or not SMALLEST <= unit < LARGEST:
        return plain(value)
    places = max(0, digits - 1 - math.floor(math.log10(unit)))
    return f"{round(value, places) + 0.0:,.{places}f}"  # no minus before nothing
