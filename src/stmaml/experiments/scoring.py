"""What a run scores on frozen tasks, and under which conditions."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax.random as jr

from stmaml.benchmarks.base import TEST_SEED, Benchmark
from stmaml.benchmarks.sources import TaskSet
from stmaml.conditions import Conditions, slugify
from stmaml.errors import SettingError
from stmaml.evaluation import Scores, evaluate, trace
from stmaml.experiments.learners import load_learner, with_inner_steps
from stmaml.experiments.settings import EvaluateConfig, load_experiment
from stmaml.methods.base import AbstractMetaLearner
from stmaml.recipes import Experiment
from stmaml.runs import Run, as_json


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
    learner = learner_in_test(run, experiment, config, benchmark)
    tests = tests or tests_of(benchmark, experiment.benchmark, config)
    as_trained = (config.shots, config.noise, config.inner_steps, config.years) == (None,) * 4
    kept = config.data is not None and run.curves()  # figures stay those of the first data
    for showcase in benchmark.showcases() if as_trained and not (config.validation or kept) else ():
        run.save_arrays(Path("curves") / f"{showcase.name}.npz", trace(learner, showcase, key=jr.key(TEST_SEED)))
    # Scores come last: whoever finds them takes the run for scored, and would not draw what a kill had left undrawn.
    return [_saved(run, test, config, score_on(run, test, config, benchmark, learner)) for test in tests]


def learner_in_test(
    run: Run, experiment: Experiment, config: EvaluateConfig, benchmark: Benchmark
) -> AbstractMetaLearner:
    """A run's learner, with as many inner steps as asked for."""
    learner = load_learner(run, experiment, benchmark.train.spec, benchmark.own_scaling)
    return learner if config.inner_steps is None else with_inner_steps(learner, config.inner_steps)


def score_on(
    run: Run, test: Test, config: EvaluateConfig, benchmark: Benchmark, learner: AbstractMetaLearner
) -> Scored:
    """What a learner scores in a test, told under the name of a run."""
    judge = benchmark.aftercare.judge(run.folder, test.shots or 0) if benchmark.aftercare else None
    what = f"scoring {run.folder.name}" + ("" if test.shots is None else f" from {test.shots} labelled rows")
    key = jr.key(TEST_SEED)
    scores = evaluate(learner, test.tasks, num_samples=config.samples, key=key, judge=judge, what=what)
    return Scored(summarise_scores(run, test, benchmark, scores), scores)


def _saved(run: Run, test: Test, config: EvaluateConfig, scored: Scored) -> Scored:
    if not config.validation:
        save_scores(run, test, scored.summary, scored.scores)
    return scored


def save_scores(run: Run, test: Test, summary: dict[str, Any], scores: Scores) -> None:
    """Keeps scores in the run's folder."""
    arrays = {**scores.values, **scores.extra, "family": scores.family}
    run.save_scores(test.name(summary.get("row", "")), summary, arrays)


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
