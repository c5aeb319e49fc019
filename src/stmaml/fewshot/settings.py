"""Which learner a table gets, and how it is trained."""

import dataclasses
from dataclasses import dataclass, replace
from typing import Any

import jax.random as jr

from stmaml.data.schema import Schema
from stmaml.errors import RunError, SettingError
from stmaml.inner import InnerLoop
from stmaml.methods import METHODS, stmaml
from stmaml.methods.base import MethodConfig
from stmaml.methods.standardised import Standardised
from stmaml.runs import Run, from_dict
from stmaml.tasks import NoiseModel, Scaling, TaskSpec
from stmaml.training import TrainConfig

STEPS = 4000


@dataclass(frozen=True)
class Settings:
    """A method and how it is trained."""

    method: str
    learner: MethodConfig
    training: TrainConfig
    noise_model: NoiseModel = "learned"
    seed: int = 0

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
        )


def default_settings(method: str = "st-maml", *, steps: int | None = None, seed: int = 0) -> Settings:
    """Settings that serve most tables: networks of width 128, minutes of training on two cores."""
    if method not in METHODS:
        raise SettingError(f"there is no method '{method}'; choose one of: {', '.join(METHODS)}.")
    steps = STEPS if steps is None else steps
    training = TrainConfig(
        steps=steps,
        tasks_per_batch=16,
        outer_lr=2e-3,
        warmup=min(100, steps // 10),
        val_every=250,
        val_tasks=200,
        val_samples=5,
        val_metric="nll",
        checkpoint_every=500,
        steps_per_call=50,
        on_divergence="rollback",
    )
    return Settings(method, _learner(method), training, seed=seed)


def _learner(method: str) -> MethodConfig:
    inner = InnerLoop(inner_lr=0.01, inner_steps=5)
    if method == "st-maml":
        return stmaml.Config(
            hidden=(128, 128),
            encoder=(128, 128, 128),
            z_hidden=(128, 128),
            z_size=32,
            h_size=32,
            kl_weight=0.01,
            inner=inner,
        )
    config: Any = METHODS[method]()
    changes = {"hidden": (128, 128), "inner": inner}
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
    learner = settings.learner.build(spec, key=jr.split(jr.key(settings.seed))[0])
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
