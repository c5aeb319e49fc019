"""A table's rows as the members of a pool read them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float, Int

from stmaml.pool.base import Column, ColumnKind, GroupedRows
from stmaml.tables.benchmark import TableConfig
from stmaml.tables.cells import as_names
from stmaml.tables.ordering import sorted_by
from stmaml.tables.reading import Groups
from stmaml.tables.schema import Schema

MAX_LEVELS = 2000  # of a further grouping; rarer ones count as unseen
KINDS: dict[str, tuple[ColumnKind, ColumnKind]] = {
    "numeric": ("number", "flag"),
    "ordinal": ("number", "flag"),
    "date": ("number", "wave"),
}
"""What the first number made of a column is, and what the others are; all are flags otherwise."""
FLAGS: tuple[ColumnKind, ColumnKind] = ("flag", "flag")


@dataclass(frozen=True)
class Factors:
    """Further groupings of rows, and the names of the levels that training has seen."""

    levels: dict[str, tuple[str, ...]]

    def places(self, frame: pl.DataFrame, missing: Sequence[str] = ()) -> Int[np.ndarray, "n a"]:
        """The level of each row in each grouping, -1 where it is new or unknown."""
        columns = [_places(frame, name, known, missing) for name, known in self.levels.items()]
        return np.stack(columns, axis=1) if columns else np.zeros((frame.height, 0), dtype=int)


def _places(frame: pl.DataFrame, name: str, known: tuple[str, ...], missing: Sequence[str]) -> Int[np.ndarray, " n"]:
    if name not in frame.columns:
        return np.full(frame.height, -1)
    names = as_names(frame[name], missing)
    return names.replace_strict(list(known), range(len(known)), default=-1, return_dtype=pl.Int64).to_numpy()


def factors_of(frame: pl.DataFrame, config: TableConfig) -> Factors:
    """The levels of each further grouping, the most frequent first."""
    found = {}
    for name in (*config.within, *config.also):
        counts = as_names(frame[name], config.missing).drop_nulls().value_counts(sort=True)
        found[name] = tuple(counts[name][:MAX_LEVELS].to_list())
    return Factors(found)


def nested(frame: pl.DataFrame, config: TableConfig) -> pl.DataFrame:
    """The table with groups named by all that they lie within: school 7 of one district is not that of another."""
    outer = [name for name in config.within if name in frame.columns]
    if not outer or config.task not in frame.columns:
        return frame
    parts = [as_names(frame[name], config.missing) for name in (*outer, config.task)]
    whole = pl.DataFrame({str(i): part for i, part in enumerate(parts)})
    return frame.with_columns(whole.select(pl.concat_str(pl.all(), separator=" / ")).to_series().alias(config.task))


def in_order(frame: pl.DataFrame, config: TableConfig) -> pl.DataFrame:
    """The rows sorted by the column that orders them, if there is one; rows without a value come last."""
    return sorted_by(frame, config.order, config.missing)


def group_places(groups: Groups, height: int) -> Int[np.ndarray, " n"]:
    """The number of each row's group, for all rows of a table."""
    place = np.zeros(height, dtype=int)
    place[groups.order] = np.repeat(np.arange(len(groups.names)), groups.count)
    return place


def columns_of(schema: Schema) -> tuple[Column, ...]:
    """What each number of an encoded row is."""
    found = []
    for column in schema.used:
        first, others = KINDS.get(column.kind, FLAGS)
        names: list[Any] = column.outputs
        plain = len(names) - column.has_missing
        found += [Column(name, first if i == 0 else others if i < plain else "flag") for i, name in enumerate(names)]
    return tuple(found)


def scaled_targets(schema: Schema, frame: pl.DataFrame) -> Float[np.ndarray, " n"]:
    """Targets in spreads about their mean, or numbers of classes; NaN where unknown."""
    target = schema.target
    values = target.values(frame, schema.missing).astype(float)
    return np.where(values < 0, np.nan, values) if target.is_class else (values - target.mean) / target.std


def has_target(schema: Schema, frame: pl.DataFrame) -> pl.Series:
    """Which rows say what is to be predicted."""
    values = schema.target.values(frame, schema.missing)
    return pl.Series(values >= 0 if schema.target.is_class else np.isfinite(values), dtype=pl.Boolean)


def grouped_rows(
    schema: Schema,
    factors: Factors,
    frame: pl.DataFrame,
    group: Int[np.ndarray, " n"],
    *,
    labelled: bool = True,
    notes: list[str] | None = None,
    known: bool = False,
) -> GroupedRows:
    """The rows of a table, or of what is `known` of some of its groups; `group` counts their groups."""
    x = schema.encode(frame, "the rows known before" if known else "the table", notes, known=known)
    y = scaled_targets(schema, frame) if labelled else np.full(frame.height, np.nan)
    levels = factors.places(frame, schema.missing)
    return GroupedRows(x.astype(float), y, group, levels, columns_of(schema), len(schema.target.classes))


def is_fresh(frame: pl.DataFrame, known: pl.DataFrame) -> pl.Series:
    """Which rows are not among those known, to the last cell of what is known."""
    if known.is_empty():
        return pl.repeat(True, frame.height, eager=True)
    old, new = (_as_text(one, known.columns) for one in (known, frame))
    places = new.with_row_index("").join(old, on=known.columns, how="anti")[""]
    return pl.int_range(frame.height, eager=True).is_in(places.cast(pl.Int64).implode())


def _as_text(frame: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    """These columns as text; a cell that is missing, or of a column that is, is empty."""
    full = frame.with_columns(pl.lit("").alias(name) for name in names if name not in frame.columns)
    return full.select(pl.col(name).cast(pl.String).fill_null("") for name in names)
