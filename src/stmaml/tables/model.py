"""A learner for the groups of a table: labelled rows of a new group in, predictions whose intervals hold out."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import polars as pl
from jaxtyping import Float, Shaped

from stmaml.benchmarks.base import TABLE
from stmaml.errors import RunError
from stmaml.experiments import load_experiment, load_learner, train_once
from stmaml.limits import ROWS_AT_ONCE
from stmaml.methods.base import AbstractMetaLearner
from stmaml.progress import tell
from stmaml.recipes import Experiment
from stmaml.runs import Run
from stmaml.tables.adapted import DEFAULT_LEVELS, AdaptedModel, Answer
from stmaml.tables.aftercare import load_calibration, load_reference
from stmaml.tables.answers import (
    QUERY_SIZES,
    SUPPORT_SIZES,
    Collected,
    Item,
    adapt_groups,
    answer_groups,
    beside,
    codes,
    draw_targets,
    fitting,
    group_keys,
)
from stmaml.tables.benchmark import open_frame, schema_of, target_scaling, task_spec
from stmaml.tables.calibration import Calibration, caution
from stmaml.tables.matching import Labelled, group_keys_of, labelled_rows, match, no_labels, one_group
from stmaml.tables.novelty import Reference
from stmaml.tables.reading import Groups, group_rows
from stmaml.tables.schema import Schema
from stmaml.tables.settings import for_target
from stmaml.tasks import Examples, TaskSpec


@dataclass(frozen=True)
class FewShotModel:
    """A meta-trained learner with the schema of its table, its calibration and the groups it knows."""

    schema: Schema
    experiment: Experiment
    learner: AbstractMetaLearner
    calibration: Calibration
    reference: Reference

    @property
    def spec(self) -> TaskSpec:
        """What its tasks look like."""
        return task_spec(self.schema)

    def predict(
        self,
        query: pl.DataFrame,
        support: pl.DataFrame | None = None,
        *,
        num_samples: int = 20,
        levels: tuple[float, ...] = DEFAULT_LEVELS,
        coverage: float = 0.9,
        suggest: int = 0,
        seed: int = 0,
    ) -> Answer:
        """A prediction for each row of `query` from the labelled rows of its group in `support`, if there are any.

        Rows whose cell for the group is empty are left out and noted.

        Args:
            num_samples: predictors drawn for each group.
            levels: which quantiles to give.
            coverage: how likely the true class is to be in the set of classes that is given.
            suggest: in each group, rank so many rows whose labels would tell most.
        """
        notes: list[str] = []
        labelled, keys = match(self.schema, query, support, notes)
        query, keys = query.filter(keys.is_not_null()), keys.drop_nulls()
        x = self.schema.encode(query, "the query table", notes)
        groups = group_rows(keys)
        table = Collected(self.schema, self.calibration, levels, query.height, suggest > 0, coverage)
        done = 0
        for items in self._batches(groups, labelled, num_samples):
            self._respond(items, x, labelled, table, num_samples=num_samples, seed=seed)
            done += sum(len(item.rows) for item in items)
            tell("predicting rows", done, query.height)
        if suggest:
            table.suggest(suggest)
        unknown = sum(name not in labelled.groups.index for name in groups.names)
        if support is not None and unknown:
            notes.append(f"{unknown} of {len(groups.names)} groups have no labelled row and are predicted without any")
        if unknown:
            notes.extend(caution(self.calibration.groups, self.schema.target.is_class))
        return Answer(beside(query, self._with_words(table.frame()), notes), notes)

    def _with_words(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The columns with what an entropy means beside it."""
        if "task_entropy" not in frame.columns:
            return frame
        words = pl.Series("group_known", self.reference.known_in_words(frame["task_entropy"].to_list()))
        return frame.insert_column(frame.columns.index("task_entropy") + 1, words)

    def adapt(self, support: pl.DataFrame, *, num_samples: int = 20, seed: int = 0) -> Iterator[AdaptedModel]:
        """The predictors of each group in `support`, to be kept and used without its labelled rows."""
        labelled = labelled_rows(self.schema, support, group_keys_of(self.schema, support, "support", []), [])
        names = labelled.groups.names
        for number, name in enumerate(names, start=1):
            rows = labelled.rows(name)
            examples = self._examples(labelled, [rows], fitting(len(rows), SUPPORT_SIZES))
            predictors = adapt_groups(self.learner, examples, num_samples, group_keys([name], seed))
            code, _ = codes(self.learner, examples, self.spec)
            novelty = self.reference.novelty(np.asarray(code, dtype=float), np.array([len(rows)]))[0]
            yield AdaptedModel(
                self.schema,
                self.experiment,
                self.calibration,
                name,
                len(rows),
                num_samples,
                float(novelty) if np.isfinite(novelty) else None,
                jax.tree.map(lambda leaf: leaf[0], predictors),
            )
            tell("saving groups", number, len(names))

    def sample(
        self, query: pl.DataFrame, support: pl.DataFrame | None, num_draws: int, *, seed: int = 0
    ) -> Shaped[np.ndarray, "d n"]:
        """Targets (or class numbers) drawn for the rows of one group: each draw a whole function plus noise."""
        labelled = (
            no_labels(self.schema) if support is None else labelled_rows(self.schema, support, one_group(support), [])
        )
        rows = labelled.rows("")
        examples = self._examples(labelled, [rows], fitting(len(rows), SUPPORT_SIZES))
        adapt_key, draw_key = jr.split(jr.key(seed))
        predictors = jax.tree.map(
            lambda leaf: leaf[0], adapt_groups(self.learner, examples, num_draws, adapt_key[None])
        )
        count = jax.tree.leaves(predictors)[0].shape[0]
        if count != num_draws:  # a deterministic method has one predictor, a particle method its particles
            predictors = jax.tree.map(lambda leaf: leaf[jnp.arange(num_draws) % count], predictors)
        temperature = self.calibration.at(len(rows)).temperature
        return np.asarray(draw_targets(predictors, jnp.asarray(self.schema.encode(query)), temperature, draw_key))

    def check_support(self, support: pl.DataFrame) -> None:
        """Raises SourceError for labelled rows that cannot be used."""
        labelled_rows(self.schema, support, group_keys_of(self.schema, support, "support", []), [])

    def _batches(self, groups: Groups, labelled: Labelled, num_samples: int) -> Iterator[list[Item]]:
        """Groups whose sets are padded to the same sizes, a batch at a time."""
        buckets: dict[tuple[int, int], list[Item]] = {}
        for i, name in enumerate(groups.names):
            support, rows = labelled.rows(name), groups.rows(i)
            for first in range(0, len(rows), QUERY_SIZES[-1]):
                part = rows[first : first + QUERY_SIZES[-1]]
                sizes = (fitting(len(support), SUPPORT_SIZES), fitting(len(part), QUERY_SIZES))
                buckets.setdefault(sizes, []).append(Item(name, support, part, sizes))
        for sizes, items in sorted(buckets.items()):
            at_once = max(1, ROWS_AT_ONCE // (num_samples * sum(sizes)))
            for first in range(0, len(items), at_once):
                yield items[first : first + at_once]

    def _respond(
        self,
        items: list[Item],
        x: Float[np.ndarray, "n dx"],
        labelled: Labelled,
        table: Collected,
        *,
        num_samples: int,
        seed: int,
    ) -> None:
        """Fills in the predictions of a batch."""
        support_size, query_size = items[0].sizes
        full = 1 << (len(items) - 1).bit_length()  # few different numbers of groups, so few compilations
        padded = [*items, *[items[-1]] * (full - len(items))]
        support = self._examples(labelled, [item.support for item in padded], support_size)
        shots = np.array([len(item.support) for item in padded])
        rows = np.stack([np.resize(item.rows, query_size) for item in padded])
        keys = group_keys([item.name for item in padded], seed)
        values = answer_groups(
            adapt_groups(self.learner, support, num_samples, keys),
            jnp.asarray(x[rows]),
            self.calibration.at(shots),
            jnp.array(table.levels),
            table.keep_functions,
        )
        code, entropy = (np.asarray(values, dtype=float) for values in codes(self.learner, support, self.spec))
        about = {"shots": shots, "novelty": self.reference.novelty(code, shots)}
        if np.isfinite(entropy).all():
            about["task_entropy"] = self.reference.surplus_entropy(entropy, shots)
        table.add(items, {name: np.asarray(value) for name, value in values.items()}, about)

    def _examples(self, labelled: Labelled, rows: list[np.ndarray], size: int) -> Examples:
        """The labelled rows of several groups as one padded batch."""
        is_class = self.schema.target.is_class
        x = np.zeros((len(rows), size, labelled.x.shape[1]), np.float32)
        y = np.zeros((len(rows), size), np.int32 if is_class else np.float32)
        weight = np.zeros((len(rows), size), np.float32)
        for i, chosen in enumerate(rows):
            x[i, : len(chosen)], y[i, : len(chosen)] = labelled.x[chosen], labelled.y[chosen]
            weight[i, : len(chosen)] = 1.0
        labels = jnp.asarray(y if is_class else y[..., None])
        return jax.vmap(Examples)(jnp.asarray(x), labels, jnp.asarray(weight))


def fit_frame(frame: pl.DataFrame, experiment: Experiment, *, seed: int = 0) -> FewShotModel:
    """A model trained and calibrated on the groups of a table in memory."""
    settings: Any = experiment.benchmark_settings
    benchmark = open_frame(frame, settings)
    opened = replace(for_target(experiment, benchmark), benchmark_settings=benchmark.settings)
    learner = train_once(opened, benchmark, seed=seed)
    care: Any = benchmark.aftercare
    return FewShotModel(schema_of(opened), opened, learner, *care.care(learner))


def load_model(folder: Path | str) -> FewShotModel:
    """The model of a finished run of `stmaml fit`."""
    run = Run(Path(folder))
    experiment = load_table(run)
    schema, calibration = schema_of(experiment), load_calibration(run.folder)
    learner = load_learner(run, experiment, task_spec(schema), target_scaling(schema))
    return FewShotModel(schema, experiment, learner, calibration, load_reference(run.folder))


def load_table(run: Run) -> Experiment:
    """The settings of a run of `stmaml fit`."""
    experiment = load_experiment(run)
    if experiment.benchmark != TABLE:
        raise RunError(
            f"{run.folder} is not a run of 'stmaml fit'. Its predictions need the benchmark it was made for."
        )
    return experiment
