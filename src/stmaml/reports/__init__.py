"""Saved runs -> Markdown and PNG. Nothing here runs a model: a report can be drawn again from the folders alone."""

from pathlib import Path

from stmaml.reports import figures, images, rules, shots, tables, years
from stmaml.reports.variants import Section, Sweep, Variant, collect_sections, collect_sweeps, collect_variants, slugify
from stmaml.runs import write_bytes

CAPTIONS = {
    "curves": "One task of each family: seen, true and believed",
    "ambiguity": "The same functions seen through fewer or noisier examples",
    "years": "A year at a station of each band: labelled days, the truth and the prediction",
    "completion": "Images seen through few pixels and more: what was observed, sampled completions and their mean",
    "rules": "Ambiguous tasks: the support, and how many sampled models chose each of the three rules that fit it",
    "pixels": "How the error falls and samples agree as more pixels are observed; bands: 95 % intervals",
    "shots": "How the error falls with the number of labelled examples; bands: 95 % intervals",
    "reliability": "How often the 90 % interval held the target",
    "training": "Training loss and validation score; thin lines: single seeds, or before smoothing",
}


def write_report(folders: list[Path], out: Path) -> list[Path]:
    """Writes report.md and its figures into `out`, and gives their paths, the report first."""
    variants = collect_variants(folders)
    sections = collect_sections(variants)
    pictures = draw(variants, sections)
    files = {"report.md": markdown(variants, sections, list(pictures)).encode(), **pictures}
    for name, content in files.items():
        write_bytes(out / name, content)
    return [out / name for name in files]


def draw(variants: list[Variant], sections: list[Section]) -> dict[str, bytes]:
    """Every figure the saved data allow, by file name."""
    drawn: dict[str, bytes | None] = {}
    for variant in variants:
        drawn |= _variant_figures(variant, len(variants))
    sweeps = collect_sweeps(sections)
    for sweep in sweeps:
        drawn |= _sweep_figure(sweep, len(sweeps))
    for section in sections:
        drawn[_file_name("reliability", section.title, len(sections))] = figures.coverage_figure(section)
    benchmarks = dict.fromkeys(variant.config["benchmark"]["name"] for variant in variants)
    for name in benchmarks:
        same = [variant for variant in variants if variant.config["benchmark"]["name"] == name]
        drawn[_file_name("training", name, len(benchmarks))] = figures.training_figure(same)
    return {name: png for name, png in drawn.items() if png is not None}


def _variant_figures(variant: Variant, count: int) -> dict[str, bytes | None]:
    """What the variant's first seed believes of single tasks, by file name."""
    curves = variant.runs[0].curves()
    kinds = {
        "curves": figures.curves_figure,
        "ambiguity": figures.ambiguity_figure,
        "years": years.years_figure,
        "completion": images.completion_grid,
        "rules": rules.rules_figure,
    }
    return {_file_name(kind, variant.label, count): make(curves, variant.label) for kind, make in kinds.items()}


def _sweep_figure(sweep: Sweep, count: int) -> dict[str, bytes | None]:
    """The error against the number of observed pixels or labelled examples, by file name."""
    if sweep.benchmark != "completion":
        return {_file_name("shots", sweep.title, count): shots.shots_figure(sweep)}
    floors = [floor[sweep.metric]["mean"] for floor in sweep.floors.values() if sweep.metric in floor]
    figure = images.pixels_figure(sweep.points, metric=sweep.metric, floor=floors[0] if floors else None)
    return {_file_name("pixels", sweep.title, count): figure}


def markdown(variants: list[Variant], sections: list[Section], pictures: list[str]) -> str:
    """The text of the report."""
    parts = ["# Report", *(tables.section_markdown(section) for section in sections)]
    if pictures:
        parts += ["## Figures", *(f"{_caption(name)}:\n\n![{_caption(name)}]({name})" for name in pictures)]
    return "\n\n".join([*parts, tables.runs_markdown(variants)]) + "\n"


def _caption(picture: str) -> str:
    return CAPTIONS[Path(picture).stem.split("-")[0]]


def _file_name(kind: str, about: str, count: int) -> str:
    return f"{kind}-{slugify(about)}.png" if count > 1 else f"{kind}.png"
