"""From a table to a model: groups split, a learner trained, its intervals calibrated."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from shlex import quote

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import polars as pl
from jaxtyping import Float, Shaped

from stmaml.benchmarks.base import TaskSet, freeze
from stmaml.errors import SourceError
from stmaml.experiments import VAL_SEED, Recorder, Together
from stmaml.methods.standardised import Standardised
from stmaml.progress import Listener
from stmaml.runs import Run, newest_common_checkpoint
from stmaml.tables.answers import codes
from stmaml.tables.calibration import Calibration, best_temperature, conformal_floors, conformal_scores
from stmaml.tables.columns import Numeric, as_labels, as_numbers
from stmaml.tables.groups import GroupTasks, Sizes, Split, split_groups, with_shots
from stmaml.tables.heldout import raw_predictions
from stmaml.tables.model import FewShotModel
from stmaml.tables.novelty import Reference, refer
from stmaml.tables.reading import Groups, check_has, group_rows, row_list
from stmaml.tables.schema import Schema, TargetKind, infer_schema, table_keys
from stmaml.tables.settings import Settings, build, task_spec
from stmaml.training import Observer, initial_state, train_learners

CALIBRATION_TASKS = 1500  # several draws of labelled rows from each group: one draw is most of the chance in coverage
MAX_HELD_OUT_GROUPS = 1000
NUM_SAMPLES = 20
REFERENCE_SEED = 3
SHOT_COUNTS = (0, 1, 2, 5, 10, 20, 50, 100)


@dataclass(frozen=True)
class TableConfig:
    """What is predicted from what, and in which groups."""

    task: str
    """Column that says which group a row belongs to."""
    target: str
    """Column to predict."""
    features: tuple[str, ...] = ()
    """Columns to predict it from; all others if none is named."""
    drop: tuple[str, ...] = ()
    """Columns to leave out."""
    kind: TargetKind = "auto"
    """What the target is: numbers, or classes; found out if not given."""
    missing: tuple[str, ...] = ()
    """Values that stand for a missing one, such as 9999.9, beside empty cells and NA."""
    sizes: Sizes = field(default_factory=Sizes)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to be read, if not all."""
        return (self.task, self.target, *self.features) if self.features else ()


@dataclass(frozen=True)
class Prepared:
    """A table ready to be learnt from."""

    schema: Schema
    split: Split
    train: GroupTasks
    val: GroupTasks
    test: GroupTasks
    num_rows: int
    notes: list[str]
    digest: str
    """First 16 digits of the SHA-256 of all its numbers."""

    @property
    def shot_counts(self) -> list[int]:
        """The numbers of labelled rows at which it is scored and calibrated."""
        most = self.train.sizes.shots
        return [*(shots for shots in SHOT_COUNTS if shots < most), most]


def prepare(frame: pl.DataFrame, table: TableConfig, settings: Settings, schema: Schema | None = None) -> Prepared:
    """The groups of a table, split and encoded; scales come from training groups alone, or from a given schema."""
    notes: list[str] = []
    check_has(frame.columns, [table.task, table.target, *table.features, *table.drop], "the table")
    frame, keys = _labelled_rows(frame, table, notes)
    groups = group_rows(keys)
    split = split_groups(groups.names, groups.count, table.sizes)
    if schema is None:
        schema = infer_schema(
            frame,
            table.task,
            table.target,
            train=keys.is_in(list(split.train)).to_numpy(),
            features=table.features,
            drop=table.drop,
            kind=table.kind,
            missing=table.missing,
            notes=notes,
        )
        notes.extend(_row_numbers(frame, schema))
    if not schema.used:
        dropped = "; ".join(f"'{column.name}' is dropped ({column.describe()})" for column in schema.columns[:8])
        raise SourceError(f"no column is left to predict from: {dropped or 'no other is used'}. Bring some that vary.")
    x, y = schema.encode(frame, "the table", notes), schema.target.values(frame, schema.missing)
    digest = hashlib.sha256("\n".join(groups.names).encode())
    for array in (x, y, groups.order):
        digest.update(array.tobytes())
    spec = task_spec(schema, settings.noise_model)

    def source(names: tuple[str, ...], training: bool) -> GroupTasks:
        rows, count = _rows_of(groups, names)
        start = np.concatenate([[0], np.cumsum(count)[:-1]])
        labels = y[rows].astype(np.int32) if schema.target.is_class else y[rows, None].astype(np.float32)
        return GroupTasks(
            jnp.asarray(x[rows]),
            jnp.asarray(labels),
            jnp.asarray(start, dtype=jnp.int32),
            jnp.asarray(count, dtype=jnp.int32),
            spec,
            table.sizes,
            training,
        )

    train, val, test = source(split.train, True), source(split.val, False), source(split.test, False)
    return Prepared(schema, split, train, val, test, frame.height, notes, digest.hexdigest()[:16])


def _labelled_rows(frame: pl.DataFrame, table: TableConfig, notes: list[str]) -> tuple[pl.DataFrame, pl.Series]:
    """The rows that have a group and a target, and their groups."""
    keys = table_keys(frame, table.task, table.missing)
    known = keys.is_not_null() & as_labels(frame[table.target], table.missing).is_not_null()
    if not known.any():
        raise SourceError(f"no row has both a '{table.task}' and a '{table.target}'. Check the two columns.")
    if not known.all():
        lacking = f"no '{table.task}' or no '{table.target}'"
        notes.append(
            f"{int((~known).sum())} of {frame.height} rows have {lacking} and are left out: {row_list(~known)}"
        )
        frame, keys = frame.filter(known), keys.filter(known)
    return frame, keys


def _row_numbers(frame: pl.DataFrame, schema: Schema) -> Iterator[str]:
    """What to say about columns that number the rows: in a table sorted by group they tell groups apart."""
    for column in schema.used:
        if not isinstance(column, Numeric):
            continue
        values = as_numbers(frame[column.name], schema.missing).to_numpy()
        steps = np.diff(values)  # not a number where a cell is missing
        if (steps >= 1).all() and (values == values.round()).all() and steps.mean() < 2:  # some rows may be left out
            yield f"column '{column.name}' seems to number the rows; leave it out with --drop {quote(column.name)}"


def _rows_of(groups: Groups, names: tuple[str, ...]) -> tuple[Shaped[np.ndarray, " n"], Shaped[np.ndarray, " g"]]:
    parts = [groups.rows(groups.index[name]) for name in names]
    return np.concatenate(parts), np.array([len(part) for part in parts])


def held_out(source: GroupTasks, name: str, seed: int, num_tasks: int) -> tuple[TaskSet, int]:
    """Frozen tasks of held-out groups and how many groups these are: all equally often, about `num_tasks` together."""
    num_groups = min(source.start.shape[0], MAX_HELD_OUT_GROUPS)  # those first in rank, which is as good as at random
    turns = 1 if num_groups < source.start.shape[0] else max(1, round(num_tasks / num_groups))
    return freeze(source, turns * num_groups, seed=seed, name=f"{name}/groups-{num_groups}"), num_groups


def train(
    prepared: Prepared,
    settings: Settings,
    *,
    run: Run | None = None,
    observers: tuple[Observer, ...] = (),
    should_stop: Callable[[], bool] = lambda: False,
) -> Standardised:
    """The learner that did best on validation groups; with a run, saved as it goes and resumed from its checkpoint."""
    learner = build(prepared.schema, settings)
    start = None
    if run is not None:
        start = newest_common_checkpoint([run], [initial_state(learner, settings.training)])
        run.trim_log(start[0] if start else -1)
        if start is not None and start[0] >= settings.training.steps:
            return run.load_learner(learner)
        observers = (Recorder([run]), *observers)
    (best,) = train_learners(
        [learner],
        prepared.train,
        freeze(prepared.val, settings.training.val_tasks, seed=VAL_SEED, name="table/val"),
        settings.training,
        keys=[jr.split(jr.key(settings.seed))[1]],
        observer=Together(*observers),
        start=start,
        should_stop=should_stop,
    )
    if run is not None:
        return run.load_learner(learner)
    assert isinstance(best, Standardised)
    return best


def finish(
    prepared: Prepared, settings: Settings, learner: Standardised, tell: Listener = lambda *_: None
) -> FewShotModel:
    """The trained learner with its calibration and its reference, both from validation groups."""
    tasks, num_groups = held_out(prepared.val, "table/val", VAL_SEED, CALIBRATION_TASKS)
    counts = prepared.shot_counts
    is_class = prepared.schema.target.is_class
    temperatures, scores, floors = [], [], []
    for number, shots in enumerate(counts):
        tell("calibrating", number, len(counts))
        raw = raw_predictions(learner, with_shots(tasks, shots), NUM_SAMPLES, VAL_SEED)
        temperatures.append(best_temperature(raw.nll()))
        weight = np.asarray(raw.query.weight)
        if is_class:
            floors.append(conformal_floors(raw.of_truth(temperatures[-1]), weight, num_groups))
        else:
            scores.append(conformal_scores(raw.normal_scores(temperatures[-1]), weight, num_groups))
    calibration = Calibration(tuple(counts), tuple(temperatures), tuple(scores), num_groups, tuple(floors))
    tell("calibrating", len(counts), len(counts))
    return FewShotModel(prepared.schema, settings, learner, calibration, _reference(prepared, learner, tasks))


def _reference(prepared: Prepared, learner: Standardised, val_tasks: TaskSet) -> Reference:
    """Codes of training groups and of held-out ones, at each number of labelled rows from one on."""
    in_turn = GroupTasks(
        prepared.train.x,
        prepared.train.y,
        prepared.train.start,
        prepared.train.count,
        prepared.train.spec,
        prepared.train.sizes,
        training=False,
    )
    known_tasks = freeze(
        in_turn, min(max(len(prepared.split.train), 600), 2000), seed=REFERENCE_SEED, name="table/train"
    )
    counts = [shots for shots in prepared.shot_counts if shots > 0]
    known, new, entropy = [], [], []
    for shots in counts:
        known.append(_codes(learner, with_shots(known_tasks, shots), prepared)[0])
        code, spread = _codes(learner, with_shots(val_tasks, shots), prepared)
        new.append(code)
        entropy.append(spread)
    return refer(counts, known, new, entropy)


def _codes(
    learner: Standardised, tasks: TaskSet, prepared: Prepared
) -> tuple[Float[np.ndarray, "m c"], Float[np.ndarray, " m"]]:
    support = jax.tree.map(jnp.asarray, tasks.batch.tasks.support)
    code, entropy = codes(learner, support, prepared.train.spec)
    return np.asarray(code, dtype=float), np.asarray(entropy, dtype=float)
