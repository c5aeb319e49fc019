"""What the search tries: the same grid for every method, of which each gets the same number of cells.

| setting | values | of |
|---|---|---|
| optimizer | Adam, Muon | all |
| outer rate | 0.001, 0.003, 0.01 | all |
| inner rate | 0.001, 0.003, 0.01, 0.1 | methods with an inner loop |
| inner steps in training | 5, 10, or those asked for | methods with an inner loop |
| inner steps in the test | those of training, twice and four times as many | methods with an inner loop |
| KL weight | 0.003, 0.01, 0.03, 0.1 | methods with a KL term |
| meta-loss | chaser, query | BMAML |

Where the grid has more cells than there are trials, as many are drawn from each combination of optimizer, inner steps
and meta-loss, under a fixed key. The first of each are an outer rate of 0.003 with the recipe's inner rate, and the
largest or the recipe's KL weight. Where it has fewer, cells are tried again under other seeds, so that the budget of
all methods is the same."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import jax.random as jr
import numpy as np

from stmaml.recipes import Experiment
from stmaml.recipes.base import setting, with_changes

OPTIMIZER, OUTER_LR = "training.optimizer", "training.outer_lr"
INNER_LR, INNER_STEPS = "method_settings.inner.inner_lr", "method_settings.inner.inner_steps"
TEST_STEPS, KL_WEIGHT = "method_settings.inner.test_steps", "method_settings.kl_weight"
META_LOSS = "method_settings.meta_loss"
Space = dict[str, tuple[Any, ...]]
GRID: Space = {
    OPTIMIZER: ("adam", "muon"),
    INNER_STEPS: (5, 10),
    META_LOSS: ("chaser", "query"),
    OUTER_LR: (1e-3, 3e-3, 1e-2),
    INNER_LR: (1e-3, 3e-3, 1e-2, 1e-1),
    KL_WEIGHT: (0.003, 0.01, 0.03, 0.1),
}
TRACED = (OUTER_LR, INNER_LR, KL_WEIGHT)  # numbers of the compiled program: trials that differ in these train together
FIRST_OUTER_LR = 3e-3
TEST_FACTORS = (1, 2, 4)  # inner steps in the test, over those of training


@dataclass(frozen=True)
class Trial:
    """One cell of the grid under one seed."""

    settings: dict[str, Any]
    """By path; all but the inner steps in the test, which are chosen after training."""
    seed: int = 0

    @property
    def group(self) -> tuple[tuple[str, Any], ...]:
        """The settings that a compiled program is made for."""
        return tuple((path, value) for path, value in self.settings.items() if path not in TRACED)

    def of(self, base: Experiment) -> Experiment:
        """The experiment with the trial's settings."""
        return with_changes(base, self.settings)


@dataclass(frozen=True)
class Cells:
    """A grid in two parts: what programs are made for, and the numbers within each."""

    groups: list[dict[str, Any]]
    inside: list[dict[str, Any]] = field(default_factory=list)


def space_of(base: Experiment, inner_steps: tuple[int, ...] = GRID[INNER_STEPS]) -> Space:
    """The part of the grid that says something about a method, with these inner steps in training."""
    settings: Any = base.method_settings
    names = {each.name for each in fields(settings)}
    present = {path for path in GRID if path.split(".")[1] in names or path.startswith("training.")}
    if "stochastic" in names and not settings.stochastic:
        present -= {KL_WEIGHT}  # a z that is no draw has no KL
    return {path: inner_steps if path == INNER_STEPS else values for path, values in GRID.items() if path in present}


def draw_trials(base: Experiment, count: int, inner_steps: tuple[int, ...] = GRID[INNER_STEPS]) -> list[Trial]:
    """`count` trials of a method, the same whenever they are asked for."""
    space = space_of(base, inner_steps)
    cells = Cells(_product(space, traced=False), _product(space, traced=True))
    firsts = _first_cells(base, space)
    by_group = [_picked(cells, firsts, index) for index in range(len(cells.groups))]
    each = math.ceil(count / len(cells.groups))
    rounds = [[(group[i % len(group)], i // len(group)) for group in by_group] for i in range(each)]
    return [Trial(settings, seed) for settings, seed in itertools.chain(*rounds)][:count]


def near_trials(space: Space, tried: Sequence[Trial], best: dict[str, Any], count: int) -> list[Trial]:
    """`count` trials of Muon around the best cell: that cell, and those one step of the grid away in one number; first
    those that were not tried, then all under other seeds."""
    centre = {**best, OPTIMIZER: "muon"}
    cells = [
        centre,
        *(centre | {path: value} for path in TRACED if path in space for value in _beside(space, centre, path)),
    ]
    seeds = [[trial.seed for trial in tried if trial.settings == cell] for cell in cells]
    free = [(max(used, default=-1) + 1 + turn, place) for place, used in enumerate(seeds) for turn in range(count)]
    return [Trial(cells[place], seed) for seed, place in sorted(free)[:count]]


def _beside(space: Space, cell: dict[str, Any], path: str) -> list[Any]:
    """The values of the grid next to that of a cell."""
    place = space[path].index(cell[path])
    return [space[path][i] for i in (place + 1, place - 1) if 0 <= i < len(space[path])]


def _product(space: Space, *, traced: bool) -> list[dict[str, Any]]:
    part = {path: values for path, values in space.items() if (path in TRACED) == traced}
    return [dict(zip(part, values, strict=True)) for values in itertools.product(*part.values())]


def _picked(cells: Cells, firsts: list[dict[str, Any]], index: int) -> list[dict[str, Any]]:
    """The cells of a group in the order they are tried."""
    order = np.asarray(jr.permutation(jr.fold_in(jr.key(0), index), len(cells.inside)))
    others = [cells.inside[i] for i in order if cells.inside[i] not in firsts]
    return [cells.groups[index] | inside for inside in (*firsts, *others)]


def _first_cells(base: Experiment, space: Space) -> list[dict[str, Any]]:
    """The recipe's cell, with the largest KL weight and with its own."""
    nearest = {path: _nearest(setting(base, path), space[path]) for path in (INNER_LR, KL_WEIGHT) if path in space}
    own: Mapping[str, Any] = {OUTER_LR: FIRST_OUTER_LR, **nearest}
    cells = [{**own, **({KL_WEIGHT: max(space[KL_WEIGHT])} if KL_WEIGHT in space else {})}, dict(own)]
    return [cell for i, cell in enumerate(cells) if cell not in cells[:i]]


def _nearest(value: float | None, values: tuple[float, ...]) -> float:
    """The value of the grid that is nearest to a setting by ratio; the first where that is none."""
    return values[0] if value is None else min(values, key=lambda one: abs(math.log(one / value)))
