"""A served table: rows with their labels in, predictions with their intervals out, and which row to label next."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import polars as pl

from stmaml.border.typed import as_json
from stmaml.pool import meta_answers
from stmaml.pool.kind import is_pool
from stmaml.pool.store import PoolRun
from stmaml.runs import Run
from stmaml.serving.base import AbstractServed, Adapted, Card, Forms
from stmaml.serving.schema import WAIT, AbstractForm, Form, Json, Records, Refused, Several, Text, Whole
from stmaml.tables import answers
from stmaml.tables.adapted import Answer
from stmaml.tables.model import load_model
from stmaml.tables.schema import Schema, table_keys

MOST_ROWS = 2000
MOST_SUGGESTED = 5
SHOWN_ROWS = 12  # that the page begins with
SHOWN_LABELS = 3
CELL_BYTES = 60  # about what a cell takes in memory
Ask = Callable[[pl.DataFrame, pl.DataFrame | None, int], Answer]
Size = tuple[int, int]


@dataclass(frozen=True)
class TableServed(AbstractServed):
    """A fitted table."""

    card: Card
    schema: Schema
    ask: Ask
    """Rows to predict, labelled rows, and how many rows to suggest."""
    known: pl.DataFrame | None
    """Rows of groups that it knows, where it keeps them."""
    other_columns: tuple[str, ...]
    """Columns that rows may have beside inputs, group and target."""
    shots: tuple[int, ...]
    rows: tuple[int, ...]
    """What labelled and asked rows of a group are padded to."""
    ready: set[Size] = field(default_factory=set)
    """Sizes whose programs are compiled."""

    @property
    def forms(self) -> Forms:
        """What it is asked and answers."""
        return self._forms

    @cached_property
    def _forms(self) -> Forms:
        """Rows as objects."""
        names = tuple(dict.fromkeys((*self.schema.names, *(c.name for c in self.schema.columns), *self.other_columns)))
        target = self.schema.target.name
        labelled = Records(f"Labelled rows, with '{target}'.", names, MOST_ROWS)
        asked = Records("Rows to predict.", names, MOST_ROWS)
        support = Form("Labelled rows of the groups that are asked for; none may be.", {"rows": labelled}, ("rows",))
        query = Form("Rows to predict.", {"rows": asked}, ("rows",))
        suggest = Whole("Rank so many rows of each group whose labels would tell most.", 0, MOST_SUGGESTED)
        return Forms(
            Form("Labelled rows.", {"support": support}, (), {"support": {"rows": []}}),
            Form("Rows to predict.", {"query": query, "suggest": suggest}, ("query",), {"suggest": 0}),
            _answer_form(),
        )

    def material(self) -> Json:
        """What the columns hold, and rows to begin with."""
        target = self.schema.target
        columns = [_about(as_json(column), column.describe()) for column in self.schema.used]
        about = {"name": target.name, "classes": list(target.classes), "low": target.low, "high": target.high}
        return {"task": self.schema.task, "target": about, "columns": columns, "rows": self._first_rows()}

    def _first_rows(self) -> list[Json]:
        """Rows of a group of the training table, the first of them labelled; likely ones where none are kept."""
        wanted = [column.name for column in self.schema.used]
        if self.known is None or not self.known.height:
            cells = {column.name: column.likely(SHOWN_ROWS) for column in self.schema.used}
            return [{name: column[i] for name, column in cells.items()} for i in range(SHOWN_ROWS)]
        sizes = self.known[self.schema.task].value_counts(sort=True)
        fitting = sizes.filter(pl.col("count") <= 2 * SHOWN_ROWS)
        name = (fitting if fitting.height else sizes)[self.schema.task][0]
        rows = self.known.filter(pl.col(self.schema.task) == name).head(SHOWN_ROWS)
        rows = rows.select(column for column in (*wanted, self.schema.target.name) if column in rows.columns)
        target, shown = self.schema.target.name, pl.int_range(pl.len()) < min(SHOWN_LABELS, rows.height - 1)
        return rows.with_columns(pl.when(shown).then(pl.col(target)).otherwise(None).alias(target)).to_dicts()

    def warm_up(self) -> Iterator[str]:
        """Programs for all sizes, and for suggestions; first those that the page begins with, all at once."""
        shown = answers.fitting(SHOWN_ROWS, self.shots), answers.fitting(SHOWN_ROWS, self.rows)
        sizes = [(shots, rows) for shots in self.shots for rows in self.rows]
        first = [(shots, rows) for shots, rows in sizes if shots <= shown[0] and rows <= shown[1]]
        for size in first:
            self._warm(*size)
        yield f"up to {shown[0]} labelled rows, {shown[1]} rows to predict"
        for shots, rows in sizes:
            if (shots, rows) not in first:
                self._warm(shots, rows)
                yield f"{shots} labelled rows, {rows} rows to predict"

    def _warm(self, shots: int, rows: int) -> None:
        cells, target = {column.name: column.likely(1) for column in self.schema.used}, self.schema.target
        query = pl.DataFrame({name: cell * rows for name, cell in cells.items()})
        support = pl.DataFrame({name: cell * shots for name, cell in cells.items()})
        label = target.classes[0] if target.is_class else str(target.mean)
        for suggest in (0, 1):
            self.ask(query, support.with_columns(pl.lit(label).alias(target.name)), suggest)
        self.ready.add((shots, rows))

    def adapt(self, told: Json) -> Adapted:
        """The labelled rows themselves: what follows from them takes milliseconds."""
        rows = told["support"]["rows"]
        if not rows:
            return Adapted(None, 0, 0)
        frame = self._frame(rows, "support.rows")
        if self.schema.target.name not in frame.columns:
            raise Refused(f"'support.rows' have no column '{self.schema.target.name}' with the labels. Add it.")
        return Adapted(frame, frame.height, CELL_BYTES * frame.height * frame.width)

    def predict(self, adapted: Adapted, asked: Json) -> Json:
        """A row of predictions for each row."""
        rows = asked["query"]["rows"]
        if not rows:
            raise Refused("'query.rows' is empty. Give at least one row.")
        query = self._frame(rows, "query.rows")
        self._check_ready(query, adapted.value)
        answer = self.ask(query, adapted.value, asked["suggest"])
        predicted = answer.frame.select(answer.frame.columns[answer.frame.columns.index("prediction") :])
        return {"rows": [_plain(row) for row in predicted.iter_rows(named=True)], "notes": answer.notes}

    def _frame(self, rows: list[Json], where: str) -> pl.DataFrame:
        names = list(dict.fromkeys(name for row in rows for name in row))
        cells = {name: [_cell(row.get(name)) for row in rows] for name in names}
        frame = pl.DataFrame(cells, schema=dict.fromkeys(names, pl.String))
        groups, task = table_keys(frame, self.schema.task, self.schema.missing), self.schema.task
        if groups.null_count():
            at = groups.is_null().arg_true()[0]
            raise Refused(f"'{where}[{at}].{task}' is empty. Name the group in all rows, or in none.")
        return frame

    def _check_ready(self, query: pl.DataFrame, support: pl.DataFrame | None) -> None:
        """Refuses what would have to be compiled first."""
        most_shots = 0 if support is None else min(support.height, self.shots[-1])
        if self.known is not None and self.schema.task in query.columns:
            most_shots = self.shots[-1]  # rows that it knows count as well
        most = answers.fitting(most_shots, self.shots), answers.fitting(min(query.height, self.rows[-1]), self.rows)
        needed = {(a, b) for a in self.shots for b in self.rows if a <= most[0] and b <= most[1]}
        if not needed <= self.ready:
            raise Refused(f"the program for {query.height} rows is still being compiled. Ask again soon.", 503, WAIT)


def open_run(run: Run, card: Card, data: str | None) -> TableServed:
    """The pool, or the single method, of a run of 'stmaml fit'."""
    del data  # a run holds all it needs
    return (_open_pool if is_pool(run) else _open_single)(run, card)


def _open_pool(run: Run, card: Card) -> TableServed:
    model = PoolRun(run).load()
    table = model.config.table
    others = (*table.within, *table.also, *((table.order,) if table.order else ()))

    def ask(query: pl.DataFrame, support: pl.DataFrame | None, suggest: int) -> Answer:
        return model.predict(query, support, suggest=suggest)

    sizes = meta_answers.SUPPORT_SIZES, meta_answers.QUERY_SIZES
    return TableServed(card, model.schema, ask, model.known, others, *sizes)


def _open_single(run: Run, card: Card) -> TableServed:
    model = load_model(run.folder)
    table: Any = model.experiment.benchmark_settings
    others = (*table.table.within, *table.table.also, *((table.table.order,) if table.table.order else ()))

    def alone(query: pl.DataFrame, support: pl.DataFrame | None, suggest: int) -> Answer:
        return model.predict(query, support, suggest=suggest)

    def ask(query: pl.DataFrame, support: pl.DataFrame | None, suggest: int) -> Answer:
        return by_group(alone, model.schema, query, support, suggest)

    return TableServed(card, model.schema, ask, None, others, answers.SUPPORT_SIZES, answers.QUERY_SIZES)


def by_group(ask: Ask, schema: Schema, query: pl.DataFrame, support: pl.DataFrame | None, suggest: int) -> Answer:
    """One group after the other: several at once would each time be another program."""
    keys = table_keys(query, schema.task, schema.missing)
    given = None if support is None else table_keys(support, schema.task, schema.missing)
    if support is None or given is None or schema.task not in support.columns or keys.n_unique() == 1:
        matched = {str(name): support for name in keys.unique(maintain_order=True)}
    else:
        matched = {str(name): support.filter(given == name) for name in keys.unique(maintain_order=True)}
    parts, notes = [], list[str]()
    for name, labelled in matched.items():
        some = ask(query.filter(keys == name), labelled, suggest)
        parts.append(some.frame.with_columns((keys == name).arg_true().alias("row of the request")))
        notes += [note for note in some.notes if note not in notes]
    frame = pl.concat(parts, how="diagonal").sort("row of the request").drop("row of the request")
    return Answer(frame, notes)


def _cell(value: Any) -> str | None:
    """A cell as a file would have it."""
    if value is None or value == "":
        return None
    if type(value) is bool:
        return "true" if value else "false"
    return value if type(value) is str else f"{value:.15g}"


def _plain(row: Mapping[str, Any]) -> Json:
    """Numbers without digits that nobody reads."""
    return {name: float(f"{cell:.7g}") if type(cell) is float else cell for name, cell in row.items()}


def _about(column: Json, words: str) -> Json:
    return {"name": column["name"], "kind": column["kind"], "levels": list(column.get("levels", ())), "words": words}


class _Row(AbstractForm):
    """What is predicted for a row; which quantiles or classes there are depends on the table."""

    def check(self, value: Any, where: str) -> Any:
        """Anything."""
        return value

    def schema(self) -> Json:
        """An object whose values are plain."""
        cell = {"type": ["number", "string", "boolean", "null"]}
        words = "prediction; of numbers std and the quantiles q05 to q95; of classes p_NAME and the set that holds the "
        words += "true one nine times in ten (set90); suggested: 1 for the row to label first."
        return {"type": "object", "additionalProperties": cell, "description": words}


def _answer_form() -> Form:
    notes = Several("What had to be assumed.", Text("A sentence."), MOST_ROWS, 0)
    rows = Several("A prediction for each row, in their order.", _Row(), MOST_ROWS)
    return Form("Predictions.", {"rows": rows, "notes": notes})
