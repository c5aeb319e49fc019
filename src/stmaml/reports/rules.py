"""The figure of an ambiguous task, as PNG: its support, the rules it leaves open, and those its models chose."""

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.patches import Rectangle

from stmaml.reports.figures import COLOURS, GREY, Arrays, bare, png
from stmaml.runs import Trace

RIGHT, WRONG = COLOURS[2], COLOURS[0]
MAX_SHOWN = 5  # pictures with, and as many without
INCHES = 1.02  # of a row of pictures with what stands below and above
LEGEND = "green: the models of this rule (if it has none: all) answer right on average; orange: wrong. "
LEGEND += "Numbers: probability of the true label"


def rules_figure(traces: Sequence[Trace], title: str) -> bytes | None:
    """A block for each task: pictures of the support; for each rule how many models chose it, and what they answer."""
    tasks = [trace.arrays for trace in sorted(traces, key=lambda trace: trace.about["number"])]
    if not tasks:
        return None
    rows = 1 + tasks[0]["query_x"].shape[0]
    figure = Figure(figsize=(12.4, len(tasks) * (rows * INCHES + 0.5) + 0.9), layout="constrained")
    figure.suptitle(textwrap.fill(title, 100), fontsize=12)
    blocks = figure.subfigures(len(tasks), 1, squeeze=False)[:, 0]
    for block, task in zip(blocks, tasks, strict=True):
        _draw_task(block, task)
    figure.supxlabel(LEGEND, fontsize=9, color="#444444")
    return png(figure)


def _draw_task(block: SubFigure, task: Arrays) -> None:
    num_rules, per_set = task["query_y"].shape
    shown = min(MAX_SHOWN, per_set // 2, len(task["support_y"]) // 2)
    widths = [2.7, 1.9, *[1.0] * shown, 0.25, *[1.0] * shown]
    grid = block.add_gridspec(1 + num_rules, len(widths), width_ratios=widths)
    cells = [[block.add_subplot(grid[i, j]) for j in range(len(widths))] for i in range(1 + num_rules)]
    for ax in block.axes:
        bare(ax)
    _pictures(cells[0], task["support_x"], shown, ("all three attributes", "none of them"))
    _say(cells[0][0], "support")
    for number, row in enumerate(cells[1:]):
        _say(row[0], textwrap.fill(str(task["rules"][number]), 22))
        _bar(row[1], int((task["assigned"] == number).sum()), len(task["assigned"]))
        _pictures(row, task["query_x"][number], shown, ("both", "neither") if number == 0 else ("", ""))
        _mark(row, answers(task, number), shown)


def answers(task: Arrays, rule: int) -> np.ndarray:
    """The probability of each true label on a rule's set: mean over the models that chose it, or over all if none."""
    own = task["assigned"] == rule
    return task["probability"][own if own.any() else np.full(len(own), True), rule].mean(0)


def _shown(row: list[Axes], each: np.ndarray, shown: int) -> list[tuple[Axes, Any]]:
    """The axes of a row with what they show: the first pictures with the attributes, and the first without."""
    half = len(each) // 2
    return [*zip(row[2:], each[:shown], strict=False), *zip(row[3 + shown :], each[half : half + shown], strict=True)]


def _pictures(row: list[Axes], pictures: np.ndarray, shown: int, titles: tuple[str, str]) -> None:
    for ax, picture in _shown(row, pictures, shown):
        ax.imshow(picture)
    for ax, words in zip((row[2], row[3 + shown]), titles, strict=True):
        ax.set_title(words, loc="left", fontsize=9)


def _mark(row: list[Axes], probabilities: np.ndarray, shown: int) -> None:
    """A frame around each picture, and how probable its true label is."""
    for ax, probability in _shown(row, probabilities, shown):
        colour = RIGHT if probability > 0.5 else WRONG
        frame: Any = {"fill": False, "edgecolor": colour, "linewidth": 3, "clip_on": False}
        ax.add_patch(Rectangle((0, 0), 1, 1, transform=ax.transAxes, **frame))
        ax.set_xlabel(f"{probability:.2f}", fontsize=8, color=colour, labelpad=4)


def _bar(ax: Axes, count: int, total: int) -> None:
    ax.barh([0], [total], color="#E6E6E6", height=0.5)
    ax.barh([0], [count], color=COLOURS[1], height=0.5)
    ax.set(xlim=(0, total), ylim=(-1, 1))
    ax.text(0, 0.45, f"{count} of {total} model{'s' * (total > 1)}", fontsize=9, va="bottom")


def _say(ax: Axes, words: str) -> None:
    ax.text(0, 0.5, words, fontsize=10, va="center", transform=ax.transAxes, color="black" if words else GREY)
