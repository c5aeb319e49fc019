"""Which labelled rows belong to which rows that are asked for."""

from dataclasses import dataclass

import numpy as np
import polars as pl
from jaxtyping import Float, Int, Shaped

from stmaml.errors import SourceError
from stmaml.tables.cells import check_range
from stmaml.tables.reading import Groups, group_rows, row_list
from stmaml.tables.schema import Schema, table_keys

MOST_LABELLED = 256  # rows of a group that are learnt from; more are thinned out


@dataclass(frozen=True)
class Labelled:
    """The labelled rows of some groups as arrays."""

    x: Float[np.ndarray, "n dx"]
    y: Shaped[np.ndarray, " n"]
    groups: Groups

    def rows(self, name: str) -> Int[np.ndarray, " k"]:
        """The rows of a group, evenly thinned out if there are too many; none for a group without any."""
        if name not in self.groups.index:
            return np.zeros(0, dtype=np.int64)
        rows, most = self.groups.rows(self.groups.index[name]), MOST_LABELLED
        return rows if len(rows) <= most else rows[np.linspace(0, len(rows) - 1, most).round().astype(int)]


def match(
    schema: Schema, query: pl.DataFrame, support: pl.DataFrame | None, notes: list[str]
) -> tuple[Labelled, pl.Series]:
    """The labelled rows, and the group of each query row, null where it has none."""
    keys = group_keys_of(schema, query, "query", notes)
    if support is None or support.height == 0:
        return no_labels(schema), keys
    support_keys = group_keys_of(schema, support, "support", notes)
    task = schema.task
    if task not in query.columns:
        _check_single("query", "support", task, support_keys)
        keys = pl.Series(task, [support_keys.drop_nulls()[0]] * query.height, dtype=pl.String)
    elif task not in support.columns:
        _check_single("support", "query", task, keys)
        support_keys = pl.Series(task, [keys.drop_nulls()[0]] * support.height, dtype=pl.String)
    return labelled_rows(schema, support, support_keys, notes), keys


def group_keys_of(schema: Schema, frame: pl.DataFrame, label: str, notes: list[str]) -> pl.Series:
    """The group of each row, null where its cell is empty; a table without the column is all one group."""
    task = schema.task
    keys = table_keys(frame, task, schema.missing)
    if frame.height and keys.null_count() == frame.height:
        raise SourceError(
            f"'{task}' is empty in all rows of the {label} table. Fill it in, or remove the column if all rows "
            "belong to one group."
        )
    if keys.null_count():
        said = row_list(keys.is_null())
        notes.append(f"{keys.null_count()} rows of the {label} table have no '{task}' and are left out: {said}")
    return keys


def no_labels(schema: Schema) -> Labelled:
    """No labelled row of any group."""
    nothing = Groups((), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    return Labelled(np.zeros((0, len(schema.outputs)), np.float32), np.zeros(0), nothing)


def labelled_rows(schema: Schema, support: pl.DataFrame, keys: pl.Series, notes: list[str]) -> Labelled:
    """The rows of a table that have a group and a target."""
    target = schema.target
    if target.name not in support.columns:
        raise SourceError(
            f"the support table has no column '{target.name}' with the labels; it has: "
            f"{', '.join(support.columns[:20])}. Add it, or leave the support table out."
        )
    x = schema.encode(support, "the support table", notes)
    y = target.values(support, schema.missing)
    known = y >= 0 if target.is_class else np.isfinite(y)
    if not target.is_class:
        check_range(target.name, pl.Series(y[known]), target.low, target.high)
    if not known.all():
        said = row_list(pl.Series(~known))
        notes.append(
            f"{int((~known).sum())} rows of the support table have no '{target.name}' and are left out: {said}"
        )
    groups = group_rows(keys.set(pl.Series(~known), None))
    if groups.count.max(initial=0) > MOST_LABELLED:
        notes.append(f"groups with more than {MOST_LABELLED} labelled rows are evenly thinned out to that many")
    return Labelled(x, y, groups)


def one_group(frame: pl.DataFrame) -> pl.Series:
    """The same group for all rows."""
    return pl.Series("group", [""] * frame.height, dtype=pl.String)


def _check_single(lacking: str, other: str, task: str, keys: pl.Series) -> None:
    count = keys.drop_nulls().n_unique()
    if count > 1:
        raise SourceError(
            f"the {lacking} table has no column '{task}', and the {other} table has {count} groups. Add the column, so "
            "that rows can be matched."
        )
