"""Tables of saved scores."""

from collections.abc import Mapping, Sequence
from typing import Any

from stmaml.benchmarks.floors import BAYES_LIMIT
from stmaml.metric_table import metric
from stmaml.metrics import Summary, paired_difference
from stmaml.reports.beside_paper import paper_blocks
from stmaml.reports.content import Block, Cell, Part, Table, Text, bold, count, number, paragraphs, printed
from stmaml.reports.content import words as said
from stmaml.reports.labels import label_cell
from stmaml.reports.made import duration, training_seconds
from stmaml.reports.published import Printed, other_families_note, paper_note, published, published_families
from stmaml.reports.sections import Row, Section
from stmaml.reports.variants import count_parameters

Cells = dict[str, Cell]


def section_part(section: Section, figures: Sequence[Block] = ()) -> Part:
    """The tables of one set of test tasks, and figures of it."""
    blocks: list[Block] = [*paragraphs([section.apart]), score_table(section), Text(_interval_note(section), "note")]
    blocks += [Text(note, "note") for name in section.metrics if (note := metric(name).note)]
    notes = dict.fromkeys(each.summary.get("note") or "" for row in section.rows for each in row.evaluations)
    blocks += paragraphs(list(notes))
    if len(section.families) > 1:
        blocks += [Text(f"{section.metrics[0]} by family:"), family_table(section)]
    blocks += paragraphs([other_families_note(section) or ""])
    blocks += _pairs(section)
    blocks += [*paper_blocks(section), *figures]
    return Part(section.title, tuple(blocks), chapter=section.conditions.benchmark)


def _pairs(section: Section) -> list[Block]:
    pairs = paired_table(section)
    if pairs is None:
        return []
    difference = f"Difference to {section.rows[0].label} on the same tasks"
    interval = f"± half-width of the 95 % interval of the difference over {section.units}, and seeds if several"
    return [Text(f"{difference}, {interval} (negative: lower than there):"), pairs]


def score_table(section: Section) -> Table:
    """A row for each variant, a column for each metric and for each figure the paper printed, and what it cost."""
    rows = [_score_cells(row, section.metrics) for row in section.rows]
    for name in section.metrics:
        _embolden(rows, name, [row.metrics.get(name) for row in section.rows], by=name)
    if section.floor is not None:
        rows.append({"method": said(section.floor["name"]), **_cells(section.floor["metrics"], section.metrics)})
    scores = _with_paper(rows, section.metrics)
    costs = _used(rows, f"{section.metrics[0]} (median)", "trained on", "parameters", "training")
    columns = ["method", *_used(rows, "norm"), "seeds", "tasks", *scores, *costs]
    return Table(tuple(columns), tuple(rows), f"Scores: {section.title}")


def _score_cells(row: Row, metrics: list[str]) -> Cells:
    cells = {"method": label_cell(row.label), "seeds": count(len(row.evaluations))}
    cells["tasks"] = count(row.evaluations[0].summary["tasks"])
    scores = _cells(row.metrics, metrics) | _median_cells(row, metrics[0])
    return cells | _norm_cells(row) | _paper_cells(published(row)) | scores | _cost_cells(row)


def _median_cells(row: Row, first: str) -> Cells:
    """The median task's error, which a few hard tasks do not move."""
    median = row.median(first) if metric(first).better == "lower" else None
    return {} if median is None else {f"{first} (median)": number({"mean": median, "ci95": float("nan")})}


def _used(rows: list[Cells], *columns: str) -> list[str]:
    return [column for column in columns if any(column in row for row in rows)]


def _with_paper(rows: list[Cells], names: list[str]) -> list[str]:
    """The columns of these names, each beside that of the paper's figures, if it has any."""
    return [column for name in names for column in (name, *_used(rows, f"{name} (paper)"))]


def _paper_cells(paper: Printed) -> Cells:
    return {f"{name} (paper)": printed(figure) for name, figure in paper.items()}


def _norm_cells(row: Row) -> Cells:
    """How a method normalises images, on which a score depends: statistics of all test images together flatter it."""
    norm = row.evaluations[0].summary.get("norm")
    return {"norm": said(norm)} if norm else {}


def _cost_cells(row: Row) -> Cells:
    """What was trained, and for how long on average over seeds; nothing for a baseline."""
    if row.beside:
        return {}
    size = next((found for e in row.evaluations if (found := count_parameters(e.run)) is not None), None)
    seconds = [training_seconds(log) for evaluation in row.evaluations if (log := evaluation.run.log())]
    training = row.variant.config["training"]
    seen = training.get("steps", 0) * training.get("tasks_per_batch", 0)
    cells = {"trained on": Cell(f"{seen:,} tasks", value=float(seen))} if seen else {}
    cells |= {} if size is None else {"parameters": count(size)}
    if not any(seconds):
        return cells
    mean = sum(seconds) / len(seconds)
    return cells | {"training": Cell(duration(mean), value=mean)}


def family_table(section: Section) -> Table:
    """The first metric for each family, beside the paper's figures for families of the same name."""
    first = section.metrics[0]
    found = [{family: s[first] for family, s in row.families.items() if first in s} for row in section.rows]
    rows = [
        {"method": label_cell(row.label)} | _norm_cells(row) | _paper_cells(published_families(row))
        for row in section.rows
    ]
    rows = [row | _cells(values, section.families) for row, values in zip(rows, found, strict=True)]
    for family in section.families:
        _embolden(rows, family, [values.get(family) for values in found], by=first)
    if section.floor is not None:
        limits = {f: s[first] for f, s in section.floor.get("families", {}).items() if first in s}
        rows.append({"method": said(section.floor["name"]), **_cells(limits, section.families)})
    columns = ["method", *_used(rows, "norm"), *_with_paper(rows, section.families)]
    return Table(tuple(columns), tuple(rows), f"{metric(first).words} by family")


def paired_table(section: Section) -> Table | None:
    """How far each row is from the first on the very same tasks; None if there is no second, or no task was kept."""
    metrics = [section.metrics[0], *(m for m in ("nll", "bce") if m in section.metrics[1:])]
    base, *others = [row.per_task for row in section.rows]
    found = [_differences(scores, base, metrics) for scores in others]
    rows = [
        {"method": label_cell(row.label), **cells} for row, cells in zip(section.rows[1:], found, strict=True) if cells
    ]
    return Table(("method", *metrics), tuple(rows), f"Difference to {section.rows[0].label}") if rows else None


def _differences(scores: Mapping[str, Any], base: Mapping[str, Any], metrics: list[str]) -> Cells:
    shared = [name for name in metrics if name in scores and name in base]
    return {name: number(paired_difference(scores[name], base[name]), sign="+") for name in shared}


def _cells(summaries: Mapping[str, Summary], names: list[str]) -> Cells:
    return {name: number(summaries[name]) for name in names if name in summaries}


def _embolden(rows: list[Cells], column: str, values: list[Summary | None], *, by: str) -> None:
    """Sets the best of two or more values of the metric `by` in bold, where it has a best."""
    judge = metric(by)
    badness = {i: judge.badness(s["mean"]) for i, s in enumerate(values) if s and s["mean"] == s["mean"]}
    if len(badness) < 2 or judge.better is None:
        return
    for i, value in badness.items():
        if value == min(badness.values()):
            rows[i][column] = bold(rows[i][column])


def _interval_note(section: Section) -> str:
    many = {len(row.evaluations) > 1 for row in section.rows}
    tests, seeds = f"over test {section.units}", f"over training seeds and test {section.units}"
    over = seeds if True in many else f"{tests}, for one training seed"
    if len(many) == 2:
        over = f"{seeds} where there are several, {tests} where there is one"
    note = f"Mean ± half-width of the 95 % interval {over}. Best in bold."
    if section.floor is not None:
        note += f" {_floor_note(section.floor['name'])}"
    note += paper_note(section)
    if True in many and any(e.run.log_path.exists() for row in section.rows for e in row.evaluations):
        note += " Seeds trained side by side each show the time all took."
    return note


def _floor_note(name: str) -> str:
    if name == BAYES_LIMIT:
        return f"{name}: what the optimal predictor, who knows how tasks are made, would score."
    return f"{name[:1].upper()}{name[1:]}: no prediction can score below it."
