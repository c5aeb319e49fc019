"""Charts as SVG: lines with bands, dots with intervals, bars. Colours come from the page, so that it may be dark."""

import numpy as np
from jaxtyping import Float

from stmaml.numbers import plain
from stmaml.reports.charts import Chart, Columns, Dots, Line, Mark, Numbers, Rule
from stmaml.reports.html.marks import Plane, draw_mark, label
from stmaml.reports.html.markup import Markup, empty, escaped, tag
from stmaml.reports.html.scales import Scale, extent

LETTER = 6.3  # pixels of a letter of a label
TOP, BOTTOM, RIGHT = 10.0, 42.0, 12.0


def draw_chart(chart: Chart, width: int, height: int | None = None) -> Markup:
    """The chart as an SVG of this width."""
    height = height or chart.height
    plane = _plane(chart, width, height)
    marks = [draw_mark(mark, plane) for mark in sorted(chart.marks, key=_depth)]
    corner = label(plane.x.start + 6, TOP + 12, chart.note, class_="note") if chart.note else ""
    return paper(chart.title, describe(chart), width, height, _grid(plane, width), *marks, corner)


def paper(title: str, about: str, width: int, height: int, *content: Markup) -> Markup:
    """An SVG with a title and, for who cannot see it, a description."""
    return tag(
        "svg",
        tag("desc", escaped(about)),
        *content,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img",
        aria_label=title,
    )


def describe(chart: Chart) -> str:
    """What the chart shows in words: where each line begins and ends."""
    said = [f"{mark.name}: {_ends(mark)}" for mark in chart.marks if isinstance(mark, Line | Dots) and mark.name]
    axes = f"{chart.y.label or 'values'} against {chart.x.label or 'places'}"
    return f"{axes}. {'; '.join(said[:12])}" if said else axes


def _ends(mark: Line | Dots) -> str:
    known = np.flatnonzero(np.isfinite(mark.y))
    if not len(known):
        return "nothing"
    first, last = known[0], known[-1]
    return f"{plain(float(mark.y[first]))} at {mark.x[first]:g}, {plain(float(mark.y[last]))} at {mark.x[last]:g}"


def _plane(chart: Chart, width: int, height: int) -> Plane:
    xs, ys = _values(chart)
    y_low, y_high = extent(chart.y, ys)
    y = Scale(chart.y, y_low, y_high, height - BOTTOM, TOP)
    longest = max((len(name) for _, name in y.ticks(_room_up(height))), default=1)
    left = 10 + LETTER * longest + (16 if chart.y.label else 0)
    x_low, x_high = extent(chart.x, xs, margin=0.02)
    return Plane(Scale(chart.x, x_low, x_high, left + 4, width - RIGHT), y)


def _values(chart: Chart) -> tuple[Float[np.ndarray, " a"], Float[np.ndarray, " b"]]:
    """All that must find a place on either axis; an interval that reaches far out does not stretch it."""
    xs, ys = [np.asarray(chart.x.ticks, dtype=float)], [np.empty(0)]
    for mark in chart.marks:
        match mark:
            case Columns():
                xs += [mark.x - mark.width / 2, mark.x + mark.width / 2]
                ys += [mark.bottom, mark.top]
            case Rule():
                ys.append(np.array([] if mark.y is None else [mark.y]))
            case Line() | Dots():
                xs.append(mark.x)
                ys += [mark.y, *_reach(chart, mark)]
    return np.concatenate(xs), np.concatenate(ys)


def _reach(chart: Chart, mark: Line | Dots) -> list[Numbers]:
    if mark.low is None or mark.high is None:
        return []
    if chart.y.scale != "log":
        return [mark.low, mark.high]
    known = mark.y[np.isfinite(mark.y) & (mark.y > 0)]
    return [np.maximum(mark.low, 0.7 * known.min()), np.minimum(mark.high, 1.4 * known.max())] if known.size else []


def _depth(mark: Mark) -> int:
    """What is drawn first lies below: lines to compare with, faint lines, lines, then wide ones."""
    match mark:
        case Rule():
            return 0 if mark.x is None else 4
        case Line():
            return 1 if mark.faint else 3 + mark.wide
        case Columns():
            return 2
        case Dots():
            return 5


def _room_up(height: int) -> int:
    return max(3, int((height - TOP - BOTTOM) // 38))


def _grid(plane: Plane, width: int) -> Markup:
    """Lines and names of the ticks, and what lies along the axes."""
    x, y = plane.x, plane.y
    parts = []
    for value, name in y.ticks(_room_up(int(y.start + BOTTOM))):
        height = float(y(value))
        if y.end - 1 <= height <= y.start + 1:
            parts.append(empty("path", d=f"M{x.start:.1f} {height:.1f}H{x.end:.1f}", class_="grid"))
            parts.append(label(x.start - 7, height + 4, name, text_anchor="end"))
    parts += _under(x, y.start)
    parts.append(empty("path", d=f"M{x.start:.1f} {y.start:.1f}H{x.end:.1f}", class_="axis"))
    middle = (x.start + x.end) / 2
    parts.append(label(middle, y.start + 36, x.axis.label, text_anchor="middle", class_="axis-name"))
    place = f"translate(12 {(y.start + y.end) / 2:.1f}) rotate(-90)"
    parts.append(label(0, 0, y.axis.label, text_anchor="middle", transform=place, class_="axis-name"))
    del width
    return "".join(parts)


def _under(x: Scale, bottom: float) -> list[Markup]:
    """The ticks of the horizontal axis, as many as do not overlap."""
    found, free = [], -1e9
    for value, name in x.ticks(max(2, int((x.end - x.start) // 56))):
        place, half = float(x(value)), LETTER * len(name) / 2
        if place - half < free or not x.start - 1 <= place <= x.end + 1:
            continue
        found.append(empty("path", d=f"M{place:.1f} {bottom:.1f}v4", class_="axis"))
        found.append(label(place, bottom + 17, name, text_anchor="middle"))
        free = place + half + 5
    return found
