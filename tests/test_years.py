"""Figures of a year at a station: what is drawn where, looked up in the figure before it becomes a picture."""

import io
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image

from stmaml.benchmarks.weather import Config
from stmaml.legacy.scores import about_trace
from stmaml.reports import years
from stmaml.reports.figures import BLUE
from stmaml.reports.years import ORANGE, RED, support_days, years_figure
from stmaml.runs import Trace
from tests.noaa_files import write_year

SEEN = np.array([0, 3, 200, 364])


def year(*, last: int = 364, days: np.ndarray | None = None, seen: np.ndarray = SEEN, miss: float = 3.0) -> dict:
    """Temperatures that rise by a tenth a day; the prediction is `miss` too high, its band 2 below to 5 above it."""
    axis = np.arange(last + 1) if days is None else days
    truth = 30 + axis[:, None] / 10
    median = truth + miss
    support_x = np.stack([seen / np.float32(last), np.ones(len(seen))], axis=1).astype(np.float32)
    arrays = {"axis": axis.astype(np.float32), "truth": truth, "median": median, "low": median - 2, "high": median + 5}
    return {**arrays, "curves": median[None], "support_x": support_x, "support_y": 30 + seen[:, None] / 10}


def shown(arrays: dict, band: str = "polar", station: str = "1") -> Trace:
    return Trace(arrays, {"figure": "years", "band": band, "station": station})


@pytest.fixture
def figures(monkeypatch) -> list[Figure]:
    """The figures drawn, caught on their way to a file."""
    caught: list[Figure] = []
    to_png = years.png
    monkeypatch.setattr(years, "png", lambda figure: caught.append(figure) or to_png(figure))
    return caught


def line(ax: Axes, colour: str) -> np.ndarray:
    """Days and temperatures of the one line of a colour."""
    (found,) = [each for each in ax.get_lines() if to_hex(each.get_color()).upper() == colour.upper()]
    return np.asarray(found.get_xydata())


def test_truth_prediction_band_and_labelled_days_are_drawn_where_they_belong(figures):
    content = years_figure([shown(year())], "st-maml")
    assert content is not None
    assert Image.open(io.BytesIO(content)).size[0] > 1000
    (ax,) = figures[0].axes
    days = np.arange(365)
    np.testing.assert_allclose(line(ax, BLUE), np.stack([days, 30 + days / 10], 1))
    np.testing.assert_allclose(line(ax, ORANGE), np.stack([days, 33 + days / 10], 1))
    np.testing.assert_allclose(line(ax, RED), np.stack([SEEN, 30 + SEEN / 10], 1))
    corners = ax.collections[0].get_paths()[0].vertices
    assert np.ptp(corners[corners[:, 0] == 100], axis=0)[1] == pytest.approx(7)
    assert corners[corners[:, 0] == 100].max(0)[1] == pytest.approx(48)
    assert [text.get_text() for text in figures[0].legends[0].get_texts()] == [
        "labelled days",
        "truth",
        "prediction (median)",
        "90 % predictive band",
    ]


def test_bands_come_in_the_order_they_are_given(figures):
    given = (("tropics", "7"), ("polar", "01001099999"), ("unknown", "x-y"))
    years_figure([shown(year(), *names) for names in given], "t")
    titles = [ax.get_title(loc="left") for ax in figures[0].axes]
    assert titles == ["tropics: station 7", "polar: station 01001099999", "unknown: station x-y"]
    assert len(figures[0].legends[0].get_texts()) == 4


def test_there_is_no_figure_without_a_year():
    assert years_figure([], "t") is None
    assert years_figure([shown({"truth": np.zeros((4, 1))})], "t") is None


@pytest.mark.parametrize(("miss", "said"), [(1.5, "off by 1.5 °F on average, 100 %"), (-3.0, "off by 3.0 °F")])
def test_how_far_off_it_was_is_told_of_days_it_was_not_shown(figures, miss, said):
    arrays = year(miss=miss)
    arrays["median"][SEEN] += 1000
    years_figure([shown(arrays)], "t")
    assert said in figures[0].axes[0].get_title(loc="right")


def test_a_truth_above_the_band_is_not_within(figures):
    arrays = year(days=np.arange(12), seen=np.array([0, 1]), miss=0.0)
    arrays["high"][2:4] = arrays["truth"][2:4] - 1
    arrays["low"][4:5] = arrays["truth"][4:5] + 1
    years_figure([shown(arrays)], "t")
    assert figures[0].axes[0].get_title(loc="right").endswith("70 % within the band")


def test_lines_break_at_long_gaps_and_cross_short_ones(figures):
    days = np.array([0, 1, 9, 10, 17, 40])
    years_figure([shown(year(days=days, seen=np.array([1, 10])))], "t")
    drawn = line(figures[0].axes[0], BLUE)
    broken = np.isnan(drawn[:, 1])
    np.testing.assert_array_equal(np.where(broken, -1, drawn[:, 0]), [0, 1, -1, 9, 10, 17, -1, 40])
    np.testing.assert_allclose(drawn[~broken, 1], 30 + days / 10)


@pytest.mark.parametrize("last", [364, 365])
def test_days_are_found_from_dates_in_any_year(last):
    seen = np.arange(1, last, 7)
    np.testing.assert_array_equal(support_days(year(last=last, seen=seen)), seen)


def test_the_released_handling_may_count_beyond_the_year():
    arrays = year(seen=np.array([20, 300]))
    arrays["support_x"][:, 0] = np.array([20, 365]) / 364
    np.testing.assert_array_equal(support_days(arrays), [20, 365])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("gsod")
    write_year(folder, 30, year=2020, num_days=80)
    return folder


@pytest.mark.parametrize("settings", [{"inputs": "paper"}, {"inputs": "seasons"}, {"handling": "released"}])
def test_days_and_names_are_those_of_the_benchmark(folder, settings, monkeypatch, figures):
    monkeypatch.setenv("STMAML_CACHE", str(folder / "cache"))
    cases = list(Config(data=str(folder), shots=5, test_query_size=40, **settings).open().showcases())
    traces = []
    for case in cases:
        truth, axis = np.asarray(case.truth), np.asarray(case.axis)
        support = {"support_x": np.asarray(case.support.x), "support_y": np.asarray(case.support.y)}
        support["support_axis"] = np.asarray(case.support_axis)
        arrays = {"axis": axis, "truth": truth, "low": truth, "median": truth, "high": truth, **support}
        traces.append(Trace(arrays, {**about_trace(case.name), **case.labels}))
        at = np.searchsorted(axis, support_days(arrays))
        np.testing.assert_array_equal(axis[at], support_days(arrays))
        np.testing.assert_array_equal(truth[at], case.support.y)
    assert years_figure(traces, "t") is not None
    assert len(figures[0].axes) == len(cases) > 0
