"""NOAA's station files: every value as printed, every fault counted, nothing read twice."""

import gzip
import io
import lzma
import os
import sys
import tarfile
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from stmaml.data import noaa
from stmaml.data import stations as saved_form
from stmaml.data.noaa import read_stations
from stmaml.data.problems import Problem
from stmaml.data.stations import COLUMNS, MISSING, NAMES, Stations
from stmaml.errors import SourceError
from stmaml.progress import Told, listening
from tests.noaa_files import HEADER, pack, station_text, write_station, write_year

A, B, C = "01001099999", "72316013870", "A0000153182"
FULL = {
    "day": 0,
    "TEMP": -24.3,
    "DEWP": 15.5,
    "SLP": 1025.1,
    "STP": 1023.9,
    "VISIB": 21.2,
    "WDSP": 8.9,
    "MXSPD": 18.5,
    "GUST": 31.5,
    "PRCP": 0.07,
    "SNDP": 3.9,
    "FRSHTT": "011000",
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("STMAML_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "noaa"


def days(*temperatures: float, **others) -> list[dict]:
    return [{**FULL, "day": i, "TEMP": t, **others} for i, t in enumerate(temperatures)]


def one(tmp_path: Path, *rows: dict, **how) -> Stations:
    """The stations of a folder with a single file."""
    write_station(tmp_path / "2019", A, rows, **how)
    return read_stations(tmp_path)


def reading(stations: Stations, name: str, row: int = 0) -> float | None:
    whole = int(stations.readings[row, NAMES.index(name)])
    return None if whole == MISSING else whole / COLUMNS[NAMES.index(name)].scale


def same(a: Stations, b: Stations) -> None:
    for field in fields(Stations):
        left, right = getattr(a, field.name), getattr(b, field.name)
        if field.name == "problems":
            assert left == right
        else:
            assert left.dtype == right.dtype
            np.testing.assert_array_equal(left, right)


# Values.


def test_the_helper_prints_a_line_as_noaa_does():
    place = ("70.9333333", "-8.6666667", "9.0")
    row = {**FULL, "TEMP": 24.0, "MAX": 30.2, "MIN": 17.4, "PRCP": 0.0, "SNDP": None, "FRSHTT": "001000"}
    text = station_text(A, [row], place=place, name="JAN MAYEN NOR NAVY, NO")
    header, line, end = text.split("\n")
    assert header == ",".join(f'"{name}"' for name in HEADER)
    assert end == ""
    assert line == (  # the first row of 2019/01001099999.csv but for VISIB's count
        '"01001099999","2019-01-01","70.9333333","-8.6666667","9.0","JAN MAYEN NOR NAVY, NO","  24.0","24",'
        '"  15.5","24","1025.1","24","023.9","24"," 21.2","24","  8.9","24"," 18.5"," 31.5","  30.2","*","  17.4"," ",'
        '" 0.00","G","999.9","001000"'
    )


def test_every_value_is_kept_as_printed(tmp_path):
    place = ("-70.9333333", "-8.6666667", "-9.5")
    stations = one(tmp_path, FULL, place=place, name="JAN MAYEN NOR NAVY, NO")
    assert stations.station.tolist() == [A]
    assert stations.name.tolist() == ["JAN MAYEN NOR NAVY, NO"]
    assert (stations.year[0], stations.latitude[0], stations.longitude[0]) == (2019, -70.9333333, -8.6666667)
    assert (stations.elevation[0], stations.offset[0], stations.count[0]) == (-9.5, 0, 1)
    #                                         TEMP  SLP    STP  VIS  WDSP MXSPD GUST PRCP SNDP
    np.testing.assert_array_equal(stations.readings, [[-243, 10251, 239, 212, 89, 185, 315, 7, 39]])
    assert stations.flags.tolist() == [0b011000]
    assert stations.problems == {}


def test_columns_come_back_in_their_units_with_a_mask(tmp_path):
    stations = one(tmp_path, FULL, {**FULL, "day": 1, "PRCP": None, "SLP": None})
    for name, wanted in (("TEMP", -24.3), ("SLP", 1025.1), ("STP", 23.9), ("PRCP", 0.07)):
        values, present = stations.column(name)
        assert values.dtype == np.float32
        assert values[0] == np.float32(wanted)
        assert present[0]
    assert stations.column("PRCP")[1].tolist() == [True, False]
    assert stations.column("SLP")[0][1] == 0


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("SLP", "9999.9", None),
        ("SLP", " 999.9", 999.9),  # a reading: the code has one 9 more
        ("STP", "9999.9", None),
        ("STP", "996.0", 996.0),
        ("VISIB", "999.9", None),
        ("WDSP", "999.9", None),
        ("MXSPD", "999.9", None),
        ("GUST", "999.9", None),
        ("GUST", " 99.9", 99.9),
        ("PRCP", "99.99", None),
        ("PRCP", " 9.99", 9.99),
        ("SNDP", "999.9", None),
        ("SNDP", "", None),
        ("SNDP", "    ", None),
    ],
)
def test_missing_codes_belong_to_their_columns(name, text, wanted, tmp_path):
    stations = one(tmp_path, {**FULL, name: text})
    assert reading(stations, name) == wanted
    assert stations.problems == {}


def test_a_station_pressure_of_999_9_is_a_reading_if_it_was_observed(tmp_path):
    rows = [{**FULL, "day": i, "STP": "999.9", "STP_ATTRIBUTES": n} for i, n in enumerate((" 0", "24"))]
    stations = one(tmp_path, *rows)
    assert [reading(stations, "STP", i) for i in (0, 1)] == [None, 999.9]
    without = [name for name in HEADER if name != "STP_ATTRIBUTES"]
    stations = one(tmp_path, *rows, header=without)
    assert [reading(stations, "STP", i) for i in (0, 1)] == [None, None]


@pytest.mark.parametrize(
    ("text", "bits"), [("000000", 0), ("100000", 32), ("010000", 16), ("10000", 16), ("000001", 1), ("110110", 54)]
)
def test_frshtt_is_read_as_bits(text, bits, tmp_path):
    stations = one(tmp_path, {**FULL, "FRSHTT": text})
    assert stations.flags.tolist() == [bits]
    assert stations.problems == {}


@pytest.mark.parametrize("text", ["210000", "1000000", "x", "-10000", "nan"])
def test_a_frshtt_of_other_digits_is_counted(text, tmp_path):
    stations = one(tmp_path, {**FULL, "FRSHTT": text})
    assert stations.flags.tolist() == [0]
    assert stations.problems == {"unreadable value": Problem(1, (f"2019/{A}.csv FRSHTT",))}


def test_days_are_counted_from_the_first_of_january(tmp_path):
    write_station(tmp_path / "2020", A, [{**FULL, "day": d} for d in (0, 59, 365)], year=2020)
    write_station(tmp_path / "2019", A, [{**FULL, "day": d} for d in (0, 59, 364)], year=2019)
    lines = (tmp_path / "2020" / f"{A}.csv").read_text()
    assert "2020-02-29" in lines
    assert "2020-12-31" in lines
    stations = read_stations(tmp_path)
    assert stations.year.tolist() == [2019, 2020]
    assert stations.day.tolist() == [0, 59, 364, 0, 59, 365]


def test_dates_as_in_the_readme_are_read_too(tmp_path):
    stations = one(tmp_path, {**FULL, "DATE": "03/01/2019"}, {**FULL, "DATE": "2019-12-31"})
    assert stations.day.tolist() == [59, 364]


def test_pandas_reads_the_same(tmp_path):
    files = write_year(tmp_path, 5, num_days=60)
    stations = read_stations(tmp_path)
    assert stations.count.tolist() == [60] * 5
    for i, file in enumerate(files):
        table = pd.read_csv(file, dtype={"FRSHTT": str})
        rows = slice(stations.offset[i], stations.offset[i] + stations.count[i])
        np.testing.assert_array_equal(stations.day[rows], pd.to_datetime(table["DATE"]).dt.day_of_year - 1)
        np.testing.assert_array_equal(stations.flags[rows], [int(text, 2) for text in table["FRSHTT"]])
        for column in COLUMNS:
            missing = table[column.name].isin(column.missing)
            wanted = np.where(missing, MISSING, np.rint(table[column.name] * column.scale))
            np.testing.assert_array_equal(stations.readings[rows, NAMES.index(column.name)], wanted)
        assert stations.latitude[i] == table["LATITUDE"][0]
        assert stations.elevation[i] == table["ELEVATION"][0]


def test_an_empty_place_is_nan_and_an_unknown_elevation_stays(tmp_path):
    write_station(tmp_path, A, days(1), place=("", "", ""))
    write_station(tmp_path, B, days(1), place=("10.0", "20.0", "-999.9"))
    stations = read_stations(tmp_path)
    assert np.isnan([stations.latitude[0], stations.longitude[0], stations.elevation[0]]).all()
    assert stations.elevation[1] == -999.9
    assert stations.problems == {}


# Where files lie.


def test_folders_and_archives_in_any_mixture_give_the_same(tmp_path):
    files = write_year(tmp_path / "a", 6, num_days=20) + write_year(tmp_path / "a", 4, year=2009, num_days=20)
    wanted = read_stations(tmp_path / "a")
    assert wanted.year.tolist() == [2009] * 4 + [2019] * 6
    mixed = tmp_path / "mixed"
    write_year(mixed, 4, year=2009, num_days=20)
    pack(mixed / "2019.tar.xz", files[5::-1])  # order within an archive does not matter
    same(read_stations(mixed), wanted)
    (tmp_path / "packed").mkdir()
    pack(tmp_path / "packed" / "2019.tar.gz", files[:6])
    pack(tmp_path / "packed" / "2009.tar.xz", files[6:])
    same(read_stations(tmp_path / "packed"), wanted)
    alone = read_stations(tmp_path / "packed" / "2019.tar.gz")
    assert alone.station.tolist() == wanted.station[4:].tolist()
    np.testing.assert_array_equal(alone.readings, wanted.readings[80:])


def test_small_batches_give_the_same(tmp_path, monkeypatch, cache):
    write_year(tmp_path, 8, num_days=30)
    wanted = read_stations(tmp_path)
    for file in cache.iterdir():
        file.unlink()
    monkeypatch.setattr(noaa, "PARSED_BYTES", 10_000)
    same(read_stations(tmp_path), wanted)


def test_without_a_name_most_dates_tell_the_year(tmp_path):
    rows = [{**FULL, "DATE": d} for d in ("1998-12-31", "1999-01-01", "1999-01-02")]
    write_station(tmp_path / "some", A, rows)
    stations = read_stations(tmp_path / "some")
    assert stations.year.tolist() == [1999]
    assert stations.day.tolist() == [0, 1]
    assert stations.problems == {"date outside the year": Problem(1, (f"some/{A}.csv",))}


def test_columns_may_stand_in_any_order(tmp_path):
    write_station(tmp_path / "2019", B, days(5, 6), header=HEADER[::-1])
    stations = one(tmp_path, *days(5, 6))
    assert stations.station.tolist() == [A, B]
    np.testing.assert_array_equal(stations.readings[:2], stations.readings[2:])
    assert stations.problems == {}


def test_progress_ends_at_the_whole(tmp_path):
    files = write_year(tmp_path, 3, num_days=10)
    seen: list[Told] = []
    with listening(seen.append):
        read_stations(tmp_path)
    total = sum(file.stat().st_size for file in files)
    assert seen[-1] == Told("reading stations", total, total)
    assert [told.done for told in seen] == sorted(told.done for told in seen)


# Faults in a file never end a run.


def test_a_row_of_another_year_is_dropped_and_counted(tmp_path):
    stations = one(tmp_path, *days(1, 2), {**FULL, "DATE": "2020-01-01"})
    assert stations.count.tolist() == [2]
    assert stations.problems == {"date outside the year": Problem(1, (f"2019/{A}.csv",))}


def test_rows_without_a_temperature_are_dropped_and_counted(tmp_path):
    stations = one(tmp_path, *days(1, 9999.9, 3), {**FULL, "day": 3, "TEMP": ""})
    assert stations.day.tolist() == [0, 2]
    assert stations.problems == {"no temperature": Problem(2, (f"2019/{A}.csv",))}


@pytest.mark.parametrize("text", ["-150.1", " 150.1", "999.9"])
def test_an_impossible_temperature_costs_the_row(text, tmp_path):
    stations = one(tmp_path, *days(1, 2), {**FULL, "day": 2, "TEMP": text})
    assert stations.day.tolist() == [0, 1]
    assert stations.problems == {"out-of-range value": Problem(1, (f"2019/{A}.csv TEMP",))}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("SLP", "1234.5"),
        ("SLP", "700.0"),
        ("STP", "300.0"),
        ("VISIB", "-1.0"),
        ("WDSP", "500.0"),
        ("MXSPD", "1e30"),
        ("GUST", "998.0"),
        ("PRCP", "-0.01"),
        ("SNDP", "900.0"),
    ],
)
def test_an_impossible_value_becomes_missing(name, text, tmp_path):
    stations = one(tmp_path, {**FULL, name: text})
    assert reading(stations, name) is None
    assert reading(stations, "TEMP") == -24.3
    assert stations.problems == {"out-of-range value": Problem(1, (f"2019/{A}.csv {name}",))}


@pytest.mark.parametrize("text", ["abc", "nan", "inf", "1,5"])
def test_an_unreadable_value_becomes_missing(text, tmp_path):
    stations = one(tmp_path, {**FULL, "SLP": text})
    assert reading(stations, "SLP") is None
    assert stations.problems == {"unreadable value": Problem(1, (f"2019/{A}.csv SLP",))}


@pytest.mark.parametrize(("place", "name"), [(("95.0", "0", "0"), "LATITUDE"), (("0", "-181", "0"), "LONGITUDE")])
def test_an_impossible_place_is_unknown(place, name, tmp_path):
    stations = one(tmp_path, FULL, place=place)
    assert np.isnan(getattr(stations, name.lower())[0])
    assert stations.problems == {"out-of-range value": Problem(1, (f"2019/{A}.csv {name}",))}


def test_the_first_of_two_rows_of_a_day_stays(tmp_path):
    stations = one(tmp_path, *days(1, 2, 3), {**FULL, "day": 1, "TEMP": 50.0})
    assert stations.day.tolist() == [0, 1, 2]
    assert reading(stations, "TEMP", 1) == 2.0
    assert stations.problems == {"duplicate date": Problem(1, (f"2019/{A}.csv",))}


def test_days_come_in_order(tmp_path):
    stations = one(tmp_path, *days(1, 2, 3)[::-1])
    assert stations.day.tolist() == [0, 1, 2]
    assert [reading(stations, "TEMP", i) for i in range(3)] == [1, 2, 3]


@pytest.mark.parametrize(
    "broken",
    [
        lambda line: line[:40],  # cut within a quoted field
        lambda line: line[: line.index(',"  ')],  # cut between fields
        lambda line: line + ',"more"',
        lambda line: line.replace('"2019-01-02"', '"2019-13-40"'),
        lambda line: line.replace('"   2.0"', '"   x.0"'),
        lambda line: "garbage",
        lambda line: line.replace('"SOME', '"SO"ME'),
    ],
)
def test_an_unreadable_row_costs_only_itself(broken, tmp_path):
    write_station(tmp_path / "2019", B, days(7, 8))
    write_station(tmp_path / "2019", C, days(9))
    file = write_station(tmp_path / "2019", A, days(1, 2, 3))
    lines = file.read_text().split("\n")
    lines[2] = broken(lines[2])
    file.write_text("\n".join(lines))
    stations = read_stations(tmp_path)
    assert stations.station.tolist() == [A, B, C]
    assert [reading(stations, "TEMP", i) for i in range(5)] == [1, 3, 7, 8, 9]
    (kind,) = stations.problems
    assert kind == "unreadable row"
    assert stations.problems[kind].count == 1
    assert stations.problems[kind].examples[0].startswith(f"2019/{A}.csv")


def test_an_unclosed_quote_at_the_end_does_not_swallow_the_next_file(tmp_path):
    file = write_station(tmp_path / "2019", A, days(1, 2))
    file.write_text(file.read_text().rstrip("\n")[:-1])
    write_station(tmp_path / "2019", B, days(7, 8))
    stations = read_stations(tmp_path)
    assert stations.count.tolist() == [1, 2]
    assert stations.problems["unreadable row"] == Problem(1, (f"2019/{A}.csv line 3",))


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"<html>no such file</html>\n", bytes(range(256)) * 20, b"\xff\xfe\n\n"]
)
def test_a_file_that_is_not_csv_is_named(content, tmp_path):
    write_station(tmp_path / "2019", B, days(7))
    (tmp_path / "2019" / f"{A}.csv").write_bytes(content)
    stations = read_stations(tmp_path)
    assert stations.station.tolist() == [B]
    assert stations.problems == {"not CSV": Problem(1, (f"2019/{A}.csv",))}


def test_a_header_that_lacks_columns_is_named(tmp_path):
    write_station(tmp_path / "2019", A, days(7), header=[n for n in HEADER if n not in ("SNDP", "GUST")])
    write_station(tmp_path / "2019", B, days(7))
    stations = read_stations(tmp_path)
    assert stations.station.tolist() == [B]
    assert stations.problems == {"header lacks a column": Problem(1, (f"2019/{A}.csv lacks GUST, SNDP",))}


def test_a_file_without_rows_is_named(tmp_path):
    write_station(tmp_path / "2019", A, [])
    write_station(tmp_path / "2019", B, days(7))
    write_station(tmp_path / "2019", C, days(9999.9))
    stations = read_stations(tmp_path)
    assert stations.station.tolist() == [B]
    assert stations.problems["no usable row"] == Problem(2, (f"2019/{A}.csv", f"2019/{C}.csv"))


def test_a_file_of_unreadable_rows_alone_is_named(tmp_path):
    write_station(tmp_path / "2019", B, days(7))
    header = ",".join(HEADER[::-1])  # another header, so that no other file is parsed with it
    (tmp_path / "2019" / f"{A}.csv").write_text(f"{header}\ngarbage\nmore\n")
    stations = read_stations(tmp_path)
    assert stations.station.tolist() == [B]
    assert stations.problems["unreadable row"] == Problem(2, (f"2019/{A}.csv line 2", f"2019/{A}.csv line 3"))
    assert stations.problems["no usable row"] == Problem(1, (f"2019/{A}.csv",))


def test_line_ends_blank_lines_and_other_encodings_do_no_harm(tmp_path):
    text = station_text(A, days(1, 2), name="ÅRHUS, DK").replace("\n", "\r\n\r\n")
    (tmp_path / f"{A}.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    (tmp_path / f"{B}.csv").write_bytes(station_text(B, days(3), name="ÅRHUS, DK").encode("latin-1"))
    stations = read_stations(tmp_path)
    assert stations.count.tolist() == [2, 1]
    assert stations.name.tolist() == ["ÅRHUS, DK", "\N{REPLACEMENT CHARACTER}RHUS, DK"]
    assert stations.problems == {}


def test_members_of_archives_that_are_no_station_files_are_named(tmp_path):
    good = write_station(tmp_path / "x", B, days(7))
    readme = tmp_path / "readme.txt"
    readme.write_text("hello")
    html = tmp_path / f"{A}.csv"
    html.write_text("<html>")
    archive = pack(tmp_path / "2019.tar.gz", [readme, html, good])
    stations = read_stations(archive)
    assert stations.station.tolist() == [B]
    assert stations.problems == {
        "not CSV": Problem(1, (f"2019.tar.gz/{A}.csv",)),
        "not named like a station": Problem(1, ("2019.tar.gz/readme.txt",)),
    }


def test_a_file_met_twice_counts_once(tmp_path):
    file = write_station(tmp_path / "2019", A, days(1, 2))
    pack(tmp_path / "2019.tar.gz", [file])
    stations = read_stations(tmp_path)
    assert stations.count.tolist() == [2]
    assert stations.problems == {"station and year twice": Problem(1, (f"2019.tar.gz/{A}.csv",))}


def test_only_the_first_few_examples_are_kept(tmp_path):
    for i in range(9):
        write_station(tmp_path / "2019", f"{i:011d}", [*days(1), {**FULL, "DATE": "2020-01-01"}])
    (problem,) = read_stations(tmp_path).problems.values()
    assert problem.count == 9
    assert problem.examples == tuple(f"2019/{i:011d}.csv" for i in range(5))


# Faults that do end it.


@pytest.mark.parametrize("suffix", ["gz", "xz"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.98])
def test_an_archive_cut_short_is_refused(suffix, share, tmp_path, cache):
    archive = pack(tmp_path / f"2019.tar.{suffix}", write_year(tmp_path / "x", 20, num_days=100))
    content = archive.read_bytes()
    archive.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(SourceError, match=rf"2019.tar.{suffix} is damaged or cut short after .+ \(.+\). Copy"):
        read_stations(archive)
    assert not cache.exists()


@pytest.mark.parametrize("suffix", ["gz", "xz"])
def test_a_cut_between_two_members_is_noticed(suffix, tmp_path):
    """The tar inside ends cleanly, so only the compressed stream's end tells."""
    plain = io.BytesIO()
    files = write_year(tmp_path / "x", 3, num_days=5)
    with tarfile.open(fileobj=plain, mode="w") as tar:
        tar.add(files[0], arcname=files[0].name)
    whole = (lzma if suffix == "xz" else gzip).compress(plain.getvalue())
    archive = tmp_path / f"2019.tar.{suffix}"
    archive.write_bytes(whole[:-6])
    with pytest.raises(SourceError, match="damaged or cut short"):
        read_stations(archive)


@pytest.mark.parametrize("suffix", ["gz", "xz"])
def test_a_damaged_archive_is_refused(suffix, tmp_path):
    archive = pack(tmp_path / f"2019.tar.{suffix}", write_year(tmp_path / "x", 20, num_days=100))
    content = bytearray(archive.read_bytes())
    content[len(content) // 2] ^= 0xFF
    archive.write_bytes(content)
    with pytest.raises(SourceError, match="damaged or cut short"):
        read_stations(archive)


def test_a_damaged_tar_inside_a_sound_stream_is_refused(tmp_path):
    archive = pack(tmp_path / "2019.tar.gz", write_year(tmp_path / "x", 3, num_days=5))
    plain = bytearray(gzip.decompress(archive.read_bytes()))
    second = plain.index(b"000002", 512)
    plain[second : second + 4] = b"oops"  # the second member's header no longer fits its checksum
    archive.write_bytes(gzip.compress(plain))
    with pytest.raises(SourceError, match="damaged or cut short"):
        read_stations(archive)


def test_something_else_named_like_an_archive_is_refused(tmp_path):
    (tmp_path / "2019.tar.gz").write_text("not an archive")
    with pytest.raises(SourceError, match=r"2019.tar.gz is damaged"):
        read_stations(tmp_path)


def test_paths_without_stations_are_refused(tmp_path):
    with pytest.raises(SourceError, match="does not exist"):
        read_stations(tmp_path / "nowhere")
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "list.csv").write_text("x")
    with pytest.raises(SourceError, match="holds no station file"):
        read_stations(tmp_path)
    with pytest.raises(SourceError, match="is not a station file"):
        read_stations(tmp_path / "notes.txt")
    (tmp_path / f"{A}.csv").write_text("<html>")
    with pytest.raises(SourceError, match=r"no file in .* has a usable row \(not CSV: 1\)"):
        read_stations(tmp_path)


def test_an_empty_archive_is_refused(tmp_path):
    with pytest.raises(SourceError, match="has a usable row"):
        read_stations(pack(tmp_path / "2019.tar.xz", []))


# The cache.


def test_saving_and_loading_keeps_all(tmp_path):
    write_year(tmp_path / "x", 3, num_days=10)
    write_station(tmp_path / "x" / "2019", A, [*days(1), {**FULL, "DATE": "2020-01-01"}])
    stations = read_stations(tmp_path / "x")
    stations.save(tmp_path / "new" / "stations.npz")
    same(Stations.load(tmp_path / "new" / "stations.npz"), stations)
    same(read_stations(tmp_path / "new" / "stations.npz"), stations)
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["stations.npz"]


def test_a_second_reading_comes_from_the_cache(tmp_path, monkeypatch, cache):
    archive = pack(tmp_path / "2019.tar.gz", write_year(tmp_path / "x", 3, num_days=10))
    first = read_stations(archive)
    monkeypatch.setattr(noaa, "_read", None)
    monkeypatch.setitem(sys.modules, "polars", None)  # a cache needs no polars
    same(read_stations(archive), first)
    assert len(list(cache.iterdir())) == 1


def test_changed_files_are_read_anew(tmp_path, cache):
    file = write_station(tmp_path / "2019", A, days(1, 2))
    assert read_stations(tmp_path).count.tolist() == [2]
    write_station(tmp_path / "2019", A, days(3, 4))  # of the same size
    os.utime(file, ns=(1, 1))
    assert reading(read_stations(tmp_path), "TEMP") == 3
    write_station(tmp_path / "2019", B, days(1))
    assert read_stations(tmp_path).station.tolist() == [A, B]
    archive = pack(tmp_path / "2019.tar.gz", [file])
    assert reading(read_stations(archive), "TEMP") == 3
    before = archive.stat()
    content = bytearray(gzip.decompress(archive.read_bytes()))
    content[content.index(b'"   3.0"') : content.index(b'"   3.0"') + 8] = b'"   5.0"'
    archive.write_bytes(gzip.compress(content))
    os.utime(archive, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert reading(read_stations(archive), "TEMP") == 5


def test_the_same_archive_elsewhere_shares_the_cache(tmp_path, cache):
    archive = pack(tmp_path / "2019.tar.gz", write_year(tmp_path / "x", 2, num_days=5))
    read_stations(archive)
    elsewhere = tmp_path / archive.parent.name / archive.name
    elsewhere.parent.mkdir()
    elsewhere.write_bytes(archive.read_bytes())
    read_stations(elsewhere)
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("fault", ["version", "cut", "empty", "text"])
def test_a_cache_of_another_version_or_a_damaged_one_is_rebuilt(fault, tmp_path, cache, monkeypatch):
    write_year(tmp_path / "x", 3, num_days=10)
    wanted = read_stations(tmp_path / "x")
    (file,) = cache.iterdir()
    content = file.read_bytes()
    if fault == "version":
        with monkeypatch.context() as other:
            other.setattr(saved_form, "VERSION", saved_form.VERSION + 1)
            replace(wanted, readings=wanted.readings + np.int16(1)).save(file)
    else:
        file.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "text": b"hello"}[fault])
    same(read_stations(tmp_path / "x"), wanted)
    same(Stations.load(file), wanted)


def test_a_saved_file_of_another_version_or_kind_is_refused(tmp_path, monkeypatch):
    write_year(tmp_path / "x", 1, num_days=3)
    stations = read_stations(tmp_path / "x")
    with monkeypatch.context() as other:
        other.setattr(saved_form, "VERSION", 99)
        stations.save(tmp_path / "s.npz")
    with pytest.raises(SourceError, match=r"saved in version 99; expected 1\. Make it again"):
        read_stations(tmp_path / "s.npz")
    (tmp_path / "s.npz").write_bytes(b"hello")
    with pytest.raises(SourceError, match="is no complete file of saved stations"):
        read_stations(tmp_path / "s.npz")
    np.savez(tmp_path / "s.npz", a=np.zeros(3))
    with pytest.raises(SourceError, match="is no complete file of saved stations"):
        read_stations(tmp_path / "s.npz")


def test_a_cache_that_cannot_be_written_does_not_end_the_run(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("STMAML_CACHE", str(tmp_path / "file"))
    write_year(tmp_path / "x", 1, num_days=3)
    assert read_stations(tmp_path / "x").count.tolist() == [3]


# The real thing.


@pytest.mark.slow
def test_the_shared_archive_holds_what_its_readme_says():
    root = Path(os.environ.get("STMAML_DATA", Path(__file__).parents[3] / "shared" / "data"))
    archive = root / "gsod" / "2019.tar.xz"
    if not archive.exists():
        pytest.skip(f"no {archive}")
    stations = read_stations(archive)
    assert len(stations.station) == 9400
    assert stations.problems["date outside the year"].count == 1607
    assert list(stations.problems) == ["date outside the year"]
    assert len(stations.day) == 3_171_360 - 1607
    assert (stations.count >= 40).sum() == 9221
    assert (stations.count >= 110).sum() == 9059
    stp, present = stations.column("STP")
    assert not ((stp > 80) & (stp < 500) & present).any()  # the gap that lets the lost 1 be told
