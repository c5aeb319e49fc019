"""What an experiment is: a benchmark, a method, and all settings of both."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from jaxtyping import PRNGKeyArray

from stmaml.benchmarks.base import BenchmarkConfig
from stmaml.benchmarks.sources import TaskSource, measure_scaling
from stmaml.errors import SettingError
from stmaml.likelihoods import check_noise_model
from stmaml.methods.base import AbstractMetaLearner, MethodConfig
from stmaml.methods.composed import build
from stmaml.methods.looks_up import LookUp
from stmaml.tasks import Scaling, TaskSpec
from stmaml.training import TrainConfig

InputScale = Literal["moments", "quantiles"]


@dataclass(frozen=True)
class Modelling:
    """How a method sees inputs and targets, the same for every method."""

    standardise: bool = False
    """Scale inputs and targets to mean 0 and spread 1 over the training tasks (inputs: see `input_scale`)."""
    noise_model: str = "residual"
    """The spread of real targets: fitted to residuals beside a squared error (residual), fixed, learned as one number,
    or predicted for each input, normal (predicted), with heavy tails (student) or of any shape (mixture)."""
    input_scale: InputScale = "moments"
    """How `standardise` scales inputs: to mean 0 and spread 1, or by their ranks among the training inputs, which suits
    heavy tails and gaps coded as numbers."""
    linear: bool = False
    """Put a Bayesian linear regression with a learnt prior before the method, which then corrects it: for tasks that
    mostly differ by a level and a few slopes."""
    both_ways: bool = False
    """In use, see each image as it is and turned left to right: labelled ones count twice, and answers are averages
    over both. Training is not changed."""
    lookup: LookUp = field(default_factory=LookUp)

    def __post_init__(self):
        check_noise_model(self.noise_model)
        if self.input_scale == "quantiles" and not self.standardise:
            raise SettingError("--input-scale quantiles says how inputs are standardised; add --standardise.")


@dataclass(frozen=True)
class Experiment:
    """A method on a benchmark, with all its settings."""

    benchmark: str
    method: str
    preset: str
    benchmark_settings: BenchmarkConfig
    method_settings: MethodConfig
    modelling: Modelling = field(default_factory=Modelling)
    training: TrainConfig = field(default_factory=TrainConfig)


def with_changes(settings: Any, changes: Mapping[str, Any]) -> Any:
    """Settings with some of them changed, each named by its path, such as `training.outer_lr`."""
    for path, value in changes.items():
        name, _, rest = path.partition(".")
        inside = with_changes(getattr(settings, name), {rest: value}) if rest else value
        settings = replace(settings, **{name: inside})
    return settings


def setting(settings: Any, path: str) -> Any:
    """The setting at a path; KeyError where there is none."""
    for name in path.split("."):
        settings = vars(settings)[name]
    return settings


def measured_scaling(modelling: Modelling, source: TaskSource) -> Scaling:
    """What standardised inputs and targets are scaled by, measured on training tasks."""
    shape, by_rank = source.spec.x_shape, modelling.input_scale == "quantiles"
    if by_rank and len(shape) > 1:
        images = f"images of {' x '.join(map(str, shape))}; use --input-scale moments"
        raise SettingError(f"--input-scale quantiles is for inputs in columns, not for {images}.")
    return measure_scaling(source, by_rank=by_rank)


def build_learner(
    method: MethodConfig, spec: TaskSpec, modelling: Modelling, *, key: PRNGKeyArray, scaling: Scaling | None = None
) -> AbstractMetaLearner:
    """A fresh learner for tasks like `spec`, seen as `modelling` says; `scaling` is for one that standardises."""
    if modelling.standardise and scaling is None:
        raise ValueError("a learner that standardises needs a scaling; `measured_scaling` measures one")
    spec, scaling = replace(spec, noise=modelling.noise_model), scaling if modelling.standardise else None
    asked = {"lookup": modelling.lookup, "linear": modelling.linear, "both_ways": modelling.both_ways}
    return build(method, spec, **asked, scaling=scaling, key=key)
