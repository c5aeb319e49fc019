"""A whole table of the paper as rows: methods and baselines, trained, evaluated and skipped once done."""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from stmaml.baselines import Baseline, BoostingConfig, Pooled, numpy_tasks, regression_baselines, score_baseline
from stmaml.benchmarks import weather
from stmaml.errors import RunError, SettingError
from stmaml.experiments import (
    EvaluateConfig,
    create_runs,
    evaluate_run,
    evaluation_name,
    is_evaluated,
    load_experiment,
    run_folders,
    summarise_scores,
    test_set,
    train_runs,
    validation_set,
)
from stmaml.methods import METHODS
from stmaml.provenance import provenance
from stmaml.recipes import BEYOND, Experiment, presets, recipe
from stmaml.runs import Run, held_runs
from stmaml.training import Observer

BudgetName = Literal["smoke", "cpu", "paper"]
VAL_TASKS = 500
"""Validation tasks that choose a baseline's settings."""


@dataclass(frozen=True)
class Budget:
    """How much work goes into each row."""

    steps: int | None
    """Meta-steps; those of the recipe if not given."""
    seeds: int
    tasks: int
    """Test tasks."""
    tasks_per_batch: int | None = None
    """Tasks in a meta-step; those of the recipe if not given."""
    steps_per_call: int = 100
    """A GPU waits less if it is asked less often."""
    samples: int = 20
    """Predictors sampled for each test task."""
    val_tasks: int | None = None
    """Validation tasks; those of the recipe if not given."""
    own_pace: bool = False
    """Whether the presets of `BEYOND` are rows, each trained as long as its recipe says. They are many times larger, so
    smaller budgets leave them out unless they are named, and then train them as long as the other rows."""
    sweep: bool = False
    """Whether ST-MAML and its `best` preset are also tested with fewer and with more examples, where a benchmark says
    with how many."""
    boosting: BoostingConfig = field(default_factory=BoostingConfig)
    """Settings of the gradient boosting among the baselines."""


_QUICK = BoostingConfig(
    learning_rate=(0.1,), max_leaf_nodes=(15,), min_samples_leaf=(20,), max_iter=60, max_rows=20_000, tuning_rows=5_000
)
BUDGETS: dict[str, dict[BudgetName, Budget]] = {
    "regression2d": {
        "smoke": Budget(steps=50, tasks_per_batch=8, seeds=1, tasks=50),
        "cpu": Budget(steps=4_000, seeds=3, tasks=1_000),
        "paper": Budget(steps=10_000, tasks_per_batch=100, seeds=3, tasks=1_000, steps_per_call=500, own_pace=True),
    },
    "weather": {
        "smoke": Budget(steps=100, tasks_per_batch=4, seeds=1, tasks=50, boosting=_QUICK),
        "cpu": Budget(steps=2_000, tasks_per_batch=8, seeds=1, tasks=1_000),
        "paper": Budget(steps=None, seeds=3, tasks=1_000, steps_per_call=500, own_pace=True),
    },
    "completion": {
        "smoke": Budget(steps=20, tasks_per_batch=3, seeds=1, tasks=30),
        "cpu": Budget(steps=1_000, tasks_per_batch=12, seeds=1, tasks=300, sweep=True),
        "paper": Budget(steps=None, seeds=3, tasks=3_000, steps_per_call=500, own_pace=True, sweep=True),
    },
    "celeba": {
        "smoke": Budget(steps=2, tasks_per_batch=2, seeds=1, tasks=2, samples=4, val_tasks=4),
        "cpu": Budget(steps=200, tasks_per_batch=4, seeds=1, tasks=100, samples=40, steps_per_call=20, val_tasks=20),
        "paper": Budget(steps=None, seeds=1, tasks=1_000, samples=100, own_pace=True),
    },
    "plain-multi": {
        "smoke": Budget(steps=2, tasks_per_batch=2, seeds=1, tasks=8, samples=2, val_tasks=4),
        "cpu": Budget(steps=200, tasks_per_batch=4, seeds=1, tasks=400, samples=5, steps_per_call=20, val_tasks=40),
        "paper": Budget(steps=None, seeds=1, tasks=4_000, steps_per_call=50, own_pace=True),
    },
}
ABLATIONS = {
    "st-maml-without-augmentation": {"augment": False},
    "st-maml-without-tailoring": {"tailor": False},
    "st-maml-deterministic": {"stochastic": False},
}

SWEPT = ("st-maml", "st-maml-best")
"""Rows that are tested with several numbers of examples."""


@dataclass(frozen=True)
class Cell:
    """A method as a row of the table."""

    name: str
    experiment: Experiment


@dataclass(frozen=True)
class BaselineCell:
    """A baseline as a row of the table; its inputs are the richest the benchmark has."""

    name: str
    baseline: Baseline
    benchmark: str
    task: Any


def cells(
    benchmark: str, budget: Budget, *, task: dict[str, Any], only: tuple[str, ...] = ()
) -> list[Cell | BaselineCell]:
    """The rows of a benchmark's table: every method that has a recipe for it, ST-MAML's ablations and baselines.

    Args:
        task: changes to the benchmark's settings, the same for every row.
        only: names of the rows wanted; all if empty.
    """
    plain = [Cell(method, recipe(benchmark, method)) for method in METHODS if presets(benchmark, method)]
    main: Any = recipe(benchmark, "st-maml")
    ablated = [
        Cell(n, replace(main, method_settings=replace(main.method_settings, **changes)))
        for n, changes in ABLATIONS.items()
    ]
    trained = [Cell(cell.name, _within(cell.experiment, budget, task)) for cell in (*plain, *ablated)]
    wanted = [(m, preset) for preset in BEYOND for m in METHODS if preset in presets(benchmark, m)]
    large = [Cell(f"{m}-{preset}", recipe(benchmark, m, preset)) for m, preset in wanted]
    trained += [Cell(cell.name, _within(cell.experiment, budget, task, own_pace=True)) for cell in large]
    rows = [*trained, *_baselines(benchmark, budget, task)]
    if unknown := sorted(set(only) - {cell.name for cell in rows}):
        raise SettingError(f"there is no row '{unknown[0]}'; choose among: {', '.join(cell.name for cell in rows)}.")
    usual = {cell.name for cell in rows} - ({cell.name for cell in large} if not budget.own_pace else set())
    return [cell for cell in rows if cell.name in (only or usual)]


def _within(experiment: Any, budget: Budget, task: dict[str, Any], *, own_pace: bool = False) -> Experiment:
    """The experiment within the budget; in the full one, a preset of `BEYOND` has its own number of steps and tasks."""
    if own_pace and budget.own_pace:
        budget = replace(budget, steps=None, tasks_per_batch=None)
    wanted = {
        "steps": budget.steps,
        "tasks_per_batch": budget.tasks_per_batch,
        "steps_per_call": budget.steps_per_call,
        "val_tasks": budget.val_tasks,
    }
    training = replace(experiment.training, **{name: value for name, value in wanted.items() if value is not None})
    return replace(experiment, training=training, benchmark_settings=replace(experiment.benchmark_settings, **task))


def _baselines(benchmark: str, budget: Budget, task: dict[str, Any]) -> list[BaselineCell]:
    if benchmark != "weather":
        return []
    settings = replace(weather.Config(inputs="rich"), **task)
    each = regression_baselines(time_input=0, boosting=budget.boosting)
    return [BaselineCell(baseline.name, baseline, benchmark, settings) for baseline in each]


def run_cell(
    cell: Cell,
    folder: Path,
    budget: Budget,
    *,
    observers: Callable[[], tuple[Observer, ...]] = tuple,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Run]:
    """Trains and evaluates a method's row, from wherever an earlier attempt ended."""
    runs = _open(cell, folder, budget)
    if not all(run.is_trained(cell.experiment.training.steps) for run in runs):
        train_runs(runs, observers=observers(), should_stop=should_stop)
    config = EvaluateConfig(tasks=budget.tasks, samples=budget.samples)
    task: Any = cell.experiment.benchmark_settings
    swept = budget.sweep and cell.name in SWEPT and hasattr(task, "sweep")
    for shots in (None, *(task.sweep() if swept else ())):
        varied = replace(config, shots=shots)
        for run in runs:
            if not is_evaluated(run, varied):
                evaluate_run(run, varied)
    return runs


def run_baseline(cell: BaselineCell, folder: Path, budget: Budget) -> Run:
    """Fits a baseline on training rows, its settings chosen on validation tasks, and scores it on the test tasks."""
    run = _open_baseline(cell, folder)
    config = EvaluateConfig(
        tasks=budget.tasks, samples=budget.samples
    )  # it has no samples, but shares a table with who has
    name = evaluation_name(cell.task, config)
    if name not in run.scores():
        benchmark = cell.task.open()
        train = Pooled(*benchmark.train.pooled(budget.boosting.max_rows, 0))
        val = validation_set(benchmark, min(VAL_TASKS, budget.tasks))
        scores = score_baseline(cell.baseline.fit(train, numpy_tasks(val)), test_set(benchmark, budget.tasks))
        summary = summarise_scores(run, cell.task, config, benchmark, scores)
        run.save_scores(name, summary, {**scores.values, "family": scores.family})
    return run


def _open_baseline(cell: BaselineCell, folder: Path) -> Run:
    run = Run(folder)
    described = {
        "seed": 0,
        "benchmark": {"name": cell.benchmark, "settings": dataclasses.asdict(cell.task)},
        "method": {"name": cell.name, "preset": "baseline", "settings": {}},
        "modelling": {},
        "training": {},
    }
    described = json.loads(json.dumps(described))
    if not held_runs(folder):
        run.create({**provenance(), **described})
    elif any(run.config().get(name) != value for name, value in described.items()):
        raise RunError(f"{folder} holds a run with other settings than this table's. Choose another --out.")
    return run


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
