"""Moments of a table have a zone or none, in training as where predictions are asked for; days go with either."""

import datetime as dt

import numpy as np
import pandas as pd
import polars as pl
import pytest

from stmaml.errors import SourceError
from stmaml.tables.columns import Date
from stmaml.tables.matching import labelled_rows, match
from stmaml.tables.schema import Schema, infer_column, infer_schema, table_keys


def column(values) -> Date:
    groups = pl.Series("g", [str(i % 4) for i in range(len(values))])
    found = infer_column(pl.Series("c", values), groups, np.ones(len(values), dtype=bool))
    assert isinstance(found, Date)
    return found


def encode(found: Date, values):
    notes: list[str] = []
    return found.encode(pl.Series(found.name, values), (), notes), notes


def table(when) -> pl.DataFrame:
    i = np.arange(len(when))
    return pl.DataFrame({"g": (i % 8).astype(str), "x": np.sin(i), "y": np.cos(i), "when": when})


def schema_of(frame, notes=None) -> Schema:
    return infer_schema(frame, "g", "y", train=np.ones(frame.height, dtype=bool), notes=notes)


def hours(write, count=480, zone="America/New_York"):
    return [write(moment) for moment in pd.date_range("2024-06-01", periods=count, freq="h", tz=zone)]


def typed(values, zone=None):
    """Moments as a type, with their zone if there is one."""
    naive = pl.Series("c", [value.replace(tzinfo=None) for value in values], dtype=pl.Datetime("us"))
    return naive.dt.replace_time_zone(zone) if zone else naive


def with_offset(moment):
    return moment.isoformat()


def without(moment):
    return moment.isoformat()[:19]


ZONED = {"text": hours(with_offset), "type": typed(hours(lambda at: at.to_pydatetime()), "America/New_York")}
NAIVE = {"text": hours(without), "blank": hours(lambda at: without(at).replace("T", " ")[:16])}
NAIVE |= {"type": typed(hours(lambda at: at.to_pydatetime())), "days first": hours(lambda at: f"{at:%d.%m.%Y %H:%M}")}


@pytest.mark.parametrize("asked", ["text", "blank", "type"])
@pytest.mark.parametrize("trained", ZONED)
def test_moments_without_a_zone_are_refused_where_training_had_one(trained, asked):
    found = column(ZONED[trained])
    assert found.zoned
    said = (
        r"^column 'c' must hold moments with a zone, as in training, such as 2024-06-01 04:00:00\+00:00; it holds "
        r"'2024-06-01.00:00.*'\. Add it, such as Z or -04:00, or give days alone\.$"
    )
    with pytest.raises(SourceError, match=said):
        encode(found, NAIVE[asked])


@pytest.mark.parametrize("asked", ZONED)
@pytest.mark.parametrize("trained", NAIVE)
def test_moments_with_a_zone_are_refused_where_training_had_none(trained, asked):
    found = column(NAIVE[trained])
    assert found.zoned is False
    said = (
        r"^column 'c' must hold moments without a zone, as in training, such as .*2024.* 00:00(:00)?; it holds "
        r"'2024-06-01.00:00.*-04:00'\. Write them by the clock of that table, or give days alone\.$"
    )
    with pytest.raises(SourceError, match=said):
        encode(found, ZONED[asked])


@pytest.mark.parametrize("trained", ZONED)
@pytest.mark.parametrize("asked", ZONED)
def test_moments_with_a_zone_are_the_same_in_any_zone_and_form(trained, asked):
    expected, _ = encode(column(ZONED["text"]), ZONED["text"])
    found, notes = encode(column(ZONED[trained]), ZONED[asked])
    np.testing.assert_array_equal(found, expected)
    assert notes == []
    tokyo = ZONED["type"].dt.convert_time_zone("Asia/Tokyo")
    np.testing.assert_array_equal(encode(column(ZONED[trained]), tokyo)[0], expected)


DAYS = [f"2024-06-{day:02}" for day in range(1, 29)]


@pytest.mark.parametrize(
    "days",
    [DAYS, [dt.date.fromisoformat(day) for day in DAYS], [dt.datetime.fromisoformat(day) for day in DAYS]],
    ids=["text", "date", "midnight"],
)
def test_days_alone_go_with_moments_of_both_kinds(days):
    for trained in (*ZONED.values(), *NAIVE.values(), DAYS):
        found, notes = encode(column(trained), days)
        assert notes == []
        assert (found[:, 0] != 0).all()
    of_days = column(days)
    assert of_days.zoned is None
    for asked in (*ZONED.values(), *(NAIVE[name] for name in ("text", "blank", "type"))):
        assert encode(of_days, asked)[1] == []


def test_one_midnight_in_text_is_a_moment():
    with pytest.raises(SourceError, match=r"with a zone, .*; it holds '2024-06-02T00:00:00'"):
        encode(column(ZONED["text"]), ["2024-06-02T00:00:00"])


def test_the_odd_moment_of_another_kind_is_missing():
    found = column(ZONED["text"])
    encoded, notes = encode(found, [*ZONED["text"][:9], "2024-06-01T12:00:00"])
    assert notes == [
        "'c' has 1 moments without a zone, such as '2024-06-01T12:00:00', where others have one: missing",
        "'c' is missing in 1 rows; in training it never was",
    ]
    assert (encoded[-1] == 0).all()
    of_many = column([*hours(without, 240), "2199-06-01T12:00:00Z"])
    assert (of_many.zoned, of_many.has_missing) == (False, True)
    assert of_many.high < 20_000  # the other moment sets no scale


def test_moments_of_both_kinds_are_read_as_before_with_a_note():
    notes: list[str] = []
    mixed = [*hours(with_offset, 360), *hours(without, 120)]
    schema = schema_of(table(mixed), notes=notes)
    assert notes == ["'when' has 360 moments with a zone and 120 without one; the latter are taken as UTC"]
    (found,) = [one for one in schema.used if isinstance(one, Date)]
    assert found.zoned is None
    for asked in (*ZONED.values(), NAIVE["text"]):
        assert encode(found, asked)[1] == []


def test_labelled_rows_and_queries_are_checked_and_runs_that_do_not_say_are_not():
    schema = schema_of(table(hours(with_offset, 80)))
    other = table(hours(without, 80))
    keys = table_keys(other, "g")
    with pytest.raises(SourceError, match=r"'when' must hold moments with a zone"):
        match(schema, other.drop("y"), other, [])
    with pytest.raises(SourceError, match=r"'when' must hold moments with a zone"):
        labelled_rows(schema, other, keys, [])
    content = schema.to_json()
    assert [one.pop("zoned", "") for one in content["columns"]] == ["", True]
    old = Schema.from_json(content)
    notes: list[str] = []
    np.testing.assert_array_equal(labelled_rows(old, other, keys, notes).x, old.encode(other))
    assert notes == []


def test_likely_moments_have_a_zone_where_training_had():
    for trained in (ZONED["text"], NAIVE["text"], DAYS):
        found = column(trained)
        assert encode(found, found.likely(3))[1] == []
