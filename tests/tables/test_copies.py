"""Rows that stand more than once are pointed out, where rows are unlikely to be alike by chance."""

from datetime import date, time, timedelta

import numpy as np
import polars as pl
import pytest

from stmaml.pool.on_disk import open_pool_on_disk
from stmaml.pool.opening import open_pool_table
from stmaml.tables.benchmark import Config, TableConfig, open_frame

GROUPS, EACH = 40, 12


def measured() -> pl.DataFrame:
    """Numbers of many values."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(2, GROUPS * EACH)).round(2)
    return pl.DataFrame({"g": _groups(), "x": x, "y": (y + x).round(2)})


def sold() -> pl.DataFrame:
    """Few numbers, but a row for each day: those of other shops have the same days and numbers."""
    random = np.random.default_rng(1)
    days = [date(2024, 1, 1) + timedelta(days=3 * i) for i in range(EACH * 2)] * GROUPS
    group = np.repeat(np.arange(GROUPS), EACH * 2)
    return pl.DataFrame({"g": group, "day": days, "y": random.poisson(30.0, len(days))})


def answered() -> pl.DataFrame:
    """Answers of yes and no to questions on scales of five, with what is known of a group: many rows are alike."""
    random = np.random.default_rng(2)
    size, group = random.normal(size=GROUPS), _groups()
    likert, yes = random.integers(1, 6, GROUPS * EACH), random.integers(0, 2, GROUPS * EACH)
    return pl.DataFrame({"g": group, "size": size[group], "likert": likert, "y": np.where(yes, "yes", "no")})


def bought() -> pl.DataFrame:
    """Sales of some products, whose code tells the price: the same ones are sold again and again."""
    random = np.random.default_rng(3)
    code = random.integers(100, 130, GROUPS * EACH)
    return pl.DataFrame({"g": _groups(), "code": code, "y": np.random.default_rng(4).normal(size=200)[code].round(2)})


def counted() -> pl.DataFrame:
    """Pairs of counts: those of one pair are the same now and then."""
    random = np.random.default_rng(5)
    group = np.repeat(np.arange(200), 2)
    return pl.DataFrame({"g": group, "x": random.integers(0, 3, 400), "y": random.integers(0, 6, 400)})


def _groups() -> np.ndarray:
    return np.repeat(np.arange(GROUPS), EACH)


def copies_in(frame: pl.DataFrame, features: tuple[str, ...] = ()) -> list[str]:
    """The notes on copies of a pool; a single method says the same."""
    config = Config(TableConfig("g", "y", features))
    opened = [open_pool_table(frame, config).notes, open_frame(frame, config).notes]
    found = [[note for note in notes if "alike in every column" in note] for notes in opened]
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize("make", [measured, sold])
@pytest.mark.parametrize(("rows", "words"), [(12, "12 rows stand"), (1, "1 row stands")])
def test_copies_are_pointed_out(make, rows, words):
    frame = make()
    assert copies_in(frame) == []
    longer = pl.concat([frame, frame[5 : 5 + rows], frame[5:6]])
    said = f"{words} twice or more, alike in every column; if that is a mistake, take the copies out"
    assert copies_in(longer) == [said]


@pytest.mark.parametrize("make", [measured, sold])
def test_a_table_that_is_read_twice_is_pointed_out(make):
    frame = make()
    assert copies_in(pl.concat([frame, frame]))[0].startswith(f"{frame.height:,} rows stand twice")


@pytest.mark.parametrize("make", [answered, bought, counted])
def test_rows_that_are_alike_by_nature_are_not(make):
    frame = make()
    assert frame.is_duplicated().sum() > 10
    assert copies_in(frame) == []


def test_columns_that_are_not_used_tell_rows_apart():
    frame = measured()
    longer = pl.concat([frame, frame[:12]])
    text = pl.Series("text", [f"remark {i}" for i in range(longer.height)])
    assert copies_in(longer.with_columns(text)) == []


def test_times_that_are_not_used_tell_rows_apart():
    frame = measured()
    longer = pl.concat([frame, frame[:12]])
    times = pl.Series("at", [time(i // 60, i % 60) for i in range(longer.height)])
    assert copies_in(longer.with_columns(times)) == []
    assert copies_in(longer.with_columns(times.cast(pl.Duration))) == []


def test_nothing_is_said_where_columns_may_not_have_been_read():
    frame = measured()
    assert copies_in(pl.concat([frame, frame[:12]]), features=("x",)) == []


def test_nothing_is_said_of_tables_on_disk(tmp_path):
    """Only some of their groups are looked at, and a pass for this alone is not worth its time."""
    frame = measured()
    pl.concat([frame, frame]).write_parquet(tmp_path / "rows.parquet")
    config = Config(TableConfig("g", "y"), (str(tmp_path / "rows.parquet"),), on_disk=True)
    assert not any("alike in every column" in note for note in open_pool_on_disk(config).notes)


def test_columns_of_lists_are_left_aside():
    frame = measured()
    longer = pl.concat([frame, frame[:12]]).with_columns(pl.concat_list("x", "y").alias("both"))
    assert len(copies_in(longer)) == 1
