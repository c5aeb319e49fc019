"""The page in a real browser: points are dragged, pixels painted, rows edited, without a complaint and without a
request to anywhere else. `make test-browser` runs it where Chromium is installed."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stmaml.runs import Run
from stmaml.serving.opening import page_of
from stmaml.shipped import pretrained_alone, pretrained_folder, pretrained_names
from tests.idx_files import grey, write_family
from tests.pool.classics import FOLDER
from tests.serving.chromium import Browser, installed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(installed() is None, reason="no Chromium is installed, so no page can be opened"),
]
CURVES = pretrained_folder() / "regression2d"
CURVE = "document.querySelector('canvas.plot').dataset"
COMPLETED = "document.querySelector('.studio section').dataset"


def stmaml(*words: object) -> None:
    """Runs a command that must succeed."""
    subprocess.run([sys.executable, "-m", "stmaml", *map(str, words)], check=True, capture_output=True)


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    """A service of a curve, of pictures and of a table."""
    folder = tmp_path_factory.mktemp("served")
    pictures = grey(30, height=28, width=28)
    write_family(folder / "digits" / "mnist", train=pictures, test=pictures)
    stmaml("train", "completion", "--method", "np", "--steps", 2, "--data", folder / "digits", "--run", folder / "np")
    columns = ("--task", "Subject", "--target", "Reaction", "--members", "mean", "mixed")
    stmaml("fit", FOLDER / "sleepstudy.csv", *columns, "--run", folder / "sleep")
    runs = [CURVES, folder / "np", folder / "sleep"]
    yield from serving(*map(str, runs))


@pytest.fixture(scope="module")
def shipped() -> Iterator[str]:
    """A service of the learners that come with the package."""
    yield from serving()


def serving(*runs: str) -> Iterator[str]:
    """The address of a service, which ends with one line."""
    command = [sys.executable, "-m", "stmaml", "serve", *runs, "--port", "0"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # else a shell's background ignores Ctrl-C
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, before)
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    yield next(found[1] for line in lines if (found := re.search(r"serving at (\S+)", line)))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, "stopped.\n")


def opened(address: str, **settings) -> Iterator[Browser]:
    """A browser on the page; nothing may complain in it, and it may ask nobody else."""
    browser = Browser(**settings)
    try:
        browser.open(address)
        browser.wait_for("document.querySelectorAll('#tabs button').length")
        yield browser
        assert browser.complaints == []
        assert len(browser.requests) > 8
        assert [url for url in browser.requests if not url.startswith(address)] == []
    finally:
        browser.close()


@pytest.fixture
def browser(address) -> Iterator[Browser]:
    yield from opened(address)


@pytest.fixture
def phone(address) -> Iterator[Browser]:
    yield from opened(address, width=390, height=844, touch=True, dark=True)


def tab(browser: Browser, name: str) -> None:
    """Turns to a page and waits for its first prediction."""
    browser.value(f"[...document.querySelectorAll('#tabs button')].find((b) => b.textContent === '{name}').click()")
    browser.wait_for(f"document.getElementById('main').dataset.page === '{name}'", 120)
    browser.wait_for("Boolean(document.querySelector('[data-version]'))")


def box(browser: Browser, selector: str) -> dict[str, float]:
    """Where an element is, after it was scrolled into view."""
    line = f"(() => {{ const e = document.querySelector('{selector}'); e.scrollIntoView({{block: 'center'}}); "
    return browser.value(
        line + "const b = e.getBoundingClientRect(); return {x: b.x, y: b.y, w: b.width, h: b.height}; })()"
    )


def changed(browser: Browser, dataset: str, before: str) -> str:
    """The mean that is shown once it is another one."""
    browser.wait_for(f"{dataset}.mean !== '{before}'")
    return browser.value(f"{dataset}.mean")


def test_a_dragged_point_moves_the_curve(browser):
    tab(browser, "Curves")
    browser.wait_for(f"{CURVE}.version")
    before = browser.value(f"{CURVE}.mean")
    at = box(browser, "canvas.plot")
    x, y = at["x"] + at["w"] / 2, at["y"] + at["h"] / 2
    up = y - 40  # not so far that the axis is drawn anew, and the point with it
    browser.drag((x, y), (x + 10, y - 20), (x + 30, up))
    after = changed(browser, CURVE, before)
    browser.drag((x + 30, up), (x + 20, y), (x + 10, y + 40))
    changed(browser, CURVE, after)
    assert "5 points" in browser.value("document.querySelector('.panel-head span').textContent")
    for kind in ("keyDown", "keyUp"):
        browser.send("Input.dispatchKeyEvent", type=kind, key="Delete", code="Delete", windowsVirtualKeyCode=46)
    browser.wait_for("document.querySelector('.panel-head span').textContent.includes('4 points')")
    assert browser.value("document.getElementById('curl').textContent").startswith("curl http://127.0.0.1")


def test_a_finger_drags_too(phone):
    tab(phone, "Curves")
    phone.wait_for(f"{CURVE}.version")
    before = phone.value(f"{CURVE}.mean")
    at = box(phone, "canvas.plot")
    x, y = at["x"] + at["w"] / 2, at["y"] + at["h"] / 3
    phone.swipe((x, y), (x, y - 10), (x, y - 40))
    changed(phone, CURVE, before)
    assert phone.value("document.documentElement.scrollWidth <= window.innerWidth")


def test_painted_pixels_change_the_picture(browser):
    tab(browser, "Pictures")
    browser.wait_for(f"{COMPLETED}.version")
    before = browser.value(f"{COMPLETED}.mean")
    at = box(browser, ".studio canvas")
    x, y = at["x"] + at["w"] / 2, at["y"] + at["h"] / 2
    browser.drag((x - 80, y), (x - 20, y + 20), (x + 60, y + 30))
    changed(browser, COMPLETED, before)
    seen = browser.value("document.querySelector('.studio figcaption').textContent")
    assert int(seen.split()[0]) > 30


def test_an_edited_row_changes_the_others(browser):
    tab(browser, "Table")
    last = "[...document.querySelectorAll('tbody tr')].at(-1).cells[2].firstChild.textContent"
    before = browser.wait_for(last)
    assert browser.value("document.querySelectorAll('tr.next .badge').length") == 1
    browser.value("(() => { const i = document.querySelectorAll('td.label input')[1]; i.focus(); i.select(); })()")
    browser.type("420")
    browser.wait_for(f"{last} !== '{before}'")
    assert float(browser.value(last)) > float(before)


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
def test_pictures_of_every_page(address, look, tmp_path):
    """Nobody compares them; they are there to be looked at."""
    size = {"width": 390, "height": 844, "touch": True} if look == "phone" else {}
    for browser in opened(address, dark=look == "dark", **size):
        for name in ("Curves", "Pictures", "Table"):
            tab(browser, name)
            path = Path(tmp_path / f"{name}-{look}.png")
            browser.picture(path)
            assert path.stat().st_size > 10_000


@pytest.mark.parametrize("look", ["light", "phone"])
def test_every_shipped_learner_has_a_page_with_its_card(shipped, look, tmp_path):
    size = {"width": 390, "height": 844, "touch": True} if look == "phone" else {}
    titles = {"curves": "Curves", "pixels": "Pictures", "years": "Weather"}
    pages = {Run(pretrained_folder() / name).config()["benchmark"]["name"]: name for name in pretrained_alone()}
    for browser in opened(shipped, **size):
        for benchmark, name in pages.items():
            tab(browser, titles[page_of(benchmark, pretrained_folder())])
            assert browser.value("document.getElementById('card-text').firstChild.textContent") == name
            assert browser.value("document.documentElement.scrollWidth <= window.innerWidth")
            browser.picture(tmp_path / f"{name}-{look}.png")


def test_a_labelled_day_moves_the_year(shipped):
    if "weather" not in pretrained_names():
        pytest.skip("no learner of weather is shipped")
    for browser in opened(shipped):
        tab(browser, "Weather")
        before = browser.value(f"{CURVE}.mean")
        at = box(browser, "canvas.plot")
        x, y = at["x"] + at["w"] / 2, at["y"] + at["h"] / 2
        browser.value("[...document.querySelectorAll('input[type=checkbox]')][0].click()")
        browser.drag((x, y), (x, y + 40), (x, y + 120))
        changed(browser, CURVE, before)
        assert "11 labelled days" in browser.value("document.querySelector('.panel-head span').textContent")
