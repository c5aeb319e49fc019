"""Saved runs -> Markdown and PNG. Nothing here runs a model: a report can be drawn again from the folders alone."""

from pathlib import Path

from stmaml.reports import figures, tables
from stmaml.reports.variants import Section, Variant, collect_sections, collect_variants, slugify
from stmaml.runs import write_bytes

CAPTIONS = {
    "curves": "One task of each family: seen, true and believed",
    "ambiguity": "The same functions seen through fewer or noisier examples",
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
    drawn: dict[str, bytes | None] = {**figures.variant_figures(variants)}
    for section in sections:
        drawn[_file_name("reliability", section.title, len(sections))] = figures.coverage_figure(section)
    benchmarks = dict.fromkeys(variant.config["benchmark"]["name"] for variant in variants)
    for name in benchmarks:
        same = [variant for variant in variants if variant.config["benchmark"]["name"] == name]
        drawn[_file_name("training", name, len(benchmarks))] = figures.training_figure(same)
    return {name: png for name, png in drawn.items() if png is not None}


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
