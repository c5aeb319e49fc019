"""What columns hold is found out, stored, and applied to new rows; scales come from training rows alone."""

import json
import math

import numpy as np
import pandas as pd
import polars as pl
import pytest

from stmaml.data.columns import Boolean, Categorical, Date, Dropped, Numeric, as_numbers, as_text
from stmaml.data.schema import Schema, infer_column, infer_schema, infer_target
from stmaml.errors import SourceError


def column(values, train=None, keys=None, missing=(), name="c"):
    series = pl.Series(name, values)
    chosen = np.ones(len(values), dtype=bool) if train is None else np.array(train)
    groups = pl.Series("g", [str(i % 4) for i in range(len(values))] if keys is None else keys)
    return infer_column(series, groups, chosen, missing)


def encode(found, values, missing=()):
    notes: list[str] = []
    return found.encode(pl.Series(found.name, values), missing, notes), notes


def table(num_rows=80, **extra) -> pl.DataFrame:
    i = np.arange(num_rows)
    return pl.DataFrame({"g": (i % 8).astype(str), "x": np.sin(i), "y": np.cos(i), **extra})


def schema_of(frame, **settings) -> Schema:
    return infer_schema(frame, "g", "y", train=np.ones(frame.height, dtype=bool), **settings)


def test_numbers_in_text_with_blanks_are_numbers():
    found = column([" 1.5 ", "2.5", "  3.5", "4.5"])
    assert isinstance(found, Numeric)
    assert not found.has_missing
    scaled, notes = encode(found, ["1.5 ", "3.0"])
    np.testing.assert_allclose(scaled[:, 0], [-1.5 / float(np.std([1.5, 2.5, 3.5, 4.5])), 0.0], rtol=1e-6)
    assert notes == []


def test_scales_and_fill_come_from_training_rows_alone():
    found = column([1.0, 2.0, 3.0, 1000.0], train=[True, True, True, False])
    assert isinstance(found, Numeric)
    assert (found.mean, found.fill) == (2.0, 2.0)
    assert found.std == pytest.approx(np.std([1.0, 2.0, 3.0]))


@pytest.mark.parametrize("blank", ["", "NA", "nan", "null", "?", " n/a "])
def test_missing_numbers_get_the_median_and_an_indicator(blank):
    found = column(["1", "2", "9", blank])
    assert isinstance(found, Numeric)
    assert found.has_missing
    scaled, _ = encode(found, ["9", blank])
    np.testing.assert_allclose(scaled[1], [(2 - found.mean) / found.std, 1.0], rtol=1e-6)
    assert scaled[0, 1] == 0.0


def test_a_code_for_missing_is_missing_however_it_is_written():
    found = column(["1.0", "2.0", "9999.90", "9999.9"], missing=("9999.9",))
    assert isinstance(found, Numeric)
    assert found.has_missing
    assert found.high < 3
    assert as_numbers(pl.Series([1.0, 9999.9]), ("9999.9",)).to_list() == [1.0, None]


def test_a_forgotten_code_does_not_set_the_scale_and_is_noted():
    values = [*np.linspace(0, 10, 99), 9999.9]
    found = column(values)
    assert isinstance(found, Numeric)
    assert found.std < 10
    assert found.encode(pl.Series("c", [9999.9, *[5.0] * 3]), (), [])[0, 0] == 8.0
    notes: list[str] = []
    frame = pl.DataFrame({"g": [str(i % 4) for i in range(100)], "x": values, "y": np.arange(100.0)})
    schema_of(frame, notes=notes)
    assert "'x' has 1 values such as 9999.9" in notes[0]
    assert "--missing" in notes[0]


def test_the_odd_word_among_numbers_is_missing_but_half_of_them_is_not():
    found = column([*map(str, range(99)), "trace"])
    assert isinstance(found, Numeric)
    _, notes = encode(found, ["1", "2", "3", "trace"])
    assert "1 cells that are not numbers, such as 'trace'" in notes[0]
    with pytest.raises(SourceError, match="column 'c' must hold numbers; it holds 'low'"):
        encode(found, ["low", "high", "3"])


def test_infinity_is_refused_with_its_row():
    with pytest.raises(SourceError, match="column 'c' holds infinity in row 3"):
        column([1.0, 2.0, math.inf, 4.0])
    found = column(["1", "2", "3", "4"])
    with pytest.raises(SourceError, match="holds infinity in row 2"):
        encode(found, ["1", "-inf"])


def test_another_unit_is_noticed():
    found = column(np.linspace(30.0, 100.0, 50))  # Fahrenheit
    with pytest.raises(SourceError, match=r"column 'c' holds values such as 283\.1.* from 30.* to 99.*unit"):
        encode(found, [283.1, 295.0, 250.0])
    encode(found, [120.0, 10.0, -20.0])  # hot and cold, but not absurd


@pytest.mark.parametrize("words", [("yes", "no"), ("TRUE", "False"), ("1", "0"), ("T", "F")])
def test_yes_and_no_are_one_and_zero(words):
    yes, no = words
    found = column([yes, yes, yes, no])
    assert isinstance(found, Boolean)
    assert encode(found, [no, yes])[0].tolist() == [[0.0], [1.0]]
    assert encode(found, [None, yes])[0][0, 0] == pytest.approx(0.75)


def test_names_are_one_hot_with_a_place_for_others():
    found = column(["red"] * 6 + ["blue"] * 5 + ["odd"])
    assert isinstance(found, Categorical)
    assert found.levels == ("blue", "red")
    encoded, notes = encode(found, ["red", "blue", "odd", "new"])
    assert encoded.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 0, 1]]
    assert notes == []  # rare ones were there in training, so others are nothing new


def test_an_unseen_name_is_said():
    found = column(["red"] * 6 + ["blue"] * 6)
    _, notes = encode(found, ["green", "red"])
    assert "'c' has values that training did not, such as 'green'" in notes[0]


def test_whole_numbers_read_as_text_are_the_same_from_every_format():
    assert as_text(pl.Series([1.0, 2.0, None])).to_list() == ["1", "2", None]
    assert as_text(pl.Series([1, 2])).to_list() == as_text(pl.Series(["1", " 2 "])).to_list() == ["1", "2"]
    assert as_text(pl.Series([1.5, float("nan")])).to_list() == ["1.5", None]


def test_dates_become_time_and_place_in_year_and_week():
    days = pd.date_range("2019-01-01", "2020-12-31")
    found = column([str(day.date()) for day in days])
    assert isinstance(found, Date)
    assert found.parts == ("year", "week")
    encoded, _ = encode(found, ["2019-03-04", "2020-03-04", "2019-03-11"])
    year, week = encoded[:, 1:5], encoded[:, 5:9]
    np.testing.assert_allclose(year[0], year[1], atol=0.03)  # a year apart, to the quarter of a day
    np.testing.assert_allclose(week[0], week[2], atol=1e-4)  # a week apart
    assert np.abs(week[0] - week[1]).max() > 0.5
    std = np.std((days - pd.Timestamp(0)) / pd.Timedelta(days=1))
    assert encoded[1, 0] - encoded[0, 0] == pytest.approx(366 / std, rel=1e-4)


def test_hours_count_where_there_are_some():
    found = column([f"2020-01-01 {hour:02}:30:00" for hour in range(24)])
    assert isinstance(found, Date)
    assert found.parts == ("day",)
    encoded, _ = encode(found, ["2020-01-01 06:00:00", "2020-01-01 18:00:00"])
    np.testing.assert_allclose(encoded[:, 1:3], [[1, 0], [-1, 0]], atol=1e-4)


@pytest.mark.parametrize("text", ["2020/02/28", "28.02.2020", "02/28/2020", "28/02/2020", "2020-02-28T00:00:00Z"])
def test_the_usual_ways_to_write_a_date_are_read(text):
    values = [text] + [text.replace("28", str(day)) for day in range(10, 28)]
    found = column(values)
    assert isinstance(found, Date)
    assert (found.low, found.high) == (18302.0, 18320.0)  # days since 1970
    with pytest.raises(SourceError, match="must hold dates as in training; it holds 'soon'"):
        encode(found, ["soon"])


def test_a_missing_date_is_all_zeros_but_for_its_indicator():
    found = column(["2020-01-01", "2020-06-01", "", "2020-12-01"])
    encoded, _ = encode(found, ["", "2020-06-01"])
    assert encoded[0].tolist() == [0.0] * (encoded.shape[1] - 1) + [1.0]
    assert encoded[1, -1] == 0.0


def test_useless_columns_are_dropped_with_a_reason():
    assert column(["3"] * 8) == Dropped("c", "constant")
    assert column([None, ""] * 4) == Dropped("c", "empty")
    named = column([f"Station {i % 4}" for i in range(40)])
    assert isinstance(named, Dropped)
    assert "names the groups" in named.reason
    text = column([f"ticket {i}" for i in range(200)])
    assert isinstance(text, Dropped)
    assert "hardly a value twice" in text.reason
    in_training = column([1.0, 1.0, 2.0, 3.0], train=[True, True, False, False])
    assert in_training == Dropped("c", "constant in the training groups")


def test_a_schema_survives_json_and_encodes_the_same():
    frame = table(
        n=[str(i) if i % 5 else "" for i in range(80)],
        b=["yes", "no"] * 40,
        c=["u", "v", "w", "x"] * 20,
        d=[f"2020-{1 + i % 12:02}-03" for i in range(80)],
        k=["1"] * 80,
    )
    schema = schema_of(frame)
    assert [c.kind for c in schema.columns] == ["numeric", "numeric", "boolean", "categorical", "date", "dropped"]
    again = Schema.from_json(json.loads(json.dumps(schema.to_json())))
    assert again == schema
    encoded = again.encode(frame)
    assert encoded.shape == (80, len(schema.outputs))
    assert encoded.dtype == np.float32
    np.testing.assert_array_equal(encoded, schema.encode(frame.cast(pl.String)))


def test_features_restrict_and_drop_excludes():
    frame = table(a=np.arange(80.0), b=np.arange(80.0) ** 2)
    assert [c.name for c in schema_of(frame, features=["b", "x"]).columns] == ["b", "x"]
    assert [c.name for c in schema_of(frame, drop=["x"]).columns] == ["a", "b"]
    with pytest.raises(SourceError, match="no column 'z'; it has: g, x, y, a, b"):
        schema_of(frame, features=["z"])
    with pytest.raises(SourceError, match="must name different columns"):
        schema_of(frame, features=["y"])


def test_missing_columns_are_filled_and_named_unless_most_are_missing():
    frame = table(a=np.arange(80.0), b=np.arange(80.0) ** 2)
    schema = schema_of(frame)
    notes: list[str] = []
    encoded = schema.encode(frame.drop("a"), "the query table", notes)
    assert notes == ["the query table lacks 'a'; taken as missing in all rows"]
    a = schema.used[1]
    assert isinstance(a, Numeric)
    np.testing.assert_allclose(encoded[:, 1], (a.fill - a.mean) / a.std, atol=1e-6)
    with pytest.raises(SourceError, match="of another kind than the training table: it lacks 'x', 'a'"):
        schema.encode(frame.drop("a", "x"), "the query table")


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        (["1", "x", "2"], "regression", "must hold numbers for regression; it holds 'x'.*--kind classification"),
        (["5", "5", "5"], "auto", "is '5' in every row"),
        (["", None, "NA"], "auto", "is empty in every row"),
        ([1.0, math.inf, 2.0], "auto", "holds infinity in row 2"),
        ([f"c{i}" for i in range(60)], "auto", "has 60 classes, such as 'c0'"),
    ],
)
def test_a_target_that_cannot_be_learnt_is_told(values, kind, message):
    with pytest.raises(SourceError, match=message):
        infer_target(pl.Series("y", values, strict=False), np.ones(len(values), dtype=bool), kind)


def test_targets_are_numbers_unless_they_are_words_or_just_two():
    every = np.ones(6, dtype=bool)
    assert infer_target(pl.Series("y", ["10", "9", "2", "1", "3", "4"]), every).classes == ()
    assert infer_target(pl.Series("y", [0, 1, 1, 0, 1, 0]), every).classes == ("0", "1")
    many = pl.Series("y", ["10", "9", "2", "2", "9", "10"])
    assert infer_target(many, every, "classification").classes == ("2", "9", "10")
    half = np.array([True, True, True, False, False, False])
    target = infer_target(pl.Series("y", [1.0, 2.0, 6.0, 100.0, 200.0, 300.0]), half)
    assert (target.mean, target.std) == (3.0, pytest.approx(np.std([1, 2, 6])))


def test_a_class_that_training_did_not_have_is_named():
    target = infer_target(pl.Series("y", ["a", "b", "a"]), np.ones(3, dtype=bool))
    assert target.values(pl.DataFrame({"y": ["b", None, " a"]}), ()).tolist() == [1, -1, 0]
    with pytest.raises(SourceError, match="has the class 'z', which training did not have; it had: a, b"):
        target.values(pl.DataFrame({"y": ["z"]}), ())
