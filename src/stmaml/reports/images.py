"""Figures of image completion, as PNG: completed images, and what more observed pixels bring. No model is run."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from stmaml.benchmarks.completion import PAPER_FAMILIES
from stmaml.metrics import Summary
from stmaml.reports.figures import BLUE, COLOURS, DASHES, STYLE, Arrays, legend_below, png
from stmaml.reports.shots import draw_error, number_axis, series

NUM_SHOWN = 4
"""Samples in a row, as in the paper."""
INCHES = 0.82
GAP = 0.35
"""Of the width of an image, between the blocks."""

Points = Mapping[str, Mapping[int, Mapping[str, Summary]]]
"""Scores by method and number of observed pixels."""


def completion_grid(traces: Mapping[str, Arrays], title: str) -> bytes | None:
    """A row for each family: the original, then for each number of pixels what was observed, samples and their mean.

    Traces are named `<family>-pixels<number>`; others are left out.
    """
    named = {match.groups(): traces[name] for name in traces if (match := re.fullmatch(r"(.+)-pixels(\d+)", name))}
    families = sorted(dict.fromkeys(family for family, _ in named), key=_place)
    blocks = sorted({int(pixels) for _, pixels in named})
    if not named or not all((family, str(pixels)) in named for family in families for pixels in blocks):
        return None
    shown = min(NUM_SHOWN, *(len(arrays["curves"]) for arrays in named.values()))
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        figure, axes = _grid(len(families), len(blocks), shown + 1 + (shown > 1))
        for row, family in zip(axes, families, strict=True):
            row[0].set_ylabel(family, fontsize=9)
            pictures = [_image(named[family, str(blocks[0])], "truth")]
            for pixels in blocks:
                pictures += _completed(named[family, str(pixels)], shown)
            for ax, picture in zip(row, pictures, strict=True):
                ax.imshow(picture, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        _head(axes[0], blocks, shown)
        figure.suptitle(textwrap.fill(title, 100), fontsize=12)
        return png(figure)


def _place(family: str) -> int:
    """The paper's families come first, in its order; others stay as they came."""
    return PAPER_FAMILIES.index(family) if family in PAPER_FAMILIES else len(PAPER_FAMILIES)


def _grid(rows: int, blocks: int, columns: int) -> tuple[Figure, list[list[Axes]]]:
    """Bare axes for an original and `blocks` blocks of `columns` images, with a gap before each block."""
    widths = [1.0] + ([GAP] + [1.0] * columns) * blocks
    figure = Figure(figsize=(INCHES * sum(widths) + 0.4, INCHES * rows + 0.75), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02, wspace=0, hspace=0)  # pyright: ignore
    spec = figure.add_gridspec(rows, len(widths), width_ratios=widths)
    axes = [[figure.add_subplot(spec[i, j]) for j, width in enumerate(widths) if width == 1] for i in range(rows)]
    for ax in (ax for row in axes for ax in row):
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
    return figure, axes


def _head(row: Sequence[Axes], blocks: Sequence[int], shown: int) -> None:
    row[0].set_title("original", fontsize=9)
    columns = (len(row) - 1) // len(blocks)
    for i, pixels in enumerate(blocks):
        first, *others = row[1 + i * columns : 1 + (i + 1) * columns]
        first.set_title(f"{pixels} pixels", fontsize=9)
        if shown == 1:
            others[0].set_title("answer", fontsize=9)
            continue
        for number, ax in enumerate(others[:shown], start=1):
            ax.set_title(f"sample {number}", fontsize=9)
        others[-1].set_title("mean", fontsize=9)


def _completed(arrays: Arrays, shown: int) -> list[np.ndarray]:
    """What was observed, the first samples, and the mean of all samples where there are several."""
    samples = [_square(arrays, curve) for curve in arrays["curves"][:shown]]
    mean = [_square(arrays, arrays["curves"].mean(0))] if shown > 1 else []
    return [observed_image(arrays), *samples, *mean]


def observed_image(arrays: Arrays) -> np.ndarray:
    """The observed pixels in grey, all others in blue, as RGB."""
    height, width = _image(arrays, "truth").shape
    picture = np.tile(np.array(to_rgb(BLUE)), (height, width, 1))
    coordinates = arrays["support_x"][:, :2]  # waves of them may follow
    rows, columns = np.rint(coordinates * [height - 1, width - 1]).astype(int).T
    picture[rows, columns] = arrays["support_y"]
    return picture


def _image(arrays: Arrays, name: str) -> np.ndarray:
    return _square(arrays, arrays[name])


def _square(arrays: Arrays, values: np.ndarray) -> np.ndarray:
    """Values of all pixels as an image: the axis holds each pixel's column."""
    return values.reshape(-1, int(arrays["axis"].max()) + 1)


def pixels_figure(points: Points, *, metric: str = "bce", floor: float | None = None) -> bytes | None:
    """Error against the number of observed pixels, and how far samples differ against their error."""
    usable = {label: series(each, metric) for label, each in points.items()}
    usable = {label: line for label, line in usable.items() if len(line["number"]) > 1}
    if not usable:
        return None
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.5, 4.2), layout="constrained")
        left, right = figure.subplots(1, 2, gridspec_kw={"wspace": 0.08})
        for i, (label, line) in enumerate(usable.items()):
            look: Any = {"color": COLOURS[i % len(COLOURS)], "linestyle": DASHES[i // len(COLOURS) % len(DASHES)]}
            draw_error(left, line, look, textwrap.fill(label, 60))
            _draw_diversity(right, line, _diversity(points[label], line["number"]), look)
        _finish_error(left, sorted({int(n) for line in usable.values() for n in line["number"]}), metric, floor)
        right.set(
            title="diversity of samples (small numbers: pixels)",
            xlabel=f"error ({_words(metric)})",
            ylabel="mean std of a pixel over samples",
        )
        right.set_ylim(bottom=0)
        legend_below(figure)
        return png(figure)


def _diversity(points: Mapping[int, Mapping[str, Summary]], numbers: np.ndarray) -> np.ndarray:
    return np.array([points[n].get("diversity", {"mean": np.nan})["mean"] for n in numbers])


def _draw_diversity(ax: Axes, line: Arrays, diversity: np.ndarray, look: Any) -> None:
    """A path from few pixels to many, its ends marked with their numbers; bare for a method without samples."""
    error = line["error"]
    ax.plot(error, diversity, marker="o", markersize=4, linewidth=1.6, clip_on=False, **look)
    ends = ((0, (5, 4)), (-1, (6, -9))) if np.nan_to_num(diversity).any() else ()
    for end, shift in ends:  # off the path, which goes down to the left
        ax.annotate(
            f"{line['number'][end]}",
            (error[end], diversity[end]),
            xytext=shift,
            textcoords="offset points",
            color=look["color"],
            fontsize=8,
        )


def _finish_error(ax: Axes, ticks: list[int], metric: str, floor: float | None) -> None:
    if floor is not None:
        ax.axhline(floor, color="black", linewidth=1.2, linestyle=":", label="floor: entropy of the grey values")
    number_axis(ax, ticks)
    ax.set(title="error", xlabel="observed pixels", ylabel=_words(metric))


def _words(metric: str) -> str:
    known = {"bce": "BCE a pixel", "bce_unseen": "BCE an unobserved pixel", "mse": "squared error"}
    return known.get(metric, metric)
