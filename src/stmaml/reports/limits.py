"""One function seen through more and more examples: what a learner makes of them, above what can be known at best."""

import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from stmaml.reports.figures import Arrays, draw_task, png
from stmaml.runs import Trace

ROOM = 0.75  # of the spread of what is true, above and below it: bands of a few examples leave the figure


def limit_figure(traces: Sequence[Trace], title: str) -> bytes | None:
    """A column for each number of examples: sampled solutions and band of the learner, then of the Bayes posterior."""
    traces = sorted(
        (trace for trace in traces if {"low", "limit_low"} <= set(trace.arrays)), key=lambda trace: trace.about["shots"]
    )
    if not traces:
        return None
    figure = Figure(figsize=(2.9 * len(traces) + 0.6, 5.9), layout="constrained")
    axes = figure.subplots(2, len(traces), sharex=True, sharey=True, squeeze=False)
    for column, trace in zip(axes.T, traces, strict=True):
        for ax, arrays in zip(column, (trace.arrays, at_best(trace.arrays)), strict=True):
            draw_task(ax, arrays)
        shots = trace.about["shots"]
        column[0].set_title(f"{shots} example{'s' * (shots != 1)}")
        column[-1].set_xlabel("$x_1$")
    axes[0, 0].set_ylim(*bounds([trace.arrays for trace in traces]))
    for ax, words in zip(axes[:, 0], ("learnt: y", "at best (Bayes): y"), strict=True):
        ax.set_ylabel(words)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    order = (2, 3, 1, 0)  # what is known first, then what is believed
    figure.legend([handles[i] for i in order], [labels[i] for i in order], loc="outside lower center", ncols=len(order))
    figure.suptitle(textwrap.fill(title, 100), fontsize=12)
    return png(figure)


def at_best(arrays: Arrays) -> Arrays:
    """The same task with the posterior's curves and band in place of the learner's."""
    return arrays | {name: arrays[f"limit_{name}"] for name in ("curves", "low", "high")}


def bounds(tasks: list[Arrays]) -> tuple[float, float]:
    """What all columns show: all that is true or seen, with room for what might have been."""
    shown = np.concatenate([part for arrays in tasks for part in (arrays["truth"], arrays["support_y"])])
    room = ROOM * float(np.ptp(shown))
    return float(shown.min()) - room, float(shown.max()) + room
