"""Charts of a pool of models, for a page. No model is run."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stmaml.metrics import summarise
from stmaml.pool.scoring import POOL, RELIABILITY, Scored
from stmaml.reports.charts import Axis, Chart, Columns, Dots, Estimates, Line, Mark, Panels, Rule, around

LABELLED = "labelled rows of a group"
WORDS = {"mse": "squared error", "nll": "log-loss"}
COLOURS = 7
MOST_GROUPS = 500


def rows_in_words(shots: int) -> str:
    """`1 labelled row`, `5 labelled rows`."""
    return "1 labelled row" if shots == 1 else f"{shots:,} labelled rows"


def errors_chart(scored: Sequence[Scored], metric: str) -> Chart | None:
    """The error of the pool and of each member against labelled rows, with 95 % intervals over groups."""
    if len(scored) < 2:
        return None
    lines = [_line(scored, name, metric, place) for place, name in enumerate(scored[0].rows)]
    shots = tuple(float(one.shots) for one in scored)
    values = np.concatenate([line.y for line in lines])
    y = Axis(WORDS[metric], "log" if values.min() > 0 else "linear")
    return Chart("Error against labelled rows", tuple(lines), Axis(LABELLED, "count", shots), y, height=380)


def _line(scored: Sequence[Scored], name: str, metric: str, place: int) -> Line:
    found = [summarise(one.rows[name][metric]) for one in scored]
    x, y = np.array([float(one.shots) for one in scored]), np.array([one["mean"] for one in found])
    if name != POOL:  # the pool alone has a band: that of ten members is a fog
        return Line(name, x, y, colour=place - 1, dash=(place - 1) // COLOURS % 3)
    low, high = around(y, np.array([one["ci95"] for one in found]))
    return Line(name, x, y, low, high, colour="ink", wide=True)


def weights_chart(weights: Mapping[str, Mapping[str, float]]) -> Chart | None:
    """What each member counts against labelled rows, one above the other."""
    counts = list(weights)
    every = list(weights[counts[0]])
    shown = [name for name in every if max(weights[shots][name] for shots in counts) >= 0.005]
    bottom, marks = np.zeros(len(counts)), []
    for name in shown:
        heights = np.array([weights[shots][name] for shots in counts])
        labels = tuple(f"{100 * height:.0f} %" for height in heights)
        tips = tuple(f"{name}, {rows_in_words(int(n))}: {label}" for n, label in zip(counts, labels, strict=True))
        place = np.arange(len(counts), dtype=float)
        marks.append(Columns(name, place, bottom, bottom + heights, 0.74, every.index(name), tips, labels))
        bottom = bottom + heights
    ticks = tuple(float(place) for place in range(len(counts)))
    x = Axis(LABELLED, ticks=ticks, names=tuple(counts), low=-0.5, high=len(counts) - 0.5)
    return Chart("What each member counts", tuple(marks), x, Axis("weight", percent=True, low=0.0, high=1.0))


def reliability_chart(scored: Sequence[Scored]) -> Panels | None:
    """How often intervals (or sets) of each level hold, for each number of labelled rows: on the diagonal, if right."""
    word = "after" if "90% after" in scored[0].held else "holds"
    levels = [level for level in RELIABILITY if f"{level:.0%} {word}" in scored[0].held]
    return Panels("Reliability", tuple(_reliability(one, levels, word) for one in scored))


def _reliability(one: Scored, levels: Sequence[float], word: str) -> Chart:
    found = [summarise(one.held[f"{level:.0%} {word}"]) for level in levels]
    mean, x = np.array([summary["mean"] for summary in found]), np.array(levels)
    low, high = around(mean, np.array([summary["ci95"] for summary in found]), share=True)
    marks: tuple[Mark, ...] = (Rule("as claimed"), Line("held", x, mean, low, high, colour=1))
    axis = Axis("asked for", percent=True, low=0.0, high=1.0, ticks=(0.0, 0.25, 0.5, 0.75, 1.0))
    return Chart(rows_in_words(one.shots), marks, axis, Axis("", percent=True, low=0.0, high=1.0, ticks=axis.ticks))


def held_chart(scored: Sequence[Scored]) -> Panels | None:
    """How many groups have which share of their rows in 90 % intervals (or sets): few should be far below."""
    word = "after" if "90% after" in scored[0].held else "holds"
    return Panels("Groups by coverage", tuple(_histogram(one, one.held[f"90% {word}"]) for one in scored))


def _histogram(one: Scored, held: np.ndarray) -> Chart:
    count, edges = np.histogram(held, bins=np.linspace(0, 1, 21))
    middle = (edges[1:] + edges[:-1]) / 2
    tips = tuple(
        f"{n} groups: {100 * a:.0f} to {100 * b:.0f} %" for n, a, b in zip(count, edges, edges[1:], strict=False)
    )
    bars = Columns("groups", middle, np.zeros(len(count)), count.astype(float), 0.05, 1, tips)
    note = f"{int((held < 0.8).sum())} of {len(held)} below 80 %"
    x = Axis("share of rows held", percent=True, low=0.0, high=1.0, ticks=(0.0, 0.5, 0.9))
    return Chart(rows_in_words(one.shots), (bars, Rule(x=0.9)), x, Axis("groups", low=0.0), note=note)


def gains_chart(scored: Sequence[Scored], names: Sequence[str] | None, metric: str) -> Chart | None:
    """Each group's error without labelled rows and with the most: below the diagonal, labels help."""
    first, last = scored[0], scored[-1]
    both = np.intersect1d(first.groups, last.groups)[:MOST_GROUPS]
    if len(scored) < 2 or len(both) < 2:
        return None
    x, y = (one.rows[POOL][metric][np.searchsorted(one.groups, both)] for one in (first, last))
    if metric == "mse":
        x, y = np.sqrt(x), np.sqrt(y)
    said = [str(group) if names is None else names[group] for group in both]
    tips = tuple(f"{name}: {a:.3g} to {b:.3g}" for name, a, b in zip(said, x, y, strict=True))
    word = "typical error" if metric == "mse" else WORDS[metric]
    top = float(max(x.max(), y.max())) * 1.05
    marks: tuple[Mark, ...] = (Rule("no gain"), Dots("a group", x, y, colour=1, tips=tips))
    axes = [Axis(f"{word} with {rows_in_words(one.shots)}", low=0.0, high=top) for one in (first, last)]
    return Chart("Groups: error without and with labels", marks, axes[0], axes[1], height=400)


def importance_chart(importance: Mapping[str, Any]) -> Estimates | None:
    """By how much the error rises with each column mixed up, without labelled rows and with the usual number."""
    if not importance:
        return None
    last = list(importance)[-1]
    found = importance[last]["columns"]
    names = sorted(found, key=lambda name: -max(each["columns"][name]["mean"] for each in importance.values()))
    series = tuple(_series(shots, each["columns"], names, i) for i, (shots, each) in enumerate(importance.items()))
    axis = Axis("rise of the error when a column is mixed up", percent=True)
    return Estimates("Which columns matter", tuple(names), series, axis, zero=0.0)


def _series(shots: str, columns: Mapping[str, Mapping[str, float]], names: Sequence[str], place: int) -> Dots:
    mean, half = (np.array([columns[name][part] for name in names]) for part in ("mean", "ci95"))
    low, high = around(mean, half)
    words = rows_in_words(int(shots))
    tips = tuple(f"{n}, {words}: {100 * m:+.1f} % ± {100 * h:.1f}" for n, m, h in zip(names, mean, half, strict=True))
    return Dots(words, mean, np.arange(len(names), dtype=float), low, high, (4, 1)[place % 2], tips)


def told_chart(title: str, truth: np.ndarray, expected: np.ndarray, low: np.ndarray, high: np.ndarray) -> Chart:
    """Asked rows of one group: the truth, and what was said before."""
    x = np.arange(1, len(truth) + 1, dtype=float)
    marks = (Dots("truth", x, truth, colour="ink"), Line("prediction, 90 % interval", x, expected, low, high, colour=1))
    return Chart(title, marks, Axis("asked rows, in order"), Axis())
