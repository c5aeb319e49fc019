"""What an estimator has learnt across groups: a pool of models, or one method; made from rows, or read from a run."""

import abc
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import polars as pl

from stmaml.errors import SettingError
from stmaml.pool.fitting import fit_pool
from stmaml.pool.model import PoolModel
from stmaml.pool.opening import open_pool_table
from stmaml.pool.rows import in_order
from stmaml.pool.store import POOL, PoolRun, PoolSettings, is_pool
from stmaml.recipes import Experiment
from stmaml.runs import Run
from stmaml.tables.benchmark import Config, TableConfig
from stmaml.tables.model import FewShotModel, fit_frame, load_model
from stmaml.tables.schema import Schema, table_keys

Model = TypeVar("Model", PoolModel, FewShotModel)


class AbstractLearnt(abc.ABC, Generic[Model]):
    """A model that predicts rows of any group, and what is known of the groups it was made from."""

    model: Model
    result: dict[str, Any] | None
    """What scores of held-out groups say, if there are any."""

    @property
    def schema(self) -> Schema:
        """What was made of its columns."""
        return self.model.schema

    @property
    def inputs(self) -> list[str]:
        """The columns that the model reads beside group and target."""
        schema, table = self.schema, self.table
        others = (*table.within, *table.also, *((table.order,) if table.order else ()))
        named = dict.fromkeys((*(column.name for column in schema.used), *others))
        return [name for name in named if name not in (schema.task, schema.target.name)]

    @property
    @abc.abstractmethod
    def table(self) -> TableConfig:
        """What was predicted from what."""

    @abc.abstractmethod
    def known_rows(self, asked: pl.DataFrame) -> pl.DataFrame | None:
        """Labelled rows of the groups that are asked for, where the model does not know them by itself."""

    @abc.abstractmethod
    def save(self, folder: Path, classes: tuple[str, ...], *, force: bool) -> None:
        """Writes a run that `stmaml predict` reads, with these names for its classes."""


@dataclass(frozen=True)
class LearntPool(AbstractLearnt[PoolModel]):
    """A pool, which keeps the rows of its groups."""

    model: PoolModel
    settings: PoolSettings
    seed: int
    result: dict[str, Any] | None

    @property
    def table(self) -> TableConfig:
        """What was predicted from what."""
        return self.model.config.table

    def known_rows(self, asked: pl.DataFrame) -> pl.DataFrame | None:
        """None: the pool looks them up."""
        del asked
        return None

    def save(self, folder: Path, classes: tuple[str, ...], *, force: bool) -> None:
        """Writes the folder that `stmaml fit` would have written."""
        model = with_class_names(self.model, classes) if classes else self.model
        store = PoolRun(Run(folder))
        store.create(model.config, self.settings, self.seed, force=force)
        store.save_members(model)
        store.save(model, self.result or {})


@dataclass(frozen=True)
class LearntMethod(AbstractLearnt[FewShotModel]):
    """One method, and beside it the rows of its groups."""

    model: FewShotModel
    known: pl.DataFrame | None
    """None where they were not kept, as in a run."""
    result: dict[str, Any] | None = None

    @property
    def table(self) -> TableConfig:
        """What was predicted from what."""
        settings: Any = self.model.experiment.benchmark_settings
        return settings.table

    def known_rows(self, asked: pl.DataFrame) -> pl.DataFrame | None:
        """Those of the groups that are asked for."""
        if self.known is None:
            return None
        mine, wanted = (table_keys(frame, self.schema.task, self.schema.missing) for frame in (self.known, asked))
        return self.known.filter(mine.is_in(wanted.unique().to_list()))

    def save(self, folder: Path, classes: tuple[str, ...], *, force: bool) -> None:
        """Refuses: a run of one method has a log and checkpoints, which only `stmaml fit` keeps."""
        del classes, force
        raise SettingError(
            f"save_run writes pools; this is {self.model.experiment.method} alone. Make {folder} with "
            f"'stmaml fit --method {self.model.experiment.method}', or use method='{POOL}'."
        )


Learnt = LearntPool | LearntMethod


def learn_pool(frame: pl.DataFrame, config: Config, settings: PoolSettings, *, seed: int) -> LearntPool:
    """The pool of a table in memory."""
    table = open_pool_table(frame, config, shots=settings.shots, seed=seed)
    found = fit_pool(table, settings)
    return LearntPool(found.model, settings, seed, found.result)


def learn_method(frame: pl.DataFrame, table: TableConfig, recipe: Experiment, *, seed: int) -> LearntMethod:
    """One method, trained on the groups of a table in memory; with an order, the first rows of a group are labelled."""
    rows = in_order(frame, table)
    return LearntMethod(fit_frame(rows, recipe, seed=seed), rows)


def open_run(folder: Path) -> tuple[Learnt, dict[str, Any]]:
    """What a run of `stmaml fit` has learnt, and the parameters of an estimator like it."""
    run = Run(folder)
    if is_pool(run):
        return _open_pool(PoolRun(run))
    model = load_model(folder)
    learnt, made = LearntMethod(model, None), model.experiment
    about = {"method": made.method, "preset": made.preset, "linear": made.modelling.linear}
    about |= {"steps": made.training.steps, "shots": learnt.table.sizes.shots}
    return learnt, {**about, **_of_table(learnt.table), "random_state": run.config()["seed"]}


def _open_pool(store: PoolRun) -> tuple[Learnt, dict[str, Any]]:
    settings, seed, model = store.settings(), store.run.config()["seed"], store.load()
    about = {"method": POOL, "members": settings.members, "shots": settings.shots, "minutes": settings.minutes}
    learnt = LearntPool(model, settings, seed, store.result())
    return learnt, {**about, **_of_table(learnt.table), "random_state": seed}


def _of_table(table: TableConfig) -> dict[str, Any]:
    return {"min_query": table.sizes.min_query, "order": table.order}


def with_class_names(model: PoolModel, names: tuple[str, ...]) -> PoolModel:
    """The same pool with other names for its classes."""
    old = model.schema.target
    schema = replace(model.schema, target=replace(old, classes=names))
    column = model.known[old.name].cast(pl.String).replace_strict(list(old.classes), list(names))
    config = replace(model.config, schema=schema.to_json())
    return replace(model, schema=schema, config=config, known=model.known.with_columns(column))
