"""Tables of saved scores, as Markdown."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from stmaml.errors import SettingError
from stmaml.metrics import Summary, paired_difference
from stmaml.recipes import BEYOND, PUBLISHED, PUBLISHED_ABLATIONS, PUBLISHED_FAMILIES, recipe
from stmaml.reports import rules
from stmaml.reports.variants import (
    BAYES_LIMIT,
    Row,
    Section,
    Variant,
    as_json,
    changes,
    count_parameters,
    flatten,
    is_baseline,
)
from stmaml.runs import Run

HIGHER_IS_BETTER = {"accuracy", "accuracy_all", "coverage"}
WITHOUT_BEST = ("width", "diversity")
"""Metrics that are neither good nor bad by themselves."""


def section_markdown(section: Section) -> str:
    """The tables of one set of test conditions."""
    parts = [f"## {section.title}", score_table(section), _interval_note(section)]
    if "coverage" in section.metrics:
        parts.append(rules.NOTE)
    if len(section.families) > 1:
        parts += [f"{section.metrics[0]} by family:", family_table(section)]
    if (other := _other_families_note(section)) is not None:
        parts.append(other)
    if (pairs := paired_table(section)) is not None:
        parts += [_pair_note(section), pairs]
    return "\n\n".join(parts)


def score_table(section: Section) -> str:
    """A row for each variant, a column for each metric and for each figure the paper printed, and what it cost."""
    printed = [_published(row) for row in section.rows]
    rows = [_score_cells(row, section.metrics, paper) for row, paper in zip(section.rows, printed, strict=True)]
    if section.floor is not None:
        rows.append({"method": section.floor["name"], **_cells(section.floor["metrics"], section.metrics)})
    for metric in section.metrics:
        _embolden(rows, metric, [row.metrics.get(metric) for row in section.rows])
    columns = ["method", *_norm_column(rows), "seeds", "tasks"]
    for metric in section.metrics:
        columns += [metric] + [_paper_column(metric)] * any(metric in paper for paper in printed)
    columns += [column for column in ("parameters", "training") if any(column in row for row in rows)]
    return markdown_table(columns, rows)


def _score_cells(row: Row, metrics: list[str], paper: dict[str, tuple[float, float | None]]) -> dict[str, str]:
    cells = {"method": row.variant.label, "seeds": str(len(row.evaluations)), "tasks": _tasks(row)}
    return cells | _norm_cells(row) | _paper_cells(paper) | _cells(row.metrics, metrics) | _cost_cells(row)


def _paper_cells(paper: Mapping[str, tuple[float, float | None]]) -> dict[str, str]:
    return {_paper_column(m): f"{mean:g} ± {half:g}" if half else f"{mean:g}" for m, (mean, half) in paper.items()}


def _norm_cells(row: Row) -> dict[str, str]:
    """How a method normalises images, on which a score depends: statistics of all test images together flatter it."""
    conv = row.variant.config["method"]["settings"].get("conv")
    pictures = "image_size" in row.variant.config["benchmark"]["settings"]
    return {"norm": conv["norm"]} if pictures and conv else {}


def _norm_column(rows: list[dict[str, str]]) -> list[str]:
    return ["norm"] * any("norm" in row for row in rows)


def _cost_cells(row: Row) -> dict[str, str]:
    """What was trained, and for how long on average over seeds; nothing for a baseline."""
    size = next((count for e in row.evaluations if (count := count_parameters(e.run)) is not None), None)
    seconds = [training_seconds(log) for evaluation in row.evaluations if (log := evaluation.run.log())]
    cells = {} if size is None else {"parameters": f"{size:,}"}
    return cells | ({"training": duration(sum(seconds) / len(seconds))} if any(seconds) else {})


def family_table(section: Section) -> str:
    """The first metric for each family, beside the paper's figures for families of the same name."""
    metric = section.metrics[0]
    found = [{family: s[metric] for family, s in row.families.items() if metric in s} for row in section.rows]
    printed = [_published_families(row) for row in section.rows]
    rows = [
        {"method": row.variant.label, **_norm_cells(row), **_cells(values, section.families), **_paper_cells(paper)}
        for row, values, paper in zip(section.rows, found, printed, strict=True)
    ]
    if section.floor is not None:
        limits = {f: s[metric] for f, s in section.floor.get("families", {}).items() if metric in s}
        rows.append({"method": section.floor["name"], **_cells(limits, section.families)})
    columns = ["method", *_norm_column(rows)]
    for family in section.families:
        _embolden(rows, family, [values.get(family) for values in found], metric=metric)
        columns += [family] + [_paper_column(family)] * any(family in paper for paper in printed)
    return markdown_table(columns, rows)


def _other_families_note(section: Section) -> str | None:
    """Says which families of the paper are not here, and that those here in their place are no substitute."""
    known = list(
        dict.fromkeys(f for (b, *_), each in PUBLISHED_FAMILIES.items() if b == section.benchmark for f in each)
    )
    missing = [family for family in known if family not in section.families]
    others = [family for family in section.families if family not in known]
    if not missing or not others:
        return None
    return (
        f"The paper has figures for {', '.join(known)}. Not among these data sets: {', '.join(missing)}. Not in the "
        f"paper: {', '.join(others)}. Figures of the one say nothing about the other."
    )


def paired_table(section: Section) -> str | None:
    """How far each variant is from the first on the very same tasks; None if no two were scored on the same."""
    first, *others = section.rows
    others = [row for row in others if row.digest is not None and row.digest == first.digest]
    if not others:
        return None
    metrics = [section.metrics[0], *(m for m in ("nll", "bce") if m in section.metrics[1:])]
    base = first.per_task()
    rows = [{"method": row.variant.label, **_differences(row.per_task(), base, metrics)} for row in others]
    return markdown_table(["method", *metrics], rows)


def _differences(scores: Mapping[str, Any], base: Mapping[str, Any], metrics: list[str]) -> dict[str, str]:
    shared = [metric for metric in metrics if metric in scores and metric in base]
    return {metric: number(paired_difference(scores[metric], base[metric]), sign="+") for metric in shared}


def runs_markdown(variants: Iterable[Variant]) -> str:
    """How each variant was made: command, steps, time, device, versions."""
    parts = ["## Runs"]
    for variant in variants:
        parts.append(f"**{variant.label}**")
        by_command: dict[str, list[Run]] = {}
        for run in variant.runs:
            by_command.setdefault(run.config().get("command", ""), []).append(run)
        parts += [f"```\n{command}\n```\n\n{_made(runs)}" for command, runs in by_command.items()]
    return "\n\n".join(parts)


def _made(runs: list[Run]) -> str:
    config, log = runs[0].config(), runs[0].log()
    versions = ", ".join(f"{name} {version}" for name, version in config.get("versions", {}).items())
    if is_baseline(config):
        return f"Fitted by scikit-learn on the training rows. Made with {versions}."
    seeds = ", ".join(str(run.config()["seed"]) for run in runs)
    steps = max((entry.get("step", 0) for entry in log), default=0)
    words = [
        f"Seed{'s' * (len(runs) > 1)} {seeds}: {steps:,} of {config['training'].get('steps', 0):,} steps",
        f"in {duration(training_seconds(log))} on {config.get('device', 'an unknown device')}",
    ]
    size = f"; weights {runs[0].learner_path.stat().st_size / 1000:.0f} kB" if runs[0].learner_path.exists() else ""
    return " ".join(words) + f"{size}. Made with {versions}."


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


def _embolden(
    rows: list[dict[str, str]], column: str, values: list[Summary | None], *, metric: str | None = None
) -> None:
    """Sets the best of two or more values in bold, where the metric has a best."""
    badness = {i: _badness(metric or column, s["mean"]) for i, s in enumerate(values) if s and s["mean"] == s["mean"]}
    if len(badness) < 2 or (metric or column).startswith(WITHOUT_BEST):
        return
    for i, value in badness.items():
        if value == min(badness.values()):
            rows[i][column] = f"**{rows[i][column]}**"


def _badness(metric: str, value: float) -> float:
    if nominal := re.fullmatch(r"coverage(\d+)", metric):
        return abs(value - int(nominal[1]) / 100)
    return -value if metric in HIGHER_IS_BETTER else value


def _published(row: Row) -> dict[str, tuple[float, float | None]]:
    """The paper's figures for a row, if its method, whole or with one part off, and test conditions are the paper's."""
    key = _paper_key(row)
    if key is None:
        return {}
    benchmark, method, part = key
    return (
        PUBLISHED.get((benchmark, method), {})
        if part is None
        else PUBLISHED_ABLATIONS.get((benchmark, method, part), {})
    )


def _published_families(row: Row) -> dict[str, tuple[float, float | None]]:
    """The same for each family."""
    key = _paper_key(row)
    return {} if key is None else PUBLISHED_FAMILIES.get(key, {})


def _paper_key(row: Row) -> tuple[str, str, str | None] | None:
    """Benchmark, method and the part of it that is off, if one is; None if the row is of no experiment of the paper."""
    config, summary = row.variant.config, row.evaluations[0].summary
    method, benchmark = config["method"], config["benchmark"]["name"]
    try:
        usual = flatten(as_json(recipe(benchmark, method["name"]).benchmark_settings))
    except SettingError:
        return None
    tested = summary["settings"]
    asked = all(tested.get(name) == usual[name] for name in ("ways", "shots", "noise", "inputs") if name in usual)
    if not asked or method["preset"] in BEYOND or summary.get("inner_steps") is not None:
        return None
    own = flatten(method["settings"])
    changed = {name: value for name, value in changes(config).items() if name in own}
    if not changed:
        return benchmark, method["name"], None
    (part, value), *others = changed.items()
    return None if others or value is not False else (benchmark, method["name"], part)


def _paper_column(metric: str) -> str:
    return f"{metric} (paper)"


def _tasks(row: Row) -> str:
    counts = sorted({evaluation.summary["tasks"] for evaluation in row.evaluations})
    return " to ".join(f"{count:,}" for count in (counts if len(counts) < 2 else (counts[0], counts[-1])))


def _interval_note(section: Section) -> str:
    many = {len(row.evaluations) > 1 for row in section.rows}
    over = {
        (False,): "over test tasks, for one training seed",
        (True,): "over training seeds (Student's t)",
        (False, True): "over training seeds (Student's t) where there are several, over test tasks where there is one",
    }[tuple(sorted(many))]
    note = f"Mean ± half-width of the 95 % interval {over}. Best in bold."
    if section.floor is not None:
        note += f" {_floor_note(section.floor['name'])}"
    note += _paper_note(section)
    if True in many and any(e.run.log_path.exists() for row in section.rows for e in row.evaluations):
        note += " Seeds trained side by side each show the time all took."
    return note


def _paper_note(section: Section) -> str:
    """A warning beside figures of the paper that flatter ours."""
    ranges = [row.evaluations[0].summary["settings"].get("input_range") for row in section.rows if _published(row)]
    if section.benchmark != "regression2d" or all(extent == [-5, 5] for extent in ranges):
        return ""
    return (
        " The paper's figures are no fair comparison here: its text names inputs 0 to 5, but its authors' code drew "
        "them from -5 to 5, which is harder (--input-range -5 5)."
    )


def _floor_note(name: str) -> str:
    if name == BAYES_LIMIT:
        return f"{name}: what the optimal predictor, who knows how tasks are made, would score."
    return f"{name[:1].upper()}{name[1:]}: no prediction can score below it."


def _pair_note(section: Section) -> str:
    return (
        f"Difference to {section.rows[0].variant.label} on the same tasks, scores averaged over seeds, ± half-width of "
        "the 95 % interval of the difference over tasks (negative: lower than there):"
    )
