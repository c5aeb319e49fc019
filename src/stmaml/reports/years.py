"""The figure of temperature prediction, as PNG: a year at a station. No model is run."""

import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stmaml.reports.figures import BLUE, COLOURS, Arrays, legend_below, png
from stmaml.runs import Trace

RED, ORANGE = "#C00000", COLOURS[4]
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
MONTH_STARTS = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)
LONGEST_GAP = 7  # days without a temperature that a line may cross


def years_figure(traces: Sequence[Trace], title: str) -> bytes | None:
    """A year at one station of each band: labelled days, the truth, and the prediction with its 90 % band."""
    traces = [trace for trace in traces if "median" in trace.arrays]
    if not traces:
        return None
    figure = Figure(figsize=(9.5, 1.95 * len(traces) + 1.1), layout="constrained")
    axes = figure.subplots(len(traces), 1, sharex=True, squeeze=False)[:, 0]
    for i, (ax, trace) in enumerate(zip(axes, traces, strict=True)):
        _draw_year(ax, trace.arrays, labelled=i == 0)
        ax.set_title(f"{trace.about['band']}: station {trace.about['station']}", loc="left")
        ax.set_title(_told(trace.arrays), loc="right", fontsize=9, color="#444444")
        ax.set_ylabel("°F")
    axes[-1].set_xlim(-2, 367)
    axes[-1].set_xticks(MONTH_STARTS, MONTHS, ha="left")
    figure.suptitle(textwrap.fill(title, 100), fontsize=12)
    legend_below(figure)
    return png(figure)


def _draw_year(ax: Axes, arrays: Arrays, *, labelled: bool) -> None:
    def say(label: str) -> str | None:
        return label if labelled else None

    day, rows = with_gaps(arrays["axis"])
    shown = {name: np.where(rows < 0, np.nan, arrays[name][rows, 0]) for name in ("truth", "low", "median", "high")}
    support = support_days(arrays), arrays["support_y"][:, 0]
    ax.plot(*support, "o", color=RED, markersize=6.5, markeredgecolor="white", zorder=4, label=say("labelled days"))
    ax.plot(day, shown["truth"], ".-", color=BLUE, linewidth=0.9, markersize=2, label=say("truth"))
    ax.plot(day, shown["median"], color=ORANGE, linewidth=1.7, label=say("prediction (median)"))
    band = say("90 % predictive band")
    ax.fill_between(day, shown["low"], shown["high"], color=ORANGE, alpha=0.22, linewidth=0, label=band)


def with_gaps(axis: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Days in order and the row of each; within long gaps a day of row -1, where a line is to break."""
    rows = np.argsort(axis)
    after = np.flatnonzero(np.diff(axis[rows]) > LONGEST_GAP)
    day = np.insert(axis[rows].astype(float), after + 1, axis[rows][after] + 1)
    return day, np.insert(rows, after + 1, -1)


def support_days(arrays: Arrays) -> np.ndarray:
    """The day of the year of each labelled example, from 0."""
    if "support_axis" in arrays:
        return arrays["support_axis"].astype(float)
    # Older traces leave it to the first input: a part of the year, whose last day is 364 or 365, what makes days whole.
    date = arrays["support_x"][:, 0].astype(float)
    tried = [date * last for last in (364, 365)]
    return np.rint(min(tried, key=lambda days: np.abs(days - np.rint(days)).sum()))


def _told(arrays: Arrays) -> str:
    """How far off the prediction is on days whose temperature it was not shown, and how often within its band."""
    hidden = ~np.isin(arrays["axis"], support_days(arrays))
    if not hidden.any():
        return ""
    truth, low, median, high = (arrays[name][hidden, 0] for name in ("truth", "low", "median", "high"))
    inside = np.mean((truth >= low) & (truth <= high))
    return f"other days: off by {np.abs(truth - median).mean():.1f} °F on average, {100 * inside:.0f} % within the band"
