"""The example from NOAA's archive to a table and figures, on files in NOAA's format with values known by hand."""

import datetime
import runpy
import tarfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from stmaml.tables import aftercare
from stmaml.tables import benchmark as benchmark_module
from stmaml.tables.benchmark import TableConfig
from stmaml.tables.groups import Sizes
from stmaml.tables.scoring import saved_result, score_table
from tests.noaa_files import pack, write_station, write_year
from tests.table_data import quick, split_of, trained

SCRIPT = Path(__file__).parents[1] / "examples" / "gsod_table.py"
DAY = {"TEMP": 50.0, "SLP": 1010.0, "STP": 905.0, "VISIB": 9.9, "WDSP": 3.0, "MXSPD": 7.0, "PRCP": 0.1}


@pytest.fixture(scope="module")
def example() -> dict:
    return runpy.run_path(str(SCRIPT), run_name="gsod_table")


@pytest.fixture
def table(example, tmp_path, capsys, monkeypatch) -> pl.DataFrame:
    """A mountain station with every oddity, one by the sea and one of unknown height, in two batches of files."""
    high = [
        {**DAY, "day": 1, "FRSHTT": "010010"},
        {**DAY, "day": 0, "STP": 1005.5, "SLP": None, "GUST": 20.0},
        {**DAY, "day": 2, "TEMP": None},
        {**DAY, "day": 365},  # the first of the next year
    ]
    files = [
        write_station(tmp_path, "70000000001", high, place=("60.0", "-150.0", "1000.0")),
        write_station(tmp_path, "10000000001", [{**DAY, "day": 5, "PRCP": None}], place=("", "", "-999.9")),
        write_station(tmp_path, "10000000002", [{**DAY, "day": 5, "STP": 1008.0}], place=("0.0", "0.0", "12.0")),
    ]
    pack(tmp_path / "2019.tar.gz", files)
    monkeypatch.setitem(example["read"].__globals__, "FILES_AT_ONCE", 2)
    example["main"]([str(tmp_path / "2019.tar.gz"), str(tmp_path / "t.parquet")])
    assert capsys.readouterr().out.startswith("4 days of 3 stations in 2019: ")
    return pl.read_parquet(tmp_path / "t.parquet")


def test_rows_are_the_days_of_the_year_that_have_a_temperature(table):
    assert table["STATION"].to_list() == ["10000000001", "10000000002", "70000000001", "70000000001"]
    assert table["DATE"].to_list()[2:] == [datetime.date(2019, 1, 1), datetime.date(2019, 1, 2)]
    assert table["TEMP"].to_list() == [50.0] * 4


def test_what_gives_the_answer_away_is_left_out(table):
    assert not {"DEWP", "MAX", "MIN", "LATITUDE", "LONGITUDE", "NAME", "FRSHTT"} & set(table.columns)


def test_codes_for_missing_values_become_empty_cells(table):
    known = table.select("STATION", "SLP", "GUST", "PRCP", "ELEVATION", "SNDP").rows()
    assert known[0] == ("10000000001", 1010.0, None, None, None, None)
    assert known[2] == ("70000000001", None, 20.0, pytest.approx(0.1), 1000.0, None)


def test_the_leading_one_of_pressures_is_put_back(table):
    assert table["STP"].to_list() == [905.0, 1008.0, 1005.5, 905.0]


def test_signs_are_columns_of_their_own(table):
    signs = table.filter(pl.col("DATE") == datetime.date(2019, 1, 2)).select("FOG", "RAIN", "SNOW", "THUNDER")
    assert signs.row(0) == (False, True, False, True)
    assert not table["TORNADO"].any()


def test_two_columns_are_computed_where_both_pressures_are_known(table):
    """By the hypsometric equation, with gravity and the gas constant of dry air; a low station tells nothing."""
    ratio = np.log(1010 / 905)
    kelvin = 9.80665 * 1000 / (287.05 * ratio)
    by_sea, mountain, unknown = table.rows(named=True)[1], table.rows(named=True)[3], table.rows(named=True)[2]
    assert mountain["PRESSURE_RATIO"] == round(1e4 * ratio)
    assert mountain["AIR_TEMP"] == pytest.approx(kelvin * 1.8 - 459.67, abs=0.6)
    assert by_sea["PRESSURE_RATIO"] == round(1e4 * np.log(1010 / 1008))
    assert (by_sea["AIR_TEMP"], unknown["AIR_TEMP"], unknown["PRESSURE_RATIO"]) == (None, None, None)


def test_other_members_of_the_archive_are_passed_over(example, tmp_path):
    file = write_station(tmp_path, "10000000001", [{**DAY, "day": 5}])
    (tmp_path / "readme.txt").write_text("not a table")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(tmp_path / "readme.txt", arcname="readme.txt")
        tar.add(file, arcname=file.name)
    assert example["read"](tmp_path / "a.tar").height == 1


def test_figures_show_test_stations_of_the_run(example, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(benchmark_module, "TEST_TASKS", 6)
    monkeypatch.setattr(aftercare, "CALIBRATION_TASKS", 6)
    archive = pack(tmp_path / "2019.tar.xz", write_year(tmp_path, 24, num_days=350))
    stations = tmp_path / "t.parquet"
    example["main"]([str(archive), str(stations)])
    config = TableConfig("STATION", "TEMP", features=("DATE", "VISIB"), sizes=Sizes(query_size=20, min_query=20))
    frame = pl.read_parquet(stations)
    run, benchmark = trained(tmp_path / "run", frame, quick(20, config))
    score_table(run, benchmark, baselines=())

    shown = example["held_out_stations"](stations, run)
    assert [days["STATION"][0] for days in shown] == sorted(split_of(frame, config).test[:3])
    assert all(days.height == 350 for days in shown)
    example["main"]([str(stations), str(tmp_path / "out"), "--figures-of", str(tmp_path / "run")])
    assert "stations-coverage.png" in capsys.readouterr().out
    for name in ("stations.png", "stations-coverage.png"):
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")

    result = saved_result(run)
    assert result is not None
    calibration = result["calibration"]
    (ax,) = example["coverage_figure"](calibration).axes
    after = {str(line.get_label()): line.get_ydata() for line in ax.get_lines()}["80 %, after"]
    expected = [100 * row["80%"]["after"]["mean"] for row in calibration.values()]
    np.testing.assert_allclose(np.asarray(after, dtype=float), expected)
