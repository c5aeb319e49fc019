"""The page around the parts of a report."""

import base64
import hashlib
import itertools
from importlib.resources import files

from stmaml.conditions import slugify
from stmaml.reports.content import Document, Part
from stmaml.reports.html.blocks import blocks_html
from stmaml.reports.html.markup import Markup, escaped, tag

CONTENTS_FROM = 4  # parts: fewer are seen at a glance


def page(document: Document) -> str:
    """The whole page. Its policy allows the style and the script that are in it, pictures that are in it, and nothing
    else: no address is ever asked for anything."""
    style, script = _resource("page.css"), _resource("page.js")
    title = document.page_title or document.title
    head = [
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy(style, script)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        '<link rel="icon" href="data:,">',
        tag("title", escaped(title)),
        f"<style>{style}</style>",
    ]
    body = tag("body", "\n", _body(document, title), f"\n<script>{script}</script>\n")
    return f'<!doctype html>\n<html lang="en">\n<head>\n{chr(10).join(head)}\n</head>\n{body}\n</html>\n'


def policy(style: str, script: str) -> str:
    """What the page may do."""
    return (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def _resource(name: str) -> str:
    return files("stmaml.reports.html").joinpath(name).read_text(encoding="utf-8")


def _body(document: Document, title: str) -> Markup:
    about = tag("p", escaped(document.about), class_="about") if document.about else ""
    head = tag("header", tag("h1", escaped(title)), about)
    names = _names(document.parts)
    lead = tag("section", blocks_html(document.lead, 3), class_="lead") if document.lead else ""
    parts = [head, lead, _contents(document, names), *_chapters(document, names)]
    return tag("main", "\n".join(part for part in parts if part))


def _names(parts: tuple[Part, ...]) -> list[str]:
    """A name for each part to link to, no two of them the same."""
    return [f"{i + 1}-{slugify(part.title)[:60]}" for i, part in enumerate(parts)]


def _chapters(document: Document, names: list[str]) -> list[Markup]:
    """The parts, under the name of their chapter where there are several chapters."""
    several = _several(document)
    found = []
    pairs = zip(document.parts, names, strict=True)
    for chapter, group in itertools.groupby(pairs, key=lambda pair: pair[0].chapter):
        if several and chapter:
            found.append(tag("h2", escaped(chapter), class_="chapter"))
        found += [_part(part, name, 3 if several and chapter else 2) for part, name in group]
    return found


def _several(document: Document) -> bool:
    return len({part.chapter for part in document.parts if part.chapter}) > 1


def _part(part: Part, name: str, level: int) -> Markup:
    blocks = blocks_html(part.blocks, level + 1)
    title = tag(f"h{level}", escaped(_title(part) if level > 2 else part.title), id=name)
    if part.folded:
        head = tag("summary", title)
        return tag("section", tag("details", head, blocks, class_="part"))
    return tag("section", title, "\n", blocks)


def _title(part: Part) -> str:
    """The title of a part under that of its chapter, which need not be said again."""
    title = part.title.removeprefix(f"{part.chapter}: ")
    return title[:1].upper() + title[1:]


def _contents(document: Document, names: list[str]) -> Markup:
    """Links to all parts, by chapter."""
    if len(document.parts) < CONTENTS_FROM:
        return ""
    several, found = _several(document), []
    pairs = zip(document.parts, names, strict=True)
    for chapter, group in itertools.groupby(pairs, key=lambda pair: pair[0].chapter):
        links = [
            tag("li", tag("a", escaped(_title(part) if several else part.title), href=f"#{name}"))
            for part, name in group
        ]
        inner = tag("ul", *links)
        found.append(tag("li", escaped(chapter), inner) if several and chapter else "".join(links))
    return tag("nav", tag("ul", *found), aria_label="Contents")
