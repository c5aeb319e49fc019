"""A table opened for a pool: all its groups, whatever their size, and what was made of its columns."""

import hashlib
from dataclasses import dataclass, replace

import jax
import numpy as np
import polars as pl
from jaxtyping import Bool, Int

from stmaml.errors import SettingError, SourceError
from stmaml.pool.base import Draw, GroupedRows
from stmaml.pool.crossfit import shot_counts
from stmaml.pool.meta_wide import InMemory, Wide
from stmaml.pool.rows import Factors, factors_of, group_places, grouped_rows, in_order, nested
from stmaml.tables.asking import said_of_copies
from stmaml.tables.benchmark import Config, TableConfig, infer_columns, with_targets
from stmaml.tables.calibration import caution
from stmaml.tables.columns import Date
from stmaml.tables.groups import usual_shots
from stmaml.tables.ordering import unordered_note
from stmaml.tables.parts import check_has
from stmaml.tables.reading import group_rows
from stmaml.tables.schema import Schema, table_keys

MOST_ROWS = 300_000  # that members learn from: more of them, of the same groups' kind, tell hardly more
MOST_WIDE = 4_000_000  # rows that a trained member draws tasks from
FEWEST_KEPT = 30  # rows of a group in a large table: ten to label, as many to ask twice over
MIN_GROUPS = 4  # with two rows or more: fewer tell nothing of how groups differ


@dataclass(frozen=True)
class PoolTable:
    """The rows of a table by group, and how tasks are drawn from them."""

    config: Config
    """With the schema, once found out."""
    schema: Schema
    factors: Factors
    names: tuple[str, ...]
    rows: GroupedRows
    frame: pl.DataFrame
    """All rows that have a group and a target."""
    draw: Draw
    notes: tuple[str, ...]
    wide: Wide | None = None
    """All groups and rows of a large table, of which those above are some, to draw training tasks from."""

    @property
    def counts(self) -> tuple[int, ...]:
        """Numbers of labelled rows to learn weights at."""
        return shot_counts(self.draw.shots)


def open_pool_table(frame: pl.DataFrame, config: Config, *, shots: int | None = None, seed: int = 0) -> PoolTable:
    """All rows of a table that have a group and a target. `shots` is the most labelled rows to expect of a group; what
    half of the groups can spare, up to ten, if not given."""
    notes: list[str] = []
    table = config.table
    check_has(frame.columns, table.named, "the table")
    whole = in_order(nested(frame, table), table)
    frame, keys = with_targets(whole, table, notes)
    everything = frame
    frame, keys = enough(frame, keys, notes, thin=table.order is None)
    groups = group_rows(keys)
    _check_groups(groups.count, table)
    if config.schema is None:
        schema = infer_columns(whole, frame, keys, keys.is_not_null(), table, notes)
        notes.extend(said_of_copies(everything, schema, table))
    else:
        schema = Schema.from_json(config.schema)
    factors = factors_of(frame, table)
    rows = grouped_rows(schema, factors, frame, group_places(groups, frame.height), notes=notes)
    most = usual_shots(groups.count) if shots is None else shots
    _check_shots(most, groups.count)
    draw = Draw(most, ordered=table.order is not None, seed=seed)
    settings = replace(config, schema=schema.to_json())
    said = [_said(frame.height, table, groups.count, most), *notes, *_on_order(frame, table, schema)]
    few = caution(len(groups.names), schema.target.is_class)
    wide = all_rows(everything, schema, table, groups.names) if frame.height < everything.height else None
    return PoolTable(settings, schema, factors, groups.names, rows, everything, draw, tuple([*said, *few]), wide)


def all_rows(frame: pl.DataFrame, schema: Schema, table: TableConfig, names: tuple[str, ...]) -> Wide | None:
    """All rows of a table that is thinned for most members, for one that is trained on an accelerator: that reads them
    all in time. None without one, or where they would fill the memory."""
    if jax.default_backend() == "cpu" or frame.height > MOST_WIDE:
        return None
    groups = group_rows(table_keys(frame, table.task, table.missing))
    some = frame[groups.order]
    target = schema.target
    place = {name: number for number, name in enumerate(names)}
    sampled = np.array([place.get(name, -1) for name in groups.names])
    mean, std = (0.0, 1.0) if target.is_class else (target.mean, target.std)
    rows = InMemory(schema.encode(some, "the table", []).astype(np.float32), target.values(some, schema.missing))
    return Wide(rows, np.cumsum(groups.count) - groups.count, groups.count, sampled, mean, std)


def enough(frame: pl.DataFrame, keys: pl.Series, notes: list[str], *, thin: bool) -> tuple[pl.DataFrame, pl.Series]:
    """All rows, or MOST_ROWS at most: groups tell more of new groups than further rows of the same ones do, so first
    each gives as many rows as all can (`thin`), drawn at random; then whole groups are left out."""
    if frame.height <= MOST_ROWS:
        return frame, keys
    code = keys.rank("dense").to_numpy().astype(int) - 1
    each = _room(np.bincount(code)) if thin else frame.height
    kept = _some_of_each(code, each)
    kept &= np.isin(code, _first_groups(keys.unique().sort(), np.bincount(code[kept])))
    count, chosen = len(np.unique(code)), len(np.unique(code[kept]))
    thinned = f", with at most {each:,} rows of each" if each < np.bincount(code).max() else ""
    notes.append(
        f"the table is large: {chosen:,} of its {count:,} groups train and are scored{thinned}, {kept.sum():,} rows in "
        "all; the rows of all groups are kept, for when those are asked for"
    )
    return frame.filter(pl.Series(kept)), keys.filter(pl.Series(kept))


def _room(counts: Int[np.ndarray, " g"]) -> int:
    """Rows that each group may give."""
    tried = np.unique(counts)
    given = np.array([np.minimum(counts, most).sum() for most in tried])
    fits = tried[given <= MOST_ROWS]
    below = int(fits[-1]) if len(fits) else 0
    spare = MOST_ROWS - int(np.minimum(counts, below).sum())
    return max(below + spare // max(int((counts > below).sum()), 1), FEWEST_KEPT)


def _some_of_each(code: Int[np.ndarray, " n"], most: int) -> Bool[np.ndarray, " n"]:
    """At most so many rows of each group, drawn at random, the same ones every time."""
    mixed = np.random.default_rng(0).permutation(len(code))
    order = mixed[np.argsort(code[mixed], kind="stable")]
    counts = np.bincount(code)
    kept = np.zeros(len(code), dtype=bool)
    kept[order] = np.arange(len(code)) - np.repeat(np.cumsum(counts) - counts, counts) < most
    return kept


def _first_groups(names: pl.Series, counts: Int[np.ndarray, " g"]) -> Int[np.ndarray, " k"]:
    """As many whole groups as MOST_ROWS hold, by a digest of their names."""
    digests = [hashlib.sha256(name.encode()).digest() for name in names.to_list()]
    ranked = np.array(sorted(range(len(digests)), key=digests.__getitem__))
    return ranked[np.cumsum(counts[ranked]) <= MOST_ROWS]


def _check_groups(counts: Int[np.ndarray, " g"], table: TableConfig) -> None:
    if len(counts) == 1:
        raise SourceError(
            f"the table has a single group; learning across groups needs at least {MIN_GROUPS}. --task has to tell "
            "several of them apart."
        )
    if (able := int((counts > 1).sum())) < MIN_GROUPS:
        raise SourceError(
            f"{able} of {len(counts)} groups of '{table.task}' have two rows or more; at least {MIN_GROUPS} are "
            "needed. Bring more groups, or name another column with --task."
        )


def _check_shots(shots: int, counts: Int[np.ndarray, " g"]) -> None:
    """Raises SettingError where too few groups have a row beside so many labelled ones."""
    if (able := int((counts > shots).sum())) < MIN_GROUPS:
        most = int(np.sort(counts)[-MIN_GROUPS]) - 1
        raise SettingError(
            f"--shots {shots} leaves rows to predict in {able} of {len(counts)} groups; at least {MIN_GROUPS} are "
            f"needed. Use --shots {most}, or leave it out."
        )


def _said(rows: int, table: TableConfig, counts: Int[np.ndarray, " g"], most: int) -> str:
    low, high = counts.min(), counts.max()
    sizes = f"{low:,} rows each" if low == high else f"{low:,} to {high:,} rows each"
    which = "the first ones are labelled" if table.order else "labelled rows are drawn at random"
    return (
        f"{rows:,} rows in {len(counts):,} groups by '{table.task}', {sizes}. All train; each is scored by models that "
        f"have not seen it, from 0 to {most} labelled rows ({which})"
    )


def _on_order(frame: pl.DataFrame, table: TableConfig, schema: Schema) -> list[str]:
    """What to say of dates: that rows are taken at random, or that some have no place in the order."""
    if table.order is not None:
        return unordered_note(frame, table.order, table.missing)
    dates = [column.name for column in schema.used if column.kind == Date.kind]
    if not dates:
        return []
    return [
        f"'{dates[0]}' holds dates: scores and intervals are for gaps to be filled, with labelled rows anywhere among "
        f"the others. To forecast later rows from the first ones, add --order {dates[0]}"
    ]
