"""Figures of a pool of models, as PNG: its error, its weights and whether its intervals hold. No model is run."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, PercentFormatter

from stmaml.metrics import summarise
from stmaml.pool.scoring import POOL, RELIABILITY, Scored
from stmaml.reports.figures import COLOURS, GREY, Arrays, legend_below, look, png
from stmaml.reports.shots import LINE_HEIGHT, draw_error, name_lines, number_axis, scale_errors

IN_A_ROW = 5
WORDS = {"mse": "squared error", "nll": "log-loss"}


def errors_figure(scored: Sequence[Scored], metric: str) -> bytes | None:
    """The error of the pool and of each member against labelled rows, with 95 % intervals over groups."""
    if len(scored) < 2:
        return None
    lines = {name: _line(scored, name, metric) for name in scored[0].rows}
    figure = Figure(figsize=(9.5, 4.9), layout="constrained")
    ax = figure.subplots()
    for i, (name, line) in enumerate(lines.items()):
        draw_error(ax, line, _style(i, name))
    scale_errors(ax, list(lines.values()))
    number_axis(ax, lines.values())
    ax.set_xlim(left=scored[0].shots - 0.08)
    colours = [_style(i, name)["color"] for i, name in enumerate(lines)]
    name_lines(ax, list(lines), list(lines.values()), colours, LINE_HEIGHT / 4.0)
    ax.set(xlabel="labelled rows of a group", ylabel=WORDS[metric])
    figure.suptitle("Error on groups that neither members nor weights have seen", fontsize=12)
    return png(figure)


def _style(index: int, name: str) -> dict[str, Any]:
    """The pool in black and wide, members in colours."""
    if name == POOL:
        return {"color": "black", "linestyle": "-", "linewidth": 2.6, "zorder": 5}
    return {**look(index - 1), "linewidth": 1.4}


def _line(scored: Sequence[Scored], name: str, metric: str) -> Arrays:
    found = [summarise(one.rows[name][metric]) for one in scored]
    return {
        "number": np.array([one.shots for one in scored]),
        "error": np.array([summary["mean"] for summary in found]),
        "half": np.nan_to_num([summary["ci95"] for summary in found]),
    }


def weights_figure(weights: Mapping[str, Mapping[str, float]]) -> bytes | None:
    """What each member counts against labelled rows, one above the other."""
    counts = list(weights)
    members = [name for name in weights[counts[0]] if max(weights[shots][name] for shots in counts) >= 0.005]
    figure = Figure(figsize=(9.5, 3.9), layout="constrained")
    ax = figure.subplots()
    bottom, places = np.zeros(len(counts)), np.arange(len(counts))
    every = list(weights[counts[0]])
    for name in members:
        heights = np.array([weights[shots][name] for shots in counts])
        colour = COLOURS[every.index(name) % len(COLOURS)]
        hatch = "//" if every.index(name) >= len(COLOURS) else None
        ax.bar(places, heights, 0.72, bottom=bottom, color=colour, edgecolor="white", hatch=hatch, label=name)
        _write_shares(ax, places, bottom, heights)
        bottom += heights
    ax.set_xticks(places, counts)
    ax.grid(False, axis="x")
    ax.set(xlabel="labelled rows of a group", ylabel="weight", ylim=(0, 1))
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    legend_below(figure)
    figure.suptitle("What each member counts", fontsize=12)
    return png(figure)


def _write_shares(ax: Axes, places: np.ndarray, bottom: np.ndarray, heights: np.ndarray) -> None:
    """The share in each part of a bar that has room for it."""
    for place, low, height in zip(places, bottom, heights, strict=True):
        if height >= 0.06:
            words = f"{100 * height:.0f} %"
            ax.text(place, low + height / 2, words, ha="center", va="center", color="white", fontsize=9)


def _panels(count: int, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with so many axes in one row, or in two where they are many; shares on the horizontal axis."""
    columns = count if count <= IN_A_ROW else -(-count // 2)
    rows = -(-count // columns)
    figure = Figure(figsize=(9.5, height * rows + 0.7), layout="constrained")
    axes = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
    for ax in axes:
        ax.xaxis.set_major_formatter(PercentFormatter(1.0))
        ax.xaxis.set_major_locator(FixedLocator([0.0, 0.5, 0.9]))
    for ax in axes[count:]:
        ax.set_visible(False)
    return figure, axes[:count]


def reliability_figure(scored: Sequence[Scored]) -> bytes | None:
    """How often intervals (or sets) of each level hold, for each number of labelled rows: on the diagonal, if right."""
    word = "after" if "90% after" in scored[0].held else "holds"
    levels = [level for level in RELIABILITY if f"{level:.0%} {word}" in scored[0].held]
    figure, axes = _panels(len(scored), 2.2)
    for ax, one in zip(axes, scored, strict=True):
        _draw_reliability(ax, one, levels, word)
    figure.supxlabel("asked for", fontsize=10)
    figure.supylabel("held", fontsize=10)
    what = "intervals" if word == "after" else "sets of classes"
    figure.suptitle(f"How often {what} hold; bars: 95 % intervals over groups", fontsize=12)
    return png(figure)


def _draw_reliability(ax: Axes, one: Scored, levels: Sequence[float], word: str) -> None:
    found = [summarise(one.held[f"{level:.0%} {word}"]) for level in levels]
    means = np.array([summary["mean"] for summary in found])
    halves = np.nan_to_num([summary["ci95"] for summary in found])
    low = min(levels[0], float(means.min())) - 0.05
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle="--", zorder=1)
    reach = np.minimum(halves, np.stack([means, 1 - means]).clip(min=0))
    ax.errorbar(levels, means, yerr=reach, fmt="o-", color=COLOURS[1], markersize=3.5, linewidth=1.4, elinewidth=1.1)
    ax.set(xlim=(levels[0] - 0.05, 1.0), ylim=(max(low, 0.0), 1.02))
    ax.set_title("1 labelled row" if one.shots == 1 else f"{one.shots} labelled rows")
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))


def groups_figure(scored: Sequence[Scored]) -> bytes | None:
    """How many groups have which share of their rows in 90 % intervals (or sets): few should be far below."""
    word = "after" if "90% after" in scored[0].held else "holds"
    figure, axes = _panels(len(scored), 2.2)
    for ax, one in zip(axes, scored, strict=True):
        held = one.held[f"90% {word}"]
        ax.hist(held, bins=np.linspace(0, 1, 21).tolist(), color=COLOURS[1], alpha=0.85, edgecolor="white")
        ax.axvline(0.9, color=GREY, linewidth=1, linestyle="--")
        below = f"{int((held < 0.8).sum())} of {len(held)}\nbelow 80 %"
        ax.text(0.03, 0.93, below, transform=ax.transAxes, va="top", fontsize=9, color="#444444")
        ax.set_title("1 labelled row" if one.shots == 1 else f"{one.shots} labelled rows")
    figure.supxlabel(
        f"share of a group's rows that 90 % {'intervals' if word == 'after' else 'sets'} hold", fontsize=10
    )
    figure.supylabel("groups", fontsize=10)
    figure.suptitle("Which groups the intervals serve", fontsize=12)
    return png(figure)
