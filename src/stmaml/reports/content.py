"""What a report says, apart from how it is written: text, tables of typed cells, figures, in parts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from stmaml.numbers import plain
from stmaml.reports.charts import Drawing

Tone = Literal["", "good", "bad", "even", "mute"]
"""How a word of judgement is coloured."""


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    text: str = ""
    margin: str = ""
    """What follows the text as its uncertainty: `± 0.2`."""
    value: float | None = None
    """What the cell is sorted by; by its text if not given."""
    best: bool = False
    tone: Tone = ""
    tail: str = ""
    """What Markdown says after all else, and what a page need not, for it stands in a title there."""

    @property
    def words(self) -> str:
        """All of it in a line."""
        return " ".join(part for part in (self.text, self.margin, self.tail) if part)


@dataclass(frozen=True)
class Table:
    """Rows of named cells; a cell that a row lacks is empty."""

    columns: tuple[str, ...]
    rows: tuple[Mapping[str, Cell], ...]
    about: str = ""
    """What the table is, for who cannot see it."""
    words: tuple[str, ...] = ()
    """Columns of words, which stand to the left as the first one does."""


@dataclass(frozen=True)
class Text:
    """A paragraph. `lead` for one that sums up, `note` for a remark."""

    words: str
    kind: Literal["", "lead", "note"] = ""


@dataclass(frozen=True)
class Heading:
    """A title within a part."""

    words: str


@dataclass(frozen=True)
class Code:
    """Something typed or to be typed."""

    words: str


@dataclass(frozen=True)
class Figure:
    """A figure: a file for Markdown, a drawing for a page. Either may be missing, where the other says enough."""

    caption: str
    title: str = ""
    """What stands above it on a page; the file says it itself."""
    file: str = ""
    picture: bytes | None = None
    drawing: Drawing | None = None


@dataclass(frozen=True)
class Fold:
    """Blocks that a reader may open."""

    title: str
    blocks: tuple["Block", ...]


Block = Text | Heading | Code | Table | Figure | Fold


@dataclass(frozen=True)
class Part:
    """A part of a report under a title of its own."""

    title: str
    blocks: tuple[Block, ...]
    chapter: str = ""
    """What several parts are about, such as a benchmark."""
    only_page: bool = False
    """Whether Markdown goes without it but for its figures, which stand together there."""
    folded: bool = False


@dataclass(frozen=True)
class Document:
    """A whole report."""

    title: str
    lead: tuple[Block, ...]
    parts: tuple[Part, ...]
    about: str = ""
    """One line under the title of a page."""
    page_title: str = ""
    """The title of the page, where that of the Markdown says too little."""

    def figures(self) -> list[Figure]:
        """Every figure, in order."""
        return [block for part in self.parts for block in part.blocks if isinstance(block, Figure)]


def words(text: str) -> Cell:
    """A cell of text."""
    return Cell(text)


def count(value: int) -> Cell:
    """A whole number, with commas."""
    return Cell(f"{value:,}", value=float(value))


def amount(value: float, digits: int = 3) -> Cell:
    """A number as people write it."""
    return Cell(plain(value, digits), value=value if math.isfinite(value) else None)


def part_of_one(value: float) -> Cell:
    """A share as per cent."""
    return Cell(f"{100 * value:.0f} %", value=value)


def interval(summary: Mapping[str, float]) -> Cell:
    """A mean and the half-width of its interval, by the digits that count."""
    mean, half = summary["mean"], summary["ci95"]
    known = math.isfinite(half) and half > 0
    return Cell(plain(mean), f"± {plain(half, 2)}" if known else "", mean if math.isfinite(mean) else None)


def bold(cell: Cell) -> Cell:
    """The same as the best of its column."""
    return replace(cell, best=True)


def paragraphs(texts: Sequence[str]) -> list[Block]:
    """Those that say something."""
    return [Text(text) for text in texts if text]


def number(summary: Mapping[str, float], *, sign: Literal["-", "+"] = "-") -> Cell:
    """A mean and the half-width of its interval, to three decimals or, for large numbers, fewer."""
    mean, half = summary["mean"], summary["ci95"]
    places = 3 if abs(mean) < 10 else 2 if abs(mean) < 100 else 1
    margin = f"± {half:.{places}f}" if half == half else ""
    return Cell(f"{mean:{sign}.{places}f}", margin, mean if math.isfinite(mean) else None)


def printed(figure: tuple[float, float | None]) -> Cell:
    """A figure as a paper printed it."""
    mean, half = figure
    return Cell(f"{mean:g}", f"± {half:g}" if half else "", mean)
