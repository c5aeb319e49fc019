"""A whole table of the paper as rows: methods and baselines, trained, evaluated and skipped once done."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from stmaml import experiments
from stmaml.baselines import Baseline, BoostingConfig, Pooled, numpy_tasks, regression_baselines, score_baseline
from stmaml.benchmarks import regression2d
from stmaml.benchmarks.base import Benchmark, BenchmarkConfig, Budget
from stmaml.errors import RunError, SettingError
from stmaml.experiments import EvaluateConfig, evaluate_run, save_scores, summarise_scores, tests_of, train_runs
from stmaml.methods import METHODS
from stmaml.metric_table import ordered
from stmaml.metrics import of_each_task, summarise_crossed
from stmaml.provenance import provenance
from stmaml.recipes import BEYOND, RECIPES, Experiment, presets, recipe
from stmaml.recipes.base import with_changes
from stmaml.recipes.rows import ABLATIONS, LOOKING, row_recipe, searched
from stmaml.runs import Run, as_json, held_runs
from stmaml.training import Diverged, Observer

VAL_TASKS = 500  # validation tasks that choose a baseline's settings
QUICK = BoostingConfig(
    learning_rate=(0.1,), max_leaf_nodes=(15,), min_samples_leaf=(20,), max_iter=60, max_rows=20_000, tuning_rows=5_000
)
SWEPT = ("st-maml", "st-maml-best")  # rows that are tested with several numbers of examples


@dataclass(frozen=True)
class Cell:
    """A method as a row of the table."""

    name: str
    """What it is called, and the folder it lies in."""
    experiment: Experiment

    @property
    def settings(self) -> BenchmarkConfig:
        """Those of the benchmark it is trained and scored on."""
        return self.experiment.benchmark_settings

    def trained_by(self, **changes: Any) -> "Cell":
        """The row with these settings of its training."""
        training = replace(self.experiment.training, **changes)
        return replace(self, experiment=replace(self.experiment, training=training))

    def fill(
        self,
        folder: Path,
        budget: Budget,
        benchmark: Benchmark,
        should_stop: Callable[[], bool] = lambda: False,
        observers: Sequence[Observer] = (),
    ) -> None:
        """Trains and evaluates, from where an earlier attempt ended; `benchmark` is open under the row's settings."""
        runs = self._open(folder, budget, benchmark)
        if not all(run.is_trained(self.experiment.training.steps) for run in runs):
            train_runs(runs, self.experiment, benchmark, observers=observers, should_stop=should_stop)
        swept = benchmark.sweep.shots if benchmark.sweep and budget.sweep and self.name in SWEPT else ()
        usual = EvaluateConfig(tasks=budget.tasks, samples=budget.samples)
        besides = [replace(usual, **changes) for changes in benchmark.besides]
        for config in (usual, *besides, *(replace(usual, shots=shots) for shots in swept)):
            self._score(runs, config, benchmark.vary(config.of(self.experiment)))

    def _score(self, runs: list[Run], config: EvaluateConfig, tested: Benchmark) -> None:
        """Scores those runs that were not yet scored so."""
        tests = tests_of(tested, self.experiment.benchmark, config)
        for run in runs:
            if not all(test.done(run) for test in tests):
                evaluate_run(run, config, tested, tests)

    def told(self, folder: Path, budget: Budget, benchmark: Benchmark) -> dict[str, Any]:
        """What came out, in short: scores with their intervals over seeds and tasks, and what they cost."""
        config = EvaluateConfig(tasks=budget.tasks, samples=budget.samples)
        (test,) = tests_of(benchmark.vary(config.of(self.experiment)), self.experiment.benchmark, config)
        runs, training = experiments.run_folders(folder, list(range(budget.seeds))), self.experiment.training
        arrays = [run.score_arrays(test.name()) for run in runs]
        values = {name: np.stack([of_each_task(one[name]) for one in arrays]) for name in ordered(arrays[0])}
        values.pop("family")
        return {
            "row": self.name,
            "seeds": len(runs),
            "tasks": test.tasks.num_tasks,
            "trained_on": training.steps * training.tasks_per_batch,
            "seconds": max((entry.get("seconds", 0.0) for run in runs for entry in run.log()), default=0.0),
            "metrics": {name: summarise_crossed(each) for name, each in values.items()},
            "medians": {name: float(np.median(each.mean(0))) for name, each in values.items()},
        }

    def _open(self, folder: Path, budget: Budget, benchmark: Benchmark) -> list[Run]:
        seeds = list(range(budget.seeds))
        held, wanted = held_runs(folder), experiments.run_folders(folder, seeds)
        if any(experiments.load_experiment(run) != self.experiment for run in held) or not set(held) <= set(wanted):
            raise _other_settings(folder)
        if len(held) < len(wanted):  # nothing there, or stopped before all were made and any was trained
            force = not any(run.checkpoint_steps() for run in held)
            return experiments.create_runs(self.experiment, benchmark, folder, seeds, force=force)
        return wanted


@dataclass(frozen=True)
class BaselineCell:
    """A baseline as a row of the table; its inputs are the richest the benchmark has."""

    name: str
    baseline: Baseline
    benchmark: str
    settings: BenchmarkConfig
    max_rows: int

    def trained_by(self, **changes: Any) -> "BaselineCell":
        """Itself: scikit-learn knows no meta-steps."""
        del changes
        return self

    def fill(
        self,
        folder: Path,
        budget: Budget,
        benchmark: Benchmark,
        should_stop: Callable[[], bool] = lambda: False,
        observers: Sequence[Observer] = (),
    ) -> None:
        """Fits on training rows, settings chosen on validation tasks, and scores on the test tasks."""
        del should_stop, observers
        run = self._open(folder)
        config = EvaluateConfig(tasks=budget.tasks, samples=budget.samples)  # not sampled: so as to share a table
        asked = [(benchmark, config)]
        for changes in benchmark.besides:
            other = replace(config, **changes)
            asked.append((benchmark.vary(other.on(self.benchmark, self.settings)), other))
        tests = [(tested, test) for tested, wanted in asked for test in tests_of(tested, self.benchmark, wanted)]
        if all(test.done(run) for _, test in tests):
            return
        fitted = self._fitted(benchmark, budget)
        for tested, test in tests:
            scores = score_baseline(fitted, test.tasks)
            save_scores(run, test, summarise_scores(run, test, tested, scores), scores)

    def _fitted(self, benchmark: Benchmark, budget: Budget) -> Baseline:
        assert benchmark.rows is not None
        train = Pooled(*benchmark.rows.pooled(self.max_rows, 0))
        return self.baseline.fit(train, numpy_tasks(benchmark.val_set(min(VAL_TASKS, budget.tasks))))

    def told(self, folder: Path, budget: Budget, benchmark: Benchmark) -> dict[str, Any]:
        """What came out, in short."""
        config = EvaluateConfig(tasks=budget.tasks, samples=budget.samples)
        (test,) = tests_of(benchmark, self.benchmark, config)
        summary = Run(folder).scores()[test.name()]
        return {"row": self.name, "seeds": 0, "tasks": summary["tasks"], "metrics": summary["metrics"]}

    def _open(self, folder: Path) -> Run:
        run = Run(folder)
        tasks = {"name": self.benchmark, "settings": as_json(self.settings)}
        method = {"name": self.name, "preset": "baseline", "settings": {}}
        described = {"seed": 0, "benchmark": tasks, "method": method, "modelling": {}, "training": {}}
        if not held_runs(folder):
            run.create({**provenance(), **described})
        elif any(run.config().get(name) != value for name, value in described.items()):
            raise _other_settings(folder)
        return run


Row = Cell | BaselineCell  # a row of the table: it knows how to fill itself in


@dataclass(frozen=True)
class Filling:
    """A row to be filled in by another process."""

    row: Row
    budget: Budget

    def __call__(self, folder: Path) -> str:
        """Fills the row; says why it is to be left out of the table, if it is."""
        try:
            self.row.fill(folder, self.budget, self.row.settings.open())
        except Diverged as error:
            return str(error)
        return ""


def _other_settings(folder: Path) -> RunError:
    words = "holds a run with other settings than this table's. Choose another --out, or remove that folder."
    return RunError(f"{folder} {words}")


def cells(name: str, benchmark: Benchmark, budget: Budget, *, only: tuple[str, ...] = (), **changes: Any) -> list[Row]:
    """The rows of a benchmark's table: every method that has a recipe for it, ST-MAML's ablations and baselines; those
    named in `only`, or all if it is empty. `changes` are to the benchmark's settings, the same for every row."""
    usual, large = method_cells(name, budget, **changes)
    usual += [_within(cell, budget, changes) for cell in _looking(name, benchmark)]
    baselines = _baselines(name, benchmark, budget)
    rows: list[Row] = [*usual, *large, *baselines]
    if unknown := sorted(set(only) - {row.name for row in rows}):
        raise SettingError(f"there is no row '{unknown[0]}'; choose among: {', '.join(row.name for row in rows)}.")
    wanted = {row.name for row in [*usual, *(large if budget.own_pace else ()), *baselines]}
    return [row for row in rows if row.name in (only or wanted)]


def method_cells(name: str, budget: Budget, **changes: Any) -> tuple[list[Cell], list[Cell]]:
    """The rows of methods and ablations, and those of larger presets, which smaller budgets leave out."""
    usual = [_within(cell, budget, changes) for cell in _on_equal_terms(name)]
    return usual, [_within(cell, budget, changes, own_pace=True) for cell in _beyond(name)]


def _on_equal_terms(name: str) -> list[Cell]:
    """Every method and ST-MAML's ablations, with what the search chose for each, or else by the first preset."""
    methods = [method for method in METHODS if presets(name, method)]
    wanted = [*methods, *(ABLATIONS if "st-maml" in methods else ())]
    return [Cell(row, searched(RECIPES, name, row) or _by_recipe(name, row)) for row in wanted]


def _by_recipe(name: str, row: str) -> Experiment:
    method = "st-maml" if row in ABLATIONS else row
    return with_changes(recipe(name, method, presets(name, method)[0]), ABLATIONS.get(row, {}))


def _beyond(name: str) -> list[Cell]:
    """Rows at a pace of their own: presets that are not of the paper's size, the authors' code, and what tells apart
    what two of them differ in."""
    wanted = [(m, preset) for preset in BEYOND for m in METHODS if preset in presets(name, m)]
    rows = [Cell(f"{m}-{preset}", recipe(name, m, preset)) for m, preset in wanted]
    if name == "regression2d":  # on this table's tasks
        table = regression2d.Config()
        usual = {"benchmark_settings.input_range": table.input_range, "benchmark_settings.balanced": table.balanced}
        rows.append(Cell("st-maml-released", with_changes(recipe(name, "st-maml", "released"), usual)))
    if name == "weather":  # else attention would stand against none
        ours, theirs = (recipe(name, method, "tuned") for method in ("st-maml", "maml"))
        same = {"modelling": ours.modelling, "training": ours.training}
        rows.append(Cell("maml-tuned-attention", with_changes(theirs, same)))
    return rows


def _looking(name: str, benchmark: Benchmark) -> list[Cell]:
    """MAML with attention, where it is tried on the benchmark at all and inputs are no images."""
    if not presets(name, "maml") or benchmark.train.spec.is_image:
        return []
    return [Cell(LOOKING, searched(RECIPES, name, LOOKING) or row_recipe(RECIPES, name, LOOKING))]


def _within(cell: Cell, budget: Budget, changes: dict[str, Any], *, own_pace: bool = False) -> Cell:
    """The row within the budget; in the full one, a preset of `BEYOND` has its own number of steps and tasks."""
    if own_pace and budget.own_pace:
        budget = replace(budget, steps=None, tasks_per_batch=None)
    wanted = {name: getattr(budget, name) for name in ("steps", "tasks_per_batch", "steps_per_call", "val_tasks")}
    settings: Any = cell.settings
    experiment = replace(cell.experiment, benchmark_settings=replace(settings, **changes))
    return replace(cell, experiment=experiment).trained_by(**given(**wanted))


def given(**settings: Any) -> dict[str, Any]:
    """Those that are not None."""
    return {name: value for name, value in settings.items() if value is not None}


def _baselines(name: str, benchmark: Benchmark, budget: Budget) -> list[BaselineCell]:
    rows = benchmark.rows
    if rows is None:
        return []
    boosting = QUICK if budget.quick else BoostingConfig()
    each = regression_baselines(time_input=rows.time_input, boosting=boosting)
    return [BaselineCell(one.name, one, name, rows.settings, boosting.max_rows) for one in each]
