"""From settings to a run folder and back: train, resume, load, evaluate."""

import dataclasses
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.random as jr
import numpy as np

from stmaml.benchmarks import BENCHMARKS
from stmaml.benchmarks.base import Benchmark, BenchmarkConfig, TaskSet, TaskSource, freeze
from stmaml.errors import RunError, SettingError
from stmaml.evaluation import Scores, evaluate, trace
from stmaml.methods import METHODS
from stmaml.methods.base import AbstractMetaLearner, MethodConfig
from stmaml.methods.standardised import Standardised
from stmaml.provenance import provenance
from stmaml.recipes import Experiment, InputScale, Modelling, build_learner, measured_scaling
from stmaml.runs import Run, from_dict, held_runs, newest_common_checkpoint
from stmaml.tasks import NoiseModel, Scaling
from stmaml.training import Observer, State, TrainConfig, initial_state, train_learners, unbundle

VAL_SEED = 1
TEST_SEED = 2


@dataclass(frozen=True)
class EvaluateConfig:
    """What to evaluate on."""

    tasks: int = 1000
    """Test tasks."""
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
    validation: bool = False
    """Score validation tasks, to choose settings by, and save nothing: what something was chosen on is no test."""

    def __post_init__(self):
        for flag, value in (("--tasks", self.tasks), ("--samples", self.samples)):
            if value < 1:
                raise SettingError(f"{flag} must be at least 1; got {value}.")
        if self.inner_steps is not None and self.inner_steps < 0:
            raise SettingError(f"--inner-steps must be at least 0; got {self.inner_steps}.")


class Recorder:
    """Writes a run folder, one for each learner trained side by side, as training goes on."""

    def __init__(self, runs: list[Run]):
        """One run for each learner."""
        self._runs = runs
        self._began = time.monotonic()

    def progress(self, step: int, logs: dict[str, np.ndarray]) -> None:
        """A line in each log."""
        for i, run in enumerate(self._runs):
            values = {name: float(series[i]) for name, series in logs.items()}
            run.append_log({"step": step, "seconds": round(time.monotonic() - self._began, 3), **values})

    def validated(self, step: int, scores: list[dict[str, float]], improved: list[bool], state: State) -> None:
        """A line in each log, and the weights where they are the best so far."""
        for i, run in enumerate(self._runs):
            run.append_log({"step": step, "validation": scores[i]})
            if improved[i]:
                run.save_learner(unbundle(state, len(self._runs))[i].learner)

    def checkpoint(self, step: int, state: State) -> None:
        """The state of each learner."""
        for run, one in zip(self._runs, unbundle(state, len(self._runs)), strict=True):
            run.save_checkpoint(step, one)

    def rolled_back(self, step: int, to_step: int, seed_index: int, rate: float) -> None:
        """A line in the log of the run that diverged."""
        for run in self._runs:
            run.trim_log(to_step)
        self._runs[seed_index].append_log({"step": to_step, "diverged_at": step, "rate": rate})


class Together:
    """Several observers as one."""

    def __init__(self, *observers: Observer):
        """Told in this order."""
        self._observers = observers

    def progress(self, step: int, logs: dict[str, np.ndarray]) -> None:
        """Tells all."""
        for observer in self._observers:
            observer.progress(step, logs)

    def validated(self, step: int, scores: list[dict[str, float]], improved: list[bool], state: State) -> None:
        """Tells all."""
        for observer in self._observers:
            observer.validated(step, scores, improved, state)

    def checkpoint(self, step: int, state: State) -> None:
        """Tells all."""
        for observer in self._observers:
            observer.checkpoint(step, state)

    def rolled_back(self, step: int, to_step: int, seed_index: int, rate: float) -> None:
        """Tells all."""
        for observer in self._observers:
            observer.rolled_back(step, to_step, seed_index, rate)


def meta_train(
    method: str | MethodConfig,
    source: TaskSource,
    *,
    val: TaskSource | None = None,
    standardise: bool = True,
    noise_model: NoiseModel = "learned",
    input_scale: InputScale = "moments",
    training: TrainConfig | None = None,
    observer: Observer | None = None,
    seed: int = 0,
) -> AbstractMetaLearner:
    """A learner meta-trained on the tasks of `source`, the one that did best on held-out tasks.

    Args:
        method: a name of METHODS, for its default settings, or the settings themselves.
        val: where held-out tasks come from; by default `source` too, under another key.
        standardise: scale inputs (see `input_scale`) and real targets by their means and spreads over the tasks.
        noise_model: how the spread of real targets is modelled (see TaskSpec.noise).
        input_scale: `quantiles` scales inputs by their ranks, which suits heavy tails and gaps coded as numbers.
    """
    if isinstance(method, str) and method not in METHODS:
        raise SettingError(f"there is no method '{method}'; choose one of: {', '.join(METHODS)}.")
    config = METHODS[method]() if isinstance(method, str) else method
    training = training or TrainConfig(steps=5000, val_metric="nll")
    init_key, train_key = jr.split(jr.key(seed))
    benchmark = Benchmark(source, val or source, val or source, families=("all",), test_name="own")
    learner = build_learner(config, benchmark, Modelling(standardise, noise_model, input_scale), key=init_key)
    held_out = freeze(benchmark.val, training.val_tasks, seed=VAL_SEED, name="own")
    return train_learners([learner], source, held_out, training, keys=[train_key], observer=observer)[0]


def run_folders(folder: Path, seeds: list[int]) -> list[Run]:
    """Where the runs go: the folder itself for one seed, a folder below it for each of several."""
    return [Run(folder)] if len(seeds) == 1 else [Run(folder / f"seed-{seed}") for seed in seeds]


def create_runs(experiment: Experiment, folder: Path, seeds: list[int], *, force: bool = False) -> list[Run]:
    """The run folders of an experiment, with their settings written."""
    runs = run_folders(folder, seeds)
    held = held_runs(folder)
    for run in () if force else held:  # all or none
        run.check_free()
    scaling = _check_settings(experiment)
    for run in held:
        if run not in runs:  # else the folder would be read as those seeds, or as that one run
            run.remove()
    for run, seed in zip(runs, seeds, strict=True):
        run.create({**_describe(experiment, seed), "scaling": scaling}, force=force)
    return runs


def _check_settings(experiment: Experiment) -> dict[str, Any] | None:
    """The scaling of the training tasks, if asked for; SettingError for a learner that cannot be built."""
    benchmark = experiment.benchmark_settings.open()
    # Measured outside of what follows, which only traces.
    scaling = measured_scaling(experiment.modelling, benchmark) if experiment.modelling.standardise else None
    eqx.filter_eval_shape(
        lambda: build_learner(
            experiment.method_settings, benchmark, experiment.modelling, key=jr.key(0), scaling=scaling
        )
    )
    return None if scaling is None else dataclasses.asdict(scaling)


def _scaling_of(run: Run) -> Scaling | None:
    """The scaling a run was trained with: measured anew, it might differ where files have changed since."""
    stored = run.config().get("scaling")
    return None if stored is None else from_dict(Scaling, stored)


def train_runs(
    runs: list[Run], *, observers: tuple[Observer, ...] = (), should_stop: Callable[[], bool] = lambda: False
) -> list[AbstractMetaLearner]:
    """Trains the runs side by side, from their newest checkpoint if they have one, and saves as it goes."""
    experiment = load_experiment(runs[0])
    benchmark = experiment.benchmark_settings.open()
    keys = [jr.key(run.config()["seed"]) for run in runs]
    init_keys, train_keys = zip(*(jr.split(key) for key in keys), strict=True)
    scaling = _scaling_of(runs[0])
    learners = [
        build_learner(experiment.method_settings, benchmark, experiment.modelling, key=key, scaling=scaling)
        for key in init_keys
    ]
    start = newest_common_checkpoint(runs, [initial_state(learner, experiment.training) for learner in learners])
    for run in runs:
        run.trim_log(start[0] if start else -1)
    if start is not None and start[0] >= experiment.training.steps:
        return [run.load_learner(learner) for run, learner in zip(runs, learners, strict=True)]
    train_learners(
        learners,
        benchmark.train,
        freeze(benchmark.val, experiment.training.val_tasks, seed=VAL_SEED, name=benchmark.test_name),
        experiment.training,
        keys=list(train_keys),
        observer=Together(Recorder(runs), *observers),
        start=start,
        should_stop=should_stop,
    )
    return [run.load_learner(learner) for run, learner in zip(runs, learners, strict=True)]


def load_experiment(run: Run) -> Experiment:
    """The settings of a run."""
    config = run.config()
    if config.get("kind") == "table":
        raise RunError(
            f"{run.folder} was made by 'stmaml fit' from a table: use 'stmaml predict {run.folder}' with it."
        )
    try:
        benchmark, method, _ = config["benchmark"], config["method"], config["seed"]
        return Experiment(
            benchmark=benchmark["name"],
            method=method["name"],
            preset=method["preset"],
            benchmark_settings=from_dict(BENCHMARKS[benchmark["name"]], benchmark["settings"]),
            method_settings=from_dict(METHODS[method["name"]], method["settings"]),
            modelling=from_dict(Modelling, config["modelling"]),
            training=from_dict(TrainConfig, config["training"]),
        )
    except RunError as error:
        raise RunError(f"{run.config_path}: {error}") from error
    except KeyError as error:
        raise RunError(
            f"{run.config_path} lacks or misnames {error}. Restore it from a copy, or train again."
        ) from error
    except (TypeError, ValueError) as error:
        raise RunError(
            f"{run.config_path} has a setting that does not fit: {error} Restore it, or train again."
        ) from error


def load_run(folder: Path | str, *, data: str | None = None) -> tuple[Experiment, AbstractMetaLearner]:
    """A run's settings and its best learner; `data` says where its benchmark's files lie now."""
    return _load(Run(Path(folder)), data=data)


def load_pretrained(benchmark: str = "regression2d") -> AbstractMetaLearner:
    """The ST-MAML that ships with the package for a benchmark, ready to adapt and predict."""
    folder = Path(str(resources.files("stmaml").joinpath("pretrained"))) / benchmark
    if not folder.is_dir():
        known = ", ".join(sorted(path.name for path in folder.parent.iterdir() if path.is_dir()))
        raise SettingError(f"no weights are shipped for '{benchmark}'; there are some for: {known}.")
    return _load(Run(folder))[1]


def _load(run: Run, *, data: str | None = None) -> tuple[Experiment, AbstractMetaLearner]:
    """The run's settings and learner; `data` says where its benchmark's files lie now."""
    experiment: Any = load_experiment(run)
    task = experiment.benchmark_settings if data is None else replace(experiment.benchmark_settings, data=data)
    like = build_learner(
        experiment.method_settings, task.open(), experiment.modelling, key=jr.key(0), scaling=_scaling_of(run)
    )
    return experiment, run.load_learner(like)


def test_set(benchmark: Benchmark, num_tasks: int) -> TaskSet:
    """The benchmark's frozen test tasks."""
    return freeze(benchmark.test, num_tasks, seed=TEST_SEED, name=benchmark.test_name)


def validation_set(benchmark: Benchmark, num_tasks: int) -> TaskSet:
    """The benchmark's frozen validation tasks."""
    return freeze(benchmark.val, num_tasks, seed=VAL_SEED, name="validation")


def evaluate_run(
    run: Run, config: EvaluateConfig, *, on_progress: Callable[[int], None] = lambda done: None
) -> dict[str, Any]:
    """Scores a run's learner on test tasks and saves summary, per-task scores and what its figures need.

    Scores of validation tasks are not saved, so that no report takes them for a test.
    """
    task = _vary(load_experiment(run), config)
    learner = _load(run, data=config.data)[1]
    if config.inner_steps is not None:
        learner = with_inner_steps(learner, config.inner_steps)
    benchmark = task.open()
    tasks = validation_set(benchmark, config.tasks) if config.validation else test_set(benchmark, config.tasks)
    scores = evaluate(learner, tasks, num_samples=config.samples, key=jr.key(TEST_SEED), on_progress=on_progress)
    summary = summarise_scores(run, task, config, benchmark, scores)
    if config.validation:
        return summary
    name = evaluation_name(task, config)
    run.save_scores(name, summary, {**scores.values, "family": scores.family})
    for showcase in benchmark.showcases() if (config.shots, config.noise, config.inner_steps) == (None,) * 3 else ():
        arrays = trace(learner, showcase, key=jr.key(TEST_SEED))
        run.save_arrays(Path("curves") / f"{showcase.name}.npz", arrays)
    return summary


def test_task(run: Run, config: EvaluateConfig) -> BenchmarkConfig:
    """The settings of the benchmark a run would be scored on."""
    return _vary(load_experiment(run), config)


def is_evaluated(run: Run, config: EvaluateConfig) -> bool:
    """Whether a run already has the scores that `evaluate_run` would make."""
    return evaluation_name(_vary(load_experiment(run), config), config) in run.scores()


def with_inner_steps(learner: AbstractMetaLearner, steps: int) -> AbstractMetaLearner:
    """The same learner with another number of inner steps."""
    if isinstance(learner, Standardised):
        return replace(learner, learner=with_inner_steps(learner.learner, steps))
    settings: Any = getattr(learner, "settings", None)
    if not hasattr(settings, "inner"):
        raise SettingError(f"{type(learner).__name__} has no inner loop, so --inner-steps cannot change it.")
    changed = replace(settings, inner=replace(settings.inner, inner_steps=steps))
    return replace(learner, settings=changed)  # pyright: ignore[reportCallIssue]


def _vary(experiment: Experiment, config: EvaluateConfig) -> Any:
    """The benchmark's settings with the test-time changes applied."""
    settings: Any = experiment.benchmark_settings
    changes = {name: getattr(config, name) for name in ("shots", "noise", "data") if getattr(config, name) is not None}
    for name in changes:
        if not hasattr(settings, name):
            raise SettingError(f"{experiment.benchmark} has no --{name} to change at test time.")
    if hasattr(settings, "min_shots"):
        changes["min_shots"] = None
    if hasattr(settings, "pool"):
        changes["pool"] = None
    return replace(settings, **changes)


def evaluation_name(task: Any, config: EvaluateConfig) -> str:
    """What the files of an evaluation are called: its conditions."""
    parts = [f"tasks{config.tasks}", f"samples{config.samples}"]
    parts += [f"{name}{getattr(task, name):g}" for name in ("shots", "noise") if hasattr(task, name)]
    if config.inner_steps is not None:
        parts.append(f"inner{config.inner_steps}")
    return "-".join(parts)


def summarise_scores(
    run: Run, task: Any, config: EvaluateConfig, benchmark: Benchmark, scores: Scores
) -> dict[str, Any]:
    """Scores with all that says what they are scores of, as saved in a run folder."""
    config_of_run = run.config()
    return {
        "benchmark": config_of_run["benchmark"]["name"],
        "method": config_of_run["method"]["name"],
        "preset": config_of_run["method"]["preset"],
        "seed": config_of_run["seed"],
        "tasks": config.tasks,
        "samples": config.samples,
        "task_set": scores.task_set,
        "digest": scores.digest,
        "settings": dataclasses.asdict(task),
        "inner_steps": config.inner_steps,
        **_normalisation(config_of_run, benchmark),
        "metrics": scores.summary(),
        "families": scores.family_summary(benchmark.families),
        **({"floor": task.floor()} if hasattr(task, "floor") else {}),
    }


def _normalisation(config: dict[str, Any], benchmark: Benchmark) -> dict[str, str]:
    """Whose statistics normalise pictures, which a score depends on; nothing for other inputs."""
    if len(benchmark.train.spec.x_shape) != 3:
        return {}
    return {"norm": config["method"]["settings"]["conv"]["norm"]}


def _describe(experiment: Experiment, seed: int) -> dict[str, Any]:
    """The settings of a run as JSON."""
    described = {
        **provenance(),
        "seed": seed,
        "benchmark": {"name": experiment.benchmark, "settings": dataclasses.asdict(experiment.benchmark_settings)},
        "method": {
            "name": experiment.method,
            "preset": experiment.preset,
            "settings": dataclasses.asdict(experiment.method_settings),
        },
        "modelling": dataclasses.asdict(experiment.modelling),
        "training": dataclasses.asdict(experiment.training),
    }
    return json.loads(json.dumps(described))
