"""Figures of image completion, as PNG: completed images, and what more observed pixels bring. No model is run."""

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from stmaml.metric_table import metric
from stmaml.reports.figures import BLUE, Arrays, bare, legend_below, look, png
from stmaml.reports.sections import Sweep
from stmaml.reports.shots import draw_error, number_axis, swept_lines
from stmaml.runs import Trace

NUM_SHOWN = 4  # samples in a row, as in the paper
INCHES = 0.82
GAP = 0.35  # of the width of an image, between the blocks


def completion_grid(traces: Sequence[Trace], title: str) -> bytes | None:
    """A row for each family: the original, then for each number of pixels what was observed, samples and their mean."""
    named = {(trace.about["family"], trace.about["pixels"]): trace.arrays for trace in traces}
    families = list(dict.fromkeys(family for family, _ in named))
    blocks = sorted({pixels for _, pixels in named})
    if not named or len(named) != len(families) * len(blocks):
        return None
    shown = min(NUM_SHOWN, *(len(arrays["curves"]) for arrays in named.values()))
    figure, axes = _grid(len(families), len(blocks), shown + 1 + (shown > 1))
    for row, family in zip(axes, families, strict=True):
        row[0].set_ylabel(family, fontsize=9)
        original = _square(named[family, blocks[0]], named[family, blocks[0]]["truth"])
        completed = [picture for pixels in blocks for picture in _completed(named[family, pixels], shown)]
        for ax, picture in zip(row, [original, *completed], strict=True):
            ax.imshow(picture, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    titles = [f"sample {number + 1}" for number in range(shown)] + ["mean"] if shown > 1 else ["answer"]
    heads = [head for pixels in blocks for head in (f"{pixels} pixels", *titles)]
    for ax, head in zip(axes[0], ["original", *heads], strict=True):
        ax.set_title(head, fontsize=9)
    figure.suptitle(textwrap.fill(title, 100), fontsize=12)
    return png(figure)


def _grid(rows: int, blocks: int, columns: int) -> tuple[Figure, list[list[Axes]]]:
    """Bare axes for an original and `blocks` blocks of `columns` images, with a gap before each block."""
    widths = [1.0] + ([GAP] + [1.0] * columns) * blocks
    figure = Figure(figsize=(INCHES * sum(widths) + 0.4, INCHES * rows + 0.75), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02, wspace=0, hspace=0)  # pyright: ignore
    spec = figure.add_gridspec(rows, len(widths), width_ratios=widths)
    axes = [[figure.add_subplot(spec[i, j]) for j, width in enumerate(widths) if width == 1] for i in range(rows)]
    for ax in figure.axes:
        bare(ax)
    return figure, axes


def _completed(arrays: Arrays, shown: int) -> list[np.ndarray]:
    """What was observed, the first samples, and the mean of all samples where there are several."""
    samples = [_square(arrays, curve) for curve in arrays["curves"][:shown]]
    mean = [_square(arrays, arrays["curves"].mean(0))] if shown > 1 else []
    return [observed_image(arrays), *samples, *mean]


def observed_image(arrays: Arrays) -> np.ndarray:
    """The observed pixels in grey, all others in blue, as RGB."""
    height, width = _square(arrays, arrays["truth"]).shape
    picture = np.tile(np.array(to_rgb(BLUE)), (height, width, 1))
    coordinates = arrays["support_x"][:, :2]  # waves of them may follow
    rows, columns = np.rint(coordinates * [height - 1, width - 1]).astype(int).T
    picture[rows, columns] = arrays["support_y"]
    return picture


def _square(arrays: Arrays, values: np.ndarray) -> np.ndarray:
    """Values of all pixels as an image: the axis holds each pixel's column."""
    return values.reshape(-1, int(arrays["axis"].max()) + 1)


def pixels_figure(sweep: Sweep) -> bytes | None:
    """Error against the number of observed pixels, and how far samples differ against their error."""
    lines = swept_lines(sweep)
    if not lines:
        return None
    error = metric(sweep.metric).words
    figure = Figure(figsize=(9.5, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, gridspec_kw={"wspace": 0.08})
    for i, (label, line) in enumerate(lines.items()):
        draw_error(left, line, look(i), textwrap.fill(label, 60))
        found = [sweep.points[label][n].get("diversity", {"mean": np.nan})["mean"] for n in line["number"]]
        _draw_diversity(right, line, np.array(found), look(i))
    floors = [floor[sweep.metric]["mean"] for floor in sweep.floors.values() if sweep.metric in floor]
    if floors:
        left.axhline(floors[0], color="black", linewidth=1.2, linestyle=":", label=f"floor: {sweep.floor_name}")
    number_axis(left, lines.values())
    left.set(title="error", xlabel=sweep.label, ylabel=error)
    title = "diversity of samples (small numbers: pixels)"
    right.set(title=title, xlabel=f"error: {error}", ylabel=metric("diversity").words)
    right.set_ylim(bottom=0)
    legend_below(figure)
    return png(figure)


def _draw_diversity(ax: Axes, line: Arrays, diversity: np.ndarray, style: dict[str, Any]) -> None:
    """A path from few pixels to many, its ends marked with their numbers; bare for a method without samples."""
    ax.plot(line["error"], diversity, marker="o", markersize=4, linewidth=1.6, clip_on=False, **style)
    ends = ((0, (5, 4)), (-1, (6, -9))) if np.nan_to_num(diversity).any() else ()
    for end, shift in ends:  # off the path, which goes down to the left
        words: Any = {"textcoords": "offset points", "color": style["color"], "fontsize": 8}
        ax.annotate(f"{line['number'][end]}", (line["error"][end], diversity[end]), xytext=shift, **words)
