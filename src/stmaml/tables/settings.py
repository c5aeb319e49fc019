"""Which learner a table gets, and how it is trained."""

import dataclasses
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax.random as jr

from stmaml.errors import RunError, SettingError
from stmaml.inner import InnerLoop
from stmaml.methods import METHODS, st_maml
from stmaml.methods.base import MethodConfig
from stmaml.methods.on_linear import OnLinear, Prior, extended
from stmaml.methods.standardised import Standardised
from stmaml.runs import Run, from_dict
from stmaml.tables.schema import Schema
from stmaml.tasks import NoiseModel, Scaling, TaskSpec
from stmaml.training import TrainConfig

Preset = Literal["default", "large"]


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


@dataclass(frozen=True)
class Settings:
    """A method and how it is trained."""

    method: str
    learner: MethodConfig
    training: TrainConfig
    noise_model: NoiseModel = "predicted"
    seed: int = 0
    linear: bool = True
    """Whether a Bayesian linear regression comes first (see linear.py)."""

    def to_json(self) -> dict[str, Any]:
        """The settings as plain lists and dictionaries."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(content: dict[str, Any]) -> "Settings":
        """The settings back from `to_json`."""
        return Settings(
            content["method"],
            from_dict(METHODS[content["method"]], content["learner"]),
            from_dict(TrainConfig, content["training"]),
            content["noise_model"],
            content["seed"],
            content.get("linear", False),  # runs of earlier versions had none
        )


def default_settings(
    method: str = "st-maml",
    *,
    steps: int | None = None,
    seed: int = 0,
    preset: Preset = "default",
    linear: bool = True,
) -> Settings:
    """Settings that serve most tables: small networks, minutes of training on two cores; or large ones for a GPU."""
    if method not in METHODS:
        raise SettingError(f"there is no method '{method}'; choose one of: {', '.join(METHODS)}.")
    if preset not in SCALES:
        raise SettingError(f"there is no preset '{preset}'; choose one of: {', '.join(SCALES)}.")
    scale = SCALES[preset]
    steps = scale.steps if steps is None else steps
    training = TrainConfig(
        steps=steps,
        tasks_per_batch=scale.tasks,
        outer_lr=1e-3,
        warmup=min(100, steps // 10),
        val_every=250,
        val_tasks=scale.val_tasks,
        val_samples=8,
        val_metric="nll",
        checkpoint_every=500,
        steps_per_call=50,
        on_divergence="rollback",
    )
    return Settings(method, _learner(method, scale), training, seed=seed, linear=linear)


def _learner(method: str, scale: Scale) -> MethodConfig:
    width = scale.width
    inner = InnerLoop(inner_lr=1e-3, inner_steps=5)
    if method == "st-maml":
        return st_maml.Config(
            hidden=(width, width),
            encoder=(width, width),
            attention=scale.attention,
            z_hidden=(width,),
            z_size=scale.z_size,
            h_size=scale.z_size,
            prior_draws=4,
            inner=inner,
        )
    config: Any = METHODS[method]()
    changes = {"hidden": (width, width), "inner": inner}
    return replace(config, **{name: value for name, value in changes.items() if hasattr(config, name)})


def task_spec(schema: Schema, noise_model: NoiseModel) -> TaskSpec:
    """What the tasks of a table look like."""
    target = schema.target
    width = len(schema.outputs)
    if target.is_class:
        return TaskSpec((width,), len(target.classes), target="class")
    return TaskSpec((width,), 1, noise=noise_model)


def build(schema: Schema, settings: Settings) -> Standardised:
    """A fresh learner: it sees inputs as the schema scales them, and real targets of mean 0 and spread 1."""
    spec = task_spec(schema, settings.noise_model)
    key = jr.split(jr.key(settings.seed))[0]
    if settings.linear:
        num_classes = spec.y_size if spec.target == "class" else 0
        learner = settings.learner.build(extended(spec), key=key)
        learner = OnLinear(learner, Prior(spec.x_size, num_classes or spec.y_size), num_classes)
    else:
        learner = settings.learner.build(spec, key=key)
    zeros, ones = (0.0,) * spec.x_size, (1.0,) * spec.x_size
    target = schema.target
    return Standardised(learner, Scaling(zeros, ones, (target.mean,), (target.std,)), scale_targets=not target.is_class)


def load_settings(run: Run) -> tuple[Schema, Settings]:
    """The schema and settings a run of `stmaml fit` was made with."""
    config = run.config()
    if config.get("kind") != "table":
        raise RunError(
            f"{run.folder} is not a run of 'stmaml fit'. Its predictions need the benchmark it was made for."
        )
    try:
        return Schema.from_json(config["schema"]), Settings.from_json(config["settings"])
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{run.config_path} lacks or misnames {error}. Restore it from a copy, or fit again.") from error
