"""The report of runs of any benchmarks: its parts in the order they are read."""

import json
from collections.abc import Sequence
from dataclasses import replace

from stmaml.reports.beside_paper import TABLE, tally
from stmaml.reports.charts import Picture
from stmaml.reports.columns import columns_table
from stmaml.reports.content import Block, Document, Figure, Part, Text
from stmaml.reports.drawn import FEWER, SINGLE, TRAINING, Drawn
from stmaml.reports.made import runs_part
from stmaml.reports.sections import Section
from stmaml.reports.tables import section_part
from stmaml.reports.variants import Variant
from stmaml.tables.schema import Schema

MOST_PICTURE_BYTES = 1_600_000  # in a page, which then stays below three megabytes


def assemble(variants: list[Variant], sections: list[Section], drawn: Sequence[Drawn]) -> Document:
    """What a report of these runs says."""
    drawn = _light(drawn)
    parts = []
    for benchmark in dict.fromkeys(section.conditions.benchmark for section in sections):
        mine = [section for section in sections if section.conditions.benchmark == benchmark]
        parts += [section_part(section, _under(drawn, benchmark, section.title)) for section in mine]
        for title in (FEWER, SINGLE, TRAINING):
            if figures := _under(drawn, benchmark, title):
                parts.append(Part(title, tuple(figures), benchmark, only_page=True))
        parts += _columns(benchmark, variants)
    said = tally(sections)
    lead = (Text(said, "lead"),) if said else ()
    return Document(
        "Report", lead, (*parts, runs_part(variants, sections)), _about(variants, sections), _title(sections)
    )


def _columns(benchmark: str, variants: Sequence[Variant]) -> list[Part]:
    """What was made of the columns of each table, once for runs that made the same of them."""
    schemas = {}
    for variant in variants:
        schema = variant.config["benchmark"]["settings"].get("schema")
        if variant.config["benchmark"]["name"] == benchmark == TABLE and schema:
            schemas.setdefault(json.dumps(schema, sort_keys=True), schema)
    return [Part("Columns", (columns_table(Schema.from_json(schema)),), benchmark) for schema in schemas.values()]


def _under(drawn: Sequence[Drawn], benchmark: str, title: str) -> list[Block]:
    return [one.figure for one in drawn if (one.benchmark, one.under) == (benchmark, title)]


def _title(sections: Sequence[Section]) -> str:
    names = list(dict.fromkeys(section.conditions.benchmark for section in sections))
    return f"Report: {names[0]}" if len(names) == 1 else f"Report of {len(names)} benchmarks"


def _about(variants: Sequence[Variant], sections: Sequence[Section]) -> str:
    counts = {
        "benchmark": len({section.conditions.benchmark for section in sections}),
        "method": len(variants),
        "run": sum(len(variant.runs) for variant in variants),
        "set of test tasks": len(sections),
    }
    said = [f"{number:,} {_plural(name, number)}" for name, number in counts.items()]
    return " · ".join(said)


def _plural(name: str, number: int) -> str:
    if number == 1:
        return name
    return "sets of test tasks" if name.startswith("set ") else f"{name}s"


def _light(drawn: Sequence[Drawn]) -> list[Drawn]:
    """The same without the pictures that would make a page heavy, which are named instead."""
    found, left = [], MOST_PICTURE_BYTES
    for one in drawn:
        if isinstance(one.figure.drawing, Picture):
            left -= len(one.figure.drawing.content)
            one = replace(one, figure=_beside(one.figure)) if left < 0 else one
        found.append(one)
    return found


def _beside(figure: Figure) -> Figure:
    caption = f"{figure.caption}: {figure.file}, beside this page, which would grow too large with it"
    return replace(figure, caption=caption, drawing=None)
