"""A report in a browser: no error, no request to anywhere, and a table sorted by a click."""

import pytest

from stmaml.reports import write_document
from tests.browser import Browser, find_browser
from tests.reports.test_pages import EVIL, document

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed to open a page with"),
]
FIRST = "[...document.querySelectorAll('table')[0].tBodies[0].rows].map(row => row.cells[1].textContent)"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program = find_browser()
    assert program is not None
    found = Browser(program, tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture
def opened(browser, tmp_path):
    write_document(document(EVIL), tmp_path)
    browser.events.clear()
    browser.open(tmp_path / "report.html")
    return browser


def test_it_opens_without_an_error_and_asks_nobody(opened, tmp_path):
    assert opened.value("document.querySelectorAll('.tip').length") == 1, "the script has run"
    methods = [event["method"] for event in opened.events]
    assert "Runtime.exceptionThrown" not in methods
    assert "Log.entryAdded" not in methods, "such as a breach of the policy"
    asked = [e["params"]["request"]["url"] for e in opened.events if e["method"] == "Network.requestWillBeSent"]
    assert asked
    assert all(url.startswith(("file:", "data:")) for url in asked)
    assert [url for url in asked if url.startswith("file:")] == [(tmp_path / "report.html").as_uri()]


def test_a_click_sorts_by_value_and_a_second_one_turns_it(opened):
    assert opened.value(FIRST) == ["2.00 ± 0.50", "10"]
    opened.click("thead th:nth-child(2) button")
    assert opened.value(FIRST) == ["2.00 ± 0.50", "10"]
    opened.click("thead th:nth-child(2) button")
    assert opened.value(FIRST) == ["10", "2.00 ± 0.50"]
    assert opened.value("document.querySelectorAll('th')[1].getAttribute('aria-sort')") == "descending"


@pytest.mark.parametrize("width", [360, 1000])
def test_only_tables_scroll_to_the_side(opened, width):
    opened.page("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
    assert opened.value("document.documentElement.scrollWidth") <= width
    shown = opened.value("[...document.querySelectorAll('.for-wide, .for-narrow')].map(e => e.offsetWidth > 0)")
    assert shown == [width > 600, width <= 600] * (len(shown) // 2)


def test_a_mark_says_its_value_under_the_pointer(opened):
    opened.click("svg [data-tip]")
    assert opened.value("document.querySelector('.tip').hidden") is False
    assert opened.value("document.querySelector('.tip').textContent")
