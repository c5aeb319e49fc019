"""Marks of a chart as SVG: lines with bands, dots with intervals, bars, lines to compare with."""

from dataclasses import dataclass

import numpy as np

from stmaml.numbers import plain
from stmaml.reports.charts import Colour, Columns, Dots, Line, Mark, Numbers, Rule
from stmaml.reports.html.markup import Markup, empty, escaped, tag
from stmaml.reports.html.scales import Scale

MOST_POINTS = 220  # of a line; more of them look the same
MOST_TIPS = 60
PALETTE = 7


@dataclass(frozen=True)
class Plane:
    """The two scales of a chart on paper."""

    x: Scale
    y: Scale


def label(x: float | int, y: float | int, text: str, **attributes: str) -> Markup:
    """Words at a place; nothing for no words."""
    return tag("text", escaped(text), x=float(x), y=float(y), **attributes) if text else ""


def coloured(colour: Colour, *others: str) -> str:
    """The classes of a mark of this colour."""
    if isinstance(colour, str):
        return " ".join([f"k-{colour}", *filter(None, others)])
    again = "again" if colour >= PALETTE else ""  # paler, where colours come a second time
    return " ".join(filter(None, [f"k{colour % PALETTE}", again, *others]))


def draw_mark(mark: Mark, plane: Plane) -> Markup:
    """One mark, with what is said of it on touch."""
    match mark:
        case Line():
            return _draw_line(mark, plane)
        case Dots():
            return _draw_dots(mark, plane)
        case Columns():
            return _draw_columns(mark, plane)
        case Rule():
            return _draw_rule(mark, plane)


def _draw_line(line: Line, plane: Plane) -> Markup:
    kept = thinned(len(line.x), MOST_POINTS)
    px, py = plane.x(line.x[kept]), plane.y(line.y[kept])
    parts = []
    if line.low is not None and line.high is not None:
        parts.append(_band(px, plane.y(line.low[kept]), plane.y(line.high[kept]), line.colour))
    look = ("line", "wide" if line.wide else "", "faint" if line.faint else "", f"dash{line.dash}" if line.dash else "")
    parts.append(empty("path", d=path_through(px, py), class_=coloured(line.colour, *look)))
    if not line.faint and line.name:
        parts += _points(line, plane)
    return tag("g", *parts)


def _points(line: Line, plane: Plane) -> list[Markup]:
    """Dots, where they are shown, and larger ones that are not seen, for the pointer."""
    kept = thinned(len(line.x), MOST_TIPS)
    kept = kept[np.isfinite(line.y[kept])]
    px, py = plane.x(line.x[kept]), plane.y(line.y[kept])
    found = []
    for place, x, y in zip(kept, px, py, strict=True):
        if line.dots:
            found.append(empty("circle", cx=float(x), cy=float(y), r=3, class_=coloured(line.colour, "dot")))
        said = tag("title", escaped(_said(line, int(place), plane)))
        found.append(tag("circle", said, cx=float(x), cy=float(y), r=9, class_="touch"))
    return found


def _said(mark: Line | Dots, place: int, plane: Plane) -> str:
    y = _value(plane.y, float(mark.y[place]))
    half = "" if mark.high is None else _margin(mark, place, plane)
    named = dict(plane.x.ticks(50)) if plane.x.axis.names else {}
    x = named.get(float(mark.x[place])) or _value(plane.x, float(mark.x[place]))
    label = plane.x.axis.label
    return f"{mark.name}\n{label + ' ' if label else ''}{x}: {y}{half}"


def _margin(mark: Line | Dots, place: int, plane: Plane) -> str:
    assert mark.low is not None
    assert mark.high is not None
    low, high = (float(end[place]) for end in (mark.low, mark.high))
    return f" ({_value(plane.y, low)} to {_value(plane.y, high)})" if high > low else ""


def _value(scale: Scale, value: float) -> str:
    if scale.axis.percent:
        return f"{100 * value:.0f} %"
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e6 else plain(value)


def _band(px: Numbers, low: Numbers, high: Numbers, colour: Colour) -> Markup:
    known = np.isfinite(low) & np.isfinite(high)
    if known.sum() < 2:
        return ""
    there = path_through(px[known], high[known])
    back = path_through(px[known][::-1], low[known][::-1]).replace("M", "L", 1)
    return empty("path", d=f"{there}{back}Z", class_=coloured(colour, "band"))


def path_through(px: Numbers, py: Numbers) -> str:
    """Lines from point to point; a new one begins after a point that is nowhere."""
    words, begin = [], True
    for x, y in zip(px, py, strict=True):
        if not np.isfinite(y):
            begin = True
            continue
        words.append(f"{'M' if begin else 'L'}{x:.1f} {y:.1f}")
        begin = False
    return "".join(words)


def thinned(length: int, most: int) -> np.ndarray:
    """Places of at most so many of the points, the ends among them."""
    return np.arange(length) if length <= most else np.linspace(0, length - 1, most).round().astype(int)


def _draw_dots(dots: Dots, plane: Plane) -> Markup:
    found = []
    px, py = plane.x(dots.x), plane.y(dots.y)
    for place in np.flatnonzero(np.isfinite(dots.y)):
        x, y = float(px[place]), float(py[place])
        parts = []
        if dots.low is not None and dots.high is not None:
            ends = plane.y(dots.low)[place], plane.y(dots.high)[place]
            stem = f"M{x:.1f} {ends[0]:.1f}V{ends[1]:.1f}"
            parts.append(empty("path", d=stem, class_=coloured(dots.colour, "stem")))
        tip = dots.tips[place] if dots.tips else _said(dots, int(place), plane)
        parts.append(shape(dots, x, y))
        found.append(tag("g", *parts, tag("circle", tag("title", escaped(tip)), cx=x, cy=y, r=9, class_="touch")))
    return "".join(found)


def shape(dots: Dots, x: float, y: float) -> Markup:
    """A dot or a star."""
    if dots.shape == "dot":
        return empty("circle", cx=x, cy=y, r=4, class_=coloured(dots.colour, "dot"))
    turns = np.arange(10) * np.pi / 5
    size = np.where(np.arange(10) % 2, 2.6, 6.2)
    d = path_through(x + size * np.sin(turns), y - size * np.cos(turns))
    return empty("path", d=f"{d}Z", class_=coloured(dots.colour, "dot ring"))


def _draw_columns(columns: Columns, plane: Plane) -> Markup:
    half = columns.width / 2
    left, right = plane.x(columns.x - half), plane.x(columns.x + half)
    top, bottom = plane.y(columns.top), plane.y(columns.bottom)
    found = []
    for i in np.flatnonzero(columns.top > columns.bottom):
        tip = tag("title", escaped(columns.tips[i])) if columns.tips else ""
        size = {"width": float(right[i] - left[i]), "height": float(bottom[i] - top[i])}
        look = coloured(columns.colour, "bar")
        found.append(tag("rect", tip, x=float(left[i]), y=float(top[i]), class_=look, **size))
        if columns.labels and size["height"] >= 15 and size["width"] >= 26:
            middle = float(left[i] + right[i]) / 2, float(top[i] + bottom[i]) / 2 + 4
            found.append(label(*middle, columns.labels[i], text_anchor="middle", class_="inside"))
    return "".join(found)


def _draw_rule(rule: Rule, plane: Plane) -> Markup:
    x, y = plane.x, plane.y
    if rule.y is not None:
        d = f"M{x.start:.1f} {float(y(rule.y)):.1f}H{x.end:.1f}"
    elif rule.x is not None:
        d = f"M{float(x(rule.x)):.1f} {y.start:.1f}V{y.end:.1f}"
    else:
        low, high = max(x.low, y.low), min(x.high, y.high)
        d = f"M{float(x(low)):.1f} {float(y(low)):.1f}L{float(x(high)):.1f} {float(y(high)):.1f}"
    return empty("path", d=d, class_="rule")
