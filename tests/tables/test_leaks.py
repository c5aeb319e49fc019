"""Planted leaks are pointed out, each by its own sentence; honest columns are not."""

import numpy as np
import polars as pl
import pytest
from scipy import stats

from stmaml.tables.leaks import leak_notes
from stmaml.tables.schema import infer_schema, table_keys
from tests.table_data import classes, draw, lines


def notes_of(frame: pl.DataFrame, target: str = "y") -> list[str]:
    schema = infer_schema(frame, "shop", target, train=np.ones(frame.height, dtype=bool))
    return list(leak_notes(frame, table_keys(frame, "shop"), schema))


def means(values) -> np.ndarray:
    return (np.bincount(GROUP, weights=values) / 12)[GROUP]


FRAME = lines(40, 12)
Y = FRAME["y"]
GROUP = np.repeat(np.arange(40), 12)
SHUFFLED = draw(stats.norm, size=480, random_state=9).argsort()
KNOWN = "; leave it out with --drop leak unless it is known before the target is"
LEAKS = {
    "is the target itself" + KNOWN: Y,
    "is the target in another unit" + KNOWN: 32 - 1.8 * Y,
    "has its rows in the very order of the target" + KNOWN: (Y / 10).exp().round(4),
    "has the mean of the target in each group" + KNOWN: means(Y),
    "seems to number the groups; leave it out with --drop leak": GROUP * 7 + 3,
    "seems to number the rows; leave it out with --drop leak": np.arange(480) * 5,
}


@pytest.mark.parametrize("said", LEAKS)
def test_a_planted_leak_is_pointed_out(said):
    assert notes_of(FRAME.with_columns(pl.Series("leak", LEAKS[said]))) == [f"column 'leak' {said}"]


def test_gaps_do_not_hide_a_leak():
    gaps = pl.when(pl.int_range(480) % 3 > 0).then(pl.col("y") * 2)
    assert "'leak' is the target in another unit" in notes_of(FRAME.with_columns(leak=gaps))[0]


def test_what_determines_a_class_is_pointed_out():
    frame = classes(40, 12)
    low = (frame["label"] == "low").to_numpy()
    spread = np.abs(draw(stats.norm, size=480, random_state=1))
    planted = frame.with_columns(
        word=np.where(low, "cheap", np.where(SHUFFLED % 2, "dear", "very dear")),
        number=np.where(low, -spread, spread),
        share=means(low),
    )
    assert [note.split(";")[0] for note in notes_of(planted, "label")] == [
        "column 'word' determines the target",
        "column 'number' tells the classes of the target apart without an error",
        "column 'share' has the mean of the target in each group",
    ]


def test_honest_columns_raise_no_alarm():
    noise = draw(stats.norm, size=480, random_state=2)
    size = draw(stats.norm, 5000, 2000, size=40, random_state=3).round()
    honest = FRAME.with_columns(
        near=Y + 0.3 * noise,
        size=size[GROUP],
        day=np.tile(np.arange(12), 40),
        kind=pl.Series(SHUFFLED % 5).cast(pl.String),
        flag=SHUFFLED % 2,
        group_kind=pl.Series(GROUP % 4).cast(pl.String),
        id=SHUFFLED * 3,
        level=means(Y) + 0.5 * noise[GROUP],
    )
    assert notes_of(honest) == []
    assert notes_of(classes(40, 12), "label") == []


def test_of_many_rows_some_groups_are_looked_at():
    group = np.repeat(np.arange(5000), 60)
    y = draw(stats.norm, size=300_000, random_state=4)
    frame = pl.DataFrame({"shop": pl.Series(group).cast(pl.String), "x": y[::-1].copy(), "copy": 2 * y, "y": y})
    schema = infer_schema(frame, "shop", "y", train=np.ones(frame.height, dtype=bool))
    found = list(leak_notes(frame, table_keys(frame, "shop"), schema))
    assert [note.split(";")[0] for note in found] == ["column 'copy' is the target in another unit"]
