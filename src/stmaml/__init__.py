"""Few-shot learning on heterogeneous, ambiguous tasks: ST-MAML and its peers.

A meta-learner turns a support set into a distribution over predictors. `meta_train` learns one from tasks,
`load_pretrained` and `load_run` bring one back, `predict` asks it about a new task.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stmaml.benchmarks import BENCHMARKS
    from stmaml.benchmarks.base import TaskSource
    from stmaml.experiments import load_pretrained, load_run, meta_train
    from stmaml.methods import METHODS
    from stmaml.methods.base import AbstractMetaLearner, predict, predict_with
    from stmaml.prediction import Prediction
    from stmaml.tables.estimators import FewShotClassifier, FewShotRegressor
    from stmaml.tasks import Examples, Task, TaskBatch, TaskSpec
    from stmaml.training import TrainConfig

_HOMES = {
    "BENCHMARKS": "stmaml.benchmarks",
    "METHODS": "stmaml.methods",
    "AbstractMetaLearner": "stmaml.methods.base",
    "Examples": "stmaml.tasks",
    "FewShotClassifier": "stmaml.tables.estimators",
    "FewShotRegressor": "stmaml.tables.estimators",
    "Prediction": "stmaml.prediction",
    "Task": "stmaml.tasks",
    "TaskBatch": "stmaml.tasks",
    "TaskSource": "stmaml.benchmarks.base",
    "TaskSpec": "stmaml.tasks",
    "TrainConfig": "stmaml.training",
    "load_pretrained": "stmaml.experiments",
    "load_run": "stmaml.experiments",
    "meta_train": "stmaml.experiments",
    "predict": "stmaml.methods.base",
    "predict_with": "stmaml.methods.base",
}
__all__ = [
    "BENCHMARKS",
    "METHODS",
    "AbstractMetaLearner",
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
]


def __getattr__(name: str) -> Any:
    """Brings a public name in when it is first used: importing JAX takes seconds that `stmaml --help` should not."""
    if name not in _HOMES:
        raise AttributeError(f"module 'stmaml' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)
