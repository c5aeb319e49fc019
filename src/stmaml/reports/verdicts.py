"""Ours beside the paper's: the difference, and what it comes to in words."""

import math
from dataclasses import dataclass
from typing import Literal

from stmaml.metric_table import Metric
from stmaml.metrics import Summary

Word = Literal["better", "reproduced", "worse", "not comparable"]


@dataclass(frozen=True)
class Verdict:
    """What a difference comes to, and why where that is not plain."""

    word: Word
    why: str = ""


@dataclass(frozen=True)
class Difference:
    """Ours less the paper's, with the half-width of its 95 % interval, which is unknown where neither gave one."""

    mean: float
    half: float

    @property
    def summary(self) -> Summary:
        """As other scores are kept."""
        return {"mean": self.mean, "ci95": self.half}


def difference(ours: Summary, paper: tuple[float, float | None]) -> Difference:
    """How far ours is from what was printed. The two are independent, so that the squares of their half-widths add; an
    interval that one side did not give counts as none."""
    known = [half for half in (ours["ci95"], paper[1]) if half is not None and math.isfinite(half)]
    return Difference(ours["mean"] - paper[0], math.hypot(*known) if known else math.nan)


def judge(metric: Metric, ours: Summary, paper: tuple[float, float | None]) -> Verdict:
    """Whether ours is better or worse than the paper's, or within the interval of the difference."""
    if metric.better is None:
        return Verdict("not comparable", "neither more nor less of it is better")
    if not math.isfinite(ours["mean"]):
        return Verdict("not comparable", "ours is no number")
    gap = difference(ours, paper)
    if math.isnan(gap.half):
        return Verdict("not comparable", "neither side gives an interval")
    if abs(gap.mean) <= gap.half:
        return Verdict("reproduced", "within the interval")
    return Verdict(
        "better" if metric.badness(ours["mean"]) < metric.badness(paper[0]) else "worse", _alone(ours, paper)
    )


def _alone(ours: Summary, paper: tuple[float, float | None]) -> str:
    """Which interval the verdict goes by, where it is one only."""
    if paper[1] is None:
        return "by our interval; the paper gives none"
    return "" if math.isfinite(ours["ci95"]) else "by the paper's interval; ours is unknown"
