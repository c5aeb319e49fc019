"""A pool's run folder -> what its report says."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stmaml.numbers import plain
from stmaml.pool.reopening import reopen
from stmaml.pool.scoring import POOL, RELIABILITY, Scored
from stmaml.pool.store import PoolRun
from stmaml.reports import pool_charts, pool_figures, write_document
from stmaml.reports.columns import columns_table
from stmaml.reports.content import (
    Block,
    Cell,
    Document,
    Figure,
    Part,
    Table,
    Text,
    amount,
    interval,
    part_of_one,
    words,
)
from stmaml.reports.figures import in_style
from stmaml.reports.labels_cost import cost_part, cost_sentence
from stmaml.reports.pool_groups import groups_part
from stmaml.reports.pool_made import made_part
from stmaml.runs import Run
from stmaml.tables.schema import Schema

MARKS = {"mse": "squared error", "crps": "CRPS", "nll": "log-loss", "accuracy": "accuracy"}
Result = Mapping[str, Any]


def write_pool_report(run: Run, out: Path) -> list[Path]:
    """Writes the page, the Markdown and its figures into `out`; gives the paths of the Markdown and of its figures."""
    return write_document(pool_document(PoolRun(run)), out)


def pool_document(store: PoolRun) -> Document:
    """What the report of a pool says."""
    result, scored = store.result(), store.scored()
    table = store.table()
    assert table.schema is not None
    reopened = reopen(store, scored[-1])
    notes = [f"{note[0].upper()}{note[1:]}." for note in result["notes"]]
    lead = [Text(words, "lead") for words in (cost_sentence(result, scored), result["verdict"]) if words]
    parts = [
        cost_part(result, scored, _figure(scored, result)),
        Part("Scores", tuple(_scores(result))),
        Part("Weights", tuple(_weights(result))),
        Part("Intervals", tuple(_intervals(result, scored))),
        groups_part(store, result, scored, reopened),
        Part("Which columns matter", tuple(_importance(result))),
        Part("Columns", (columns_table(Schema.from_json(table.schema)),)),
        made_part(store, result),
    ]
    title = f"{result['target']} by {table.table.task}"
    return Document(title, (*lead, *map(Text, notes)), tuple(parts), _about(result))


def _about(result: Result) -> str:
    kinds = "classes" if result["kind"] == "class" else "numbers"
    members = len(next(iter(result["weights"].values())))
    return f"A pool of {members} models for {kinds} · {result['test_groups']:,} groups held out in turn"


def _figure(scored: Sequence[Scored], result: Result) -> Figure | None:
    main = "nll" if result["kind"] == "class" else "mse"
    picture = in_style(pool_figures.errors_figure, scored, main)
    caption = "Error against labelled rows, of the pool and of each of its models; band: 95 % interval"
    return (
        None if picture is None else Figure(caption, "", "errors.png", picture, pool_charts.errors_chart(scored, main))
    )


def rows_head(shots: str) -> str:
    """`1 row`, `5 rows`."""
    return "1 row" if shots == "1" else f"{shots} rows"


def _table(counts: Sequence[str], rows: Sequence[Mapping[str, Cell]], about: str) -> Table:
    return Table(("", *(rows_head(shots) for shots in counts)), tuple(rows), about)


def _scores(result: Result) -> list[Block]:
    """A table for each score: a row for the pool and each member, a column for each number of labelled rows."""
    counts = list(result["scores"])
    first = result["scores"][counts[0]]
    blocks: list[Block] = [
        Text(
            f"Means over {result['test_groups']:,} groups that models and weights had not seen, or those of them "
            "that have rows enough, ± the 95 % interval."
        )
    ]
    for mark in (name for name in MARKS if name in first[POOL]):
        rows = [
            {
                "": Cell(row, best=row == POOL),
                **{rows_head(n): interval(result["scores"][n][row][mark]) for n in counts},
            }
            for row in first
        ]
        name = f"{MARKS[mark][:1].upper()}{MARKS[mark][1:]} by labelled rows"
        blocks += [Text(f"{name}:"), _table(counts, rows, name)]
    return blocks


def _weights(result: Result) -> list[Block]:
    counts = list(result["weights"])
    members = list(result["weights"][counts[0]])
    weight = [
        {"": words(name), **{rows_head(n): part_of_one(result["weights"][n][name]) for n in counts}} for name in members
    ]
    known = [name for name in members if name in result["worth"].get(counts[0], {})]
    worth = [{"": words(name), **{rows_head(n): _rise(result["worth"][n].get(name)) for n in counts}} for name in known]
    blocks: list[Block] = [Text("What each member counts:"), _table(counts, weight, "Weights")]
    picture = in_style(pool_figures.weights_figure, result["weights"])
    drawing = pool_charts.weights_chart(result["weights"])
    blocks.append(Figure("Weights against labelled rows", "", "weights.png", picture, drawing))
    if worth:
        said = "By how much the error (CRPS or log-loss) would rise without it:"
        blocks += [Text(said), _table(counts, worth, "What each member is worth")]
    return [*blocks, Text(f"Pull towards equal weights: {plain(float(result.get('shrinkage', 0.0)))}.", "note")]


def _rise(worth: Mapping[str, float] | None) -> Cell:
    if worth is None:
        return Cell()
    rise = round(100 * worth["mean"], 1) + 0.0  # no minus before nothing
    return Cell(f"{rise:+,.1f} %", f"± {100 * worth['ci95']:,.1f}", rise) if rise else Cell("0", value=0.0)


def _intervals(result: Result, scored: Sequence[Scored]) -> list[Block]:
    """Coverage by level, and how wide intervals are."""
    counts = [str(one.shots) for one in scored]
    word = "after" if "90% after" in scored[0].held else "holds"
    levels = [level for level in RELIABILITY if f"{level:.0%} {word}" in scored[0].held]
    rows = [{"": part_of_one(level), **_held(scored, f"{level:.0%} {word}")} for level in levels]
    size, what = ("90% width", "width of 90 %") if word == "after" else ("90% size", "classes in a 90 % set")
    wide = {rows_head(str(one.shots)): amount(float(one.held[size].mean())) for one in scored}
    poorly = {rows_head(n): part_of_one(result["calibration"][n]["poorly"]["mean"]) for n in counts}
    rows += [{"": words(what), **wide}, {"": words("groups below 80 %"), **poorly}]
    said = "Share of rows that intervals (for classes, sets) of each level hold; the last row counts groups whose 90 %"
    table = _table(counts, rows, "How often intervals hold, by level and labelled rows")
    return [Text(f"{said} intervals hold less than 80 %."), table, *_interval_figures(scored)]


def _held(scored: Sequence[Scored], name: str) -> dict[str, Cell]:
    return {rows_head(str(one.shots)): part_of_one(float(one.held[name].mean())) for one in scored}


def _interval_figures(scored: Sequence[Scored]) -> list[Block]:
    level = "How often intervals hold, by level: on the dashed line, they hold as often as asked; band: 95 % interval"
    group = "How often 90 % intervals hold, by group"
    reliability = in_style(pool_figures.reliability_figure, scored)
    groups = in_style(pool_figures.groups_figure, scored)
    return [
        Figure(level, "", "reliability.png", reliability, pool_charts.reliability_chart(scored)),
        Figure(group, "", "groups.png", groups, pool_charts.held_chart(scored)),
    ]


def _importance(result: Result) -> list[Block]:
    """By how much the error rises without each column."""
    found = result.get("importance")
    if not found:
        return [Text("This run does not say which columns matter: it was fitted before that was asked. Fit again.")]
    drawing = pool_charts.importance_chart(found)
    assert drawing is not None
    rows = [
        {"": words(name), **{rows_head(shots): _share_rise(each["columns"][name]) for shots, each in found.items()}}
        for name in drawing.names
    ]
    groups = next(iter(found.values()))["groups"]
    error = "log-loss" if result["kind"] == "class" else "squared error"
    said = (
        f"By how much the pool's {error} rises when the values of one column are dealt out anew among rows, labelled "
        f"and asked ones alike. {groups:,} groups, each answered by models that had not seen it; only the weights of "
        "the models come from all groups. A column that another one tells as well may matter little here."
    )
    caption = "Rise of the error with a column mixed up; bars: 95 % intervals over groups"
    return [Text(said), Figure(caption, drawing=drawing), _table(list(found), rows, "Which columns matter")]


def _share_rise(rise: Mapping[str, float]) -> Cell:
    percent = round(100 * rise["mean"], 1) + 0.0
    return Cell(f"{percent:+,.1f} %", f"± {100 * rise['ci95']:,.1f}", rise["mean"])
