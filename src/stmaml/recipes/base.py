"""What an experiment is: a benchmark, a method, and all settings of both."""

from dataclasses import dataclass, field, replace

from jaxtyping import PRNGKeyArray

from stmaml.benchmarks.base import Benchmark, BenchmarkConfig
from stmaml.methods.base import AbstractMetaLearner, MethodConfig
from stmaml.methods.standardised import Standardised
from stmaml.tasks import NoiseModel, Scaling
from stmaml.training import TrainConfig


@dataclass(frozen=True)
class Modelling:
    """How a method sees inputs and targets, the same for every method."""

    standardise: bool = False
    """Scale inputs and targets to mean 0 and spread 1 over the training tasks."""
    noise_model: NoiseModel = "residual"
    """The spread of real targets: fitted to residuals beside a squared error (residual), fixed, learned as one number,
    or predicted for each input."""


@dataclass(frozen=True)
class Experiment:
    """A method on a benchmark, with all its settings."""

    benchmark: str
    method: str
    preset: str
    task: BenchmarkConfig
    learner: MethodConfig
    modelling: Modelling = field(default_factory=Modelling)
    training: TrainConfig = field(default_factory=TrainConfig)


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
    learner = method.build(spec, key=key)
    if not modelling.standardise:
        return learner
    return Standardised(learner, scaling or benchmark.scaling, scale_targets=spec.target == "real")
