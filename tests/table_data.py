"""Synthetic tables for the tests: groups with their own level and slope."""

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
from scipy import stats

from stmaml.methods.neural_processes import CNPConfig
from stmaml.methods.st_maml import Config as STMAMLConfig
from stmaml.tables.settings import Settings, default_settings

SMALL_CNP = CNPConfig(encoder=(32, 32), decoder=(32, 32))
SMALL_STMAML = STMAMLConfig(hidden=(8,), encoder=(8, 8), z_hidden=(8,), z_size=3, h_size=3)


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


def quick(steps: int = 60, **changes) -> Settings:
    """Settings that train in seconds."""
    settings = default_settings("cnp", steps=steps)
    training = replace(
        settings.training,
        outer_lr=3e-3,
        val_every=20,
        val_tasks=20,
        val_samples=1,
        checkpoint_every=20,
        steps_per_call=20,
    )
    return replace(settings, learner=SMALL_CNP, training=training, **changes)
