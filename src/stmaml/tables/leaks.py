"""Inputs that give the target away, or that tell groups apart: what is learnt from them will not help a new group."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from shlex import quote

import numpy as np
import polars as pl
from jaxtyping import Bool, Float, Int

from stmaml.tables.cells import as_levels, as_numbers
from stmaml.tables.schema import Schema

MOST_ROWS = 200_000  # looked at: what holds in all of these holds in the others
RANKED_ROWS = 20_000
FEWEST_ROWS = 20
FEWEST_GROUPS = 8
FEWEST_VALUES = 10  # of a target, for a correlation to say much
ROWS_A_CLASS = 5
SAME_LINE = 1 - 1e-9  # correlation of a column with what was computed from it in double precision
SAME_RANKS = 0.9995  # some digits may be lost
SAME_MEANS = 0.999  # some rows may be

Numbers = Float[np.ndarray, " n"]
UNLESS = " unless it is known before the target is"


@dataclass(frozen=True)
class _Rows:
    """Rows that are looked at: their groups, numbered as they come, and the target; classes as their numbers."""

    group: Int[np.ndarray, " n"]
    target: Numbers
    num_classes: int  # 0 for numbers

    def chosen(self, some: Bool[np.ndarray, " n"]) -> "_Rows":
        """Some of the rows, with groups numbered anew."""
        _, group = np.unique(self.group[some], return_inverse=True)
        return _Rows(group.astype(np.int64), self.target[some], self.num_classes)

    @cached_property
    def sizes(self) -> Int[np.ndarray, " g"]:
        """The number of rows in each group."""
        return np.bincount(self.group)

    @cached_property
    def first(self) -> Int[np.ndarray, " g"]:
        """The first row of each group."""
        return np.unique(self.group, return_index=True)[1]

    @cached_property
    def means(self) -> list[Float[np.ndarray, " g"]]:
        """In each group, the mean of the target, or the share of each class."""
        parts = [self.target == one for one in range(self.num_classes)] or [self.target]
        return [np.bincount(self.group, weights=part) / self.sizes for part in parts]

    def constant(self, values: Numbers) -> bool:
        """Whether numbers are the same in all rows of a group, and groups have several."""
        return bool((values == values[self.first][self.group]).all() and len(values) >= 2 * len(self.first))


def leak_notes(frame: pl.DataFrame, keys: pl.Series, schema: Schema) -> Iterator[str]:
    """A sentence for each input that is computed from the target, or that numbers rows or groups."""
    frame, rows = _looked_at(frame, keys, schema)
    for column in schema.used:
        numbers = as_numbers(frame[column.name], schema.missing)
        said = _said_of_numbers(rows, numbers) or _determines(rows, as_levels(frame[column.name], schema.missing))
        if said is not None:
            what, unless = said
            yield f"column '{column.name}' {what}; leave it out with --drop {quote(column.name)}{unless}"


def _looked_at(frame: pl.DataFrame, keys: pl.Series, schema: Schema) -> tuple[pl.DataFrame, _Rows]:
    """Whole groups, as many as are quickly looked at."""
    names = keys.unique(maintain_order=True)
    group = keys.replace_strict(names, np.arange(len(names)), return_dtype=pl.Int64).to_numpy()
    target = schema.target.values(frame, schema.missing).astype(np.float64)
    kept = (group % -(-len(group) // MOST_ROWS) == 0) & np.isfinite(target)
    return frame.filter(pl.Series(kept)), _Rows(group, target, len(schema.target.classes)).chosen(kept)


def _said_of_numbers(rows: _Rows, numbers: pl.Series) -> tuple[str, str] | None:
    known = numbers.is_not_null().to_numpy()
    if known.sum() < FEWEST_ROWS:
        return None
    values, rows = numbers.drop_nulls().to_numpy(), rows.chosen(known)
    of_target = _separates(rows, values) if rows.num_classes else _computed(rows, values)
    of_target = of_target or _group_mean(rows, values)
    if of_target is not None:
        return of_target, UNLESS
    numbered = _numbers_groups(rows, values) or (_numbers_rows(rows, values) if known.all() else None)
    return None if numbered is None else (numbered, "")


def _correlation(a: Numbers, b: Numbers) -> float:
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / scale if scale > 0 else 0.0


def _ranks(values: Numbers) -> Numbers:
    return pl.Series(values).rank("average").to_numpy()


def _computed(rows: _Rows, values: Numbers) -> str | None:
    if (values == rows.target).all():
        return "is the target itself"
    if len(np.unique(rows.target)) < FEWEST_VALUES:
        return None
    if abs(_correlation(values, rows.target)) > SAME_LINE:
        return "is the target in another unit"
    step = -(-len(values) // RANKED_ROWS)
    if abs(_correlation(_ranks(values[::step]), _ranks(rows.target[::step]))) > SAME_RANKS:
        return "has its rows in the very order of the target"
    return None


def _separates(rows: _Rows, values: Numbers) -> str | None:
    """Whether each class has a range of its own."""
    present, count = np.unique(rows.target, return_counts=True)
    if len(present) < 2 or count.min() < ROWS_A_CLASS:
        return None
    ends = sorted((values[rows.target == one].min(), values[rows.target == one].max()) for one in present)
    apart = all(high < low for (_, high), (low, _) in pairwise(ends))
    return "tells the classes of the target apart without an error" if apart else None


def _group_mean(rows: _Rows, values: Numbers) -> str | None:
    if len(rows.first) < FEWEST_GROUPS or not rows.constant(values):
        return None
    same = any(abs(_correlation(values[rows.first], means)) > SAME_MEANS for means in rows.means)
    return "has the mean of the target in each group" if same else None


def _numbers_groups(rows: _Rows, values: Numbers) -> str | None:
    """Whether whole numbers name the groups: another for each, in their order or without large gaps."""
    each = values[rows.first]
    if len(each) < FEWEST_GROUPS or not rows.constant(values) or (each != each.round()).any():
        return None
    if len(np.unique(each)) < len(each):
        return None
    rising = (np.diff(each) > 0).all() or np.ptp(each) < 2 * len(each)
    return "seems to number the groups" if rising else None


def _numbers_rows(rows: _Rows, values: Numbers) -> str | None:
    """Whether whole numbers rise from row to row, by small steps or through one group after the other."""
    steps = np.diff(values)
    if not (steps >= 1).all() or (values != values.round()).any():
        return None
    in_blocks = (np.diff(rows.group) >= 0).all() and len(rows.first) >= FEWEST_GROUPS
    return "seems to number the rows" if steps.mean() < 2 or in_blocks else None  # some rows may be left out


def _determines(rows: _Rows, levels: pl.Series) -> tuple[str, str] | None:
    """Whether each level goes with one target, in more groups than one."""
    frame = pl.DataFrame({"level": levels, "target": rows.target, "group": rows.group}).drop_nulls("level")
    count = frame["level"].n_unique()
    if count < 2 or frame.height < max(FEWEST_ROWS, 2 * ROWS_A_CLASS * count):
        return None
    if frame["target"].n_unique() < 2 or frame.select("level", "target").n_unique() > count:
        return None
    return ("determines the target", UNLESS) if frame.select("level", "group").n_unique() >= 2 * count else None
