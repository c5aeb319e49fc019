"""What more labelled examples bring, as PNG: the error against their number. No model is run."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from sklearn.isotonic import isotonic_regression

from stmaml.metric_table import metric
from stmaml.metrics import Summary
from stmaml.reports.figures import Arrays, log_scale, look, png
from stmaml.reports.sections import Sweep

AXIS_HEIGHT = 3.4
LINE_HEIGHT = 0.19  # inches a line of a label takes


def shots_figure(sweep: Sweep) -> bytes | None:
    """The first metric against the number of labelled examples: a line for each variant with its name at the end."""
    lines = swept_lines(sweep)
    if not lines:
        return None
    floor = swept_floor(sweep)
    floors = {sweep.floor_name: floor} if len(floor["number"]) else {}
    names = [textwrap.fill(label, 34) for label in [*lines, *floors]]
    height = max(AXIS_HEIGHT, LINE_HEIGHT * sum(1.3 + name.count("\n") for name in names))
    figure = Figure(figsize=(9.5, height + 0.9), layout="constrained")
    ax = figure.subplots()
    for i, line in enumerate(lines.values()):
        draw_error(ax, line, look(i))
    for line in floors.values():
        ax.plot(line["number"], line["error"], ":", color="black", linewidth=1.4, marker=".")
    drawn = [*lines.values(), *floors.values()]
    scale_errors(ax, drawn)
    number_axis(ax, lines.values())
    colours = [*(look(i)["color"] for i in range(len(lines))), *["black"] * len(floors)]
    name_lines(ax, names, drawn, colours, LINE_HEIGHT / height)
    ax.set(xlabel=sweep.label, ylabel=metric(sweep.metric).words)
    figure.suptitle(textwrap.fill(sweep.title, 100), fontsize=12)
    return png(figure)


def swept_lines(sweep: Sweep) -> dict[str, Arrays]:
    """The first metric against the number of examples, by label, of whatever was tested with two numbers or more."""
    lines = {label: _series(points, sweep.metric) for label, points in sweep.points.items()}
    return {label: line for label, line in lines.items() if len(line["number"]) > 1}


def swept_floor(sweep: Sweep) -> Arrays:
    """The best possible value of the first metric against the number of examples."""
    return _series(sweep.floors, sweep.metric)


def _series(points: Mapping[int, Mapping[str, Summary]], name: str) -> Arrays:
    """Scores in the order of their numbers of examples, as arrays."""
    numbers = sorted(number for number, scores in points.items() if name in scores)
    return {
        "number": np.array(numbers),
        "error": np.array([points[n][name]["mean"] for n in numbers]),
        "half": np.nan_to_num([points[n][name]["ci95"] for n in numbers]),
    }


def draw_error(ax: Axes, line: Arrays, style: dict[str, Any], label: str | None = None) -> None:
    """A line with its band of 95 %."""
    number, error, half = line["number"], line["error"], line["half"]
    ax.fill_between(number, error - half, error + half, color=style["color"], alpha=0.15, linewidth=0)
    ax.plot(number, error, **{"marker": "o", "markersize": 4, "linewidth": 1.6, "label": label, **style})


def number_axis(ax: Axes, lines: Iterable[Arrays]) -> None:
    """Makes the horizontal axis logarithmic, down to 0 if that was tried, with ticks at the numbers that were."""
    numbers = sorted({int(number) for line in lines for number in line["number"]})
    if numbers[0] > 0:
        ax.set_xscale("log")
    else:
        ax.set_xscale("symlog", linthresh=min((number for number in numbers if number > 0), default=1))
    ax.set_xticks(numbers, [str(number) for number in numbers])
    ax.xaxis.set_minor_locator(NullLocator())


def name_lines(ax: Axes, names: Sequence[str], lines: Sequence[Arrays], colours: Sequence[str], unit: float) -> None:
    """Writes each line's name to the right of its end, moved up or down where names would overlap; `unit` is the height
    of a line of text, as a part of the axis."""
    ends = [(line["number"][-1], line["error"][-1]) for line in lines]
    wanted = ax.transAxes.inverted().transform(ax.transData.transform(ends))[:, 1]
    heights = unit * np.array([1.15 + name.count("\n") for name in names])
    for name, end, colour, place in zip(names, ends, colours, spread(wanted, heights), strict=True):
        words: Any = {"va": "center", "color": colour, "fontsize": 9, "annotation_clip": False}
        arrow = {"arrowstyle": "-", "color": colour, "linewidth": 0.6, "relpos": (0, 0.5), "shrinkB": 3}
        ax.annotate(name, end, xytext=(1.04, place), textcoords="axes fraction", arrowprops=arrow, **words)


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


def scale_errors(ax: Axes, lines: Sequence[Arrays]) -> None:
    """A logarithmic axis where all errors are positive, not stretched by intervals that reach far out."""
    error = np.concatenate([line["error"] for line in lines])
    half = np.concatenate([line["half"] for line in lines])
    if error.min() > 0:
        bottom, top = max((error - half).min(), 0.7 * error.min()), min((error + half).max(), 1.4 * error.max())
        log_scale(ax, labelled="125" if top > 8 * bottom else "12345678")
        ax.set_ylim(bottom * 0.95, top * 1.05)
