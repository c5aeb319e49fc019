"""Blocks of a report as HTML."""

from collections.abc import Iterable, Mapping

from stmaml.reports.content import Block, Cell, Code, Figure, Fold, Heading, Table, Text
from stmaml.reports.html.figures import figure_html
from stmaml.reports.html.markup import Markup, escaped, tag


def blocks_html(blocks: Iterable[Block], level: int) -> Markup:
    """Blocks one below the other; `level` is that of the headings among them."""
    return "\n".join(block_html(block, level) for block in blocks)


def block_html(block: Block, level: int) -> Markup:
    """One block."""
    match block:
        case Text(words, kind):
            return tag("p", escaped(words), class_=kind or None)
        case Heading(words):
            return tag(f"h{level}", escaped(words))
        case Code(words):
            return tag("pre", tag("code", escaped(words)), tabindex=0)
        case Table():
            return table_html(block)
        case Figure(drawing=drawing):
            return figure_html(drawing, block.title, block.caption)
        case Fold(title, blocks):
            return tag("details", tag("summary", escaped(title)), blocks_html(blocks, level))
    raise AssertionError(block)


def table_html(table: Table) -> Markup:
    """A table in a box that scrolls by itself; its heads sort it, where there are several rows."""
    left = {table.columns[0], *table.words}
    heads = [_head(column, column in left, sorts=len(table.rows) > 1) for column in table.columns]
    rows = [_row(table, row, left) for row in table.rows]
    about = tag("caption", escaped(table.about)) if table.about else ""
    whole = tag("table", about, tag("thead", tag("tr", *heads)), tag("tbody", *rows))
    return tag("div", whole, class_="table", tabindex=0, role="region", aria_label=table.about or "table")


def _head(column: str, left: bool, *, sorts: bool) -> Markup:
    words = escaped(column)
    inside = tag("button", words, type="button") if sorts and column else words
    return tag("th", inside, scope="col", class_="words" if left else None)


def _row(table: Table, row: Mapping[str, Cell], left: set[str]) -> Markup:
    first, *others = table.columns
    cells = [_cell("th", row.get(first, Cell()), True, scope="row")]
    cells += [_cell("td", row.get(name, Cell()), name in left) for name in others]
    return tag("tr", *cells)


def _cell(name: str, cell: Cell, left: bool, scope: str | None = None) -> Markup:
    words = escaped(cell.text)
    words = tag("strong", words) if cell.best else words
    margin = " " + tag("span", escaped(cell.margin), class_="margin") if cell.margin else ""
    tone = tag("span", words, class_=f"verdict {cell.tone}") if cell.tone else words
    value = None if cell.value is None else f"{cell.value:.9g}"
    return tag(name, tone + margin, scope=scope, class_="words" if left else None, data_v=value)
