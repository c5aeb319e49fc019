"""Few-shot learning on heterogeneous, ambiguous tasks: ST-MAML and its peers.

A meta-learner turns a support set into a distribution over predictors. `meta_train` learns one from tasks,
`load_pretrained` and `load_run` bring one back, `predict` asks it about a new task.
"""

import importlib

TYPE_CHECKING = False  # as in typing, which takes long to import: the command would not hear Ctrl-C as soon
if TYPE_CHECKING:
    from typing import Any

    from stmaml.benchmarks import BENCHMARKS
    from stmaml.benchmarks.sources import TaskSource
    from stmaml.estimators import FewShotClassifier, FewShotRegressor
    from stmaml.experiments import load_run, meta_train
    from stmaml.methods import METHODS
    from stmaml.methods.base import AbstractMetaLearner, predict, predict_with
    from stmaml.methods.committee import Committee
    from stmaml.prediction import Prediction
    from stmaml.shipped import load_pretrained, pretrained_card, pretrained_names
    from stmaml.tasks import Examples, Task, TaskBatch, TaskSpec
    from stmaml.training import TrainConfig

__all__ = [
    "BENCHMARKS",
    "METHODS",
    "AbstractMetaLearner",
    "Committee",
    "Examples",
    "FewShotClassifier",
    "FewShotRegressor",
    "Prediction",
    "Task",
    "TaskBatch",
    "TaskSource",
    "TaskSpec",
    "TrainConfig",
    "load_pretrained",
    "load_run",
    "meta_train",
    "predict",
    "predict_with",
    "pretrained_card",
    "pretrained_names",
]
_HOMES = (  # from the quickest to import on
    *("tasks", "prediction", "methods.base", "methods.committee", "methods", "benchmarks.base", "benchmarks"),
    *("training", "experiments", "shipped", "estimators"),
)


def __getattr__(name: str) -> "Any":
    """Brings a public name in when it is first used: importing JAX takes seconds that `stmaml --help` should not."""
    if name not in __all__:
        raise AttributeError(f"module 'stmaml' has no attribute '{name}'")
    homes = (vars(importlib.import_module(f"stmaml.{home}")) for home in _HOMES)
    return next(home[name] for home in homes if name in home)
