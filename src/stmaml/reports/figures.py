"""Figures of saved runs, as PNG, and the look all figures share. No model is run."""

import io
import itertools
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stmaml.errors import RunError
from stmaml.metric_table import METRICS
from stmaml.reports.sections import Section
from stmaml.reports.variants import Variant
from stmaml.runs import Run, Trace

Arrays = dict[str, np.ndarray]

BLUE, GREY = "#0072B2", "#777777"
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""The palette of Okabe and Ito, which colour-blind readers can tell apart."""
SOLUTIONS = ("#D55E00", "#E69F00", "#009E73", "#CC79A7", "#8C510A")
"""For sampled curves: the blue is kept for the truth."""
DASHES = ("-", "--", ":")
MARKERS = ("o", "s", "^")
MAX_COLUMNS = 3
FREE_LINES, LINE_INCHES = 4, 0.17  # lines of a legend that a figure has room for, and the height of each beyond
COVERAGE = METRICS["coverage90"]
STYLE: Any = {"font.size": 10, "legend.frameon": False, "xtick.color": "#444444", "ytick.color": "#444444"}
STYLE |= {"axes.titlesize": 11, "axes.edgecolor": GREY, "axes.spines.top": False, "axes.spines.right": False}
STYLE |= {"axes.grid": True, "axes.axisbelow": True, "grid.color": "#E6E6E6", "grid.linewidth": 0.8}


@matplotlib.rc_context(STYLE)
def in_style(draw: Callable[..., bytes | None], *data: object) -> bytes | None:
    """What `draw` makes of the data, with the look that all figures share."""
    return draw(*data)


def look(index: int) -> dict[str, Any]:
    """Colour and dashes that tell the line of this number from others."""
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": DASHES[index // len(COLOURS) % len(DASHES)]}


def bare(ax: Axes) -> None:
    """Takes ticks and frame off, for pictures and words."""
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)


def curves_figure(traces: Sequence[Trace], title: str) -> bytes | None:
    """One task of each family under the same conditions: what was seen, what is true, what is believed."""
    traces = [trace for trace in traces if "low" in trace.arrays]
    if not traces:
        return None
    columns = min(MAX_COLUMNS, len(traces))
    rows = -(-len(traces) // columns)
    figure = Figure(figsize=(9.5, 2.6 * rows + 0.7), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, squeeze=False)
    for ax, trace in zip(axes.flat, traces, strict=False):
        draw_task(ax, trace.arrays)
        ax.set_title(trace.about["family"])
    for ax in list(axes.flat)[len(traces) :]:
        ax.set_visible(False)
    _finish_tasks(figure, axes, ": ".join(filter(None, (title, said_of_trace(traces[0])))), ["y"] * rows)
    return png(figure)


def ambiguity_figure(traces: Sequence[Trace], title: str) -> bytes | None:
    """The same functions seen through fewer or noisier examples: beliefs should widen."""
    grid = {(trace.about["family"], said_of_trace(trace)): trace for trace in traces}
    families = list(dict.fromkeys(trace.about["family"] for trace in traces))
    by_shots = sorted(traces, key=lambda trace: (trace.about["shots"], -trace.about["noise"]))
    conditions = list(dict.fromkeys(said_of_trace(trace) for trace in by_shots))
    if not traces or len(grid) != len(families) * len(conditions):
        return None
    figure = Figure(figsize=(11, 2.45 * len(families) + 0.7), layout="constrained")
    axes = figure.subplots(len(families), len(conditions), sharex=True, sharey="row", squeeze=False)
    for ax, place in zip(axes.flat, itertools.product(families, conditions), strict=True):
        draw_task(ax, grid[place].arrays)
    for ax, said in zip(axes[0], conditions, strict=True):
        ax.set_title(said)
    _finish_tasks(figure, axes, title, [f"{family}: y" for family in families])
    figure.align_ylabels()
    return png(figure)


def said_of_trace(trace: Trace) -> str:
    """What is said of a trace beside its figure and family: `shots 10, noise 0.3`."""
    return ", ".join(f"{name} {value}" for name, value in trace.about.items() if name not in ("figure", "family"))


def draw_task(ax: Axes, arrays: Arrays) -> None:
    """Band, sampled solutions, truth and support of one task."""
    axis, low, high = arrays["axis"], arrays["low"][:, 0], arrays["high"][:, 0]
    ax.fill_between(axis, low, high, color=GREY, alpha=0.18, linewidth=0, label="90 % predictive band")
    solutions = "sampled solutions" if len(arrays["curves"]) > 1 else "its one solution"
    for i, curve in enumerate(arrays["curves"]):
        label = solutions if i == 0 else None
        ax.plot(axis, curve[:, 0], ":", color=SOLUTIONS[i % len(SOLUTIONS)], linewidth=1.3, label=label)
    ax.plot(axis, arrays["truth"][:, 0], color=BLUE, linewidth=2, label="truth")
    ax.margins(x=0.02)
    support = arrays["support_x"][:, 0], arrays["support_y"][:, 0]
    ax.plot(*support, "*", color="black", markersize=9, markeredgecolor="white", markeredgewidth=0.6, label="support")


def _finish_tasks(figure: Figure, axes: np.ndarray, title: str, outputs: list[str]) -> None:
    for ax in axes[-1]:
        ax.set_xlabel("$x_1$")
    for ax, output in zip(axes[:, 0], outputs, strict=True):
        ax.set_ylabel(output)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    order = (2, 3, 1, 0)  # what is known first, then what is believed
    figure.legend([handles[i] for i in order], [labels[i] for i in order], loc="outside lower center", ncols=len(order))
    figure.suptitle(textwrap.fill(title, 100), fontsize=12)


def training_figure(variants: list[Variant]) -> bytes | None:
    """Training loss and validation score against steps: a line for each variant, averaged over its seeds."""
    variants = [variant for variant in variants if all(run.log() for run in variant.runs)]
    if not variants:
        return None
    metric = validation_metric(variants[0])
    losses = [[loss_series(run) for run in variant.runs] for variant in variants]
    scores = [[validation_series(run, metric) for run in variant.runs] for variant in variants]
    if not any(len(seed) for seeds in losses for seed in seeds):
        return None
    figure = Figure(figsize=(9.5, 3.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    for i, variant in enumerate(variants):
        _draw_series(left, losses[i], look(i), textwrap.fill(variant.label, 60), smooth=True)
        _draw_series(right, scores[i], look(i), None, smooth=False)
    for ax, title in ((left, "training loss (each method's own)"), (right, f"validation {metric}")):
        ax.set(title=title, xlabel="meta-steps")
        _log_scale_if_wide(ax)
    legend_below(figure)
    return png(figure)


def validation_metric(variant: Variant) -> str:
    """The score by which its best step was chosen."""
    return variant.config["training"].get("val_metric", "mse")


def loss_series(run: Run) -> np.ndarray:
    """A row of step and training loss for each line of the log that has one."""
    return _series(run.log(), "loss")


def validation_series(run: Run, metric: str) -> np.ndarray:
    """The same for a validation score."""
    found = [{"step": entry.get("step", 0), **entry["validation"]} for entry in run.log() if "validation" in entry]
    return _series(found, metric)


def _series(entries: list[dict[str, Any]], name: str) -> np.ndarray:
    """A row of step and value for each entry that has this value."""
    found = [(entry.get("step", 0), entry[name]) for entry in entries if isinstance(entry.get(name), int | float)]
    return np.array(found, dtype=float).reshape(-1, 2)


def _draw_series(ax: Axes, seeds: list[np.ndarray], style: dict[str, Any], label: str | None, *, smooth: bool) -> None:
    length = min(len(seed) for seed in seeds)
    if not length:
        return
    steps, values = seeds[0][:length, 0], np.stack([seed[:length, 1] for seed in seeds])
    window = max(1, length // 40) if smooth else 1
    for one in values if window > 1 or len(seeds) > 1 else ():
        ax.plot(steps, one, color=style["color"], alpha=0.25, linewidth=0.8)
    marker, mean = "o" if length < 20 else None, running_mean(values.mean(0), window)
    ax.plot(steps, mean, linewidth=1.8, marker=marker, markersize=4, label=label, **style)


def running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """The mean of the `window` values around each, of fewer at the ends."""
    kernel = np.ones(window)
    return np.convolve(values, kernel, "same") / np.convolve(np.ones_like(values), kernel, "same")


def _log_scale_if_wide(ax: Axes) -> None:
    values = np.concatenate([np.empty(0), *(np.asarray(line.get_ydata(), dtype=float) for line in ax.get_lines())])
    if values.size and np.nanmin(values) > 0 and np.nanmax(values) > 5 * np.nanmin(values):
        log_scale(ax)


def log_scale(ax: Axes, *, labelled: str = "125") -> None:
    """Makes the vertical axis logarithmic, its ticks written as people do, those of the leading digits `labelled`."""

    def plain(value: float, _: Any) -> str:
        return f"{value:g}" if f"{value:e}"[0] in labelled else ""

    ax.set_yscale("log")
    ax.grid(True, which="minor", alpha=0.5)
    ax.yaxis.set_major_formatter(plain)
    ax.yaxis.set_minor_formatter(plain)


def coverage_figure(section: Section) -> bytes | None:
    """How often the 90 % interval held the target, for each family: it should be 90 % of the time."""
    found = {row.label: row.families or {"all": row.metrics} for row in section.rows}
    found = {label: each for label, each in found.items() if all(COVERAGE.name in scores for scores in each.values())}
    families = list(dict.fromkeys(family for each in found.values() for family in each))
    if not found:
        return None
    figure = Figure(figsize=(9.5, 3.6), layout="constrained")
    ax = figure.subplots()
    claimed = f"as claimed ({COVERAGE.nominal:g})"
    ax.axhline(COVERAGE.nominal, color="black", linewidth=1.2, linestyle="--", label=claimed)
    for i, (label, each) in enumerate(found.items()):
        scores = [each.get(family, {}).get(COVERAGE.name, {}) for family in families]
        shift = (i - (len(found) - 1) / 2) * min(0.14, 0.7 / len(found))
        _draw_dots(ax, np.arange(len(families)) + shift, scores, i, textwrap.fill(label, 60))
    ax.set_xticks(range(len(families)), families)
    ax.set(ylabel=COVERAGE.words, title=textwrap.fill(section.title, 100))
    ax.grid(False, axis="x")
    legend_below(figure)
    return png(figure)


def _draw_dots(ax: Axes, x: np.ndarray, scores: list[dict[str, float]], index: int, label: str) -> None:
    means = np.array([score.get("mean", np.nan) for score in scores])
    halves = np.nan_to_num([score.get("ci95", 0.0) for score in scores])
    colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index // len(COLOURS) % len(MARKERS)]
    # A share lies between 0 and 1, so its interval is cut there.
    reach = np.minimum(halves, np.stack([means, 1 - means]).clip(min=0))
    ax.errorbar(x, means, yerr=reach, fmt=marker, color=colour, markersize=6, elinewidth=1.5, label=label)


def legend_below(figure: Figure) -> None:
    """Puts what the axes' labels say under the figure, in as many columns as fit; the figure grows with many lines."""
    labels = [label for ax in figure.axes for label in ax.get_legend_handles_labels()[1]]
    longest = max(len(line) for label in labels for line in label.splitlines())
    columns = max(1, min(len(labels), 124 // (longest + 8)))
    lines = -(-len(labels) // columns) * max(1 + label.count("\n") for label in labels)
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + LINE_INCHES * max(0, lines - FREE_LINES))
    figure.legend(loc="outside lower center", ncols=columns)


def png(figure: Figure) -> bytes:
    """The figure as the content of a file."""
    buffer = io.BytesIO()
    try:
        figure.savefig(buffer, format="png", dpi=150)
    except (RuntimeError, ValueError, OverflowError) as error:  # numbers that no axis holds
        words = "a figure cannot be drawn, for its numbers are beyond what can be shown"
        raise RunError(f"{words} ({str(error)[:200]}). Check the run's files, or score it again.") from error
    return buffer.getvalue()
