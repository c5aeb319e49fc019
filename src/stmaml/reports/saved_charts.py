"""Charts of saved runs, for a page: scores by family, labelled examples and step. No model is run."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from stmaml.metric_table import METRICS, metric
from stmaml.metrics import Summary
from stmaml.reports.charts import Axis, Chart, Dots, Line, Mark, Panels, Rule, around
from stmaml.reports.figures import COVERAGE, Arrays, loss_series, running_mean, validation_metric, validation_series
from stmaml.reports.labels import short_labels
from stmaml.reports.sections import Section, Sweep
from stmaml.reports.shots import swept_floor, swept_lines
from stmaml.reports.variants import Variant

WIDE_RANGE = 5  # times the smallest value: beyond it an axis is logarithmic
COLOURS = 7


def family_chart(section: Section) -> Chart | None:
    """The first metric for each family and row."""
    name = section.metrics[0]
    if len(section.families) < 2:
        return None
    found = {row.label: [row.families.get(family, {}).get(name) for family in section.families] for row in section.rows}
    marks = _spread_dots(found, share=metric(name).better == "higher")
    values = np.concatenate([mark.y for mark in marks])
    label = metric(name).words
    return Chart(f"{label} by family", tuple(marks), _named(section.families), Axis(label, scale=_scale(values)))


def coverage_chart(section: Section) -> Chart | None:
    """How often the 90 % interval held the target, for each family: it should be 90 % of the time."""
    found = {row.label: row.families or {"all": row.metrics} for row in section.rows}
    found = {label: each for label, each in found.items() if all(COVERAGE.name in scores for scores in each.values())}
    families = list(dict.fromkeys(family for each in found.values() for family in each))
    if not found:
        return None
    scores = {label: [each.get(family, {}).get(COVERAGE.name) for family in families] for label, each in found.items()}
    marks: list[Mark] = [Rule("as claimed", y=COVERAGE.nominal), *_spread_dots(scores, share=True)]
    axis = Axis("held by the 90 % interval", percent=True)
    return Chart("Coverage of the 90 % interval by family", tuple(marks), _named(families), axis)


def _named(families: Sequence[str]) -> Axis:
    ticks = tuple(float(place) for place in range(len(families)))
    return Axis(ticks=ticks, names=tuple(families), low=-0.5, high=len(families) - 0.5)


def _spread_dots(found: dict[str, list[Summary | None]], *, share: bool) -> list[Dots]:
    """Dots with intervals at each place, those of the same place beside each other."""
    dots, short = [], short_labels(list(found))
    step = min(0.14, 0.8 / max(len(found), 1))
    for i, (label, scores) in enumerate(found.items()):
        mean = np.array([np.nan if score is None else score["mean"] for score in scores])
        half = np.array([np.nan if score is None else score["ci95"] for score in scores])
        low, high = around(mean, half, share=share)
        x = np.arange(len(scores)) + (i - (len(found) - 1) / 2) * step
        tips = tuple(
            f"{short[label]}: {m:.4g}{'' if np.isnan(h) else f' ± {h:.2g}'}" for m, h in zip(mean, half, strict=True)
        )
        dots.append(Dots(short[label], x, mean, low, high, i, tips))
    return dots


def _scale(values: np.ndarray) -> Literal["linear", "log"]:
    known = values[np.isfinite(values)]
    wide = known.size > 1 and known.min() > 0 and known.max() > WIDE_RANGE * known.min()
    return "log" if wide else "linear"


def sweep_chart(sweep: Sweep) -> Chart | None:
    """The first metric against the number of labelled examples: a line for each variant."""
    lines = swept_lines(sweep)
    if not lines:
        return None
    short = short_labels(list(lines))
    marks = [_error_line(short[label], line, i) for i, (label, line) in enumerate(lines.items())]
    floor = swept_floor(sweep)
    if len(floor["number"]):
        bare = {**floor, "half": np.zeros(len(floor["number"]))}
        marks.append(Line(sweep.floor_name, bare["number"].astype(float), bare["error"], colour="ink", dash=2))
    numbers = sorted({float(number) for line in lines.values() for number in line["number"]})
    error = np.concatenate([line["error"] for line in lines.values()])
    y = Axis(metric(sweep.metric).words, "log" if error.min() > 0 else "linear")
    return Chart(sweep.title, tuple(marks), Axis(sweep.label, "count", tuple(numbers)), y, height=340)


def _error_line(label: str, line: Arrays, place: int) -> Line:
    low, high = around(line["error"], line["half"])
    dash = place // COLOURS % 3
    return Line(label, line["number"].astype(float), line["error"], low, high, colour=place, dash=dash)


def training_chart(variants: list[Variant]) -> Panels | None:
    """Training loss and validation score against steps: a line for each variant, averaged over its seeds."""
    variants = [variant for variant in variants if all(run.log() for run in variant.runs)]
    if not variants:
        return None
    name = validation_metric(variants[0])
    losses = [[loss_series(run) for run in variant.runs] for variant in variants]
    scores = [[validation_series(run, name) for run in variant.runs] for variant in variants]
    words = METRICS[name].words if name in METRICS else name
    charts = [
        _curves("Training loss (each method's own)", variants, losses, smooth=True),
        _curves(f"Validation: {words}", variants, scores, smooth=False),
    ]
    drawn = tuple(chart for chart in charts if chart is not None)
    return Panels("Training", drawn, "wide") if drawn else None


def _curves(title: str, variants: list[Variant], found: list[list[np.ndarray]], *, smooth: bool) -> Chart | None:
    short = short_labels([variant.label for variant in variants])
    marks = [
        mark
        for i, (variant, seeds) in enumerate(zip(variants, found, strict=True))
        for mark in _seeds_lines(short[variant.label], seeds, i, smooth=smooth)
    ]
    if not marks:
        return None
    values = np.concatenate([mark.y for mark in marks])
    return Chart(title, tuple(marks), Axis("meta-steps"), Axis("", _scale(values)))


def _seeds_lines(label: str, seeds: list[np.ndarray], place: int, *, smooth: bool) -> list[Line]:
    length = min(len(seed) for seed in seeds)
    if not length:
        return []
    steps, values = seeds[0][:length, 0], np.stack([seed[:length, 1] for seed in seeds])
    window = max(1, length // 40) if smooth else 1
    single = values if window > 1 or len(seeds) > 1 else values[:0]
    lines = [Line("", steps, one, colour=place, dots=False, faint=True) for one in single]
    mean = running_mean(values.mean(0), window)
    return [*lines, Line(label, steps, mean, colour=place, dots=length < 20, dash=place // COLOURS % 3)]
