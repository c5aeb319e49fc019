"""A report as Markdown that also reads well as plain text."""

from collections.abc import Iterable, Sequence

from stmaml.reports.content import Block, Cell, Code, Document, Figure, Fold, Heading, Part, Table, Text


def markdown(document: Document) -> str:
    """The text of a report: all parts but those a page alone has, with the figures together before the folded ones."""
    told = [part for part in document.parts if not part.only_page]
    pictures = [figure for figure in document.figures() if figure.picture is not None]
    pieces = [f"# {document.title}", *_blocks(document.lead)]
    pieces += [piece for part in told if not part.folded for piece in _part(part)]
    if pictures:
        pieces += ["## Figures", *(f"{one.caption}:\n\n![{one.caption}]({one.file})" for one in pictures)]
    pieces += [piece for part in told if part.folded for piece in _part(part)]
    return "\n\n".join(piece for piece in pieces if piece) + "\n"


def part_markdown(part: Part) -> str:
    """One part by itself."""
    return "\n\n".join(_part(part))


def _part(part: Part) -> list[str]:
    return [f"## {part.title}", *_blocks(part.blocks)]


def _blocks(blocks: Iterable[Block]) -> list[str]:
    return [piece for block in blocks for piece in _block(block) if piece]


def _block(block: Block) -> Sequence[str]:
    match block:
        case Text(words):
            return (words,)
        case Heading(words):
            return (f"**{words}**",)
        case Code(words):
            return (f"```\n{words}\n```",)
        case Table():
            return (table_markdown(block),)
        case Fold(_, blocks):
            return _blocks(blocks)
        case Figure():
            return ()  # figures stand together
    raise AssertionError(block)


def table_markdown(table: Table) -> str:
    """A table whose columns stand one below the other in plain text too."""
    rows = [{name: _cell(cell) for name, cell in row.items()} for row in table.rows]
    head = {column: _escaped(column) for column in table.columns}
    widths = {
        column: max(len(head[column]), 3, *(len(row.get(column, "")) for row in rows)) for column in table.columns
    }
    left = {table.columns[0], *table.words}
    rule = "|".join("-" * (widths[column] + 1) + ("-" if column in left else ":") for column in table.columns)
    return "\n".join([_line(head, widths, left), f"|{rule}|", *(_line(row, widths, left) for row in rows)])


def _cell(cell: Cell) -> str:
    text = _escaped(cell.words)
    return f"**{text}**" if cell.best else text


def _escaped(text: str) -> str:
    """A bar within a cell would end it."""
    return text.replace("|", "\\|").replace("\n", " ")


def _line(row: dict[str, str], widths: dict[str, int], left: set[str]) -> str:
    cells = [
        row.get(name, "").ljust(width) if name in left else row.get(name, "").rjust(width)
        for name, width in widths.items()
    ]
    return f"| {' | '.join(cells)} |"
