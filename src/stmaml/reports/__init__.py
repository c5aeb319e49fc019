"""Saved runs -> Markdown and PNG. Nothing here runs a model: a report can be drawn again from the folders alone."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stmaml.conditions import shortened, slugify
from stmaml.reports import figures, images, limits, rules, shots, tables, years
from stmaml.reports.sections import Section, collect_sections, collect_sweeps
from stmaml.reports.variants import Variant, collect_variants
from stmaml.runs import Trace, write_bytes


@dataclass(frozen=True)
class Kind:
    """A kind of figure: what stands above it, and what draws it as PNG, or nothing where the data do not allow it."""

    caption: str
    draw: Callable[..., bytes | None]


FIGURES: dict[str, Kind] = {
    # Of traces, those whose `about` names the figure, in the order of the benchmark's families, and a title:
    "curves": Kind("One task of each family: seen, true and believed", figures.curves_figure),
    "ambiguity": Kind("The same functions seen through fewer or noisier examples", figures.ambiguity_figure),
    "limit": Kind("What a few examples leave open, as learnt and at best", limits.limit_figure),
    "years": Kind("A year at a station of each band: labelled days, the truth and the prediction", years.years_figure),
    "completion": Kind(
        "Images seen through few pixels and more: what was observed, sampled completions and their mean",
        images.completion_grid,
    ),
    "rules": Kind(
        "Ambiguous tasks: the support, and how many sampled models chose each of the three rules that fit it",
        rules.rules_figure,
    ),
    # Of a sweep, where its scores ask for the figure:
    "pixels": Kind(
        "How the error falls and samples agree as more pixels are observed; bands: 95 % intervals", images.pixels_figure
    ),
    "shots": Kind(
        "How the error falls with the number of labelled examples; bands: 95 % intervals", shots.shots_figure
    ),
    # Of each section, and of the variants of each benchmark:
    "reliability": Kind("How often the 90 % interval held the target", figures.coverage_figure),
    "training": Kind(
        "Training loss and validation score; thin lines: single seeds, or before smoothing", figures.training_figure
    ),
}


@dataclass(frozen=True)
class Picture:
    """A figure of a report."""

    file: str
    caption: str
    content: bytes


def write_report(folders: list[Path], out: Path) -> list[Path]:
    """Writes report.md and its figures into `out`, and gives their paths, the report first."""
    variants = collect_variants(folders)
    sections = collect_sections(variants)
    pictures = draw(variants, sections)
    files = {"report.md": markdown(variants, sections, pictures).encode()}
    files |= {picture.file: picture.content for picture in pictures}
    for name, content in files.items():
        write_bytes(out / name, content)
    return [out / name for name in files]


def draw(variants: list[Variant], sections: list[Section]) -> list[Picture]:
    """Every figure the saved data allow."""
    sweeps = collect_sweeps(sections)
    benchmarks: dict[str, list[Variant]] = {}
    for variant in variants:
        benchmarks.setdefault(variant.config["benchmark"]["name"], []).append(variant)
    drawn = [picture for variant in variants for picture in _of_traces(variant, sections, alone=len(variants) == 1)]
    kinds = [sweep.figure if sweep.figure in FIGURES else "shots" for sweep in sweeps]
    drawn += [_picture(k, sweep.title, len(sweeps) == 1, sweep) for k, sweep in zip(kinds, sweeps, strict=True)]
    drawn += [_picture("reliability", section.title, len(sections) == 1, section) for section in sections]
    drawn += [_picture("training", name, len(benchmarks) == 1, same) for name, same in benchmarks.items()]
    return [picture for picture in drawn if picture is not None]


def _of_traces(variant: Variant, sections: Iterable[Section], *, alone: bool) -> list[Picture | None]:
    """What the variant's first seed believes of single tasks."""
    families = next((list(row.families) for s in sections for row in s.rows if row.variant is variant), [])
    by_kind: dict[str, list[Trace]] = {}
    for trace in sorted(variant.runs[0].curves().values(), key=lambda trace: _place(trace, families)):
        by_kind.setdefault(trace.about["figure"], []).append(trace)
    known = [kind for kind in FIGURES if kind in by_kind]
    return [_picture(kind, variant.label, alone, by_kind[kind], variant.label) for kind in known]


def _place(trace: Trace, families: Sequence[str]) -> int:
    """Where its family stands among the benchmark's; last if it has none."""
    return min((families.index(value) for value in trace.about.values() if value in families), default=len(families))


def _picture(kind: str, about: str, alone: bool, *data: object) -> Picture | None:
    """A figure of some data; its file is called after what it is about, unless it is the only one of its kind."""
    content = figures.in_style(FIGURES[kind].draw, *data)
    file = f"{kind}.png" if alone else f"{kind}-{shortened(slugify(about))}.png"
    return None if content is None else Picture(file, FIGURES[kind].caption, content)


def markdown(variants: list[Variant], sections: list[Section], pictures: list[Picture]) -> str:
    """The text of the report."""
    parts = ["# Report", *(tables.section_markdown(section) for section in sections)]
    if pictures:
        parts += ["## Figures", *(f"{each.caption}:\n\n![{each.caption}]({each.file})" for each in pictures)]
    return "\n\n".join([*parts, tables.runs_markdown(variants)]) + "\n"
