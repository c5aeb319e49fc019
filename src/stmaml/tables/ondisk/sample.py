"""Some whole groups of a large table, in memory: what columns hold is found out on them, and models learn from them."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from stmaml.errors import SourceError
from stmaml.tables.ondisk.files import DiskTable
from stmaml.tables.ondisk.survey import Asked, Survey

SAMPLED_ROWS = 300_000


def first_groups(names: Sequence[str], counts: dict[str, int], most: int) -> list[str]:
    """As many of the groups, in this order, as so many rows hold."""
    room = np.cumsum([counts[name] for name in names]) <= most
    return [name for name, fits in zip(names, room, strict=True) if fits]


def rows_of(table: DiskTable, survey: Survey, asked: Asked, names: Sequence[str]) -> pl.DataFrame:
    """All rows of these groups, in their order."""
    if not names:
        raise SourceError(
            f"the groups of '{asked.task}' are so large that {SAMPLED_ROWS:,} rows hold none as a whole. Name a column "
            "that tells smaller groups apart with --task."
        )
    wanted, parts = list(names), []
    for _, frame in table.batches("reading a sample of groups"):
        known, keys = survey.known(asked.prepare(frame), asked)
        chosen = known & keys.is_in(wanted)
        if chosen.any():
            parts.append(frame.filter(chosen))
    return pl.concat(parts)
