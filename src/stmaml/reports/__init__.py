"""Saved runs -> one page, and Markdown with PNG. No model runs here: a report can be drawn again from folders alone."""

from pathlib import Path

from stmaml.reports.assembled import assemble
from stmaml.reports.content import Document
from stmaml.reports.drawn import draw
from stmaml.reports.html import page
from stmaml.reports.markdown import markdown
from stmaml.reports.sections import collect_sections
from stmaml.reports.variants import collect_variants
from stmaml.runs import write_bytes

PAGE, TEXT = "report.html", "report.md"


def write_report(folders: list[Path], out: Path) -> list[Path]:
    """Writes the page, the Markdown and its figures into `out`; gives the paths of the Markdown and of its figures."""
    variants = collect_variants(folders)
    sections = collect_sections(variants)
    figures = draw(variants, sections)
    return write_document(assemble(variants, sections, figures), out)


def write_document(document: Document, out: Path) -> list[Path]:
    """The same for what a report says."""
    files = {TEXT: markdown(document).encode()}
    files |= {figure.file: figure.picture for figure in document.figures() if figure.picture is not None}
    for name, content in {**files, PAGE: page(document).encode()}.items():
        write_bytes(out / name, content)
    return [out / name for name in files]
