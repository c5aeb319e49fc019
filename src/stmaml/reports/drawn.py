"""Every figure that saved runs allow, and where in a report it stands."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from stmaml.conditions import shortened, slugify
from stmaml.reports import figures, images, limits, rules, saved_charts, shots, task_charts, years
from stmaml.reports.charts import Drawing, Picture
from stmaml.reports.content import Figure
from stmaml.reports.sections import Section, collect_sweeps
from stmaml.reports.variants import Variant
from stmaml.runs import Trace


@dataclass(frozen=True)
class Kind:
    """A kind of figure: what is said of it, and what draws it as PNG and for a page, or nothing where the data do not
    allow it."""

    caption: str
    draw: Callable[..., bytes | None] | None
    chart: Callable[..., Drawing | None] | None = None
    """A page shows the PNG where there is none."""
    under: str = ""
    """The part of a report it stands in; its section's if not given."""


SINGLE, FEWER, TRAINING = "Single tasks", "Labelled examples", "Training"
FIGURES: dict[str, Kind] = {
    # Of traces, those whose `about` names the figure, in the order of the benchmark's families, and a title:
    "curves": Kind(
        "One task of each family: seen, true and believed", figures.curves_figure, task_charts.curves_chart, SINGLE
    ),
    "ambiguity": Kind(
        "The same functions seen through fewer or noisier examples",
        figures.ambiguity_figure,
        task_charts.ambiguity_chart,
        SINGLE,
    ),
    "limit": Kind(
        "What a few examples leave open, as learnt and at best", limits.limit_figure, task_charts.limit_chart, SINGLE
    ),
    "years": Kind(
        "A year at a station of each band: labelled days, the truth and the prediction",
        years.years_figure,
        task_charts.years_chart,
        SINGLE,
    ),
    "completion": Kind(
        "Images seen through few pixels and more: what was observed, sampled completions and their mean",
        images.completion_grid,
        under=SINGLE,
    ),
    "rules": Kind(
        "Ambiguous tasks: the support, and how many sampled models chose each of the three rules that fit it",
        rules.rules_figure,
        under=SINGLE,
    ),
    # Of a sweep, where its scores ask for the figure:
    "pixels": Kind(
        "How the error falls and samples agree as more pixels are observed; bands: 95 % intervals",
        images.pixels_figure,
        saved_charts.sweep_chart,
        FEWER,
    ),
    "shots": Kind(
        "How the error falls with the number of labelled examples; bands: 95 % intervals",
        shots.shots_figure,
        saved_charts.sweep_chart,
        FEWER,
    ),
    # Of each section, and of the variants of each benchmark:
    "families": Kind("Scores by family; bars: 95 % intervals", None, saved_charts.family_chart),
    "reliability": Kind(
        "How often the 90 % interval held the target", figures.coverage_figure, saved_charts.coverage_chart
    ),
    "training": Kind(
        "Training loss and validation score; thin lines: single seeds, or before smoothing",
        figures.training_figure,
        saved_charts.training_chart,
        TRAINING,
    ),
}


@dataclass(frozen=True)
class Drawn:
    """A figure, and the part it stands in."""

    figure: Figure
    benchmark: str
    under: str


def draw(variants: list[Variant], sections: list[Section]) -> list[Drawn]:
    """Every figure the saved data allow."""
    sweeps = collect_sweeps(sections)
    benchmarks: dict[str, list[Variant]] = {}
    for variant in variants:
        benchmarks.setdefault(variant.config["benchmark"]["name"], []).append(variant)
    drawn = [picture for variant in variants for picture in _of_traces(variant, sections, alone=len(variants) == 1)]
    for sweep in sweeps:
        kind = sweep.figure if sweep.figure in FIGURES else "shots"
        drawn.append(_drawn(kind, sweep.title, sweep.benchmark, len(sweeps) == 1, sweep))
    for section in sections:
        benchmark = section.conditions.benchmark
        drawn += [
            _drawn(kind, section.title, benchmark, len(sections) == 1, section) for kind in ("families", "reliability")
        ]
    drawn += [_drawn("training", name, name, len(benchmarks) == 1, same) for name, same in benchmarks.items()]
    return [one for one in drawn if one is not None]


def _of_traces(variant: Variant, sections: Iterable[Section], *, alone: bool) -> list[Drawn | None]:
    """What the variant's first seed believes of single tasks."""
    families = next((list(row.families) for s in sections for row in s.rows if row.variant is variant), [])
    by_kind: dict[str, list[Trace]] = {}
    for trace in sorted(variant.runs[0].curves().values(), key=lambda trace: _place(trace, families)):
        by_kind.setdefault(trace.about["figure"], []).append(trace)
    known = [kind for kind in FIGURES if kind in by_kind]
    benchmark = variant.config["benchmark"]["name"]
    return [_drawn(kind, variant.label, benchmark, alone, by_kind[kind], variant.label) for kind in known]


def _place(trace: Trace, families: Sequence[str]) -> int:
    """Where its family stands among the benchmark's; last if it has none."""
    return min((families.index(value) for value in trace.about.values() if value in families), default=len(families))


def _drawn(kind: str, about: str, benchmark: str, alone: bool, *data: object) -> Drawn | None:
    """A figure of some data; its file is called after what it is about, unless it is the only one of its kind."""
    known = FIGURES[kind]
    content = None if known.draw is None else figures.in_style(known.draw, *data)
    drawing = known.chart(*data) if known.chart else None if content is None else Picture(about, content)
    if content is None and drawing is None:
        return None
    file = f"{kind}.png" if alone else f"{kind}-{shortened(slugify(about))}.png"
    title = "" if known.under in ("", TRAINING) else about
    figure = Figure(known.caption, title, file, content, drawing)
    return Drawn(figure, benchmark, known.under or about)
