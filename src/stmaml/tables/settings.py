"""Which learner a table gets, and how it is trained."""

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from stmaml.benchmarks.base import TABLE, Benchmark
from stmaml.errors import SettingError
from stmaml.inner import InnerLoop
from stmaml.methods import METHODS, st_maml
from stmaml.methods.base import MethodConfig
from stmaml.recipes import Experiment, Modelling
from stmaml.tables.benchmark import Config
from stmaml.training import TrainConfig

Preset = Literal["default", "large"]
# Noise that a network is far too sure of costs a log-density without bound, so that it would choose the first weights.
BY_TARGET = {"real": "crps", "class": "nll"}


@dataclass(frozen=True)
class Scale:
    """How large networks and batches are, and how long they train."""

    steps: int
    tasks: int
    width: int
    z_size: int
    attention: int
    val_tasks: int


SCALES: dict[Preset, Scale] = {
    "default": Scale(steps=2000, tasks=16, width=64, z_size=32, attention=1, val_tasks=200),
    "large": Scale(steps=20_000, tasks=64, width=256, z_size=64, attention=2, val_tasks=400),
}


def table_recipe(
    table: Config,
    method: str = "st-maml",
    *,
    steps: int | None = None,
    preset: Preset = "default",
    linear: bool = True,
    noise_model: str = "predicted",
) -> Experiment:
    """Settings that serve most tables: small networks, minutes of training on two cores; or large ones for a GPU."""
    if method not in METHODS:
        raise SettingError(f"there is no method '{method}'; choose one of: {', '.join(METHODS)}.")
    if preset not in SCALES:
        raise SettingError(f"there is no preset '{preset}'; choose one of: {', '.join(SCALES)}.")
    scale = SCALES[preset]
    return Experiment(
        benchmark=TABLE,
        method=method,
        preset=preset,
        benchmark_settings=table,
        method_settings=_method(method, scale),
        modelling=Modelling(standardise=True, noise_model=noise_model, linear=linear),
        training=_training(scale, scale.steps if steps is None else steps),
    )


def for_target(experiment: Experiment, benchmark: Benchmark) -> Experiment:
    """The experiment whose weights are chosen by a score that fits the table's target, once that is known."""
    training = experiment.training
    if training.val_metric not in BY_TARGET.values():
        return experiment
    return replace(experiment, training=replace(training, val_metric=BY_TARGET[benchmark.train.spec.target]))


def _training(scale: Scale, steps: int) -> TrainConfig:
    return TrainConfig(
        steps=steps,
        tasks_per_batch=scale.tasks,
        outer_lr=1e-3,
        warmup=min(100, steps // 10),
        val_every=250,
        val_tasks=scale.val_tasks,
        val_samples=8,
        val_metric=BY_TARGET["real"],
        checkpoint_every=500,
        steps_per_call=50,
        on_divergence="rollback",
    )


def _method(method: str, scale: Scale) -> MethodConfig:
    width = scale.width
    inner = InnerLoop(inner_lr=1e-3, inner_steps=5)
    if method == "st-maml":
        return st_maml.Config(
            hidden=(width, width),
            h_size=scale.z_size,
            prior_draws=4,
            encoder=st_maml.Encoding((width, width), attention=scale.attention, z_hidden=(width,), z_size=scale.z_size),
            inner=inner,
        )
    config: Any = METHODS[method]()
    known = {field.name for field in fields(config)}
    changes = {"hidden": (width, width), "inner": inner}
    return replace(config, **{name: value for name, value in changes.items() if name in known})
