"""The figure of an ambiguous task, as PNG: its support, the rules it leaves open, and those its models chose."""

import re
import textwrap
from collections.abc import Mapping
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.patches import Rectangle

from stmaml.reports.figures import COLOURS, GREY, STYLE, Arrays, png

RIGHT, WRONG = COLOURS[2], COLOURS[0]
MAX_SHOWN = 5
"""Pictures with, and as many without."""
INCHES = 1.02
"""Of a row of pictures with what stands below and above."""
NOTE = (
    "accuracy: of each sampled model on the one rule of three it serves best, chosen with the labels known, which is "
    "optimistic. accuracy_all: of the averaged probabilities on all three rules. coverage: rules that at least one "
    "model serves best, from 1 to 3; models that guess at random cover all, so read it beside the nll. The paper's "
    "figures are for CelebA: they compare with these only if the pictures are CelebA's."
)
"""What the columns of ambiguous tasks mean, for the text below their table."""


def rules_figure(curves: Mapping[str, Arrays], title: str) -> bytes | None:
    """A block for each task: pictures of the support; for each rule how many models chose it, and what they answer.

    Tasks are named `rules-<number>`; other curves are left out.
    """
    names = sorted(name for name in curves if re.fullmatch(r"rules-\d+", name))
    if not names:
        return None
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        rows = 1 + curves[names[0]]["query_x"].shape[0]
        figure = Figure(figsize=(12.4, len(names) * (rows * INCHES + 0.5) + 0.9), layout="constrained")
        figure.suptitle(textwrap.fill(title, 100), fontsize=12)
        blocks = figure.subfigures(len(names), 1, squeeze=False)[:, 0]
        for block, name in zip(blocks, names, strict=True):
            _draw_task(block, curves[name])
        figure.supxlabel(
            "green: the models of this rule (if it has none: all) answer right on average; orange: wrong. Numbers: "
            "probability of the true label",
            fontsize=9,
            color="#444444",
        )
        return png(figure)


def _draw_task(block: SubFigure, task: Arrays) -> None:
    num_rules, per_set = task["query_y"].shape
    shown = min(MAX_SHOWN, per_set // 2, len(task["support_y"]) // 2)
    widths = [2.7, 1.9, *[1.0] * shown, 0.25, *[1.0] * shown]
    grid = block.add_gridspec(1 + num_rules, len(widths), width_ratios=widths)
    cells = [[block.add_subplot(grid[i, j]) for j in range(len(widths))] for i in range(1 + num_rules)]
    for ax in (ax for row in cells for ax in row):
        _bare(ax)
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


def _columns(shown: int) -> tuple[range, range]:
    """Where the pictures with the attributes stand, and those without."""
    return range(2, 2 + shown), range(3 + shown, 3 + 2 * shown)


def _chosen(total: int, shown: int) -> list[int]:
    """The first pictures with the attributes, and the first without."""
    return [*range(shown), *range(total // 2, total // 2 + shown)]


def _pictures(row: list[Axes], pictures: np.ndarray, shown: int, titles: tuple[str, str]) -> None:
    columns = _columns(shown)
    for column, place in zip([*columns[0], *columns[1]], _chosen(len(pictures), shown), strict=True):
        row[column].imshow(pictures[place])
    for side, words in zip(columns, titles, strict=True):
        row[side[0]].set_title(words, loc="left", fontsize=9)


def _mark(row: list[Axes], probability: np.ndarray, shown: int) -> None:
    """A frame around each picture, and how probable its true label is."""
    columns = _columns(shown)
    for column, place in zip([*columns[0], *columns[1]], _chosen(len(probability), shown), strict=True):
        colour = RIGHT if probability[place] > 0.5 else WRONG
        frame: Any = {"fill": False, "edgecolor": colour, "linewidth": 3, "clip_on": False}
        row[column].add_patch(Rectangle((0, 0), 1, 1, transform=row[column].transAxes, **frame))
        row[column].set_xlabel(f"{probability[place]:.2f}", fontsize=8, color=colour, labelpad=4)


def _bar(ax: Axes, count: int, total: int) -> None:
    ax.barh([0], [total], color="#E6E6E6", height=0.5)
    ax.barh([0], [count], color=COLOURS[1], height=0.5)
    ax.set(xlim=(0, total), ylim=(-1, 1))
    ax.text(0, 0.45, f"{count} of {total} model{'s' * (total > 1)}", fontsize=9, va="bottom")


def _say(ax: Axes, words: str) -> None:
    ax.text(0, 0.5, words, fontsize=10, va="center", transform=ax.transAxes, color="black" if words else GREY)


def _bare(ax: Axes) -> None:
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
