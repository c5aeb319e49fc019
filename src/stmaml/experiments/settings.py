"""What an experiment and its evaluation are made of, as settings of a run folder and back."""

import importlib
from dataclasses import dataclass
from typing import Any

from stmaml.benchmarks import BENCHMARKS
from stmaml.benchmarks.base import TABLE, BenchmarkConfig
from stmaml.border.typed import need
from stmaml.errors import RunError, at_least
from stmaml.legacy.settings import with_old_forms
from stmaml.methods import METHODS
from stmaml.recipes import Experiment, Modelling
from stmaml.runs import Run, as_json, from_dict
from stmaml.training import TrainConfig


@dataclass(frozen=True)
class EvaluateConfig:
    """What to evaluate on."""

    tasks: int | None = None
    """Test tasks; 1,000 if not given, and for a table as many as in `fit`."""
    samples: int = 20
    """Predictors sampled for each task; 1 is the paper's protocol."""
    shots: int | None = None
    """Labelled examples in a support set, if not as in training."""
    noise: float | None = None
    """Standard deviation of the target noise, if not as in training."""
    inner_steps: int | None = None
    """Gradient steps on the support set, if not as in training."""
    data: str | None = None
    """Where the benchmark's files lie, if not where they lay in training."""
    years: tuple[int, ...] | None = None
    """Years of the weather stations, if not those trained on: scores are kept beside those of other years."""
    val_shift: int | None = None
    """Days by which the dates of validation tasks of weather move, if not as in training."""
    validation: bool = False
    """Score validation tasks, to choose settings by, and save nothing: what something was chosen on is no test."""

    def __post_init__(self):
        at_least(1, tasks=self.tasks, samples=self.samples)
        at_least(0, inner_steps=self.inner_steps)

    def of(self, experiment: Experiment) -> BenchmarkConfig:
        """The settings of the benchmark that a run of this experiment is scored on."""
        return self.on(experiment.benchmark, experiment.benchmark_settings)

    def on(self, benchmark: str, settings: BenchmarkConfig) -> BenchmarkConfig:
        """The settings of a benchmark, changed as asked for."""
        asked = {"shots": self.shots, "noise": self.noise, "data": self.data, "val_shift": self.val_shift}
        return settings.at_test(benchmark, **asked, test_years=self.years, val_years=self.years)


def load_experiment(run: Run) -> Experiment:
    """The settings of a run."""
    config = run.config()
    try:
        return experiment_of(config)
    except RunError as error:
        raise RunError(f"{run.config_path}: {error}") from error
    except KeyError as error:
        words = f"lacks or misnames {error}. Restore it from a copy, or train again."
        raise RunError(f"{run.config_path} {words}") from error
    except (TypeError, ValueError) as error:
        words = f"has a setting that does not fit: {error} Restore it, or train again."
        raise RunError(f"{run.config_path} {words}") from error


def experiment_of(config: dict[str, Any]) -> Experiment:
    """The settings that `describe` wrote."""
    benchmark, method, _ = config["benchmark"], config["method"], need(int, config["seed"], "seed")
    name = benchmark["name"]
    # Settings of tables are imported when asked for: polars comes with them.
    tasks = importlib.import_module("stmaml.tables.benchmark").Config if name == TABLE else BENCHMARKS[name]
    kinds: Any = ((tasks, benchmark["settings"]), (METHODS[method["name"]], method["settings"]))
    kinds += ((Modelling, config["modelling"]), (TrainConfig, config["training"]))
    settings = [from_dict(kind, with_old_forms(kind, need(dict, values, "settings"))) for kind, values in kinds]
    return Experiment(name, method["name"], need(str, method["preset"], "preset"), *settings)


def describe(experiment: Experiment, seed: int) -> dict[str, Any]:
    """The settings of an experiment as JSON."""
    of = as_json(experiment)
    return {
        "seed": seed,
        "benchmark": {"name": of["benchmark"], "settings": of["benchmark_settings"]},
        "method": {"name": of["method"], "preset": of["preset"], "settings": of["method_settings"]},
        "modelling": of["modelling"],
        "training": of["training"],
    }
