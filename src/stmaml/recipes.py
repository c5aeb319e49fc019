"""Experiments by name: the settings of each method on each benchmark, one value for each preset."""

from dataclasses import dataclass, field, replace

from jaxtyping import PRNGKeyArray

from stmaml.benchmarks import regression2d
from stmaml.benchmarks.base import Benchmark, BenchmarkConfig
from stmaml.errors import SettingError
from stmaml.inner import InnerLoop
from stmaml.methods import maml, metasgd, stmaml
from stmaml.methods.base import AbstractMetaLearner, MethodConfig
from stmaml.methods.standardised import Standardised
from stmaml.tasks import NoiseModel
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

    def build_learner(self, benchmark: Benchmark, *, key: PRNGKeyArray) -> AbstractMetaLearner:
        """A freshly initialised learner for the benchmark's tasks."""
        spec = replace(benchmark.train.spec, noise=self.modelling.noise_model)
        learner = self.learner.build(spec, key=key)
        if not self.modelling.standardise:
            return learner
        return Standardised(learner, benchmark.scaling, scale_targets=spec.target == "real")


def _regression2d(method: str, learner: MethodConfig, preset: str = "paper", **training: object) -> Experiment:
    return Experiment(
        benchmark="regression2d",
        method=method,
        preset=preset,
        task=regression2d.Config(),
        learner=learner,
        training=replace(TrainConfig(), **training),  # pyright: ignore[reportArgumentType]
    )


_PAPER = _regression2d("st-maml", stmaml.Config())

RECIPES: dict[tuple[str, str, str], Experiment] = {
    ("regression2d", "maml", "paper"): _regression2d("maml", maml.Config()),
    ("regression2d", "meta-sgd", "paper"): _regression2d("meta-sgd", metasgd.Config()),
    ("regression2d", "st-maml", "paper"): _PAPER,
    ("regression2d", "st-maml", "released"): replace(
        _regression2d(
            "st-maml",
            stmaml.Config(
                hidden=(20, 40),
                encoder=(20, 20, 20),
                z_size=20,
                h_size=20,
                h_layer=1,
                gate="set-mlp",
                gate_hidden=(80, 80),
                adapted="mean",
                redraw=True,
                code_lr=0.1,
                code_clamp=None,
                kl_weight=2.0,
                kl_mean=True,
                inner=InnerLoop(inner_lr=1e-3, inner_steps=3, inner_clamp=10.0),
            ),
            preset="released",
            tasks_per_batch=36,
            schedule="constant",
        ),
        task=regression2d.Config(input_range=(-5.0, 5.0), query_size=10, balanced=True),
    ),
}


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
}
"""Means and 95 % half-widths as printed in the paper (HSML: in ARML's paper)."""
