"""Pages of made-up reports: what is in them, that nothing in them becomes a tag, and that nothing is fetched."""

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import numpy as np
import pytest

from stmaml.reports import write_document
from stmaml.reports.charts import Axis, Chart, Columns, Dots, Estimates, Line, Panels, Picture, Rule, around, marks_of
from stmaml.reports.content import Cell, Code, Document, Figure, Fold, Heading, Part, Table, Text, interval
from stmaml.reports.html import page
from stmaml.reports.html.drawing import draw_chart
from stmaml.reports.html.estimates import draw_estimates
from stmaml.reports.html.figures import figure_html
from stmaml.reports.html.marks import path_through, thinned
from stmaml.reports.html.markup import escaped, tag
from stmaml.reports.html.page import policy
from stmaml.reports.html.scales import Scale, extent, linear_ticks, log_ticks
from stmaml.reports.labels import label_cell, short_labels
from stmaml.reports.markdown import markdown

EVIL = "<script>alert(\"1\")</script> & 'x' | \x00"
X = np.array([0.0, 1.0, 2.0, 5.0])
CHART = Chart(
    EVIL,
    (
        Rule(EVIL, y=2.0),
        Line(EVIL, X, X + 1, X, X + 2, wide=True),
        Line("two", X, np.array([1.0, np.nan, 2.0, 3.0]), colour=9, dash=1),
        Dots("three", X, X, X - 1, X + 1, 2, (EVIL,) * 4, "star"),
        Columns("four", X, 0 * X, X, 0.5, 3, (EVIL,) * 4, (EVIL,) * 4),
        Rule("five"),
    ),
    Axis(EVIL, "count", (0.0, 1.0, 2.0, 5.0)),
    Axis(EVIL),
    note=EVIL,
)
ESTIMATES = Estimates(EVIL, (EVIL * 4, "b"), (Dots(EVIL, X[:2], X[:2], X[:2] - 1, X[:2] + 1),), Axis(EVIL), 0.0)


def document(word: str = "plain") -> Document:
    table = Table(
        (word, "n"),
        ({word: Cell(word), "n": interval({"mean": 2.0, "ci95": 0.5})}, {word: Cell("b"), "n": Cell("10", value=10.0)}),
        word,
    )
    blocks = (
        Text(word, "note"),
        Heading(word),
        Code(word),
        table,
        Figure(word, word, "a.png", b"png", CHART),
        Figure(word, drawing=ESTIMATES),
        Figure(word, drawing=Panels(word, (CHART, CHART))),
        Figure(word, "", "b.png", b"png", Picture(word, b"png")),
        Fold(word, (Text(word),)),
    )
    parts = (Part(f"one: {word}", blocks, "one"), Part("two", (), "two"), Part("three", (Text(word),), "two"))
    return Document(word, (Text(word, "lead"),), (*parts, Part("Runs", (Code(word),), folded=True)), word)


class Tags(HTMLParser):
    """The elements of a page, and their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def count(self, name: str) -> int:
        return sum(tag == name for tag, _ in self.found)


def test_the_structure_of_a_page():
    text = page(document())
    tags = Tags(text)
    assert text.startswith('<!doctype html>\n<html lang="en">')
    assert {
        name: tags.count(name) for name in ("h1", "h2", "h3", "h4", "table", "figure", "details", "nav", "img")
    } == {
        "h1": 1,
        "h2": 3,  # two chapters, and the runs
        "h3": 3,
        "h4": 1,
        "table": 1,
        "figure": 4,
        "details": 2,
        "nav": 1,
        "img": 1,
    }
    assert '<h3 id="1-one-plain">Plain</h3>' in text, "the chapter is not said again"
    links = [attributes["href"] for name, attributes in tags.found if name == "a"]
    names = [attributes["id"] for _, attributes in tags.found if "id" in attributes]
    assert [(link or "")[1:] for link in links] == names
    assert re.search(r'<td data-v="2">2.00 <span class="margin">± 0.50</span></td>', text)


def test_nothing_of_a_users_is_taken_for_a_tag():
    plain, evil = Tags(page(document())), Tags(page(document(EVIL)))
    assert [name for name, _ in evil.found] == [name for name, _ in plain.found]
    assert evil.count("script") == 1
    assert all(not name.startswith("on") for _, attributes in evil.found for name in attributes)
    assert "\x00" not in page(document(EVIL))


def test_nothing_is_fetched():
    text = page(document())
    assert set(re.findall(r"https?://[^\"' ]*", text)) == {"http://www.w3.org/2000/svg"}
    addresses = [v for _, each in Tags(text).found for n, v in each.items() if n in ("src", "href", "action", "srcset")]
    assert all((address or "").startswith(("#", "data:")) for address in addresses)
    assert "url(" not in text
    assert "@import" not in text
    assert not any("style" in attributes for _, attributes in Tags(text).found), "the policy forbids them"


def test_the_policy_allows_what_is_in_the_page_and_nothing_else():
    text = page(document())
    style, script = (re.search(f"<{name}>(.*?)</{name}>", text, re.DOTALL) for name in ("style", "script"))
    assert style is not None
    assert script is not None
    assert policy(style[1], script[1]) in text
    assert "default-src 'none'" in text
    assert "unsafe" not in policy("", "")


@pytest.mark.parametrize("width", [330, 720])
def test_drawings_are_well_formed(width):
    for drawn in (draw_chart(CHART, width), draw_estimates(ESTIMATES, width)):
        root = ET.fromstring(drawn)
        assert root.attrib["role"] == "img"
        assert root.attrib["aria-label"].startswith("<script>")
        assert root.find("{http://www.w3.org/2000/svg}desc") is not None
        inside = [
            float(v)
            for one in root.iter()
            for n, v in one.attrib.items()
            if n in ("cx", "x") and one.tag.endswith(("circle", "rect"))
        ]
        assert inside
        assert all(0 <= value <= width for value in inside)


def test_every_svg_of_a_page_is_well_formed():
    found = re.findall(r"<svg.*?</svg>", page(document(EVIL)), re.DOTALL)
    assert len(found) > 10
    for one in found:
        ET.fromstring(one)


def test_a_line_goes_through_its_points_and_breaks_where_a_value_is_unknown():
    assert path_through(np.array([1.0, 2.0, 3.0, 4.0]), np.array([5.0, np.nan, 6.0, 7.0])) == "M1.0 5.0M3.0 6.0L4.0 7.0"


def test_values_lie_where_their_scale_says():
    scale = Scale(Axis(scale="log"), 1.0, 100.0, 0.0, 200.0)
    np.testing.assert_allclose(scale(np.array([1.0, 10.0, 100.0, 1e9])), [0, 100, 200, 200])
    np.testing.assert_allclose(Scale(Axis(), 0.0, 10.0, 100.0, 0.0)(np.array([0.0, 2.5])), [100, 75])
    count = Scale(Axis(scale="count"), 0.0, 3.0, 0.0, 2.0)
    np.testing.assert_allclose(count(np.array([0.0, 1.0, 3.0])), [0, 1, 2])


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [(0.0, 1.0, 6, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)), (-3.0, 7.0, 4, (0.0, 5.0)), (0.13, 0.19, 4, (0.14, 0.16, 0.18))],
)
def test_ticks_are_round(low, high, most, expected):
    assert linear_ticks(low, high, most) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [
        (1.0, 1000.0, 4, (1, 10, 100, 1000)),
        (1.0, 100.0, 7, (1, 2, 5, 10, 20, 50, 100)),
        (1e-9, 1e9, 4, (1e-9, 1e-4, 1e1, 1e6)),
        (2.1, 2.4, 4, (2.1, 2.2, 2.3, 2.4)),
    ],
)
def test_ticks_of_a_logarithmic_axis(low, high, most, expected):
    assert log_ticks(low, high, most) == pytest.approx(expected)


def test_an_axis_of_nothing_or_of_one_value_has_an_extent():
    assert extent(Axis(), np.empty(0)) == (-0.05, 1.05)
    low, high = extent(Axis(scale="log"), np.array([3.0, -1.0, np.nan]))
    assert low < 3.0 < high
    assert extent(Axis(low=0.0), np.array([1.0, 2.0]))[0] == 0.0


def test_intervals_of_shares_end_at_0_and_1_and_unknown_ones_have_no_width():
    low, high = around(np.array([0.5, 0.9]), np.array([np.nan, 0.3]), share=True)
    np.testing.assert_allclose(low, [0.5, 0.6])
    np.testing.assert_allclose(high, [0.5, 1.0])


def test_a_legend_names_each_thing_once():
    assert [mark.name for mark in marks_of(Panels("", (CHART, CHART)))][1:] == ["two", "three", "four", "five"]
    assert 'class="legend"' not in figure_html(Chart("", (Line("one", X, X),), Axis(), Axis()), "", "a caption")


def test_a_long_log_makes_no_large_page():
    steps = np.arange(200_000, dtype=float)
    drawn = draw_chart(Chart("", (Line("loss", steps, 1 / (1 + steps)),), Axis(), Axis(scale="log")), 720)
    assert len(drawn) < 30_000
    assert list(thinned(5, 3)) == [0, 2, 4]


def test_text_and_attributes_are_escaped():
    assert escaped(EVIL) == "&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt; &amp; &#x27;x&#x27; | \ufffd"
    assert tag("p", class_='"', hidden=False, tabindex=0) == '<p class="&quot;" tabindex="0"></p>'


def test_markdown_has_the_same_tables_and_all_pictures(tmp_path):
    paths = write_document(document(), tmp_path)
    text = paths[0].read_text()
    assert [path.name for path in paths] == ["report.md", "a.png", "b.png"]
    assert text == markdown(document())
    assert "| plain |           n |\n|-------|------------:|\n| plain | 2.00 ± 0.50 |\n| b     |          10 |" in text
    assert text.index("## Figures") < text.index("## Runs")
    assert (tmp_path / "report.html").read_text() == page(document())
    assert "\\|" in markdown(document(EVIL)), "a bar would end a cell"


def test_labels_are_short_where_nothing_is_lost():
    labels = ["maml (steps=3, inner=1) on a", "maml (steps=3, inner=2) on a", "np (steps=3) on a", "ridge on a"]
    assert list(short_labels(labels).values()) == ["maml (inner=1)", "maml (inner=2)", "np", "ridge"]
    assert short_labels(["np on a", "np on b"]) == {"np on a": "np on a", "np on b": "np on b"}
    for label in labels:
        assert label_cell(label).words == label
