"""Estimates in rows, as SVG: a name, a dot and its interval."""

import numpy as np

from stmaml.reports.charts import Dots, Estimates
from stmaml.reports.html.drawing import paper
from stmaml.reports.html.marks import coloured, label
from stmaml.reports.html.markup import Markup, empty, escaped, tag
from stmaml.reports.html.scales import Scale, extent

LETTER = 6.6
ROW = 30
BOTTOM = 40


def draw_estimates(estimates: Estimates, width: int) -> Markup:
    """A row for each name, with a dot for each series."""
    height = ROW * len(estimates.names) + BOTTOM + 6
    left = min(12 + LETTER * max(map(len, estimates.names)), 0.42 * width)
    values = np.concatenate(
        [part for one in estimates.series for part in (one.x, one.low, one.high) if part is not None]
    )
    ends = extent(estimates.x, np.append(values, [] if estimates.zero is None else [estimates.zero]))
    scale = Scale(estimates.x, *ends, left + 6, width - 14)
    most = int((left - 6) / LETTER)
    names = [_name(name, place, left, most) for place, name in enumerate(estimates.names)]
    dots = [part for i, one in enumerate(estimates.series) for part in _dots(one, i, len(estimates.series), scale)]
    return paper(estimates.title, _about(estimates), width, height, *_ground(estimates, scale, height), *names, *dots)


def _about(estimates: Estimates) -> str:
    first = estimates.series[0]
    said = [f"{name} {value:.3g}" for name, value in zip(estimates.names, first.x, strict=True)]
    return f"{estimates.x.label}, {first.name}: {'; '.join(said)}"


def _name(name: str, place: int, left: float, most: int) -> Markup:
    cut = name if len(name) <= most else f"{name[: most - 1]}…"
    words = label(left - 4, ROW * place + ROW / 2 + 4, cut, text_anchor="end", class_="row-name")
    return tag("g", tag("title", escaped(name)), words) if cut != name else words


def _ground(estimates: Estimates, scale: Scale, height: int) -> list[Markup]:
    bottom = height - BOTTOM
    found = []
    for value, name in scale.ticks(max(3, int((scale.end - scale.start) // 70))):
        place = float(scale(value))
        found.append(empty("path", d=f"M{place:.1f} 4V{bottom}", class_="grid"))
        found.append(label(place, bottom + 15, name, text_anchor="middle"))
    if estimates.zero is not None:
        found.append(empty("path", d=f"M{float(scale(estimates.zero)):.1f} 4V{bottom}", class_="axis"))
    middle = (scale.start + scale.end) / 2
    return [*found, label(middle, bottom + 33, estimates.x.label, text_anchor="middle", class_="axis-name")]


def _dots(one: Dots, number: int, count: int, scale: Scale) -> list[Markup]:
    found = []
    shift = (number - (count - 1) / 2) * 9
    for i in np.flatnonzero(np.isfinite(one.x)):
        x, y = float(scale(one.x[i])), ROW * float(one.y[i]) + ROW / 2 + shift
        parts = []
        if one.low is not None and one.high is not None:
            stem = f"M{float(scale(one.low[i])):.1f} {y:.1f}H{float(scale(one.high[i])):.1f}"
            parts.append(empty("path", d=stem, class_=coloured(one.colour, "stem")))
        parts.append(empty("circle", cx=x, cy=y, r=4, class_=coloured(one.colour, "dot")))
        tip = tag("title", escaped(one.tips[i] if one.tips else f"{one.name}: {scale.said(float(one.x[i]))}"))
        found.append(tag("g", *parts, tag("circle", tip, cx=x, cy=y, r=8, class_="touch")))
    return found
