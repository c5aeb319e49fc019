"""Ours beside the paper's figures: one row for each, with the difference and a verdict in words."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from stmaml.metric_table import Metric, metric
from stmaml.metrics import Summary
from stmaml.reports.content import Block, Cell, Table, Text, Tone, number, printed, words
from stmaml.reports.labels import label_cell
from stmaml.reports.published import published, published_families, unfair, why_not
from stmaml.reports.sections import Row, Section
from stmaml.reports.variants import changes
from stmaml.reports.verdicts import Verdict, Word, difference, judge

COLUMNS = ("method", "score", "paper", "ours", "difference", "verdict", "why")
TONES: dict[Word, Tone] = {"better": "good", "reproduced": "even", "worse": "bad", "not comparable": "mute"}
WORDS: dict[Word, str] = {
    "better": "better",
    "reproduced": "reproduced within the interval",
    "worse": "worse",
    "not comparable": "not comparable",
}
TABLE = "table"  # the benchmark of a user's own data, of which no paper speaks


@dataclass(frozen=True)
class Compared:
    """A row beside one figure of the paper, if there is one."""

    row: Row
    score: str
    ours: Summary | None
    paper: tuple[float, float | None] | None
    verdict: Verdict


def compare_section(section: Section) -> list[Compared]:
    """Every row beside every figure the paper has for it; a row without one says why."""
    if section.conditions.benchmark == TABLE:
        return []
    return [compared for row in section.rows for compared in _of_row(section, row)]


def _of_row(section: Section, row: Row) -> Iterator[Compared]:
    reason = why_not(row)
    if reason:
        yield Compared(row, "", None, None, Verdict("not comparable", reason))
        return
    for name, figure in published(row).items():
        yield _compared(section, row, name, metric(name), row.metrics.get(name), figure)
    first = section.metrics[0]
    for family, figure in published_families(row).items():
        ours = row.families.get(family, {}).get(first)
        yield _compared(section, row, f"{first}, {family}", metric(first), ours, figure)


def _compared(
    section: Section, row: Row, score: str, measure: Metric, ours: Summary | None, figure: tuple[float, float | None]
) -> Compared:
    if ours is None:
        return Compared(row, score, None, figure, Verdict("not comparable", "it is not among our scores"))
    if bad := unfair(section):
        return Compared(row, score, ours, figure, Verdict("not comparable", bad))
    verdict = judge(measure, ours, figure)
    steps = changes(row.variant.config).get("steps")
    short = f"trained for {steps:,} steps, not the usual number" if isinstance(steps, int) else ""
    return Compared(row, score, ours, figure, Verdict(verdict.word, "; ".join(filter(None, (verdict.why, short)))))


def paper_blocks(section: Section) -> list[Block]:
    """The comparison as a table; or a sentence, where the paper has nothing to compare with."""
    found = compare_section(section)
    if not found:
        return []
    if not any(one.paper for one in found):
        reasons = dict.fromkeys(one.verdict.why for one in found)
        return [Text(f"Not comparable with the paper: {'; '.join(reasons)}.", "note")]
    rows = tuple(_cells(one) for one in found)
    columns = COLUMNS if any(row["why"].text for row in rows) else COLUMNS[:-1]
    return [Text("Beside the paper's figures:"), Table(columns, rows, "Beside the paper's figures", ("verdict", "why"))]


def _cells(one: Compared) -> dict[str, Cell]:
    cells = {"method": label_cell(one.row.label), "score": words(one.score), "why": words(_why(one.verdict))}
    cells["verdict"] = Cell(WORDS[one.verdict.word], tone=TONES[one.verdict.word])
    if one.paper is not None:
        cells["paper"] = printed(one.paper)
    if one.ours is not None:
        cells["ours"] = number(one.ours)
    if one.ours is not None and one.paper is not None:
        cells["difference"] = number(difference(one.ours, one.paper).summary, sign="+")
    return cells


def _why(verdict: Verdict) -> str:
    """The reason, but for what the verdict says itself."""
    return verdict.why.removeprefix("within the interval").removeprefix("; ")


def tally(sections: Iterable[Section]) -> str:
    """One sentence: how many of the paper's figures came out how."""
    found = [one.verdict.word for section in sections for one in compare_section(section) if one.paper]
    if not found:
        return ""
    counts = Counter(found)
    said = [f"{counts[word]} {WORDS[word]}" for word in WORDS if counts[word]]
    return f"Of {len(found)} figure{'s' * (len(found) > 1)} of the paper beside ours: {', '.join(said)}."
