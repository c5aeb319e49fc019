"""What columns hold is found out, stored, and applied to new rows; scales come from training rows alone."""

import datetime as dt
import json
import math

import numpy as np
import pandas as pd
import polars as pl
import pytest

from stmaml.errors import SettingError, SourceError, closest
from stmaml.tables.asking import TableConfig
from stmaml.tables.cells import as_names, as_numbers, as_text
from stmaml.tables.columns import Boolean, Categorical, Date, Dropped, Numeric, Ordinal
from stmaml.tables.dates import as_dates
from stmaml.tables.roles import check_roles
from stmaml.tables.schema import Schema, infer_column, infer_schema, table_keys
from stmaml.tables.target import Target, infer_target


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
    with pytest.raises(SourceError, match=r"must hold dates as in training, such as .*; it holds 'soon'"):
        encode(found, ["soon"])


NOON = 19_470.5  # 2023-04-23 12:00 in days since 1970


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("2023-04-23", 19_470.0),
        ("2023-04-23 12:00", NOON),
        ("2023-04-23T12:00", NOON),
        ("2023-04-23 12:00:00", NOON),
        ("2023-04-23T12:00:00.000000", NOON),
        ("2023-04-23 12:00:00.500", NOON + 0.5 / 86_400),
        ("2023-04-23T12:00:00Z", NOON),
        ("2023-04-23 12:00:00 UTC", NOON),
        ("2023-04-23 14:00:00+02:00", NOON),
        ("2023-04-23T14:00:00.000+0200", NOON),
        ("2023-04-23 09:00-03:00", NOON),
        ("2023-04-24T00:30:00 +12:30", NOON),
    ],
)
def test_all_forms_of_iso_dates_are_the_same_moment(text, days):
    """Zones are turned to UTC, in text as in columns that hold moments with a zone."""
    assert as_dates(pl.Series([text, None]), None).to_list() == [pytest.approx(days, abs=1e-9), None]
    assert as_dates(pl.Series([text]), "%d.%m.%Y").to_list() == [pytest.approx(days, abs=1e-9)]
    assert as_dates(pl.Series([text]), "%Y-%m-%dT%H:%M:%SZ").to_list() == [pytest.approx(days, abs=1e-9)]
    summer = pl.Series([dt.datetime(2023, 4, 23, 14)]).dt.replace_time_zone("Europe/Berlin")
    assert as_dates(summer, None).to_list() == [NOON]


def test_dates_learnt_as_such_are_asked_for_in_text():
    moments = [dt.datetime(2023, 1, 1) + dt.timedelta(hours=7 * i) for i in range(400)]
    found = column(moments)
    assert isinstance(found, Date)
    assert found == column([str(moment) for moment in moments])
    expected, _ = encode(found, moments[:3])
    for write in (str, dt.datetime.isoformat, lambda moment: f"{moment.isoformat()}.000000"):
        encoded, notes = encode(found, [write(moment) for moment in moments[:3]])
        np.testing.assert_array_equal(encoded, expected)
        assert notes == []
    np.testing.assert_array_equal(encode(found, [dt.date(2023, 1, 1)])[0], expected[:1])
    np.testing.assert_array_equal(encode(found, ["2023-01-01"])[0], expected[:1])
    with pytest.raises(SourceError, match=r"dates as in training, such as 2023-01-01 00:00:00; it holds '1\.1\.23'"):
        encode(found, ["1.1.23"])


def test_dates_with_an_offset_are_dates():
    found = column([f"2023-04-{day:02} 08:30:00+02:00" for day in range(1, 29)])
    assert isinstance(found, Date)
    assert found.low == 19_448 + 6.5 / 24


@pytest.mark.parametrize("form", ["%Y-%m-%d", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y %H:%M"])
@pytest.mark.parametrize("where", [0, 130, 593])
def test_the_odd_cell_that_is_no_date_is_missing(form, where):
    """Also where hardly a day tells which of two numbers is the month."""
    ambiguous, plain = pd.date_range("2024-01-01", periods=11), pd.date_range("2024-03-13", periods=6)
    days = [*ambiguous.tolist() * 54, *plain]
    written = [day.strftime(form) for day in days]
    bad = pd.Timestamp("2024-02-29").strftime(form).replace("29", "30")
    wrong = [*written[:where], bad, *written[where + 1 :]]
    found, right = column(wrong), column(written)
    assert isinstance(found, Date)
    assert isinstance(right, Date)
    assert (found.date_format, found.has_missing) == (right.date_format, True)
    assert found.mean == pytest.approx(right.mean, abs=0.2)
    encoded, notes = encode(found, wrong)
    assert notes == [f"'c' has 1 cells that are not dates, such as '{bad}': missing"]
    assert encoded[where, :-1].tolist() == [0.0] * (encoded.shape[1] - 1)
    assert encoded[:, -1].sum() == 1


def test_strays_are_few_in_a_column_of_dates_as_in_one_of_numbers():
    days = [str(day.date()) for day in pd.date_range("2024-01-01", periods=98)]
    numbers = [str(i / 7) for i in range(98)]
    for values, kind in ((days, Date), (numbers, Numeric)):
        assert isinstance(column([*values, "soon", "soon"]), kind)
        assert isinstance(column([*values, "soon", "soon", "soon"]), Dropped)


YEAR = [str(day.date()) for day in pd.date_range("2024-01-01", "2024-12-31")]


@pytest.mark.parametrize("far", ["2199-06-01", "0204-06-01", "1970-01-01", "2124-06-01"])
def test_dates_that_can_only_be_slips_are_refused(far):
    said = (
        f"^column 'c' holds dates such as {far}; in training it went from 2024-01-01 to 2024-12-31. Correct them, or "
    )
    found = column(YEAR)
    with pytest.raises(SourceError, match=said):
        encode(found, [far] * 3 + YEAR[:2])
    _, notes = encode(found, [*YEAR[:2], far, "", "2026-05-01"])
    assert notes[:1] == [f"'c' has 2 dates far from those of training (2024-01-01 to 2024-12-31), such as {far}"]


@pytest.mark.parametrize("far", ["2026-01-05", "2027-12-31", "2060-01-01", "2022-12-30", "1999-01-01"])
def test_far_forecasts_are_noted_and_near_ones_are_not(far):
    found = column(YEAR)
    _, notes = encode(found, [far] * 3)
    assert notes == [f"'c' has 3 dates far from those of training (2024-01-01 to 2024-12-31), such as {far}"]
    for near in ("2025-12-30", "2023-01-03"):
        assert encode(found, [near] * 3)[1] == []


def test_how_far_dates_may_lie_grows_with_the_span_of_training():
    found = column([f"{year}-06-01" for year in range(1900, 2021)])
    assert len(encode(found, ["2300-06-01"])[1]) == 1
    with pytest.raises(SourceError, match="holds dates such as 2400-06-01"):
        encode(found, ["2400-06-01"])


def test_numbers_that_are_all_days_are_pointed_out():
    days = [f"202301{1 + i % 28:02}" for i in range(80)]
    notes: list[str] = []
    schema_of(table(day=days, number=[int(day) + 50 for day in days]), notes=notes)
    assert notes == [
        "'day' is taken as a number, but all its values are days, such as 20230101; write 2023-01-01 to have it taken "
        "as a date"
    ]


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


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([dt.time(i % 24) for i in range(80)], "Time"),
        ([dt.timedelta(hours=i) for i in range(80)], "Duration"),
        ([[i, 2] for i in range(80)], "List"),
        ([{"a": i} for i in range(80)], "Struct"),
        ([b"\xff" + bytes([i]) for i in range(80)], "Binary"),
    ],
)
def test_columns_of_types_that_cannot_be_used_are_dropped_or_refused(values, kind):
    frame = table(odd=values)
    assert schema_of(frame).columns[1] == Dropped("odd", f"of type {kind}, which cannot be used")
    schema = schema_of(table(odd=np.arange(80.0)))
    for use in (
        lambda: schema.encode(frame),
        lambda: table_keys(frame, "odd"),
        lambda: infer_schema(frame, "g", "odd", train=np.ones(80, dtype=bool)),
    ):
        with pytest.raises(SourceError, match=f"column 'odd' is of type {kind}, which cannot be used. Store it as"):
            use()


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["a", "b", "1", "2", "3"])])
def test_dictionary_columns_hold_what_their_words_are(kind):
    frame = table(word=pl.Series(["a", "b"] * 40, dtype=kind), number=pl.Series(["1", "2", "3", "2"] * 20, dtype=kind))
    schema = schema_of(frame)
    assert [column.kind for column in schema.used] == ["numeric", "categorical", "numeric"]
    plain = frame.with_columns(pl.col("word", "number").cast(pl.String))
    np.testing.assert_array_equal(schema.encode(frame), schema.encode(plain))
    assert infer_target(frame["word"], np.ones(80, dtype=bool)).classes == ("a", "b")


def test_decimal_commas_are_named():
    found = column([f"{i},5" for i in range(20)] + ["4"])
    assert isinstance(found, Dropped)
    assert "decimal commas, such as '0,5': write them with points" in found.reason
    with pytest.raises(SourceError, match=r"must hold numbers; it holds '3,5'\. Write decimals with a point"):
        encode(column([1.5, 2.5, 3.5, 4.5]), ["3,5", "4,5"])


def test_names_stay_as_they_are_and_only_empty_cells_are_none():
    words = ["NA", "none", "-", " nan ", "?", "007", "", "  ", None]
    assert as_names(pl.Series(words)).to_list() == ["NA", "none", "-", "nan", "?", "007", None, None, None]
    assert as_names(pl.Series(["NA", "9", "9.0", "b"]), ("NA", "9")).to_list() == [None, None, None, "b"]
    frame = pl.DataFrame({"g": words})
    assert table_keys(frame, "g").n_unique() == 7
    assert table_keys(frame, "h").to_list() == [""] * 9


@pytest.mark.parametrize("numbers", [[7, 10, 7], [7.0, 10.0, None], [7.0, 10.5, None]])
def test_groups_of_a_number_have_one_name_in_every_format(numbers, tmp_path):
    frame = pl.DataFrame({"g": numbers, "x": 1})
    frame.write_csv(tmp_path / "t.csv")
    read = pl.read_csv(tmp_path / "t.csv", infer_schema=False)
    assert table_keys(read, "g").to_list() == table_keys(frame, "g").to_list()
    assert table_keys(frame.head(1), "g").to_list() == ["7"]


def test_groups_and_classes_named_like_missing_values_are_said():
    notes: list[str] = []
    frame = pl.DataFrame({"g": ["NA", "b"] * 40, "x": np.arange(80.0) ** 2, "y": ["none", "mild"] * 40})
    schema = schema_of(frame, notes=notes)
    assert schema.target.classes == ("mild", "none")
    assert notes == [
        "'g' has a group called 'NA' (40 rows); if that stands for a missing one, add --missing NA",
        "'y' has a class called 'none' (40 rows); if that stands for a missing one, add --missing none",
    ]


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


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        (("g", "g", [], []), "--task and --target must name different columns; both name 'g'"),
        (("g", "y", ["x", "y"], []), "--features and --target must name different columns; both name 'y'"),
        (("g", "y", ["g"], []), "--features and --task must name different columns; both name 'g'"),
        (("g", "y", ["x", "z", "x"], []), "--features names 'x' twice"),
        (("g", "y", ["x"], ["x"]), "--features and --drop must name different columns; both name 'x'"),
        (("g", "y", [], ["x"], ["x"]), "--categorical and --drop must name different columns; both name 'x'"),
        (("g", "y", [], [], ["y"]), "--categorical and --target must name different columns; both name 'y'"),
        (("g", "y", [], [], [], ["g"]), "--ordinal and --task must name different columns; both name 'g'"),
        (("g", "y", [], [], ["x"], ["x"]), "--categorical and --ordinal must name different columns; both name 'x'"),
        (("g", "y", ["x"], [], ["z"]), "--categorical names 'z', which is not among --features"),
        (("g", "y", [], [], [], ["z", "z"]), "--ordinal names 'z' twice"),
    ],
)
def test_a_column_has_one_role(roles, message):
    with pytest.raises(SettingError, match=message):
        check_roles(*roles)
    check_roles("g", "y", ["x"], ["g", "y", "z"])  # to drop what is no input anyway does no harm


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ({"also": ("g",)}, "--also and --task must name different columns; both name 'g'"),
        ({"also": ("y",)}, "--also and --target must name different columns; both name 'y'"),
        ({"also": ("x", "x")}, "--also names 'x' twice"),
        ({"within": ("g",)}, "--task names 'g' twice"),
        ({"within": ("y",)}, "--task and --target must name different columns; both name 'y'"),
        ({"order": "y"}, "--order and --target must name different columns; both name 'y'"),
        ({"order": "g"}, "--order and --task must name different columns; both name 'g'"),
    ],
)
def test_groupings_and_orders_have_a_role_of_their_own(roles, message):
    with pytest.raises(SettingError, match=message):
        TableConfig("g", "y", **roles).check()
    TableConfig("g", "y", also=("x",), within=("z",), order="t").check()


def test_a_missing_column_of_many_is_filled_and_named():
    frame = table(
        a=np.arange(80.0), b=np.arange(80.0) ** 2, c=["u", "v"] * 40, d=np.arange(80.0) ** 3, e=["p", "q"] * 40
    )
    schema = schema_of(frame)
    notes: list[str] = []
    encoded = schema.encode(frame.drop("a"), "the query table", notes)
    assert notes == ["the query table lacks 'a'; taken as missing in all rows"]
    a = schema.used[1]
    assert isinstance(a, Numeric)
    np.testing.assert_allclose(encoded[:, 1], (a.fill - a.mean) / a.std, atol=1e-6)
    with pytest.raises(SourceError, match=r"the query table lacks 'a', 'b', 2 of 6 inputs. Add what is lacking"):
        schema.encode(frame.drop("a", "b"), "the query table")


def test_a_missing_column_of_few_is_refused_and_its_new_name_guessed():
    frame = table(age=np.arange(80.0), b=np.arange(80.0) ** 2)
    schema = schema_of(frame)
    with pytest.raises(SourceError, match=r"the query table lacks 'age', 1 of 3 inputs. Add .* as an empty column"):
        schema.encode(frame.drop("age"), "the query table")
    schema.encode(frame.with_columns(age=None), "the query table")
    for renamed in ("Age", "age ", "ages", "AGE"):
        with pytest.raises(SourceError, match=f"lacks 'age'; did it mean '{renamed}' for 'age'. Rename it"):
            schema.encode(frame.rename({"age": renamed}), "the query table")
    with pytest.raises(SourceError, match="of another kind than the training table: it lacks 'x', 'age'"):
        schema.encode(frame.drop("age", "x"), "the query table")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("cow", ["Cow"]),
        ("Milk Yield", ["milk_yield"]),
        ("wieght", ["weight"]),
        ("dya", ["day"]),
        ("das", ["day"]),
        ("dayy", ["day"]),
        ("price", []),
        ("z", []),
    ],
)
def test_a_name_is_recognised_behind_a_slip(name, meant):
    assert closest(name, ["Cow", "milk_yield", "weight", "day", "x"]) == meant


def test_numbers_are_names_where_that_is_asked_for():
    found = infer_schema(
        table(code=[3, 1, 2, 2] * 20), "g", "y", train=np.ones(80, dtype=bool), features=["code"], categorical=["code"]
    )
    (code,) = found.used
    assert isinstance(code, Categorical)
    assert code.levels == ("1", "2", "3")
    for written in ([3, 1], [3.0, 1.0], ["3", "1"], ["3.0", "01"]):
        assert encode(code, written)[0].tolist() == [[0, 0, 1, 0], [1, 0, 0, 0]]
    assert Schema.from_json(json.loads(json.dumps(found.to_json()))) == found


@pytest.mark.parametrize(
    ("values", "levels", "order"),
    [
        (["low", "high", "middle", "low"], ("low", "high", "middle"), "in the order in which they first appear"),
        (["10", "9", "1.5", "-3"], ("-3", "1.5", "9", "10"), "in the order of their numbers"),
        (
            ["grade 10", "grade 2", "grade 1", "grade 2"],
            ("grade 1", "grade 2", "grade 10"),
            "in the order of their num",
        ),
        (["20+", "5-10", "10-20", "5-10"], ("5-10", "10-20", "20+"), "in the order of their numbers"),
        (["<5", "5-10", "<5", "5-10"], ("<5", "5-10"), "in the order in which they first appear"),
    ],
)
def test_levels_with_an_order_become_ranks(values, levels, order):
    notes: list[str] = []
    frame = table(c=values * 20)
    found = schema_of(frame, features=["c"], ordinal=["c"], notes=notes)
    (c,) = found.used
    assert isinstance(c, Ordinal)
    assert c.levels == levels
    assert notes[0].startswith(f"column 'c' is ordinal: {' < '.join(levels)}, {order}")
    ranks = np.array([levels.index(value) for value in values * 20])
    np.testing.assert_allclose(found.encode(frame)[:, 0], (ranks - ranks.mean()) / ranks.std(), rtol=1e-5, atol=1e-6)
    again = Schema.from_json(json.loads(json.dumps(found.to_json())))
    encoded, said = encode(again.used[0], [levels[1], "new"])
    assert said[0] == "'c' has levels that training did not, such as 'new'; taken as missing"
    assert encoded[1, 0] == pytest.approx((np.median(ranks) - ranks.mean()) / ranks.std(), abs=1e-6)


def test_too_many_levels_have_no_order():
    with pytest.raises(SourceError, match="'c' has 1,200 different values, and --ordinal takes up to 1,000"):
        schema_of(table(1200, c=np.arange(1200)), ordinal=["c"])


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        (["1", "x", "2"], "regression", "must hold numbers for regression; it holds 'x'.*--kind classification"),
        (
            [*map(str, range(99)), "abc"],
            "auto",
            r"it holds 'abc' \(1 of 100 cells.*--missing abc.*--kind classification",
        ),
        (["1", "2", "3"] * 40 + ["abc"], "auto", r"it holds 'abc' \(1 of 121 cells"),
        ([*map(str, range(60)), *["abc"] * 20], "auto", r"it holds 'abc' \(20 of 80 cells"),
        (["13,5", "-4,25", "1.013,5", "7"], "auto", "decimal commas, such as '13,5'. Write them with points"),
        (["13,5", "-4,25", "7"], "regression", "decimal commas, such as '13,5'. Write them with points"),
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


def test_a_class_may_be_called_none_but_beside_numbers_it_is_missing():
    every = np.ones(6, dtype=bool)
    target = infer_target(pl.Series("y", ["none", "mild", "severe", "", None, "none"]), every)
    assert target.classes == ("mild", "none", "severe")
    assert target.values(pl.DataFrame({"y": ["none", "mild", "", "NA"]}), ()).tolist() == [1, 0, -1, -1]
    assert infer_target(pl.Series("y", ["0", "1", "NA", "none", "1", "0"]), every).classes == ("0", "1")
    assert infer_target(pl.Series("y", ["1.5", "2", "NA", "none", "1", "0"]), every).classes == ()
    assert infer_target(pl.Series("y", ["a", "b", "NA", "b", "a", "a"]), every, missing=("NA",)).classes == ("a", "b")


def test_classes_of_numbers_have_one_name_in_every_format():
    every = np.ones(4, dtype=bool)
    for values in ([0.0, 1.0, None, 1.0], ["0.0", "1.0", "", "1"], [0, 1, None, 0]):
        assert infer_target(pl.Series("y", values), every).classes == ("0", "1")
    old = Target("y", classes=("0.0", "1.0"))  # of a run that was made when they were called so
    assert old.values(pl.DataFrame({"y": ["1.0", "0"]}), ()).tolist() == [1, 0]


@pytest.mark.parametrize("learnt", [["True", "False"], ["true", "false"], [True, False]])
def test_true_is_true_however_it_is_written(learnt):
    target = infer_target(pl.Series("y", learnt), np.ones(2, dtype=bool))
    for asked in (["TRUE", "False", None], [True, False, None], ["true", "false", ""]):
        assert target.values(pl.DataFrame({"y": asked}), ()).tolist() == [1, 0, -1]


def test_a_class_that_training_did_not_have_is_named():
    target = infer_target(pl.Series("y", ["a", "b", "a"]), np.ones(3, dtype=bool))
    assert target.values(pl.DataFrame({"y": ["b", None, " a"]}), ()).tolist() == [1, -1, 0]
    with pytest.raises(SourceError, match="has the class 'z', which training did not have; it had: a, b"):
        target.values(pl.DataFrame({"y": ["z"]}), ())
