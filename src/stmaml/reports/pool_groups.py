"""How groups differ: the variance between them, and which are predicted best and worst, with their rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stmaml.errors import RunError
from stmaml.numbers import plain, share
from stmaml.pool.reopening import Reopened, Told
from stmaml.pool.scoring import POOL, Scored
from stmaml.pool.store import PoolRun
from stmaml.reports import pool_charts
from stmaml.reports.content import (
    Block,
    Cell,
    Figure,
    Fold,
    Heading,
    Part,
    Table,
    Text,
    amount,
    count,
    part_of_one,
    words,
)

SHOWN = 5
MOST_ROWS, MOST_COLUMNS, MOST_LETTERS = 40, 8, 60


def groups_part(store: PoolRun, result: Mapping[str, Any], scored: Sequence[Scored], reopened: Reopened | None) -> Part:
    """Variance between groups, the best and the worst predicted, and what labels bring to each."""
    main = "nll" if result["kind"] == "class" else "mse"
    names = None if reopened is None else reopened.names
    blocks: list[Block] = [Text(_between(store, result))]
    drawing = pool_charts.gains_chart(scored, names, main)
    if drawing is not None:
        what = "Each group's error without labelled rows and with the most; below the dashed line, labels help"
        blocks.append(Figure(what, drawing=drawing))
    if reopened is None:
        why = "rows were added since the fit, or this run does not keep what its models said"
        return Part("Groups", (*blocks, Text(f"Single groups are not shown: {why}.", "note")))
    return Part("Groups", (*blocks, *_ends(scored, reopened, main)))


def _between(store: PoolRun, result: Mapping[str, Any]) -> str:
    """How much of the variance lies between groups, or why that is not known."""
    if result["kind"] == "class":
        return "Variance between groups is for numbers; this pool predicts classes."
    try:
        own = store.effects().effects
    except RunError:
        return "This run does not say how much of the variance lies between groups: it is of an earlier version."
    return (
        f"{share(own.share_of_rows)} of the variance of '{result['target']}' that columns do not explain lies between "
        f"groups, {share(1 - own.share_of_rows)} within: standard deviations of {plain(own.between)} and "
        f"{plain(own.noise)}, by straight lines through all rows."
    )


def _ends(scored: Sequence[Scored], reopened: Reopened, main: str) -> list[Block]:
    """Tables of the groups predicted best and worst, and the rows of each, folded."""
    last = scored[-1]
    order = np.argsort(last.rows[POOL][main], kind="stable")
    some = min(SHOWN, len(order) // 2)
    rows = pool_charts.rows_in_words(last.shots)
    blocks: list[Block] = []
    for word, places in (("best", order[:some]), ("worst", order[::-1][:some])):
        if not len(places):
            continue
        blocks += [Heading(f"Predicted {word} with {rows}"), _table(places, scored, reopened, main, word)]
        blocks += [_fold(reopened.told(int(last.groups[place])), reopened) for place in places]
    return blocks


def _table(places: np.ndarray, scored: Sequence[Scored], reopened: Reopened, main: str, word: str) -> Table:
    rows = [_row(int(scored[-1].groups[place]), scored, reopened, main) for place in places]
    return Table(tuple(rows[0]), tuple(rows), f"Groups predicted {word}")


def _row(group: int, scored: Sequence[Scored], reopened: Reopened, main: str) -> dict[str, Cell]:
    cells = {"group": words(reopened.names[group]), "rows": count(int(reopened.counts[group]))}
    for one in (scored[0], scored[-1]):
        place = int(np.searchsorted(one.groups, group))
        error = float(one.rows[POOL][main][place])
        name = "typical error" if main == "mse" else "log-loss"
        cells[f"{name}, {one.shots} row{'s' * (one.shots != 1)}"] = amount(error**0.5 if main == "mse" else error)
    held = scored[-1].held
    share_held = held["90% after" if "90% after" in held else "90% holds"][place]
    return {**cells, "in 90 %": part_of_one(float(share_held))}


def _fold(told: Told, reopened: Reopened) -> Fold:
    """The rows of a group: those that were labelled, and what was said of the others."""
    target, is_class = reopened.schema.target.name, reopened.schema.target.is_class
    others = [name for name in told.frame.columns if name not in (target, reopened.schema.task)]
    columns = [*others[:MOST_COLUMNS], target]
    said = {int(place): i for i, place in enumerate(told.asked)}
    rows = []
    for place in [*told.labelled.tolist(), *told.asked.tolist()][:MOST_ROWS]:
        cells = {name: _raw(told.frame[name][place]) for name in columns}
        rows.append(
            {"": words("labelled" if place not in said else "asked"), **cells, **_said(told, said.get(place), is_class)}
        )
    heads = ["probability of it"] if is_class else ["prediction", "90 % interval"]
    table = Table(("", *columns, *heads), tuple(rows), f"Rows of {told.name}")
    drawn = () if is_class else (_chart(told),)
    return Fold(f"Rows of {told.name}", (*drawn, table))


def _chart(told: Told) -> Figure:
    drawing = pool_charts.told_chart(told.name, told.truth, told.expected, told.low, told.high)
    return Figure("Asked rows of this group: the truth, and what the pool says from its labelled rows", drawing=drawing)


def _raw(value: Any) -> Cell:
    text = "" if value is None else str(value)
    number = float(value) if isinstance(value, int | float) else None
    return Cell(text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 1]}…", value=number)


def _said(told: Told, place: int | None, is_class: bool) -> dict[str, Cell]:
    if place is None:
        return {}
    if is_class:
        return {"probability of it": part_of_one(float(told.expected[place]))}
    low, high = float(told.low[place]), float(told.high[place])
    return {
        "prediction": amount(float(told.expected[place]), 4),
        "90 % interval": Cell(f"{plain(low)} to {plain(high)}", value=high - low),
    }
