"""What a practitioner would use instead of meta-learning, scored on the same frozen tasks.

Models of one support set alone, and global models of all training rows. Every setting is chosen on validation tasks,
which should be of the same kind as the tasks to be scored, support sizes included.
"""

from stmaml.baselines.base import Baseline, Normal, NumpyTask, Pooled, Probabilities, numpy_tasks
from stmaml.baselines.boosting import Boosting, BoostingConfig, OffsetBoosting, SummaryBoosting
from stmaml.baselines.classes import ClassBoosting, Logistic, SupportFrequency
from stmaml.baselines.per_task import PerTask, gaussian_process, ridge, support_mean
from stmaml.baselines.scoring import score_baseline
from stmaml.errors import SettingError

__all__ = [
    "Baseline",
    "Boosting",
    "BoostingConfig",
    "ClassBoosting",
    "Logistic",
    "Normal",
    "NumpyTask",
    "OffsetBoosting",
    "PerTask",
    "Pooled",
    "Probabilities",
    "SummaryBoosting",
    "SupportFrequency",
    "class_baselines",
    "gaussian_process",
    "numpy_tasks",
    "regression_baselines",
    "ridge",
    "score_baseline",
    "support_mean",
]


def regression_baselines(
    *, time_input: int | None = None, boosting: BoostingConfig | None = None
) -> tuple[Baseline, ...]:
    """The rows for real targets; `time_input` is the input that is a fraction of a period, if one is."""
    config = boosting or BoostingConfig()
    plain = Boosting(config)
    seasonal = () if time_input is None else (ridge(time_input), gaussian_process(time_input))
    pooled = (plain, OffsetBoosting(plain), SummaryBoosting(config, time_input))
    return (support_mean(), ridge(), gaussian_process(), *seasonal, *pooled)


def class_baselines(num_classes: int, *, boosting: BoostingConfig | None = None) -> tuple[Baseline, ...]:
    """The rows for targets that are one of `num_classes` classes."""
    if num_classes < 2:
        raise SettingError(f"num_classes must be 2 or more; got {num_classes}.")
    config = boosting or BoostingConfig()
    pooled = (ClassBoosting(num_classes, config), ClassBoosting(num_classes, config, summaries=True))
    return (SupportFrequency(num_classes), Logistic(num_classes), *pooled)
