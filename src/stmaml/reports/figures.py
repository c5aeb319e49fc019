"""Figures of saved runs, as PNG, and the look all figures share. No model is run."""

import io
import textwrap
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stmaml.benchmarks.regression2d import FAMILIES, SHOWCASE_CONDITIONS
from stmaml.reports.variants import Section, Variant

Arrays = dict[str, np.ndarray]

BLUE, GREY = "#0072B2", "#777777"
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""The palette of Okabe and Ito, which colour-blind readers can tell apart."""
SOLUTIONS = ("#D55E00", "#E69F00", "#009E73", "#CC79A7", "#8C510A")
"""For sampled curves: the blue is kept for the truth."""
DASHES = ("-", "--", ":")
MARKERS = ("o", "s", "^")
AMBIGUOUS_FAMILIES = ("sinusoid", "cubic")
STYLE: Any = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.8,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "legend.frameon": False,
    "figure.dpi": 150,
}


def curves_figure(curves: dict[str, Arrays], title: str) -> bytes | None:
    """One task of each family with 10 shots: what was seen, what is true, what is believed."""
    shots, noise = SHOWCASE_CONDITIONS[0]
    names = [f"{family.name}-shots{shots}-noise{noise:g}" for family in FAMILIES]
    if not all(name in curves for name in names):
        return None
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.5, 5.9), layout="constrained")
        axes = figure.subplots(2, 3, sharex=True)
        for ax, family, name in zip(axes.flat, FAMILIES, names, strict=True):
            _draw_task(ax, curves[name])
            ax.set_title(family.name)
        _finish_tasks(figure, axes, f"{title}: {shots} shots, noise {noise:g}")
        return png(figure)


def ambiguity_figure(curves: dict[str, Arrays], title: str) -> bytes | None:
    """The same functions seen through fewer or noisier examples: beliefs should widen."""
    conditions = SHOWCASE_CONDITIONS[1:]
    names = [[f"{f}-shots{shots}-noise{noise:g}" for shots, noise in conditions] for f in AMBIGUOUS_FAMILIES]
    if not all(name in curves for row in names for name in row):
        return None
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 5.6), layout="constrained")
        axes = figure.subplots(2, len(conditions), sharex=True, sharey="row")
        for ax, name in zip(axes.flat, [name for row in names for name in row], strict=True):
            _draw_task(ax, curves[name])
        for ax, (shots, noise) in zip(axes[0], conditions, strict=True):
            ax.set_title(f"{shots} shots, noise {noise:g}")
        _finish_tasks(figure, axes, title)
        for ax, family in zip(axes[:, 0], AMBIGUOUS_FAMILIES, strict=True):
            ax.set_ylabel(f"{family}: y")
        figure.align_ylabels()
        return png(figure)


def _draw_task(ax: Axes, arrays: Arrays) -> None:
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


def _finish_tasks(figure: Figure, axes: np.ndarray, title: str) -> None:
    for ax in axes[-1]:
        ax.set_xlabel("$x_1$")
    for ax in axes[:, 0]:
        ax.set_ylabel("y")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    order = (2, 3, 1, 0)  # what is known first, then what is believed
    figure.legend([handles[i] for i in order], [labels[i] for i in order], loc="outside lower center", ncols=len(order))
    figure.suptitle(textwrap.fill(title, 100), fontsize=12)


def training_figure(variants: list[Variant]) -> bytes | None:
    """Training loss and validation score against steps: a line for each variant, averaged over its seeds."""
    variants = [variant for variant in variants if all(run.log() for run in variant.runs)]
    if not variants:
        return None
    metric = variants[0].config["training"].get("val_metric", "mse")
    losses = [[_series(run.log(), "loss") for run in variant.runs] for variant in variants]
    scores = [[_series(run.log(), "validation", metric) for run in variant.runs] for variant in variants]
    if not any(len(steps) for seeds in losses for steps, _ in seeds):
        return None
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.5, 3.9), layout="constrained")
        left, right = figure.subplots(1, 2)
        for i, variant in enumerate(variants):
            _draw_series(left, losses[i], i, textwrap.fill(variant.label, 60), smooth=True)
            _draw_series(right, scores[i], i, None, smooth=False)
        for ax, title in ((left, "training loss (each method's own)"), (right, f"validation {metric}")):
            ax.set(title=title, xlabel="meta-steps")
            _log_scale_if_wide(ax)
        legend_below(figure)
        return png(figure)


def _series(log: list[dict[str, Any]], *path: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values of the log's entries that have this value."""
    steps, values = [], []
    for entry in log:
        value: Any = entry
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, int | float):
            steps.append(entry.get("step", 0))
            values.append(value)
    return np.array(steps), np.array(values, dtype=float)


def _draw_series(
    ax: Axes, seeds: list[tuple[np.ndarray, np.ndarray]], index: int, label: str | None, *, smooth: bool
) -> None:
    colour, dash = COLOURS[index % len(COLOURS)], DASHES[index // len(COLOURS) % len(DASHES)]
    length = min(len(steps) for steps, _ in seeds)
    if not length:
        return
    steps, values = seeds[0][0][:length], np.stack([values[:length] for _, values in seeds])
    window = max(1, length // 40) if smooth else 1
    if window > 1 or len(seeds) > 1:
        for one in values:
            ax.plot(steps, one, color=colour, alpha=0.25, linewidth=0.8)
    marker = "o" if length < 20 else None
    mean = _running_mean(values.mean(0), window)
    ax.plot(steps, mean, dash, color=colour, linewidth=1.8, marker=marker, markersize=4, label=label)


def _running_mean(values: np.ndarray, window: int) -> np.ndarray:
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
    for axis_labels in (ax.yaxis.set_major_formatter, ax.yaxis.set_minor_formatter):
        axis_labels(plain)


def coverage_figure(section: Section) -> bytes | None:
    """How often the 90 % interval held the target, for each family: it should be 90 % of the time."""
    rows = [row for row in section.rows if all("coverage90" in scores for scores in row.families.values())]
    families = section.families
    if not rows or not families:
        return None
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.5, 3.6), layout="constrained")
        ax = figure.subplots()
        ax.axhline(0.9, color="black", linewidth=1.2, linestyle="--", label="as claimed (0.9)")
        for i, row in enumerate(rows):
            scores = [row.families.get(family, {}).get("coverage90", {}) for family in families]
            shift = (i - (len(rows) - 1) / 2) * min(0.14, 0.7 / len(rows))
            _draw_dots(ax, np.arange(len(families)) + shift, scores, i, row.variant.label)
        ax.set_xticks(range(len(families)), families)
        ax.set_ylabel("coverage of the 90 % interval")
        ax.grid(False, axis="x")
        ax.set_title(section.title)
        legend_below(figure)
        return png(figure)


def _draw_dots(ax: Axes, x: np.ndarray, scores: list[dict[str, float]], index: int, label: str) -> None:
    means = np.array([score.get("mean", np.nan) for score in scores])
    halves = np.nan_to_num([score.get("ci95", 0.0) for score in scores])
    colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index // len(COLOURS) % len(MARKERS)]
    # A share lies between 0 and 1, so its interval is cut there.
    reach = np.minimum(halves, np.stack([means, 1 - means]).clip(min=0))
    ax.errorbar(
        x, means, yerr=reach, fmt=marker, color=colour, markersize=6, elinewidth=1.5, label=textwrap.fill(label, 60)
    )


def legend_below(figure: Figure) -> None:
    """Puts what the axes' labels say under the figure, in as many columns as fit."""
    labels = [label for ax in figure.axes for label in ax.get_legend_handles_labels()[1]]
    figure.legend(
        loc="outside lower center",
        ncols=max(1, min(len(labels), 124 // (max(len(line) for label in labels for line in label.splitlines()) + 8))),
    )


def png(figure: Figure) -> bytes:
    """The figure as the content of a file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
