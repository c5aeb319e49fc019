"""Charts of what a learner believes of single tasks, for a page. No model is run."""

from collections.abc import Sequence

import numpy as np

from stmaml.reports.charts import Axis, Chart, Dots, Line, Mark, Panels
from stmaml.reports.figures import Arrays, said_of_trace
from stmaml.reports.limits import at_best, bounds
from stmaml.reports.years import MONTH_STARTS, MONTHS, support_days, with_gaps
from stmaml.runs import Trace

MOST_SOLUTIONS = 5
SOLUTIONS = (0, 4, 2, 3, 6)  # colours: the blue is kept for the truth


def curves_chart(traces: Sequence[Trace], title: str) -> Panels | None:
    """One task of each family: what was seen, what is true, what is believed."""
    traces = [trace for trace in traces if "low" in trace.arrays]
    if not traces:
        return None
    charts = [Chart(trace.about["family"], _task_marks(trace.arrays), Axis("x₁"), Axis()) for trace in traces]
    return Panels(title, tuple(charts))


def ambiguity_chart(traces: Sequence[Trace], title: str) -> Panels | None:
    """The same functions seen through fewer or noisier examples."""
    traces = sorted(traces, key=lambda trace: (trace.about["family"], trace.about["shots"], -trace.about["noise"]))
    named = [(f"{trace.about['family']}: {said_of_trace(trace)}", trace.arrays) for trace in traces]
    if not named:
        return None
    return Panels(title, tuple(Chart(name, _task_marks(arrays), Axis("x₁"), Axis()) for name, arrays in named))


def limit_chart(traces: Sequence[Trace], title: str) -> Panels | None:
    """One function seen through more and more examples: what is learnt of them, and what can be known at best."""
    traces = [trace for trace in traces if {"low", "limit_low"} <= set(trace.arrays)]
    if not traces:
        return None
    low, high = bounds([trace.arrays for trace in traces])
    y = Axis(low=low, high=high)
    charts = []
    for trace in sorted(traces, key=lambda trace: trace.about["shots"]):
        shots = trace.about["shots"]
        words = f"{shots} example{'s' * (shots != 1)}"
        charts.append(Chart(f"{words}: learnt", _task_marks(trace.arrays), Axis("x₁"), y))
        charts.append(Chart(f"{words}: at best (Bayes)", _task_marks(at_best(trace.arrays)), Axis("x₁"), y))
    return Panels(title, tuple(charts))


def _task_marks(arrays: Arrays) -> tuple[Mark, ...]:
    axis = arrays["axis"].astype(float)
    low, high, truth = (arrays[name][:, 0].astype(float) for name in ("low", "high", "truth"))
    solutions = arrays["curves"][:MOST_SOLUTIONS]
    name = "sampled solutions" if len(solutions) > 1 else "its one solution"
    middle = Line("90 % predictive band", axis, np.full(len(axis), np.nan), low, high, colour="mute", dots=False)
    lines = [
        Line(name if i == 0 else "", axis, one[:, 0].astype(float), colour=SOLUTIONS[i], dots=False, dash=2)
        for i, one in enumerate(solutions)
    ]
    seen = arrays["support_x"][:, 0].astype(float), arrays["support_y"][:, 0].astype(float)
    known = Dots("support", *seen, colour="ink", shape="star")
    return (known, Line("truth", axis, truth, colour="truth", dots=False), *lines, middle)


def years_chart(traces: Sequence[Trace], title: str) -> Panels | None:
    """A year at one station of each band: labelled days, the truth, and the prediction with its 90 % band."""
    traces = [trace for trace in traces if "median" in trace.arrays]
    if not traces:
        return None
    months = Axis("", ticks=tuple(map(float, MONTH_STARTS)), names=MONTHS, low=-2.0, high=367.0)
    charts = [
        Chart(f"{one.about['band']}: station {one.about['station']}", _year_marks(one.arrays), months, Axis("°F"))
        for one in traces
    ]
    return Panels(title, tuple(charts), "wide")


def _year_marks(arrays: Arrays) -> tuple[Mark, ...]:
    day, rows = with_gaps(arrays["axis"])
    shown = {name: np.where(rows < 0, np.nan, arrays[name][rows, 0]) for name in ("truth", "low", "median", "high")}
    labelled = support_days(arrays).astype(float), arrays["support_y"][:, 0].astype(float)
    return (
        Dots("labelled days", *labelled, colour="ink"),
        Line("truth", day, shown["truth"], colour="truth", dots=False),
        Line("prediction (median), 90 % band", day, shown["median"], shown["low"], shown["high"], colour=4, dots=False),
    )
