"""What a learner for a table gets after training: intervals that hold, and what groups usually look like."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from stmaml.benchmarks.base import VAL_SEED
from stmaml.benchmarks.sources import TaskSet, freeze, in_turn
from stmaml.errors import RunError
from stmaml.methods.base import AbstractMetaLearner
from stmaml.metrics import score_task
from stmaml.prediction import Prediction
from stmaml.progress import tell
from stmaml.runs import Run, read_arrays, read_json, save_arrays, write_json
from stmaml.tables.answers import codes
from stmaml.tables.calibration import (
    Calibration,
    Recalibration,
    best_temperature,
    class_sets,
    conformal_floors,
    conformal_scores,
)
from stmaml.tables.groups import GroupTasks
from stmaml.tables.heldout import raw_predictions
from stmaml.tables.novelty import Reference, odd_part, refer
from stmaml.tables.ondisk.tasks import ShardTasks
from stmaml.tasks import Examples, weighted_mean

CALIBRATION_TASKS = 1500  # several draws of labelled rows from each group: one draw is most of the chance in coverage
NUM_SAMPLES = 20
REFERENCE_SEED = 3
NOMINAL = (0.5, 0.8, 0.9)  # shares of targets that intervals are to hold, where it is shown whether they do


@dataclass(frozen=True)
class Calibrating:
    """Recalibrates a trained learner on validation groups, and judges it as users will get it."""

    train: GroupTasks | ShardTasks
    val: GroupTasks | ShardTasks
    counts: tuple[int, ...]
    """Numbers of labelled rows to calibrate at."""

    def finish(self, learner: AbstractMetaLearner, folder: Path) -> None:
        """Writes calibration and reference beside a run's weights."""
        if not calibration_path(folder).exists():
            save_care(folder, *self.care(learner))

    def care(self, learner: AbstractMetaLearner) -> tuple[Calibration, Reference]:
        """The learner's calibration and its reference, both from validation groups."""
        tasks = in_turn(self.val, self.val.num_groups, CALIBRATION_TASKS, seed=VAL_SEED)
        return self._calibrate(learner, tasks), self._reference(learner, tasks)

    def judge(self, folder: Path, shots: int) -> "Judge":
        """What scores predictions from so many labelled rows."""
        return Judge(load_calibration(folder).at(shots))

    def _calibrate(self, learner: AbstractMetaLearner, tasks: TaskSet) -> Calibration:
        is_class, groups = self.val.spec.target == "class", tasks.num_groups
        temperatures, scores, floors = [], [], []
        for number, shots in enumerate(self.counts):
            tell("calibrating", number, len(self.counts))
            raw = raw_predictions(learner, tasks.with_shots(shots), NUM_SAMPLES, VAL_SEED)
            temperatures.append(best_temperature(raw.nll()))
            weight = np.asarray(raw.query.weight)
            if is_class:
                floors.append(conformal_floors(raw.of_truth(temperatures[-1]), weight, groups))
            else:
                scores.append(conformal_scores(raw.normal_scores(temperatures[-1]), weight, groups))
        tell("calibrating", len(self.counts), len(self.counts))
        return Calibration(self.counts, tuple(temperatures), tuple(scores), groups, tuple(floors))

    def _reference(self, learner: AbstractMetaLearner, val_tasks: TaskSet) -> Reference:
        """Codes of training groups and of held-out ones, at each number of labelled rows from one on."""
        all_in_turn = dataclasses.replace(self.train, training=False)
        known_tasks = freeze(all_in_turn, min(max(self.train.num_groups, 600), 2000), seed=REFERENCE_SEED)
        counts = [shots for shots in self.counts if shots > 0]
        known, new, entropy = [], [], []
        for shots in counts:
            known.append(self._codes(learner, known_tasks.with_shots(shots))[0])
            code, spread = self._codes(learner, val_tasks.with_shots(shots))
            new.append(code)
            entropy.append(spread)
        return refer(counts, known, new, entropy)

    def _codes(
        self, learner: AbstractMetaLearner, tasks: TaskSet
    ) -> tuple[Float[np.ndarray, "m c"], Float[np.ndarray, " m"]]:
        support = jax.tree.map(jnp.asarray, tasks.batch.tasks.support)
        code, entropy = codes(learner, support, self.train.spec)
        return np.asarray(code, dtype=float), np.asarray(entropy, dtype=float)


class Judge(eqx.Module):
    """Scores of recalibrated predictions, and how often their intervals or sets hold the truth."""

    recalibration: Recalibration

    def __call__(self, prediction: Prediction, query: Examples) -> dict[str, Float[Array, "..."]]:
        """The scores of one task; under `held` what recalibration brings."""
        finished = self.recalibration(prediction)
        scores = score_task(finished, query.y, query.weight)
        if prediction.target != "class":
            return {**scores, "held": weighted_mean(self._intervals(prediction, query), query.weight)}
        held = weighted_mean(self._sets(prediction, query), query.weight)
        return {**scores, "sets90": held[-2], "held": held}

    def _intervals(self, prediction: Prediction, query: Examples) -> Float[Array, "n 9"]:
        """For each of NOMINAL: whether the interval holds the target before and after, and how wide it then is."""
        finished, columns = self.recalibration(prediction), []
        before, after = prediction.cdf(query.y), finished.cdf(query.y)
        for nominal in NOMINAL:
            low, high = (1 - nominal) / 2, (1 + nominal) / 2
            ends = finished.quantiles(jnp.array([low, high]))
            columns += [(before >= low) & (before <= high), (after >= low) & (after <= high), ends[1] - ends[0]]
        return jnp.concatenate([column.astype(float) for column in columns], axis=1)

    def _sets(self, prediction: Prediction, query: Examples) -> Float[Array, "n 5"]:
        """The log-score before; for each of NOMINAL but the first, whether the set holds the class, and its size."""
        columns = [-prediction.log_prob(query.y)]
        probabilities = self.recalibration(prediction).mean
        for nominal in NOMINAL[1:]:
            floor = jnp.broadcast_to(self.recalibration.floor(nominal), query.y.shape)
            inside = class_sets(probabilities, floor)
            columns += [jnp.take_along_axis(inside, query.y[:, None], axis=1)[:, 0], inside.sum(1)]
        return jnp.stack([column.astype(float) for column in columns], axis=1)


def is_finished(run: Run) -> bool:
    """Whether a table's run has all it needs to predict."""
    return calibration_path(run.folder).exists()


def save_care(folder: Path, calibration: Calibration, reference: Reference) -> None:
    """Writes calibration and reference; the calibration last, by which a finished run is known."""
    save_arrays(_reference_path(folder), dataclasses.asdict(reference))
    write_json(calibration_path(folder), calibration.to_json())


def load_calibration(folder: Path) -> Calibration:
    """What makes a run's predictions hold."""
    if not calibration_path(folder).exists():
        raise RunError(f"{folder} is not finished. Go on with 'stmaml fit --resume {folder}'.")
    path = calibration_path(folder)
    content = read_json(path)
    try:
        return Calibration.from_json(content)
    except (RunError, TypeError) as error:
        raise RunError(f"{path}: {error}") from error


def load_reference(folder: Path) -> Reference:
    """What groups usually look like to a run's learner."""
    path = _reference_path(folder)
    arrays = read_arrays(path)
    if (lacking := odd_part(arrays)) is not None:
        raise RunError(f"{path} does not say what groups look like: {lacking}. Restore it from a copy, or fit again.")
    return Reference(**arrays)


def calibration_path(folder: Path) -> Path:
    """Where a run keeps its calibration."""
    return folder / "calibration.json"


def _reference_path(folder: Path) -> Path:
    return folder / "reference.npz"
