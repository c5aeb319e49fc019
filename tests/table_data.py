"""Synthetic tables for the tests: groups with their own level and slope, and what learns from them in seconds."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy import stats

from stmaml.benchmarks.base import Benchmark
from stmaml.experiments import create_runs, train_runs
from stmaml.methods.neural_processes import CNPConfig
from stmaml.methods.st_maml import Config as STMAMLConfig
from stmaml.methods.st_maml import Encoding
from stmaml.recipes import Experiment
from stmaml.runs import Run
from stmaml.tables.benchmark import Config, TableConfig, open_frame
from stmaml.tables.groups import Sizes, Split, split_groups
from stmaml.tables.reading import group_rows
from stmaml.tables.schema import Schema, table_keys
from stmaml.tables.settings import for_target, table_recipe

TABLE = TableConfig("shop", "y", sizes=Sizes(shots=10, query_size=6, min_query=2))
SMALL_CNP = CNPConfig(encoder=(32, 32), decoder=(32, 32))
SMALL_STMAML = STMAMLConfig(hidden=(8,), h_size=3, encoder=Encoding((8, 8), z_hidden=(8,), z_size=3))


def draw(distribution: Any, *parameters: float, **settings: Any) -> np.ndarray:
    """Random numbers of a SciPy distribution."""
    return np.asarray(distribution.rvs(*parameters, **settings))


def lines(num_groups: int, rows: int, *, seed: int = 0, noise: float = 0.3, prefix: str = "shop") -> pl.DataFrame:
    """y = level + slope x + noise, with a level and a slope for each group."""
    group = np.repeat(np.arange(num_groups), rows)
    level, slope = draw(stats.norm, size=(2, num_groups), random_state=seed)
    x = draw(stats.uniform, -2, 4, size=num_groups * rows, random_state=seed + 1)
    y = 20 + 3 * level[group] + slope[group] * x + noise * draw(stats.norm, size=len(x), random_state=seed + 2)
    return pl.DataFrame({"shop": [f"{prefix} {i}" for i in group], "x": x, "y": y})


def classes(num_groups: int, rows: int, *, seed: int = 0) -> pl.DataFrame:
    """Groups in which x above a threshold of their own is 'high', mostly."""
    frame = lines(num_groups, rows, seed=seed)
    level = frame.group_by("shop", maintain_order=True).agg(pl.col("y").mean() - 20)
    above = frame.join(level.rename({"y": "cut"}), on="shop", maintain_order="left")
    label = pl.when(pl.col("x") > pl.col("cut") / 4).then(pl.lit("high")).otherwise(pl.lit("low"))
    return above.select("shop", "x", label.alias("label"))


def quick(steps: int = 60, table: TableConfig | Config = TABLE, *, method: str = "cnp", **modelling: Any) -> Experiment:
    """An experiment that trains in seconds."""
    config = table if isinstance(table, Config) else Config(table)
    recipe = table_recipe(config, method, steps=steps, **modelling)
    training = replace(
        recipe.training,
        outer_lr=3e-3,
        val_every=20,
        val_tasks=20,
        val_samples=1,
        checkpoint_every=20,
        steps_per_call=20,
    )
    learner = {"cnp": SMALL_CNP, "st-maml": SMALL_STMAML}[method]
    return replace(recipe, method_settings=learner, training=training)


def opened(frame: pl.DataFrame, table: TableConfig = TABLE) -> Benchmark:
    """The benchmark of a table in memory."""
    return open_frame(frame, Config(table))


def run_of(folder: Path, experiment: Experiment, benchmark: Benchmark) -> Run:
    """A new run folder for an experiment on an open table."""
    (run,) = create_runs(experiment, benchmark, folder, [0])
    return run


def trained(folder: Path, frame: pl.DataFrame, experiment: Experiment) -> tuple[Run, Benchmark]:
    """A run folder of a table in memory, trained and calibrated, and its benchmark."""
    settings: Any = experiment.benchmark_settings
    benchmark = open_frame(frame, settings)
    experiment = for_target(experiment, benchmark)
    run = run_of(folder, experiment, benchmark)
    train_runs([run], experiment, benchmark)
    return run, benchmark


def schema_in(benchmark: Benchmark) -> Schema:
    """What was made of the table's columns."""
    settings: Any = benchmark.settings
    return Schema.from_json(settings.schema)


def split_of(frame: pl.DataFrame, table: TableConfig = TABLE) -> Split:
    """The names of the groups that a table is split into."""
    groups = group_rows(table_keys(frame, table.task, table.missing))
    return split_groups(groups.names, groups.count, table.sizes.of(groups.count))
