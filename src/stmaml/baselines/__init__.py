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

__all__ = ["Baseline", "Normal", "NumpyTask", "Pooled", "Probabilities", "numpy_tasks"]
__all__ += ["Boosting", "BoostingConfig", "OffsetBoosting", "SummaryBoosting"]
__all__ += ["ClassBoosting", "Logistic", "SupportFrequency"]
__all__ += ["PerTask", "gaussian_process", "ridge", "support_mean"]
__all__ += ["class_baselines", "regression_baselines", "score_baseline"]
USUAL = BoostingConfig()


def regression_baselines(*, time_input: int | None = None, boosting: BoostingConfig = USUAL) -> tuple[Baseline, ...]:
    """The rows for real targets; `time_input` is the input that is a fraction of a period, if one is."""
    plain = Boosting(boosting)
    seasonal = () if time_input is None else (ridge(time_input), gaussian_process(time_input))
    pooled = (plain, OffsetBoosting(plain), SummaryBoosting(boosting, time_input))
    return (support_mean(), ridge(), gaussian_process(), *seasonal, *pooled)


def class_baselines(num_classes: int, *, boosting: BoostingConfig = USUAL) -> tuple[Baseline, ...]:
    """The rows for targets that are one of `num_classes` classes."""
    if num_classes < 2:
        raise SettingError(f"num_classes must be 2 or more; got {num_classes}.")
    pooled = (ClassBoosting(num_classes, boosting), ClassBoosting(num_classes, boosting, summaries=True))
    return (SupportFrequency(num_classes), Logistic(num_classes), *pooled)
