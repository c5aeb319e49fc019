"""Simulated tables whose best predictions are known."""

import numpy as np

from stmaml.pool.base import Column, GroupedRows

LEVEL, NOISE = 1.0, 0.4
"""Standard deviations between groups and within them."""


def shape(x: np.ndarray) -> np.ndarray:
    """What all groups of a levels table share."""
    return np.where(x[:, 0] > 0, 0.8, -0.8) + 0.3 * x[:, 1]


def levels_table(seed: int, groups: int = 60, size: int = 20) -> GroupedRows:
    """Groups with strong levels."""
    random = np.random.default_rng(seed)
    group, x = np.repeat(np.arange(groups), size), random.normal(size=(groups * size, 3))
    x[:, 2] = 1.0  # a column that says nothing
    y = shape(x) + LEVEL * random.normal(size=groups)[group] + NOISE * random.normal(size=len(x))
    return table(x, y, group)


def classes_table(seed: int, num_classes: int, groups: int = 60, size: int = 20) -> GroupedRows:
    """Groups that lean to one class or another."""
    random = np.random.default_rng(seed)
    group, x = np.repeat(np.arange(groups), size), random.normal(size=(groups * size, 3))
    odds = 2.0 * random.normal(size=(groups, num_classes))[group]
    odds[:, 0] += 1.5 * x[:, 0]
    y = (odds + random.gumbel(size=odds.shape)).argmax(1)
    return table(x, y.astype(float), group, num_classes)


def table(x: np.ndarray, y: np.ndarray, group: np.ndarray, num_classes: int = 0) -> GroupedRows:
    """Rows without further groupings."""
    columns = tuple(Column(f"x{i}", "number") for i in range(x.shape[1]))
    return GroupedRows(x, y, group, np.zeros((len(y), 0), dtype=int), columns, num_classes)
