"""What a chart shows, apart from how it is drawn: marks on two axes, or estimates in rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

Colour = int | Literal["ink", "truth", "mute"]
"""A number of the palette, or what is drawn in the colour of the text, as the truth is, or hardly seen."""
Numbers = Float[np.ndarray, " n"]


@dataclass(frozen=True)
class Axis:
    """What lies along an axis."""

    label: str = ""
    scale: Literal["linear", "log", "count"] = "linear"
    """A count is drawn by the logarithm of one more, so that 0 has a place."""
    ticks: tuple[float, ...] = ()
    """Where ticks stand; at round numbers if none is given."""
    names: tuple[str, ...] = ()
    """What the ticks are called, where not by their numbers."""
    percent: bool = False
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Line:
    """A line, with a band about it where `low` and `high` are known; it breaks where a value is not finite."""

    name: str
    x: Numbers
    y: Numbers
    low: Numbers | None = None
    high: Numbers | None = None
    colour: Colour = 0
    dots: bool = True
    wide: bool = False
    faint: bool = False
    dash: int = 0


@dataclass(frozen=True)
class Dots:
    """Dots, each with the interval about it where that is known."""

    name: str
    x: Numbers
    y: Numbers
    low: Numbers | None = None
    high: Numbers | None = None
    colour: Colour = 0
    tips: tuple[str, ...] = ()
    """What is said of each; its values if not given."""
    shape: Literal["dot", "star"] = "dot"


@dataclass(frozen=True)
class Columns:
    """Upright bars from `bottom` to `top`."""

    name: str
    x: Numbers
    bottom: Numbers
    top: Numbers
    width: float
    """In units of the axis."""
    colour: Colour = 0
    tips: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    """Written into each bar that has room."""


@dataclass(frozen=True)
class Rule:
    """A straight line to compare with: at a height, or the diagonal."""

    name: str = ""
    y: float | None = None
    x: float | None = None


Mark = Line | Dots | Columns | Rule


@dataclass(frozen=True)
class Chart:
    """Marks on two axes."""

    title: str
    marks: tuple[Mark, ...]
    x: Axis
    y: Axis
    height: int = 300
    note: str = ""
    """Written into a corner."""


@dataclass(frozen=True)
class Estimates:
    """Estimates with intervals, a row for each name: dots on a horizontal axis."""

    title: str
    names: tuple[str, ...]
    series: tuple[Dots, ...]
    """Whose `x` are estimates with `low` and `high`, and whose `y` are the places of the rows."""
    x: Axis
    zero: float | None = None


@dataclass(frozen=True)
class Panels:
    """Small charts of the same kind beside each other."""

    title: str
    charts: tuple[Chart, ...]
    size: Literal["small", "wide"] = "small"


@dataclass(frozen=True)
class Picture:
    """A picture of dots, for what is no line: photographs, digits."""

    title: str
    content: bytes


Drawing = Chart | Estimates | Panels | Picture


def around(middle: Numbers, half: Numbers, *, share: bool = False) -> tuple[Numbers, Numbers]:
    """The ends of intervals of these half-widths, none where a width is unknown; those of shares within 0 and 1."""
    half = np.nan_to_num(half, nan=0.0, posinf=0.0)
    low, high = middle - half, middle + half
    return (low.clip(min=0.0), high.clip(max=1.0)) if share else (low, high)


def marks_of(drawing: Chart | Estimates | Panels) -> Sequence[Mark]:
    """The marks a legend names, each name once, in the order of first use."""
    match drawing:
        case Chart():
            marks: Sequence[Mark] = drawing.marks
        case Estimates():
            marks = drawing.series
        case Panels():
            marks = [mark for chart in drawing.charts for mark in chart.marks]
    named = {mark.name: mark for mark in reversed(marks) if mark.name}
    return [named[name] for name in dict.fromkeys(mark.name for mark in marks if mark.name)]
