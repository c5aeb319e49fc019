"""A figure of a page: a chart at two widths, of which the reader's window shows one, its legend and its caption."""

import base64

from stmaml.reports.charts import Chart, Columns, Dots, Drawing, Estimates, Line, Mark, Panels, Picture, Rule, marks_of
from stmaml.reports.html.drawing import draw_chart
from stmaml.reports.html.estimates import draw_estimates
from stmaml.reports.html.marks import coloured, shape
from stmaml.reports.html.markup import Markup, empty, escaped, tag

WIDE, NARROW = 720, 330
PANELS = {"small": (222, 190), "wide": (720, 200)}


def figure_html(drawing: Drawing | None, title: str, caption: str) -> Markup:
    """A drawing with its title and legend above and its caption below."""
    head = tag("p", escaped(title), class_="figure-title") if title else ""
    content = "" if drawing is None else _content(drawing)
    return tag("figure", head, content, tag("figcaption", escaped(_sentence(caption))))


def _content(drawing: Drawing) -> Markup:
    return _picture(drawing) if isinstance(drawing, Picture) else legend(drawing) + _drawn(drawing)


def _sentence(caption: str) -> str:
    return caption if caption.endswith((".", "?", "!")) else f"{caption}."


def _drawn(drawing: Chart | Estimates | Panels) -> Markup:
    match drawing:
        case Chart():
            return _either(draw_chart(drawing, WIDE), draw_chart(drawing, NARROW))
        case Estimates():
            return _either(draw_estimates(drawing, WIDE), draw_estimates(drawing, NARROW))
        case Panels():
            return tag(
                "div", *(_panel(chart, drawing.size) for chart in drawing.charts), class_=f"panels {drawing.size}"
            )


def _panel(chart: Chart, size: str) -> Markup:
    width, height = PANELS[size]
    drawn = draw_chart(chart, width, height)
    if size == "wide":
        drawn = _either(drawn, draw_chart(chart, NARROW, height))
    return tag("div", tag("p", escaped(chart.title), class_="panel-title"), drawn, class_="panel")


def _either(wide: Markup, narrow: Markup) -> Markup:
    return tag("div", wide, class_="for-wide") + tag("div", narrow, class_="for-narrow")


def _picture(picture: Picture) -> Markup:
    data = base64.b64encode(picture.content).decode()
    return tag("div", empty("img", src=f"data:image/png;base64,{data}", alt=picture.title), class_="picture")


def legend(drawing: Chart | Estimates | Panels) -> Markup:
    """What each colour stands for, where there is more than one thing to tell apart."""
    marks = marks_of(drawing)
    if len(marks) < 2:
        return ""
    items = [tag("li", _swatch(mark), escaped(mark.name)) for mark in marks]
    return tag("ul", *items, class_="legend")


def _swatch(mark: Mark) -> Markup:
    match mark:
        case Line(colour=colour):
            look = ("line", "wide" if mark.wide else "", f"dash{mark.dash}" if mark.dash else "")
            band = (
                empty("rect", x=0, y=1, width=22, height=10, class_=coloured(colour, "band"))
                if mark.high is not None
                else ""
            )
            drawn = band + empty("path", d="M0 6H22", class_=coloured(colour, *look))
        case Dots():
            drawn = shape(mark, 11.0, 6.0)
        case Columns(colour=colour):
            drawn = empty("rect", x=4, y=0, width=14, height=12, class_=coloured(colour, "bar"))
        case Rule():
            drawn = empty("path", d="M0 6H22", class_="rule")
    return tag("svg", drawn, viewBox="0 0 22 12", width=22, height=12, aria_hidden="true")
