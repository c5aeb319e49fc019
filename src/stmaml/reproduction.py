"""A whole table of the paper as rows: methods and baselines, trained, evaluated and skipped once done."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stmaml import experiments
from stmaml.baselines import Baseline, BoostingConfig, Pooled, numpy_tasks, regression_baselines, score_baseline
from stmaml.benchmarks.base import Benchmark, BenchmarkConfig, Budget
from stmaml.errors import RunError, SettingError
from stmaml.experiments import EvaluateConfig, evaluate_run, save_scores, summarise_scores, tests_of, train_runs
from stmaml.methods import METHODS
from stmaml.methods.looks_up import LookUp
from stmaml.provenance import provenance
from stmaml.recipes import BEYOND, Experiment, presets, recipe
from stmaml.runs import Run, as_json, held_runs
from stmaml.training import Diverged, Observer

VAL_TASKS = 500  # validation tasks that choose a baseline's settings
QUICK = BoostingConfig(
    learning_rate=(0.1,), max_leaf_nodes=(15,), min_samples_leaf=(20,), max_iter=60, max_rows=20_000, tuning_rows=5_000
)
ABLATIONS = {
    "st-maml-without-augmentation": {"augment": False},
    "st-maml-without-tailoring": {"tailor": False},
    "st-maml-deterministic": {"stochastic": False},
}
LOOKING = "maml-attention"  # MAML whose inputs look the support up: what attention brings without a task variable
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
        for shots in (None, *swept):
            config = EvaluateConfig(tasks=budget.tasks, samples=budget.samples, shots=shots)
            tested = benchmark.vary(config.of(self.experiment))
            tests = tests_of(tested, self.experiment.benchmark, config)
            for run in runs:
                if not all(test.done(run) for test in tests):
                    evaluate_run(run, config, tested, tests)

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
        (test,) = tests_of(benchmark, self.benchmark, config)
        if test.done(run):
            return
        assert benchmark.rows is not None
        train = Pooled(*benchmark.rows.pooled(self.max_rows, 0))
        val = numpy_tasks(benchmark.val_set(min(VAL_TASKS, budget.tasks)))
        scores = score_baseline(self.baseline.fit(train, val), test.tasks)
        save_scores(run, test, summarise_scores(run, test, benchmark, scores), scores)

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
    plain = [Cell(m, recipe(name, m, presets(name, m)[0])) for m in METHODS if presets(name, m)]
    wanted = [(m, preset) for preset in BEYOND for m in METHODS if preset in presets(name, m)]
    large = [Cell(f"{m}-{preset}", recipe(name, m, preset)) for m, preset in wanted]
    rows: list[Row] = [_within(cell, budget, changes) for cell in (*plain, *_ablated(name), *_looking(name, benchmark))]
    rows += [_within(cell, budget, changes, own_pace=True) for cell in large]
    rows += _baselines(name, benchmark, budget)
    if unknown := sorted(set(only) - {row.name for row in rows}):
        raise SettingError(f"there is no row '{unknown[0]}'; choose among: {', '.join(row.name for row in rows)}.")
    usual = {row.name for row in rows} - ({cell.name for cell in large} if not budget.own_pace else set())
    return [row for row in rows if row.name in (only or usual)]


def _ablated(name: str) -> list[Cell]:
    """ST-MAML with one part off, where it is tried on the benchmark at all."""
    if not presets(name, "st-maml"):
        return []
    main: Any = recipe(name, "st-maml", presets(name, "st-maml")[0])
    settings = {row: replace(main.method_settings, **off) for row, off in ABLATIONS.items()}
    return [Cell(row, replace(main, method_settings=changed)) for row, changed in settings.items()]


def _looking(name: str, benchmark: Benchmark) -> list[Cell]:
    """MAML with attention, where it is tried on the benchmark at all and inputs are no images."""
    if not presets(name, "maml") or benchmark.train.spec.is_image:
        return []
    main = recipe(name, "maml", presets(name, "maml")[0])
    return [Cell(LOOKING, replace(main, modelling=replace(main.modelling, lookup=LookUp("attention"))))]


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
