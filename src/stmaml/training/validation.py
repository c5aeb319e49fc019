"""How held-out tasks choose among the learners that training comes by, and what is to be said where they cannot."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import PRNGKeyArray

from stmaml.benchmarks.sources import TaskSet
from stmaml.errors import SettingError
from stmaml.evaluation import Scores, evaluate, scored
from stmaml.methods.base import AbstractMetaLearner
from stmaml.metric_table import judged, metric
from stmaml.progress import remark
from stmaml.tasks import TaskSpec


@dataclass(frozen=True)
class Validation:
    """Held-out tasks and the score that chooses."""

    tasks: TaskSet
    metric: str
    num_samples: int

    def check(self, learner: AbstractMetaLearner, spec: TaskSpec) -> None:
        """Refuses a score that cannot choose a learner before training instead of at the first validation."""
        if spec.target in metric(self.metric).always:
            return  # tracing the network, to see what is scored, takes a second
        names = scored(learner, self.tasks)
        if self.metric not in judged(names):
            why = "is neither good nor bad by itself" if self.metric in names else "is not scored on these tasks"
            raise SettingError(f"--val-metric {self.metric} {why}; choose one of {', '.join(judged(names))}.")

    def scores(self, learner: AbstractMetaLearner, *, key: PRNGKeyArray) -> dict[str, float]:
        """Means over the tasks; a remark is made of tasks that have no finite score."""
        result = evaluate(learner, self.tasks, num_samples=self.num_samples, key=key)
        self._remark(result)
        return {name: summary["mean"] for name, summary in result.summary().items()}

    def loss(self, scores: dict[str, float]) -> float:
        """The score that chooses, lower for the better, with the digits that a checkpoint keeps of it."""
        with np.errstate(over="ignore"):
            return float(np.float32(metric(self.metric).badness(scores[self.metric])))

    def improves(self, loss: float, best: float) -> bool:
        """Whether a learner takes the place of the best so far, which holds it for want of others while no score was
        finite: infinity is not below infinity."""
        return loss < best or not math.isfinite(best)

    def note(self, untrained: dict[str, float], best: float) -> str:
        """What to say of a training whose best loss is no better than the untrained learner's; nothing if it is."""
        if not math.isfinite(best):
            cure = "Look for wild numbers in the validation tasks, or choose another --val-metric"
            return f"no validation {self.metric} was finite, so the learner of the last one is kept. {cure}"
        if self.loss(untrained) <= best:
            before = f"validation {self.metric} was {untrained[self.metric]:.4g} before the first step"
            return f"training did not improve on the untrained learner: {before} and is no better after it"
        return ""

    def _remark(self, result: Scores) -> None:
        values = result.values[self.metric]
        bad = np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(1))
        if len(bad):
            which = f"such as task {bad[0]}" if len(bad) > 1 else f"task {bad[0]}"
            remark(f"{self.metric} is not finite on {len(bad)} of {len(values)} validation tasks, {which}")
