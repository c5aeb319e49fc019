"""What an experiment is: a benchmark, a method, and all settings of both."""

from dataclasses import dataclass, field, replace
from typing import Literal

from jaxtyping import PRNGKeyArray

from stmaml.benchmarks.base import Benchmark, BenchmarkConfig
from stmaml.errors import SettingError
from stmaml.methods.base import AbstractMetaLearner, MethodConfig
from stmaml.methods.standardised import Standardised
from stmaml.tasks import NoiseModel, Scaling
from stmaml.training import TrainConfig

InputScale = Literal["moments", "quantiles"]


@dataclass(frozen=True)
class Modelling:
    """How a method sees inputs and targets, the same for every method."""

    standardise: bool = False
    """Scale inputs and targets to mean 0 and spread 1 over the training tasks (inputs: see `input_scale`)."""
    noise_model: NoiseModel = "residual"
    """The spread of real targets: fitted to residuals beside a squared error (residual), fixed, learned as one number,
    or predicted for each input."""
    input_scale: InputScale = "moments"
    """How `standardise` scales inputs: to mean 0 and spread 1, or by their ranks among the training inputs, which suits
    heavy tails and gaps coded as numbers."""

    def __post_init__(self):
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


def measured_scaling(modelling: Modelling, benchmark: Benchmark) -> Scaling:
    """What standardised inputs and targets are scaled by, measured on the training tasks."""
    if modelling.input_scale == "moments":
        return benchmark.scaling
    shape = benchmark.train.spec.x_shape
    if len(shape) > 1:
        raise SettingError(
            f"--input-scale quantiles is for inputs in columns, not for images of {' x '.join(map(str, shape))}; use "
            "--input-scale moments."
        )
    return benchmark.rank_scaling


def build_learner(
    method: MethodConfig,
    benchmark: Benchmark,
    modelling: Modelling,
    *,
    key: PRNGKeyArray,
    scaling: Scaling | None = None,
) -> AbstractMetaLearner:
    """A freshly initialised learner for the benchmark's tasks; `scaling` is measured on them if not given."""
    spec = replace(benchmark.train.spec, noise=modelling.noise_model)
    if modelling.standardise:
        spec = replace(spec, lattice=None)  # its coordinates are no longer in 0..1
    learner = method.build(spec, key=key)
    if not modelling.standardise:
        return learner
    scaling = scaling or measured_scaling(modelling, benchmark)
    return Standardised(learner, scaling, scale_targets=spec.target == "real")
