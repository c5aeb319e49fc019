"""A whole table of the paper as cells: one method each, trained, evaluated and skipped once done."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from stmaml.errors import RunError, SettingError
from stmaml.experiments import (
    EvaluateConfig,
    create_runs,
    evaluate_run,
    is_evaluated,
    load_experiment,
    run_folders,
    train_runs,
)
from stmaml.methods import METHODS
from stmaml.recipes import Experiment, presets, recipe
from stmaml.runs import Run, held_runs
from stmaml.training import Observer

BudgetName = Literal["smoke", "cpu", "paper"]


@dataclass(frozen=True)
class Budget:
    """How much work goes into each cell."""

    steps: int | None
    """Meta-steps; those of the recipe if not given."""
    seeds: int
    tasks: int
    """Test tasks."""


BUDGETS: dict[BudgetName, Budget] = {
    "smoke": Budget(steps=200, seeds=1, tasks=100),
    "cpu": Budget(steps=5_000, seeds=3, tasks=1_000),
    "paper": Budget(steps=None, seeds=3, tasks=1_000),
}
ABLATIONS = {
    "st-maml-without-augmentation": {"augment": False},
    "st-maml-without-tailoring": {"tailor": False},
    "st-maml-deterministic": {"stochastic": False},
}


@dataclass(frozen=True)
class Cell:
    """One row of the table."""

    name: str
    experiment: Experiment


def cells(benchmark: str, budget: Budget, *, task: dict[str, Any], only: tuple[str, ...] = ()) -> list[Cell]:
    """The rows of a benchmark's table: every method that has a recipe for it, and ST-MAML's ablations.

    Args:
        task: changes to the benchmark's settings, the same for every row.
        only: names of the rows wanted; all if empty.
    """
    plain = [Cell(method, recipe(benchmark, method)) for method in METHODS if presets(benchmark, method)]
    main: Any = recipe(benchmark, "st-maml")
    ablated = [Cell(n, replace(main, learner=replace(main.learner, **changes))) for n, changes in ABLATIONS.items()]
    rows = [Cell(cell.name, _within(cell.experiment, budget, task)) for cell in (*plain, *ablated)]
    if unknown := sorted(set(only) - {cell.name for cell in rows}):
        raise SettingError(f"there is no row '{unknown[0]}'; choose among: {', '.join(cell.name for cell in rows)}.")
    return [cell for cell in rows if not only or cell.name in only]


def _within(experiment: Any, budget: Budget, task: dict[str, Any]) -> Experiment:
    training = experiment.training if budget.steps is None else replace(experiment.training, steps=budget.steps)
    return replace(experiment, training=training, task=replace(experiment.task, **task))


def run_cell(
    cell: Cell,
    folder: Path,
    budget: Budget,
    *,
    samples: int,
    observers: Callable[[], tuple[Observer, ...]] = tuple,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Run]:
    """Trains and evaluates a cell, from wherever an earlier attempt ended."""
    runs = _open(cell, folder, budget)
    if not all(run.is_trained(cell.experiment.training.steps) for run in runs):
        train_runs(runs, observers=observers(), should_stop=should_stop)
    config = EvaluateConfig(tasks=budget.tasks, samples=samples)
    for run in runs:
        if not is_evaluated(run, config):
            evaluate_run(run, config)
    return runs


def _open(cell: Cell, folder: Path, budget: Budget) -> list[Run]:
    seeds = list(range(budget.seeds))
    held, wanted = held_runs(folder), run_folders(folder, seeds)
    if any(load_experiment(run) != cell.experiment for run in held) or not set(held) <= set(wanted):
        raise RunError(
            f"{folder} holds a run with other settings than this table's. Choose another --out, or remove that folder."
        )
    if len(held) < len(wanted):  # nothing there, or stopped before all were made and any was trained
        return create_runs(cell.experiment, folder, seeds, force=not any(run.checkpoint_steps() for run in held))
    return wanted
