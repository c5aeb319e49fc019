"""Experiments by name: the settings of each method on each benchmark, one value for each preset."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stmaml.errors import SettingError
from stmaml.recipes import celeba, completion, plain_multi, regression2d, weather
from stmaml.recipes.base import Experiment, InputScale, Modelling, build_learner, measured_scaling
from stmaml.recipes.rows import searched_presets

__all__ = [
    "BEYOND",
    "PUBLISHED",
    "PUBLISHED_ABLATIONS",
    "PUBLISHED_FAMILIES",
    "PUBLISHED_NOTES",
    "RECIPES",
    "Experiment",
    "InputScale",
    "Modelling",
    "build_learner",
    "measured_scaling",
    "presets",
    "recipe",
]

RECIPES = {
    (e.benchmark, e.method, e.preset): e
    for e in (*regression2d.RECIPES, *weather.RECIPES, *completion.RECIPES, *celeba.RECIPES, *plain_multi.RECIPES)
}
RECIPES |= searched_presets(RECIPES, {benchmark: None for benchmark, _, _ in RECIPES})


BEYOND = (
    "tuned",
    "best",
    "years",
    "same-year",
)  # presets that are not of the paper's size, so that its figures are not theirs


def presets(benchmark: str, method: str) -> list[str]:
    """The presets of a method on a benchmark, the default first."""
    return [preset for (b, m, preset) in RECIPES if (b, m) == (benchmark, method)]


def recipe(benchmark: str, method: str, preset: str = "paper") -> Experiment:
    """The settings of a named experiment."""
    if (benchmark, method, preset) not in RECIPES:
        known = ", ".join(presets(benchmark, method)) or "none"
        raise SettingError(f"{method} on {benchmark} has no preset '{preset}'; it has: {known}.")
    return RECIPES[benchmark, method, preset]


PUBLISHED: dict[tuple[str, str], dict[str, tuple[float, float | None]]] = {
    ("regression2d", "maml"): {"mse": (2.29, 0.16)},
    ("regression2d", "meta-sgd"): {"mse": (2.91, 0.23)},
    ("regression2d", "bmaml"): {"mse": (1.65, 0.10)},
    ("regression2d", "mmaml"): {"mse": (0.52, 0.04)},
    ("regression2d", "hsml"): {"mse": (0.49, 0.04)},
    ("regression2d", "arml"): {"mse": (0.44, 0.03)},
    ("regression2d", "st-maml"): {"mse": (0.37, 0.04)},
    ("weather", "maml"): {"mse": (141.43, 9.33)},
    ("weather", "meta-sgd"): {"mse": (291.42, 14.89)},
    ("weather", "st-maml"): {"mse": (86.56, 4.89)},
    ("completion", "np"): {"bce": (0.302, None)},
    ("completion", "cnp"): {"bce": (0.358, None)},
    ("completion", "st-maml"): {"bce": (0.268, None)},
    ("celeba", "maml"): {"accuracy": (0.77924, None), "coverage": (1.0, None), "nll": (0.454, None)},
    ("celeba", "st-maml"): {"accuracy": (0.79698, None), "coverage": (1.13, None), "nll": (0.439, None)},
}
"""Means and 95 % half-widths as printed in the paper (HSML: in ARML's paper; weather: printed with a stray % sign)."""


@dataclass(frozen=True)
class Note:
    """What must be said beside a benchmark's published figures."""

    words: str
    reason: str
    """The same in a few words."""
    unless: Mapping[str, Any] = field(default_factory=dict)
    """Conditions of the test tasks under which it need not be said."""


PUBLISHED_NOTES = {
    "regression2d": Note(
        "The paper's figures are no fair comparison here: its text names inputs 0 to 5, but its authors' code drew "
        "them from -5 to 5, which is harder (--input-range -5 5).",
        "the paper's inputs are from -5 to 5",
        unless={"input_range": [-5, 5]},
    ),
    "celeba": Note(
        "The paper's figures are for CelebA: they compare with these only if the pictures are CelebA's.",
        "comparable only if the pictures are CelebA's",
    ),
}
PUBLISHED_ABLATIONS: dict[tuple[str, str, str], dict[str, tuple[float, float | None]]] = {
    ("weather", "st-maml", "augment"): {"mse": (100.27, 5.87)},
    ("weather", "st-maml", "tailor"): {"mse": (106.37, 5.77)},
}
"""The same for a method with one part switched off, by the setting that is then False."""

_PLAIN_MULTI = ("CUB_Bird", "DTD_Texture", "FGVC_Aircraft", "FGVCx_Fungi")


def _accuracies(*percent: tuple[float, float | None]) -> dict[str, tuple[float, float | None]]:
    """The four data sets' figures, printed in percent, as shares."""
    shares = [(round(mean / 100, 4), None if half is None else round(half / 100, 4)) for mean, half in percent]
    return dict(zip(_PLAIN_MULTI, shares, strict=True))


PUBLISHED_FAMILIES: dict[tuple[str, str, str | None], dict[str, tuple[float, float | None]]] = {
    ("plain-multi", "maml", None): _accuracies((68.52, 0.79), (44.56, 0.68), (66.18, 0.71), (51.85, 0.85)),
    ("plain-multi", "meta-sgd", None): _accuracies((67.87, 0.74), (45.49, 0.68), (66.84, 0.70), (52.51, 0.81)),
    ("plain-multi", "bmaml", None): _accuracies((69.01, 0.74), (46.06, 0.69), (65.74, 0.67), (52.43, 0.84)),
    ("plain-multi", "mmaml", None): _accuracies((70.49, 0.76), (45.89, 0.69), (67.31, 0.68), (53.96, 0.82)),
    ("plain-multi", "hsml", None): _accuracies((71.68, 0.73), (48.08, 0.69), (73.49, 0.68), (56.32, 0.80)),
    ("plain-multi", "arml", None): _accuracies((73.34, None), (49.67, None), (74.88, None), (57.55, None)),
    ("plain-multi", "protonet", None): _accuracies((68.67, None), (45.21, None), (65.29, None), (51.27, None)),
    ("plain-multi", "st-maml", None): _accuracies((72.49, 0.53), (46.51, 0.42), (72.64, 0.44), (55.29, 0.57)),
    ("plain-multi", "st-maml", "augment"): _accuracies((71.49, 0.55), (47.17, 0.44), (71.62, 0.43), (54.91, 0.56)),
    ("plain-multi", "st-maml", "tailor"): _accuracies((71.48, 0.55), (46.07, 0.40), (70.46, 0.44), (54.59, 0.56)),
}
"""The same for each family and a benchmark's first metric, by the method and the setting that is False, if one is. The
paper leaves out ARML and ProtoNet, whose figures are in ARML's paper."""
