"""How the groups of a table differ, in the units of its columns, as kept in a run and shown to people."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float

from stmaml.errors import RunError
from stmaml.pool.base import Arrays
from stmaml.pool.mixed.effects import Effects, Units, effects_of
from stmaml.pool.opening import PoolTable
from stmaml.pool.own_slopes import numbers_named
from stmaml.tables.columns import Categorical, Date, Numeric, Ordinal, Used
from stmaml.tables.schema import Schema

DEPENDENT = 1e-6  # of a column's own variance, left by those before it: they tell it, but for rounding


@dataclass(frozen=True)
class GroupEffects:
    """Effects with the names of groups and of levels of further groupings."""

    effects: Effects
    names: tuple[str, ...]
    groupings: tuple[str, ...]
    """Further groupings, and below the name of each level that has an effect."""
    level_names: tuple[str, ...]
    notes: tuple[str, ...]
    """Where columns that are not plain numbers are 0."""

    def groups(self) -> pl.DataFrame:
        """A row for each group, sorted by name: how it departs in level and slopes, with standard errors."""
        order = sorted(range(len(self.names)), key=lambda place: natural(self.names[place]))
        columns: dict[str, Any] = {"group": [self.names[place] for place in order]}
        for i, name in enumerate(self.effects.own_names):
            columns[name] = self.effects.groups[order, i]
            columns[f"{name} error"] = self.effects.groups_error[order, i]
        return pl.DataFrame(columns)

    def levels(self) -> pl.DataFrame:
        """A row for each level of each further grouping."""
        which = [self.groupings[place] for place in self.effects.level_grouping]
        columns = {"level": self.effects.levels, "level error": self.effects.levels_error}
        return pl.DataFrame({"grouping": which, "name": list(self.level_names), **columns})

    def summary(self) -> dict[str, Any]:
        """All of it as plain lists and dictionaries."""
        own = self.effects
        fixed = zip(own.fixed_names, own.fixed.tolist(), own.fixed_error.tolist(), strict=True)
        return {
            "share_between": own.share_of_rows,
            "within": own.noise,
            "between": own.between,
            "spread": dict(zip(own.own_names, own.spread.tolist(), strict=True)),
            "correlation": own.correlation.tolist(),
            "fixed": {name: {"estimate": value, "error": error} for name, value, error in fixed},
            "groupings": dict(zip(self.groupings, own.level_spread.tolist(), strict=True)),
            "groups": self.groups().to_dicts(),
            "levels": self.levels().to_dicts(),
            "notes": list(self.notes),
        }

    def state(self) -> Arrays:
        """As arrays to be saved."""
        words = {name: getattr(self, name) for name in ("names", "groupings", "level_names", "notes")}
        return {**self.effects.state(), **{f"about.{name}": np.array(values, str) for name, values in words.items()}}

    @staticmethod
    def restore(state: Arrays) -> "GroupEffects":
        """Back from its arrays."""
        words = {name.removeprefix("about."): state[name] for name in state if name.startswith("about.")}
        effects = Effects.restore({name: array for name, array in state.items() if not name.startswith("about.")})
        found = GroupEffects(effects, **{name: tuple(map(str, values)) for name, values in words.items()})
        named = len(found.names), len(found.groupings), len(found.level_names)
        which = effects.level_grouping
        if (
            named != (len(effects.groups), len(effects.level_spread), len(which))
            or not ((which >= 0) & (which < len(found.groupings))).all()
        ):
            raise RunError("effects and what they are of are not of one number")
        return found


def natural(name: str) -> tuple[bool, float, str]:
    """Sorts numbers as numbers, before words."""
    try:
        return False, float(name), name
    except ValueError:
        return True, 0.0, name


def effects_of_table(table: PoolTable, slopes: Sequence[str] | None = None) -> GroupEffects:
    """Straight lines through a table of numbers, fitted to all its rows. Those columns have slopes that differ between
    groups which do so by more than chance, or those that are named."""
    plain = _plain_columns(table)
    kept = [plain[place] for place in independent(table.rows.x[:, plain])]
    rows = replace(table.rows, x=table.rows.x[:, kept], columns=tuple(table.rows.columns[place] for place in kept))
    own = None if slopes is None else numbers_named(slopes, rows, table.schema, table.config.table)
    found = effects_of(rows, slopes=own, units=_units(table.schema, kept))
    groupings = tuple(table.factors.levels)
    places = zip(found.level_grouping, found.level_number, strict=True)
    levels = tuple(table.factors.levels[groupings[grouping]][number] for grouping, number in places)
    told = [place for place in plain if place not in kept and np.ptp(table.rows.x[:, place]) > 0]
    said = [f"'{table.rows.columns[place].name}' is left out, for other columns tell it" for place in told]
    return GroupEffects(found, table.names, groupings, levels, (*_zeros(table.schema, groupings), *said))


def independent(x: Float[np.ndarray, "n d"]) -> list[int]:
    """The columns that those before them and a constant do not tell, as lme4 keeps them."""
    centred = x - x.mean(0)
    products = centred.T @ centred
    kept: list[int] = []
    for place, own in enumerate(np.diag(products)):
        known = products[np.ix_(kept, kept)]
        across = products[kept, place]
        left = own - across @ np.linalg.solve(known, across) if kept else own
        if left > DEPENDENT * max(own, 1e-12 * len(x)):
            kept.append(place)
    return kept


def _plain_columns(table: PoolTable) -> list[int]:
    """The numbers made of columns, without a first level that all others are compared with, and without groupings,
    whose levels have effects of their own."""
    grouped = {*table.config.table.within, *table.config.table.also}
    first = {column.outputs[0] for column in table.schema.used if column.kind == Categorical.kind}
    first |= {name for column in table.schema.used if column.name in grouped for name in column.outputs}
    return [place for place, column in enumerate(table.rows.columns) if column.name not in first]


def _units(schema: Schema, kept: list[int]) -> Units:
    """What each number of an encoded row was scaled from."""
    pairs = [pair for column in schema.used for pair in _middle_and_spread(column)]
    middle, spread = np.array(pairs, dtype=float).reshape(-1, 2)[kept].T
    return Units(middle, spread, schema.target.mean, schema.target.std)


def _middle_and_spread(column: Used) -> list[tuple[float, float]]:
    """Of each number made of a column; a date is counted in days from the first one."""
    plain = [(0.0, 1.0)] * len(column.outputs)
    if isinstance(column, Numeric | Ordinal):
        return [(column.mean, column.std), *plain[1:]]
    return [(column.mean - column.low, column.std), *plain[1:]] if isinstance(column, Date) else plain


def _zeros(schema: Schema, groupings: Sequence[str]) -> Iterator[str]:
    for column in (column for column in schema.used if column.name not in groupings):
        if isinstance(column, Date):
            yield f"'{column.name}' counts days from {column.example()}"
        elif isinstance(column, Ordinal):
            yield f"'{column.name}' counts levels from '{column.levels[0]}'"
        elif isinstance(column, Categorical):
            yield f"'{column.name}' is compared with '{column.levels[0]}'"
