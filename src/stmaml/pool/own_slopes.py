"""Which numbers of a table's rows get slopes of their own, from the columns that a person names."""

from collections.abc import Mapping, Sequence

import numpy as np

from stmaml.errors import SettingError
from stmaml.pool.base import GroupedRows
from stmaml.pool.mixed.design import varies_within
from stmaml.tables.asking import TableConfig
from stmaml.tables.columns import Dropped
from stmaml.tables.parts import check_has
from stmaml.tables.schema import Schema


def numbers_named(names: Sequence[str], rows: GroupedRows, schema: Schema, table: TableConfig) -> tuple[str, ...]:
    """The numbers of `rows` that some columns became. A column stands for all its levels but the first, or for its
    time without waves; a single number may be named too.

    Raises SourceError for a name that the table does not have, SettingError for one that can have no slopes."""
    numbers = _numbers(rows, schema)
    header = [schema.task, schema.target.name, *table.within, *table.also, *(each.name for each in schema.columns)]
    check_has(list(dict.fromkeys([*header, *numbers])), names, "the table")
    vary = {column.name for column, varies in zip(rows.columns, varies_within(rows), strict=True) if varies}
    found: dict[str, None] = {}
    for name in names:
        mine = [number for number in numbers.get(name, ()) if number in vary]
        if not mine:
            raise SettingError(f"--slopes names '{name}', {_why_not(name, numbers, schema, table)}.")
        found |= dict.fromkeys(mine)
    _check_enough(len(found), rows)
    return tuple(found)


def _numbers(rows: GroupedRows, schema: Schema) -> Mapping[str, list[str]]:
    """The numbers by the name of their column, and each by its own name."""
    kind = {column.name: column.kind for column in rows.columns}
    each = {name: [name] for name in kind}
    whole = {column.name: column.outputs[: len(column.outputs) - column.has_missing] for column in schema.used}
    plain = {name: [one for one in made if one in kind and kind[one] != "wave"] for name, made in whole.items()}
    return {**each, **{name: made for name, made in plain.items() if made}}


def _why_not(name: str, numbers: Mapping[str, list[str]], schema: Schema, table: TableConfig) -> str:
    """Why a column can have no slopes of its own."""
    if name in (schema.task, *table.within, *table.also):
        return "which says what group a row is of and has no slope"
    if name == schema.target.name:
        return "which is the target and has no slope"
    if name in numbers:
        return "which is the same in all rows of most groups: its slopes there cannot be told"
    left_out = [column.describe() for column in schema.columns if column.name == name and isinstance(column, Dropped)]
    return f"which is not used ({left_out[0]})" if left_out else "which other columns tell, so that it is left out"


def _check_enough(num: int, rows: GroupedRows) -> None:
    """Raises SettingError where groups would have as many effects as there are rows: no noise is left then."""
    known = int(np.isfinite(rows.y).sum())
    if (effects := (1 + num) * rows.num_groups) >= known:
        raise SettingError(
            f"--slopes asks for {effects:,} levels and slopes of {rows.num_groups:,} groups, and {known:,} rows cannot "
            "tell so many. Name fewer columns."
        )
