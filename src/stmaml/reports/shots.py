"""What more labelled examples bring, as PNG: the error against their number. No model is run."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from sklearn.isotonic import isotonic_regression

from stmaml.metrics import Summary
from stmaml.reports.figures import COLOURS, DASHES, STYLE, Arrays, log_scale, png
from stmaml.reports.variants import Sweep

AXIS_HEIGHT = 3.4
LINE_HEIGHT = 0.19
"""Inches a line of a label takes."""


def shots_figure(sweep: Sweep) -> bytes | None:
    """The first metric against the number of labelled examples: a line for each variant with its name at the end."""
    lines = {label: series(points, sweep.metric) for label, points in sweep.points.items()}
    lines = {label: line for label, line in lines.items() if len(line["number"]) > 1}
    if not lines:
        return None
    floor = series(sweep.floors, sweep.metric)
    names = [textwrap.fill(label, 34) for label in [*lines, *[sweep.floor_name] * bool(len(floor["number"]))]]
    height = max(AXIS_HEIGHT, LINE_HEIGHT * sum(1.3 + name.count("\n") for name in names))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.5, height + 0.9), layout="constrained")
        ax = figure.subplots()
        looks: list[Any] = [_look(i) for i in range(len(lines))]
        for line, look in zip(lines.values(), looks, strict=True):
            draw_error(ax, line, look)
        drawn = list(lines.values())
        if len(floor["number"]):
            looks.append({"color": "black", "linestyle": ":"})
            drawn.append(floor)
            ax.plot(floor["number"], floor["error"], linewidth=1.4, marker=".", **looks[-1])
        _scale(ax, drawn)
        number_axis(ax, sorted({int(n) for line in lines.values() for n in line["number"]}))
        name_lines(ax, names, drawn, [look["color"] for look in looks], LINE_HEIGHT / height)
        ax.set(xlabel="labelled examples", ylabel=_words(sweep.metric))
        figure.suptitle(textwrap.fill(sweep.title, 100), fontsize=12)
        return png(figure)


def series(points: Mapping[int, Mapping[str, Summary]], metric: str) -> Arrays:
    """Scores in the order of their numbers of examples, as arrays."""
    numbers = sorted(number for number, scores in points.items() if metric in scores)
    return {
        "number": np.array(numbers),
        "error": np.array([points[n][metric]["mean"] for n in numbers]),
        "half": np.nan_to_num([points[n][metric]["ci95"] for n in numbers]),
    }


def draw_error(ax: Axes, line: Arrays, look: Mapping[str, Any], label: str | None = None) -> None:
    """A line with its band of 95 %."""
    number, error, half = line["number"], line["error"], line["half"]
    ax.fill_between(number, error - half, error + half, color=look["color"], alpha=0.15, linewidth=0)
    ax.plot(number, error, marker="o", markersize=4, linewidth=1.6, label=label, **look)


def number_axis(ax: Axes, numbers: Sequence[int]) -> None:
    """Makes the horizontal axis logarithmic, with ticks at the numbers that were tried."""
    ax.set_xscale("log")
    ax.set_xticks(numbers, [str(number) for number in numbers])
    ax.xaxis.set_minor_locator(NullLocator())


def name_lines(ax: Axes, names: Sequence[str], lines: Sequence[Arrays], colours: Sequence[str], unit: float) -> None:
    """Writes each line's name to the right of its end, moved up or down where names would overlap.

    Args:
        unit: height of a line of text, as a part of the axis.
    """
    ends = [(line["number"][-1], line["error"][-1]) for line in lines]
    wanted = ax.transAxes.inverted().transform(ax.transData.transform(ends))[:, 1]
    heights = unit * np.array([1.15 + name.count("\n") for name in names])
    for name, end, colour, place in zip(names, ends, colours, spread(wanted, heights), strict=True):
        ax.annotate(
            name,
            end,
            xytext=(1.04, place),
            textcoords="axes fraction",
            va="center",
            color=colour,
            fontsize=9,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6, "relpos": (0, 0.5), "shrinkB": 3},
        )


def spread(wanted: np.ndarray, heights: np.ndarray) -> np.ndarray:
    """Centres between 0 and 1 that are nearest to those wanted, so far apart that things of these heights fit."""
    order = np.argsort(wanted, kind="stable")
    sorted_heights = heights[order]
    # With the room each needs taken off, "far enough apart" is "not falling": a monotone regression.
    room = np.cumsum(sorted_heights) - sorted_heights / 2
    top = max(0.0, 1.0 - float(heights.sum()))
    places = np.empty(len(wanted))
    places[order] = isotonic_regression(wanted[order] - room, y_min=0.0, y_max=top) + room
    return places


def _look(index: int) -> dict[str, Any]:
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": DASHES[index // len(COLOURS) % len(DASHES)]}


def _scale(ax: Axes, lines: Sequence[Arrays]) -> None:
    """A logarithmic axis where all errors are positive, not stretched by intervals that reach far out."""
    error = np.concatenate([line["error"] for line in lines])
    half = np.concatenate([line["half"] for line in lines])
    low, high = error.min(), error.max()
    if low <= 0:
        return
    bottom, top = max((error - half).min(), 0.7 * low), min((error + half).max(), 1.4 * high)
    log_scale(ax, labelled="125" if top > 8 * bottom else "12345678")
    ax.set_ylim(bottom * 0.95, top * 1.05)


def _words(metric: str) -> str:
    return {"mse": "mean squared error", "bce": "cross-entropy"}.get(metric, metric)
