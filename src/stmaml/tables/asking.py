"""What is asked of a table: what is predicted from what, in which groups, and what each column turns out to hold."""

from dataclasses import dataclass, field

import polars as pl

from stmaml.errors import SourceError
from stmaml.tables.cells import as_labels
from stmaml.tables.columns import Date
from stmaml.tables.copies import comparable, copies_note
from stmaml.tables.groups import Sizes
from stmaml.tables.leaks import leak_notes
from stmaml.tables.reading import row_list
from stmaml.tables.roles import check_roles, refuse_both, refuse_twice
from stmaml.tables.schema import Schema, infer_schema, table_keys
from stmaml.tables.target import WantedTarget, check_target


@dataclass(frozen=True)
class TableConfig:
    """What is predicted from what, and in which groups."""

    task: str
    """Column that says which group a row belongs to."""
    target: str
    """Column to predict."""
    features: tuple[str, ...] = ()
    """Columns to predict it from; all others if none is named."""
    drop: tuple[str, ...] = ()
    """Columns to leave out."""
    categorical: tuple[str, ...] = ()
    """Columns of names, whatever they look like: numbers that stand for kinds."""
    ordinal: tuple[str, ...] = ()
    """Columns of levels that have an order: that of the numbers in them, or else the one in which they first appear."""
    kind: WantedTarget = "auto"
    """What the target is: numbers, or classes; found out if not given."""
    missing: tuple[str, ...] = ()
    """Values that stand for a missing one, such as 9999.9, beside empty cells and NA."""
    order: str | None = None
    """Column that orders the rows of a group: labelled rows are then the first ones, and later ones are asked for."""
    within: tuple[str, ...] = ()
    """Columns of larger groups that the groups lie within, such as a district of schools."""
    also: tuple[str, ...] = ()
    """Columns of other groupings that cut across the groups, such as the items of a questionnaire."""
    keep_codes: bool = False
    """Take values of the target that are far from all others as real."""
    sizes: Sizes = field(default_factory=Sizes)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to be read, if not all."""
        roles = (self.task, self.target, *((self.order,) if self.order else ()), *self.within, *self.also)
        return tuple(dict.fromkeys((*roles, *self.features))) if self.features else ()

    @property
    def named(self) -> tuple[str, ...]:
        """All columns that are named."""
        named = (self.task, self.target, *self.features, *self.drop, *self.categorical, *self.ordinal)
        return (*named, *self.within, *self.also, *((self.order,) if self.order else ()))

    @property
    def categories(self) -> tuple[str, ...]:
        """The columns that hold names, whatever they look like."""
        grouped = [name for name in (*self.within, *self.also) if name not in (*self.drop, *self.ordinal)]
        return tuple(dict.fromkeys((*self.categorical, *grouped)))

    def check(self) -> None:
        """Raises SettingError if one column is to serve two purposes."""
        groups, order = (self.task, *self.within), () if self.order is None else (self.order,)
        refuse_twice("--task", groups)
        refuse_twice("--also", self.also)
        for flag, names in (("--task", groups), ("--also", self.also), ("--order", order)):
            refuse_both(flag, names, "--target", [self.target])
        for flag, names in (("--also", self.also), ("--order", order)):
            refuse_both(flag, names, "--task", groups)
        check_roles(self.task, self.target, self.features, self.drop, self.categorical, self.ordinal)


def infer_columns(
    whole: pl.DataFrame, frame: pl.DataFrame, keys: pl.Series, train: pl.Series, table: TableConfig, notes: list[str]
) -> Schema:
    """What each column of a frame holds, by the rows to train on, and what is odd about it; `whole` has the rows
    without a target too."""
    schema = infer_schema(
        frame,
        table.task,
        table.target,
        train=train.to_numpy(),
        features=table.features,
        drop=table.drop,
        categorical=table.categories,
        ordinal=table.ordinal,
        kind=table.kind,
        missing=table.missing,
        notes=notes,
    )
    if not schema.used:
        dropped = "; ".join(f"'{column.name}' is dropped ({column.describe()})" for column in schema.columns[:8])
        raise SourceError(f"no column is left to predict from: {dropped or 'no other is used'}. Bring some that vary.")
    if not schema.target.is_class:
        notes.extend(check_target(whole[table.target], table.missing, keep_codes=table.keep_codes))
    notes.extend(leak_notes(frame, keys, schema))
    return schema


def said_of_copies(frame: pl.DataFrame, schema: Schema, table: TableConfig) -> list[str]:
    """What to say of rows that stand more than once in a whole table; nothing where columns were not read, which may
    tell them apart."""
    if table.columns:
        return []
    dates = [column.name for column in schema.used if isinstance(column, Date)]
    note = copies_note(comparable(frame), schema.task, schema.target.name, schema.numbers, dates)
    return [] if note is None else [note]


def with_targets(frame: pl.DataFrame, table: TableConfig, notes: list[str]) -> tuple[pl.DataFrame, pl.Series]:
    """The rows that have a group and a target, and their groups."""
    keys = table_keys(frame, table.task, table.missing)
    known = keys.is_not_null() & as_labels(frame[table.target], table.missing).is_not_null()
    if not known.any():
        raise SourceError(f"no row has both a '{table.task}' and a '{table.target}'. Check the two columns.")
    if not known.all():
        lacking = f"no '{table.task}' or no '{table.target}'"
        notes.append(
            f"{int((~known).sum())} of {frame.height} rows have {lacking} and are left out: {row_list(~known)}"
        )
        frame, keys = frame.filter(known), keys.filter(known)
    return frame, keys
