"""A pool's run folder -> Markdown and PNG."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stmaml.numbers import plain, share, with_interval
from stmaml.pool.scoring import RELIABILITY, Scored
from stmaml.pool.store import PoolRun
from stmaml.reports import pool_figures
from stmaml.reports.figures import in_style
from stmaml.reports.tables import markdown_table
from stmaml.runs import Run, write_bytes
from stmaml.tables.schema import Schema

MARKS = {"mse": "squared error", "crps": "CRPS", "nll": "log-loss", "accuracy": "accuracy"}


def write_pool_report(run: Run, out: Path) -> list[Path]:
    """Writes report.md and its figures into `out`, and gives their paths, the report first."""
    store = PoolRun(run)
    result, scored = store.result(), store.scored()
    pictures = _pictures(result, scored)
    files = {"report.md": _markdown(store, result, scored, pictures).encode()}
    files |= {name: content for name, (_, content) in pictures.items()}
    for name, content in files.items():
        write_bytes(out / name, content)
    return [out / name for name in files]


def _pictures(result: Mapping[str, Any], scored: Sequence[Scored]) -> dict[str, tuple[str, bytes]]:
    """Captions and contents by the name of the file."""
    main = "nll" if result["kind"] == "class" else "mse"
    drawn = {
        "errors.png": ("Error against labelled rows; bands: 95 % intervals", pool_figures.errors_figure, scored, main),
        "weights.png": ("Weights against labelled rows", pool_figures.weights_figure, result["weights"]),
        "reliability.png": ("How often intervals hold, by level", pool_figures.reliability_figure, scored),
        "groups.png": ("How often 90 % intervals hold, by group", pool_figures.groups_figure, scored),
    }
    made = {name: (caption, in_style(draw, *data)) for name, (caption, draw, *data) in drawn.items()}
    return {name: (caption, content) for name, (caption, content) in made.items() if content is not None}


def _markdown(
    store: PoolRun, result: Mapping[str, Any], scored: Sequence[Scored], pictures: Mapping[str, tuple[str, bytes]]
) -> str:
    config = store.run.config()
    config_schema = store.table().schema
    assert config_schema is not None
    notes = [f"{note[0].upper()}{note[1:]}." for note in result["notes"]]
    parts = [f"# {result['target']} by {store.table().table.task}", result["verdict"], *notes]
    parts += ["## Scores", *_scores(result), "## Weights", *_weights(result)]
    parts += ["## Intervals", *_intervals(result, scored)]
    parts += ["## Figures", *(f"{caption}:\n\n![{caption}]({name})" for name, (caption, _) in pictures.items())]
    parts += ["## Columns", _columns(Schema.from_json(config_schema)), "## Run", *_made(store, config)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _rows(shots: str) -> str:
    return "1 row" if shots == "1" else f"{shots} rows"


def _scores(result: Mapping[str, Any]) -> list[str]:
    """A table for each score: a row for the pool and each member, a column for each number of labelled rows."""
    counts = list(result["scores"])
    first = result["scores"][counts[0]]
    parts = [f"Means over {result['test_groups']:,} groups that models and weights had not seen, ± the 95 % interval."]
    for mark in (name for name in MARKS if name in first["pool"]):
        rows = [{"": row, **{_rows(n): with_interval(result["scores"][n][row][mark]) for n in counts}} for row in first]
        parts += [f"{MARKS[mark][:1].upper()}{MARKS[mark][1:]} by labelled rows:", _table("", counts, rows)]
    return parts


def _weights(result: Mapping[str, Any]) -> list[str]:
    counts = list(result["weights"])
    members = list(result["weights"][counts[0]])
    weight = [{"": name, **{_rows(n): share(result["weights"][n][name]) for n in counts}} for name in members]
    known = [name for name in members if name in result["worth"].get(counts[0], {})]
    worth = [{"": name, **{_rows(n): _rise(result["worth"][n].get(name)) for n in counts}} for name in known]
    parts = ["What each member counts:", _table("", counts, weight)]
    if worth:
        parts += ["By how much the error (CRPS or log-loss) would rise without it:", _table("", counts, worth)]
    return [*parts, f"Pull towards equal weights: {plain(float(result.get('shrinkage', 0.0)))}."]


def _rise(worth: Mapping[str, float] | None) -> str:
    if worth is None:
        return ""
    rise = round(100 * worth["mean"], 1) + 0.0  # no minus before nothing
    return f"{rise:+,.1f} % ± {100 * worth['ci95']:,.1f}" if rise else "0"


def _intervals(result: Mapping[str, Any], scored: Sequence[Scored]) -> list[str]:
    """Coverage by level, and how wide intervals are."""
    counts = [str(one.shots) for one in scored]
    word = "after" if "90% after" in scored[0].held else "holds"
    levels = [level for level in RELIABILITY if f"{level:.0%} {word}" in scored[0].held]
    rows = [
        {"": f"{level:.0%}", **{_rows(str(one.shots)): share(one.held[f"{level:.0%} {word}"].mean()) for one in scored}}
        for level in levels
    ]
    size, what = ("90% width", "width of 90 %") if word == "after" else ("90% size", "classes in a 90 % set")
    rows.append({"": what, **{_rows(str(one.shots)): plain(float(one.held[size].mean())) for one in scored}})
    poorly = {_rows(n): share(result["calibration"][n]["poorly"]["mean"]) for n in counts}
    rows.append({"": "groups below 80 %", **poorly})
    said = "Share of rows that intervals (for classes, sets) of each level hold; the last row counts groups whose 90 %"
    return [f"{said} intervals hold less than 80 %.", _table("", counts, rows)]


def _table(first: str, counts: Sequence[str], rows: list[dict[str, str]]) -> str:
    return markdown_table([first, *(_rows(shots) for shots in counts)], rows)


def _columns(schema: Schema) -> str:
    rows = [{"column": column.name, "kind": column.kind, "holds": column.describe()} for column in schema.columns]
    target = schema.target
    kind = "target: class" if target.is_class else "target: number"
    return markdown_table(
        ["column", "kind", "holds"], [*rows, {"column": target.name, "kind": kind, "holds": target.describe()}]
    )


def _made(store: PoolRun, config: Mapping[str, Any]) -> list[str]:
    settings, table = store.settings(), store.table().table
    asked = ", ".join(settings.members) or "all that suit the table"
    order = f"the first in '{table.order}'" if table.order else "drawn at random"
    versions = ", ".join(f"{name} {version}" for name, version in config.get("versions", {}).items())
    said = f"Members: {asked}. Labelled rows: {order}. Seed {config['seed']}, on {config.get('device', 'a device')}."
    return [f"```\n{config.get('command', '')}\n```", said, f"Made {config.get('created', '')} with {versions}."]
