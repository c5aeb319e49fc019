"""From settings to a run folder and back: create, train, resume, load, evaluate. One way, wherever tasks come from."""

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.random as jr
from jaxtyping import PRNGKeyArray

from stmaml.benchmarks import BENCHMARKS
from stmaml.benchmarks.base import TABLE, TEST_SEED, VAL_SEED, Benchmark, BenchmarkConfig
from stmaml.benchmarks.sources import TaskSet, TaskSource, freeze
from stmaml.border.typed import RESTORE, need
from stmaml.conditions import Conditions, slugify
from stmaml.errors import RunError, SettingError, StmamlError, at_least
from stmaml.evaluation import Scores, evaluate, trace
from stmaml.legacy.settings import OLD_KEYS, with_old_forms
from stmaml.locks import check_unlocked, locked
from stmaml.methods import METHODS
from stmaml.methods.base import AbstractMetaLearner, MethodConfig
from stmaml.methods.wrapper import in_use, inner_loop, method_of, with_inner
from stmaml.provenance import provenance
from stmaml.recipes import Experiment, InputScale, Modelling, build_learner, measured_scaling
from stmaml.runs import Run, as_json, from_dict, held_runs, newest_common_checkpoint
from stmaml.tasks import Scaling, TaskSpec
from stmaml.training import Observer, Recorder, TrainConfig, initial_state, train_learners
from stmaml.training.devices import ONE_DEVICE, Layout

RUN_WORD = 0x72756E73  # "runs", folded into a run's key: small words are the places of a split, where tasks' keys are


@dataclass(frozen=True)
class EvaluateConfig:
    """What to evaluate on."""

    tasks: int | None = None
    """Test tasks; 1,000 if not given, and for a table as many as in `fit`."""
    samples: int = 20
    """Predictors sampled for each task; 1 is the paper's protocol."""
    shots: int | None = None
    """Labelled examples in a support set, if not as in training."""
    noise: float | None = None
    """Standard deviation of the target noise, if not as in training."""
    inner_steps: int | None = None
    """Gradient steps on the support set, if not as in training."""
    data: str | None = None
    """Where the benchmark's files lie, if not where they lay in training."""
    years: tuple[int, ...] | None = None
    """Years of the weather stations, if not those trained on: scores are kept beside those of other years."""
    val_shift: int | None = None
    """Days by which the dates of validation tasks of weather move, if not as in training."""
    validation: bool = False
    """Score validation tasks, to choose settings by, and save nothing: what something was chosen on is no test."""

    def __post_init__(self):
        at_least(1, tasks=self.tasks, samples=self.samples)
        at_least(0, inner_steps=self.inner_steps)

    def of(self, experiment: Experiment) -> BenchmarkConfig:
        """The settings of the benchmark that a run of this experiment is scored on."""
        return self.on(experiment.benchmark, experiment.benchmark_settings)

    def on(self, benchmark: str, settings: BenchmarkConfig) -> BenchmarkConfig:
        """The settings of a benchmark, changed as asked for."""
        asked = {"shots": self.shots, "noise": self.noise, "data": self.data, "val_shift": self.val_shift}
        return settings.at_test(benchmark, **asked, test_years=self.years, val_years=self.years)


def meta_train(
    method: str | MethodConfig,
    source: TaskSource,
    *,
    val: TaskSource | None = None,
    standardise: bool = True,
    noise_model: str = "learned",
    input_scale: InputScale = "moments",
    training: TrainConfig | None = None,
    observers: Sequence[Observer] = (),
    seed: int = 0,
) -> AbstractMetaLearner:
    """A learner meta-trained on the tasks of `source`, the one that did best on held-out tasks.

    Args:
        method: a name of METHODS, for its default settings, or the settings themselves.
        val: where held-out tasks come from; by default `source` too, under another key.
        standardise: scale inputs (see `input_scale`) and real targets by their means and spreads over the tasks.
        noise_model: how the spread of real targets is modelled: a name of likelihoods.NOISE_MODELS.
        input_scale: `quantiles` scales inputs by their ranks, which suits heavy tails and gaps coded as numbers.
    """
    if isinstance(method, str) and method not in METHODS:
        raise SettingError(f"there is no method '{method}'; choose one of: {', '.join(METHODS)}.")
    config = METHODS[method]() if isinstance(method, str) else method
    training = training or TrainConfig(steps=5000, val_metric="nll")
    modelling = Modelling(standardise, noise_model, input_scale)
    scaling = measured_scaling(modelling, source) if standardise else None
    held_out = freeze(val or source, training.val_tasks, seed=VAL_SEED)
    init_key, train_key = run_keys(seed)
    learner = build_learner(config, source.spec, modelling, key=init_key, scaling=scaling)
    return train_learners([learner], source, held_out, training, keys=[train_key], observers=observers)[0]


def train_once(experiment: Experiment, benchmark: Benchmark, *, seed: int = 0) -> AbstractMetaLearner:
    """The learner that did best on validation tasks; no run folder keeps it."""
    init_key, train_key = run_keys(seed)
    learner = fresh(experiment, benchmark.train.spec, scaling_for(experiment, benchmark), key=init_key)
    held_out = benchmark.val_set(experiment.training.val_tasks)
    return train_learners([learner], benchmark.train, held_out, experiment.training, keys=[train_key])[0]


def scaling_for(experiment: Experiment, benchmark: Benchmark) -> Scaling | None:
    """How the experiment's learner is to scale its tasks, if at all."""
    modelling = experiment.modelling
    return (benchmark.own_scaling or measured_scaling(modelling, benchmark.train)) if modelling.standardise else None


def run_keys(seed: int, *, as_in: str | None = None) -> tuple[PRNGKeyArray, PRNGKeyArray]:
    """The keys of a run's first weights and of its training.

    They are a run's own; `as_in` 0.1.0, those of seeds 1 and 2 are also the first that validation and test tasks use.
    """
    root = jr.key(seed)
    init_key, train_key = jr.split(root if as_in == OLD_KEYS else jr.fold_in(root, RUN_WORD))
    return init_key, train_key


def _keys_of(run: Run) -> tuple[PRNGKeyArray, PRNGKeyArray]:
    """Those a run began with, so that it goes on with them."""
    config = run.config()
    return run_keys(config["seed"], as_in=config.get("keys"))


def run_folders(folder: Path, seeds: list[int]) -> list[Run]:
    """Where the runs go: the folder itself for one seed, a folder below it for each of several."""
    return [Run(folder)] if len(seeds) == 1 else [Run(folder / f"seed-{seed}") for seed in seeds]


def create_runs(
    experiment: Experiment, benchmark: Benchmark, folder: Path, seeds: list[int], *, force: bool = False
) -> list[Run]:
    """The run folders of an experiment, with their settings written."""
    runs = run_folders(folder, seeds)
    held = held_runs(folder)
    for run in () if force else held:  # all or none
        run.check_free()
    for run in held:
        check_unlocked(run.folder)
    scaling = scaling_for(experiment, benchmark)
    eqx.filter_eval_shape(lambda: fresh(experiment, benchmark.train.spec, scaling))  # refuses what cannot be
    for run in held:
        if run not in runs:  # else the folder would be read as those seeds, or as that one run
            run.remove()
    opened = replace(experiment, benchmark_settings=benchmark.settings)  # a table then knows its columns
    for run, seed in zip(runs, seeds, strict=True):
        about = {**provenance(), **describe(opened, seed), "scaling": None if scaling is None else as_json(scaling)}
        run.create(about, force=force)
    return runs


def fresh(
    experiment: Experiment, spec: TaskSpec, scaling: Scaling | None, *, key: PRNGKeyArray | None = None
) -> AbstractMetaLearner:
    """A learner of the experiment with first weights; without a key, any will do."""
    key = jr.key(0) if key is None else key
    return build_learner(experiment.method_settings, spec, experiment.modelling, key=key, scaling=scaling)


def _scaling_of(run: Run, own: Scaling | None) -> Scaling | None:
    """The scaling a run was trained with: measured anew, it might differ where files have changed since."""
    stored = run.config().get("scaling")
    if stored is None:
        return own
    try:
        return _checked_scaling(from_dict(Scaling, stored, "scaling."))
    except RunError as error:
        raise RunError(f"{run.config_path}: {error}") from error


def _checked_scaling(scaling: Scaling) -> Scaling:
    """The scaling, if it can be divided by, and its quantiles rise."""
    finite = [*scaling.x_mean, *scaling.y_mean, *(knot for knots in scaling.x_knots for knot in knots)]
    rising = all(low <= high for row in (*scaling.x_knots, *scaling.x_ranks) for low, high in pairwise(row))
    if not all(map(math.isfinite, finite)) or not rising:
        raise RunError(f"'scaling' must have finite means and rising quantiles. {RESTORE}")
    if not all(0 < std < math.inf for std in (*scaling.x_std, *scaling.y_std)):
        raise RunError(f"'scaling' must have spreads above 0; one is not. {RESTORE}")
    return scaling


def train_runs(
    runs: list[Run],
    experiment: Experiment,
    benchmark: Benchmark,
    *,
    observers: Sequence[Observer] = (),
    should_stop: Callable[[], bool] = lambda: False,
    layout: Layout = ONE_DEVICE,
) -> list[AbstractMetaLearner]:
    """Trains the runs side by side, from their newest checkpoint if they have one, and saves as it goes. While it does,
    the folders are locked: a second writer is refused. What a run was trained on so far, it need not go on with."""
    with locked([run.folder for run in runs]) as locks:
        seen = (locks, Recorder(runs), *observers)  # the locks first: who has lost them writes no more
        return _train_locked(runs, experiment, benchmark, seen, should_stop, layout)


def _train_locked(
    runs: list[Run],
    experiment: Experiment,
    benchmark: Benchmark,
    observers: Sequence[Observer],
    should_stop: Callable[[], bool],
    layout: Layout,
) -> list[AbstractMetaLearner]:
    for run in runs:
        _check_same(run, experiment)
    training, scaling = experiment.training, _scaling_of(runs[0], benchmark.own_scaling)
    keys = [_keys_of(run) for run in runs]
    learners = [fresh(experiment, benchmark.train.spec, scaling, key=init_key) for init_key, _ in keys]
    start = newest_common_checkpoint(runs, [initial_state(learner, training) for learner in learners])
    for run in runs:
        run.sweep()
        run.trim_log(start[0] if start else -1)
    if start is None or start[0] < training.steps:
        source, val = benchmark.train, benchmark.val_set(training.val_tasks)
        train_keys = [train_key for _, train_key in keys]
        how: Any = {"observers": observers, "start": start, "should_stop": should_stop, "layout": layout}
        train_learners(learners, source, val, training, keys=train_keys, **how)
    trained = [run.load_learner(learner) for run, learner in zip(runs, learners, strict=True)]
    if benchmark.aftercare is not None:
        for run, learner in zip(runs, trained, strict=True):
            benchmark.aftercare.finish(learner, run.folder)
    return trained


def _check_same(run: Run, experiment: Experiment) -> None:
    """Raises RunError where the folder, locked by now, holds the settings of another learner than is to be trained."""
    held = load_experiment(run)
    pairs = zip(
        (held.method, held.method_settings, held.modelling),
        (experiment.method, experiment.method_settings, experiment.modelling),
        strict=True,
    )
    if any(one != other for one, other in pairs):
        raise RunError(
            f"{run.folder} holds other settings by now: another process has made it anew. Choose another --run."
        )


def load_experiment(run: Run) -> Experiment:
    """The settings of a run."""
    config = run.config()
    try:
        return experiment_of(config)
    except RunError as error:
        raise RunError(f"{run.config_path}: {error}") from error
    except KeyError as error:
        words = f"lacks or misnames {error}. Restore it from a copy, or train again."
        raise RunError(f"{run.config_path} {words}") from error
    except (TypeError, ValueError) as error:
        words = f"has a setting that does not fit: {error} Restore it, or train again."
        raise RunError(f"{run.config_path} {words}") from error


def experiment_of(config: dict[str, Any]) -> Experiment:
    """The settings that `describe` wrote."""
    benchmark, method, _ = config["benchmark"], config["method"], need(int, config["seed"], "seed")
    name = benchmark["name"]
    # Settings of tables are imported when asked for: polars comes with them.
    tasks = importlib.import_module("stmaml.tables.benchmark").Config if name == TABLE else BENCHMARKS[name]
    kinds: Any = ((tasks, benchmark["settings"]), (METHODS[method["name"]], method["settings"]))
    kinds += ((Modelling, config["modelling"]), (TrainConfig, config["training"]))
    settings = [from_dict(kind, with_old_forms(kind, need(dict, values, "settings"))) for kind, values in kinds]
    return Experiment(name, method["name"], need(str, method["preset"], "preset"), *settings)


def describe(experiment: Experiment, seed: int) -> dict[str, Any]:
    """The settings of an experiment as JSON."""
    of = as_json(experiment)
    return {
        "seed": seed,
        "benchmark": {"name": of["benchmark"], "settings": of["benchmark_settings"]},
        "method": {"name": of["method"], "preset": of["preset"], "settings": of["method_settings"]},
        "modelling": of["modelling"],
        "training": of["training"],
    }


def load_run(folder: Path | str, *, data: str | None = None) -> tuple[Experiment, AbstractMetaLearner]:
    """A run's settings and its best learner; `data` says where its benchmark's files lie now."""
    run = Run(Path(folder))
    experiment = load_experiment(run)
    benchmark = EvaluateConfig(data=data).of(experiment).open()
    return experiment, load_learner(run, experiment, benchmark.train.spec, benchmark.own_scaling)


def load_learner(
    run: Run, experiment: Experiment, spec: TaskSpec, own_scaling: Scaling | None = None
) -> AbstractMetaLearner:
    """The best learner of a run whose tasks look like `spec`; `own_scaling` is the benchmark's, where it has one."""
    return in_use(run.load_learner(_shapes(run, experiment, spec, _scaling_of(run, own_scaling))))


def _shapes(run: Run, experiment: Experiment, spec: TaskSpec, scaling: Scaling | None) -> AbstractMetaLearner:
    """A learner of shapes alone: settings that ask for a trillion weights are refused without making them."""
    try:
        return eqx.filter_eval_shape(lambda: fresh(experiment, spec, scaling))
    except StmamlError:
        raise
    except (TypeError, ValueError, OverflowError, ZeroDivisionError, IndexError) as error:
        why = str(error).partition("\n")[0]
        raise RunError(f"{run.config_path} describes a learner that cannot be ({why}). {RESTORE}") from error


@dataclass(frozen=True)
class Test:
    """A frozen set of tasks, and the conditions that its scores are under."""

    tasks: TaskSet
    conditions: Conditions
    shots: int | None = None
    """Labelled examples, where one test goes through several numbers of them."""

    def name(self, row: str = "") -> str:
        """What the files of its scores are called: other tasks, other files. `row` is what else is scored in a run."""
        parts = [self.conditions.slug(), f"tasks{self.tasks.num_tasks}", self.tasks.digest[:8]]
        return "-".join([*parts, *[slugify(row)] * bool(row)])

    def done(self, run: Run) -> bool:
        """Whether a run has been scored on it."""
        own = [summary for summary in run.scores().values() if not summary.get("row")]
        told = [summary for summary in own if {"conditions", "digest"} <= set(summary)]
        scored = [(Conditions.from_json(summary["conditions"]), summary["digest"]) for summary in told]
        return (self.conditions, self.tasks.digest) in scored


def tests_of(benchmark: Benchmark, name: str, config: EvaluateConfig) -> list[Test]:
    """The tests of a benchmark, opened under the settings that `config` asks for."""
    if config.validation and benchmark.labelled:
        raise SettingError("the validation groups of a table have calibrated its runs: score test groups instead.")
    count = config.tasks or benchmark.test_tasks
    tasks = benchmark.choosing_set(count) if config.validation else benchmark.test_set(count)
    stated = {"validation": config.validation, **benchmark.conditions}
    usual = Conditions(name, stated, config.samples, config.inner_steps)
    by_shots = {shots: replace(usual, tasks={**usual.tasks, "shots": shots}) for shots in benchmark.labelled}
    tests = [Test(tasks.with_shots(shots), conditions, shots) for shots, conditions in by_shots.items()]
    return tests or [Test(tasks, usual)]


@dataclass(frozen=True)
class Scored:
    """What a run scores in a test."""

    summary: dict[str, Any]
    scores: Scores


def evaluate_run(
    run: Run, config: EvaluateConfig, benchmark: Benchmark, tests: list[Test] | None = None
) -> list[dict[str, Any]]:
    """The summaries of `score_run`."""
    return [scored.summary for scored in score_run(run, config, benchmark, tests)]


def score_run(run: Run, config: EvaluateConfig, benchmark: Benchmark, tests: list[Test] | None = None) -> list[Scored]:
    """Scores a run's learner on test tasks, `tests_of` these if not given, and saves summary, per-task scores and what
    its figures need; of validation tasks nothing is saved, so that no report takes them for a test."""
    experiment = load_experiment(run)
    learner = load_learner(run, experiment, benchmark.train.spec, benchmark.own_scaling)
    if config.inner_steps is not None:
        learner = with_inner_steps(learner, config.inner_steps)
    tests = tests or tests_of(benchmark, experiment.benchmark, config)
    as_trained = (config.shots, config.noise, config.inner_steps, config.years) == (None,) * 4
    kept = config.data is not None and run.curves()  # figures stay those of the first data
    for showcase in benchmark.showcases() if as_trained and not (config.validation or kept) else ():
        run.save_arrays(Path("curves") / f"{showcase.name}.npz", trace(learner, showcase, key=jr.key(TEST_SEED)))
    # Scores come last: whoever finds them takes the run for scored, and would not draw what a kill had left undrawn.
    return [_score(run, test, config, benchmark, learner) for test in tests]


def _score(run: Run, test: Test, config: EvaluateConfig, benchmark: Benchmark, learner: AbstractMetaLearner) -> Scored:
    judge = benchmark.aftercare.judge(run.folder, test.shots or 0) if benchmark.aftercare else None
    what = f"scoring {run.folder.name}" + ("" if test.shots is None else f" from {test.shots} labelled rows")
    key = jr.key(TEST_SEED)
    scores = evaluate(learner, test.tasks, num_samples=config.samples, key=key, judge=judge, what=what)
    summary = summarise_scores(run, test, benchmark, scores)
    if not config.validation:
        save_scores(run, test, summary, scores)
    return Scored(summary, scores)


def save_scores(run: Run, test: Test, summary: dict[str, Any], scores: Scores) -> None:
    """Keeps scores in the run's folder."""
    arrays = {**scores.values, **scores.extra, "family": scores.family}
    run.save_scores(test.name(summary.get("row", "")), summary, arrays)


def with_inner_steps(learner: AbstractMetaLearner, steps: int) -> AbstractMetaLearner:
    """The same learner with another number of inner steps."""
    if inner_loop(learner) is None:
        raise SettingError(f"{type(method_of(learner)).__name__} has no inner loop, so --inner-steps cannot change it.")
    return with_inner(learner, lambda inner: replace(inner, inner_steps=steps))


def summarise_scores(run: Run, test: Test, benchmark: Benchmark, scores: Scores) -> dict[str, Any]:
    """Scores with all that says what they are scores of, as saved in a run folder."""
    config = run.config()
    floor = benchmark.floor()
    return {
        "benchmark": config["benchmark"]["name"],
        "method": config["method"]["name"],
        "preset": config["method"]["preset"],
        "seed": config["seed"],
        "tasks": test.tasks.num_tasks,
        "samples": test.conditions.samples,
        "inner_steps": test.conditions.inner_steps,
        "task_set": test.conditions.path(),
        "conditions": test.conditions.to_json(),
        "digest": scores.digest,
        "targets_digest": test.tasks.targets_digest,
        "settings": {name: v for name, v in as_json(benchmark.settings).items() if name != "schema"},
        **_normalisation(config, benchmark),
        "metrics": scores.summary(),
        "families": scores.family_summary(benchmark.families),
        **({} if floor is None else {"floor": floor}),
        **({"extra": scores.extra_summary()} if scores.extra else {}),
        **({} if benchmark.sweep is None else {"sweep": as_json(benchmark.sweep)}),
    }


def _normalisation(config: dict[str, Any], benchmark: Benchmark) -> dict[str, str]:
    """Whose statistics normalise pictures, on which a score depends; nothing where no network does so."""
    conv = config["method"]["settings"].get("conv")
    return {"norm": conv["norm"]} if conv and benchmark.train.spec.is_image else {}
