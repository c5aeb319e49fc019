"""Every score in one table: what people call it, which way is better, how many tasks make one number of it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from jaxtyping import Float

from stmaml.metrics import Summary, calibration_error, summarise, summarise_share

T = TypeVar("T")
ANY = ("real", "binary", "class")


@dataclass(frozen=True)
class Metric:
    """One score."""

    name: str
    """As in files, tables and --val-metric."""
    label: str
    """In words, for the axis of a figure."""
    better: Literal["lower", "higher", "nominal"] | None = "lower"
    """Which way is better, or that nearness to `nominal` is; None for what is neither good nor bad by itself."""
    nominal: float = 0.0
    unit: str = ""
    always: tuple[str, ...] = ()
    """The kinds of target whose tasks always have it."""
    pool: Callable[[Float[np.ndarray, "m *part"]], Summary] = summarise
    """One number and its interval from what each task contributes: the mean, unless it is of all tasks together."""
    note: str = ""
    """What a reader of a table must know of it."""

    @property
    def words(self) -> str:
        """The label with its unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    def badness(self, value: float) -> float:
        """Lower for what is better; call it only where something is."""
        return {"lower": value, "higher": -value, "nominal": abs(value - self.nominal)}[self.better or "lower"]


_OPEN_RULES = (
    "accuracy: of each sampled model on the one rule of three it serves best, chosen with the labels known, which is "
    "optimistic. nll_served: of each model on that rule, optimistic likewise. accuracy_all: of the averaged "
    "probabilities on all three rules. coverage: rules that at least one model serves best, from 1 to 3; models that "
    "guess at random cover all, so read it beside the nll."
)
_ALL = (
    Metric("accuracy", "accuracy", "higher", always=("class",)),
    Metric("bce", "cross-entropy", unit="nats", always=("binary",)),
    Metric("bce_unseen", "cross-entropy of what was not observed", unit="nats"),
    Metric("bce_single", "cross-entropy of a single sample", unit="nats"),
    Metric("mse", "mean squared error", always=("real", "binary")),
    Metric("mae", "mean absolute error"),
    Metric("mse_clean", "mean squared error without the noise"),
    Metric("nll", "negative log-likelihood", unit="nats", always=ANY),
    Metric("nll_served", "negative log-likelihood on the rule served", unit="nats"),
    Metric("crps", "continuous ranked probability score"),
    Metric("accuracy_all", "accuracy on all rules", "higher"),
    Metric("coverage", "rules covered", "higher", note=_OPEN_RULES),
    Metric("coverage90", "coverage of the 90 % interval", "nominal", nominal=0.9),
    Metric("width90", "width of the 90 % interval", None),
    Metric("sets90", "coverage of the 90 % set of classes", "nominal", nominal=0.9),
    Metric("missed90", "groups whose 90 % interval or set holds less than 80 % of their rows", pool=summarise_share),
    Metric("diversity", "mean spread of a target over samples", None),
    Metric("ece", "expected calibration error", pool=calibration_error),
)
METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}
"""In the order people read them: errors, densities, intervals."""


def metric(name: str) -> Metric:
    """The metric of this name; one that nobody judges for a name that is not in the table."""
    return METRICS.get(name) or Metric(name, name, better=None)


def ordered(values: Mapping[str, T]) -> dict[str, T]:
    """The same by metric, in the order of the table; others last."""
    return {name: values[name] for name in in_order(values)}


def in_order(names: Iterable[str]) -> list[str]:
    """Names of metrics in the order of the table; others last, as they came."""
    places = {name: place for place, name in enumerate(METRICS)}
    return sorted(names, key=lambda name: places.get(name, len(places)))


def judged(names: Iterable[str]) -> list[str]:
    """Those of the names by which learners can be chosen."""
    return [name for name in in_order(names) if metric(name).better is not None]
