"""Tables of saved scores, as Markdown."""

from collections.abc import Iterable, Mapping
from typing import Any

from stmaml.benchmarks.floors import BAYES_LIMIT
from stmaml.metric_table import metric
from stmaml.metrics import Summary, paired_difference
from stmaml.reports.published import Printed, other_families_note, paper_note, published, published_families
from stmaml.reports.sections import Row, Section
from stmaml.reports.variants import Variant, count_parameters, is_baseline, settings_of
from stmaml.runs import Run


def section_markdown(section: Section) -> str:
    """The tables of one set of test tasks."""
    parts = [f"## {section.title}", section.apart, score_table(section), _interval_note(section)]
    parts += [metric(name).note for name in section.metrics]
    parts += dict.fromkeys(each.summary.get("note") or "" for row in section.rows for each in row.evaluations)
    if len(section.families) > 1:
        parts += [f"{section.metrics[0]} by family:", family_table(section)]
    parts.append(other_families_note(section) or "")
    if (pairs := paired_table(section)) is not None:
        difference = f"Difference to {section.rows[0].label} on the same tasks"
        interval = f"± half-width of the 95 % interval of the difference over {section.units}, and seeds if several"
        parts += [f"{difference}, {interval} (negative: lower than there):", pairs]
    return "\n\n".join(part for part in parts if part)


def score_table(section: Section) -> str:
    """A row for each variant, a column for each metric and for each figure the paper printed, and what it cost."""
    rows = [_score_cells(row, section.metrics) for row in section.rows]
    for name in section.metrics:
        _embolden(rows, name, [row.metrics.get(name) for row in section.rows], by=name)
    if section.floor is not None:
        rows.append({"method": section.floor["name"], **_cells(section.floor["metrics"], section.metrics)})
    scores = _with_paper(rows, section.metrics)
    costs = _used(rows, f"{section.metrics[0]} (median)", "trained on", "parameters", "training")
    return markdown_table(["method", *_used(rows, "norm"), "seeds", "tasks", *scores, *costs], rows)


def _score_cells(row: Row, metrics: list[str]) -> dict[str, str]:
    tasks = f"{row.evaluations[0].summary['tasks']:,}"
    cells = {"method": row.label, "seeds": str(len(row.evaluations)), "tasks": tasks}
    scores = _cells(row.metrics, metrics) | _median_cells(row, metrics[0])
    return cells | _norm_cells(row) | _paper_cells(published(row)) | scores | _cost_cells(row)


def _median_cells(row: Row, first: str) -> dict[str, str]:
    """The median task's error, which a few hard tasks do not move."""
    median = row.median(first) if metric(first).better == "lower" else None
    return {} if median is None else {f"{first} (median)": number({"mean": median, "ci95": float("nan")})}


def _used(rows: list[dict[str, str]], *columns: str) -> list[str]:
    return [column for column in columns if any(column in row for row in rows)]


def _with_paper(rows: list[dict[str, str]], names: list[str]) -> list[str]:
    """The columns of these names, each beside that of the paper's figures, if it has any."""
    return [column for name in names for column in (name, *_used(rows, f"{name} (paper)"))]


def _paper_cells(paper: Printed) -> dict[str, str]:
    return {f"{m} (paper)": f"{mean:g} ± {half:g}" if half else f"{mean:g}" for m, (mean, half) in paper.items()}


def _norm_cells(row: Row) -> dict[str, str]:
    """How a method normalises images, on which a score depends: statistics of all test images together flatter it."""
    norm = row.evaluations[0].summary.get("norm")
    return {"norm": norm} if norm else {}


def _cost_cells(row: Row) -> dict[str, str]:
    """What was trained, and for how long on average over seeds; nothing for a baseline."""
    if row.beside:
        return {}
    size = next((count for e in row.evaluations if (count := count_parameters(e.run)) is not None), None)
    seconds = [training_seconds(log) for evaluation in row.evaluations if (log := evaluation.run.log())]
    training = row.variant.config["training"]
    seen = training.get("steps", 0) * training.get("tasks_per_batch", 0)
    cells = {"trained on": f"{seen:,} tasks"} if seen else {}
    cells |= {} if size is None else {"parameters": f"{size:,}"}
    return cells | ({"training": duration(sum(seconds) / len(seconds))} if any(seconds) else {})


def family_table(section: Section) -> str:
    """The first metric for each family, beside the paper's figures for families of the same name."""
    first = section.metrics[0]
    found = [{family: s[first] for family, s in row.families.items() if first in s} for row in section.rows]
    rows = [{"method": row.label} | _norm_cells(row) | _paper_cells(published_families(row)) for row in section.rows]
    rows = [row | _cells(values, section.families) for row, values in zip(rows, found, strict=True)]
    for family in section.families:
        _embolden(rows, family, [values.get(family) for values in found], by=first)
    if section.floor is not None:
        limits = {f: s[first] for f, s in section.floor.get("families", {}).items() if first in s}
        rows.append({"method": section.floor["name"], **_cells(limits, section.families)})
    return markdown_table(["method", *_used(rows, "norm"), *_with_paper(rows, section.families)], rows)


def paired_table(section: Section) -> str | None:
    """How far each row is from the first on the very same tasks; None if there is no second, or no task was kept."""
    metrics = [section.metrics[0], *(m for m in ("nll", "bce") if m in section.metrics[1:])]
    base, *others = [row.per_task for row in section.rows]
    found = [_differences(scores, base, metrics) for scores in others]
    rows = [{"method": row.label, **cells} for row, cells in zip(section.rows[1:], found, strict=True) if cells]
    return markdown_table(["method", *metrics], rows) if rows else None


def _differences(scores: Mapping[str, Any], base: Mapping[str, Any], metrics: list[str]) -> dict[str, str]:
    shared = [name for name in metrics if name in scores and name in base]
    return {name: number(paired_difference(scores[name], base[name]), sign="+") for name in shared}


def runs_markdown(variants: Iterable[Variant]) -> str:
    """How each variant was made: command, steps, time, device, versions."""
    parts = ["## Runs"]
    for variant in variants:
        parts.append(f"**{variant.label}**")
        by_command: dict[str, list[Run]] = {}
        for run in variant.runs:
            by_command.setdefault(settings_of(run).get("command", ""), []).append(run)
        parts += [f"```\n{command}\n```\n\n{_made(runs)}" for command, runs in by_command.items()]
    return "\n\n".join(parts)


def _made(runs: list[Run]) -> str:
    config, log = settings_of(runs[0]), runs[0].log()
    versions = ", ".join(f"{name} {version}" for name, version in config.get("versions", {}).items())
    if is_baseline(config):
        return f"Fitted by scikit-learn on the training rows. Made with {versions}."
    seeds = ", ".join(str(settings_of(run)["seed"]) for run in runs)
    steps = max((entry.get("step", 0) for entry in log), default=0)
    made = f"Seed{'s' * (len(runs) > 1)} {seeds}: {steps:,} of {config['training'].get('steps', 0):,} steps"
    took = f"in {duration(training_seconds(log))} on {config.get('device', 'an unknown device')}"
    size = f"; weights {runs[0].learner_path.stat().st_size / 1000:.0f} kB" if runs[0].learner_path.exists() else ""
    return f"{made} {took}{size}. Made with {versions}."


def training_seconds(log: list[dict[str, Any]]) -> float:
    """Time spent in training; the clock starts again at each resume."""
    total = last = 0.0
    for entry in log:
        seconds = entry.get("seconds", last)
        total += seconds - last if seconds >= last else seconds
        last = seconds
    return total


def duration(seconds: float) -> str:
    """Seconds in words."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def markdown_table(columns: list[str], rows: list[dict[str, str]]) -> str:
    """Rows of named cells as a Markdown table that also reads well as plain text."""
    widths = {column: max(len(column), 3, *(len(row.get(column, "")) for row in rows)) for column in columns}
    head = {column: column for column in columns}
    rule = "|".join("-" * (widths[column] + 1) + ("-" if column == columns[0] else ":") for column in columns)
    return "\n".join([_line(head, widths), f"|{rule}|", *(_line(row, widths) for row in rows)])


def _line(row: dict[str, str], widths: dict[str, int]) -> str:
    first, *others = widths
    cells = [row.get(first, "").ljust(widths[first]), *(row.get(name, "").rjust(widths[name]) for name in others)]
    return f"| {' | '.join(cells)} |"


def number(summary: Summary, *, sign: str = "-") -> str:
    """`mean ± half-width`, to three decimals or, for large numbers, fewer."""
    mean, half = summary["mean"], summary["ci95"]
    places = 3 if abs(mean) < 10 else 2 if abs(mean) < 100 else 1
    return f"{mean:{sign}.{places}f}" + (f" ± {half:.{places}f}" if half == half else "")


def _cells(summaries: Mapping[str, Summary], names: list[str]) -> dict[str, str]:
    return {name: number(summaries[name]) for name in names if name in summaries}


def _embolden(rows: list[dict[str, str]], column: str, values: list[Summary | None], *, by: str) -> None:
    """Sets the best of two or more values of the metric `by` in bold, where it has a best."""
    judge = metric(by)
    badness = {i: judge.badness(s["mean"]) for i, s in enumerate(values) if s and s["mean"] == s["mean"]}
    if len(badness) < 2 or judge.better is None:
        return
    for i, value in badness.items():
        if value == min(badness.values()):
            rows[i][column] = f"**{rows[i][column]}**"


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
