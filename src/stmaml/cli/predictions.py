"""What predictions look like in the terminal: a table for people, where a pipe or a file gets every column."""

from collections.abc import Sequence

import numpy as np
import polars as pl
from rich.console import Console

from stmaml.cli.showing import table_of
from stmaml.numbers import plain, share, to_place
from stmaml.pool.guarantee import HIGH, LOW
from stmaml.pool.usual import in_words
from stmaml.tables.answers import level_name
from stmaml.tables.schema import Schema

MOST_ROWS = 200  # more are for a file
MOST_COLUMNS = 4  # of the query's own
WIDEST = 18  # characters of a cell of the query's own


def show_predictions(frame: pl.DataFrame, schema: Schema, levels: Sequence[float], console: Console) -> None:
    """Prints the rows with what differs between them, the prediction, its interval and how the group is known."""
    shown = frame.head(MOST_ROWS)
    parts = [*_own(shown, schema), *_said(shown, schema, levels), *_about(shown)]
    table = table_of(*(name for name, _ in parts))
    for cells in zip(*(cells for _, cells in parts), strict=True):
        table.add_row(*cells)
    console.print(table)
    for line in _unusual(frame, schema.task):
        console.print(line)
    if frame.height > MOST_ROWS:
        console.print(f"{MOST_ROWS} of {frame.height:,} rows; all of them, with all columns, with --out FILE.csv")


Column = tuple[str, list[str]]


def _own(frame: pl.DataFrame, schema: Schema) -> list[Column]:
    """The group, and the columns that differ within the query, those used for predicting first."""
    own = frame.columns[: frame.columns.index("prediction")]
    used = [column.name for column in schema.used if column.name in own]
    others = [name for name in own if name not in used and name not in (schema.task, schema.target.name)]
    differing = [name for name in [*used, *others] if frame[name].n_unique() > 1][:MOST_COLUMNS]
    first = [schema.task] if schema.task in own else []
    numbers = [] if first else [("row", [str(i + 1) for i in range(frame.height)])]
    return [*numbers, *((name, [_cell(value) for value in frame[name]]) for name in [*first, *differing])]


def _cell(value: object) -> str:
    text = "" if value is None else plain(value, 6).rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"


def _said(frame: pl.DataFrame, schema: Schema, levels: Sequence[float]) -> list[Column]:
    if schema.target.is_class:
        odds = [share(row[f"p_{row['prediction']}"]) for row in frame.iter_rows(named=True)]
        sets = [name for name in frame.columns if name.startswith("set")]
        held = [
            (f"{name[3:]} % set", frame[name].str.replace_all("|", " or ", literal=True).to_list()) for name in sets
        ]
        return [("prediction", frame["prediction"].to_list()), ("probability", odds), *held]
    unit = float(np.median(frame["std"]))  # one place for all rows, so that they can be compared
    centre = [to_place(value, unit) for value in frame["prediction"]]
    if len(levels) < 2:
        return [("prediction", centre), ("spread", [to_place(value, unit) for value in frame["std"]])]
    width = f"{100 * (levels[-1] - levels[0]):.4g} % interval"
    found = [("prediction", centre), (width, _ends(frame, level_name(levels[0]), level_name(levels[-1]), unit))]
    return [*found, *([("in 9 of 10 groups", _ends(frame, LOW, HIGH, unit))] if LOW in frame.columns else [])]


def _ends(frame: pl.DataFrame, low: str, high: str, unit: float) -> list[str]:
    ends = zip(frame[low], frame[high], strict=True)
    return ["" if a is None else f"{to_place(a, unit)} to {to_place(b, unit)}" for a, b in ends]


def _unusual(frame: pl.DataFrame, task: str) -> list[str]:
    """A line for each group that looks unusual, up to five."""
    if "group_looks" not in frame.columns or task not in frame.columns:
        return []
    odd = frame.filter(pl.col("group_looks").str.starts_with("unusual")).unique(task, maintain_order=True)
    return [f"{name} is {words}" for name, words in odd.select(task, "group_looks").head(5).iter_rows()]


def _about(frame: pl.DataFrame) -> list[Column]:
    """How many labelled rows a group has, and whether it looks like others."""
    found = [("labelled rows", [str(shots) for shots in frame["shots"]])]
    looks = _looks(frame)
    if looks:
        found.append(
            ("group", ["" if shots == 0 else words for shots, words in zip(frame["shots"], looks, strict=True)])
        )
    if "suggested" in frame.columns:
        found.append(("label first", ["" if rank is None else str(rank) for rank in frame["suggested"]]))
    return found


def _looks(frame: pl.DataFrame) -> list[str]:
    """Usual or unusual, for each row; nothing where nothing is known of it."""
    if "group_looks" in frame.columns:
        return [words.split(":")[0] for words in frame["group_looks"]]
    if "novelty" not in frame.columns:
        return []
    return [in_words(float("nan") if value is None else value).split(":")[0] for value in frame["novelty"]]
