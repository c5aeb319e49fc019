"""The table of Plain-Multi on equal terms: every row by its recipe, on a given number of tasks, then scored.

    python studies/equal_pictures.py ahead FOLDER JOB ... --data PICTURES --programs PROGRAMS    for a GPU not here
    python studies/equal_pictures.py compile FOLDER JOB ... --data PICTURES --programs PROGRAMS    and a first speed
    python studies/equal_pictures.py train FOLDER JOB ... --data PICTURES --programs PROGRAMS [--until UNIX_SECONDS]

A JOB names a row, its changes and its seed (training_rows.py): `arml@augmented` is ARML with what `best` does with
pictures (turned, cut out, tinted; seen both ways in use), `maml@training.outer_lr=0.002:1` has one setting changed. The
weights with the best accuracy on validation tasks are kept, and other validation tasks say whether 5 or 10 inner steps
are taken in the test: the same rule for every row. FOLDER/rows gets the scores, FOLDER/scores those of each task."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from ahead import Programs
from clock import parameters
from training_rows import Job, Training, arguments, some_of, take_turns, with_settings

from stmaml.benchmarks.base import SEARCH_SEED, TEST_SEED, VAL_SEED, Benchmark, Shelf
from stmaml.benchmarks.plain_multi import Config, FewShot
from stmaml.benchmarks.sources import TaskSet
from stmaml.evaluation import Scores, score_batch, scores_of
from stmaml.methods.base import AbstractMetaLearner
from stmaml.methods.wrapper import inner_loop, method_of, with_inner
from stmaml.recipes import Experiment
from stmaml.recipes.base import with_changes
from stmaml.reproduction import method_cells

NAME = "plain-multi"
BEST, AUGMENTED = "st-maml-best", "augmented"
AT_ONCE = 40  # tasks scored in one call
DRAWS = 5  # predictors in the test, of methods that sample them
TEST_STEPS = (5, 10)  # inner steps in the test that are tried
TOLD = ("accuracy", "nll", "ece")


def experiments() -> dict[str, Experiment]:
    """The experiment of every row: recipes, ablations, `best`."""
    usual, large = method_cells(NAME, Config.budgets.paper)
    return {cell.name: cell.experiment for cell in (*usual, *large)}


def changed(job: Job, image_size: int) -> Experiment:
    """The experiment of a row, with its changes."""
    known, changes = experiments(), job.changes
    experiment = known[job.recipe]
    if AUGMENTED in changes:
        best = known[BEST]
        experiment = replace(experiment, benchmark_settings=best.benchmark_settings, modelling=best.modelling)
    experiment = with_settings(experiment, changes, (AUGMENTED,))
    return with_changes(experiment, {"benchmark_settings.image_size": image_size})


@dataclass
class Tests:
    """The frozen tasks, which are the same for every row. Validation and test share one array of images, so that one
    program scores both."""

    opened: Benchmark
    counts: tuple[int, int]  # tasks to test on, and for each choice

    @cached_property
    def source(self) -> FewShot:
        parts: Any = (self.opened.val, self.opened.test)
        images = np.concatenate([np.asarray(part.images.pixels) for part in parts])
        return eqx.tree_at(lambda one: one.images.pixels, parts[1], jnp.asarray(images))

    @cached_property
    def test(self) -> TaskSet:
        tasks, before = self.opened.test_set(self.counts[0]), self.opened.val.images.pixels.shape[0]  # pyright: ignore
        drawn = tasks.stored
        moved = eqx.tree_at(lambda d: (d.support, d.query), drawn, (drawn.support + before, drawn.query + before))
        return replace(tasks, stored=moved)

    @cached_property
    def val(self) -> TaskSet:
        return self.opened.val_set(self.counts[1])

    @cached_property
    def choosing(self) -> TaskSet:
        return self.opened.choosing_set(self.counts[1])


@dataclass(frozen=True)
class Row:
    """A training, and how it is scored."""

    training: Training
    tests: Tests

    def scored(self, learner: AbstractMetaLearner, tasks: TaskSet, steps: int | None, draws: int, seed: int) -> Scores:
        """Scores of each task with so many inner steps."""
        parts = []
        for first in range(0, tasks.num_tasks, AT_ONCE):
            self.training.in_time()
            found = self.training.program(*self.judging(learner, tasks, steps, draws, seed, first))
            parts.append({key: np.asarray(values) for key, values in found.items()})
        values = {key: np.concatenate([one[key] for one in parts])[: tasks.num_tasks] for key in parts[0]}
        return scores_of(values, tasks, draws)

    def judging(
        self, learner: AbstractMetaLearner, tasks: TaskSet, steps: int | None, draws: int, seed: int, first: int
    ) -> tuple[Any, ...]:
        """The scores of AT_ONCE tasks from the first one on: name, program, and what it is given."""
        args = (learner, self.tests.source, some_of(tasks.stored, first, AT_ONCE), jr.key(seed), jnp.asarray(first))
        return f"score-{steps}-{draws}", scoring(steps, draws), *args

    @property
    def judged(self) -> list[tuple[int | None, int]]:
        """Inner steps and draws of all programs that score: in validation one draw, then those of the test."""
        return list(dict.fromkeys([(self.options[0], 1), *((steps, self.draws) for steps in self.options)]))

    def accuracy(self, learner: AbstractMetaLearner) -> float:
        """On validation tasks, with one predictor."""
        scores = self.scored(learner, self.tests.val, self.options[0], 1, VAL_SEED)
        return float(scores.summary()["accuracy"]["mean"])

    @property
    def options(self) -> list[int | None]:
        """Inner steps that are tried."""
        return [None] if inner_loop(self.training.states[1]) is None else list(TEST_STEPS)

    @property
    def draws(self) -> int:
        settings = getattr(method_of(self.training.states[1]), "settings", None)
        return DRAWS if getattr(settings, "stochastic", hasattr(settings, "kl_weight")) else 1


def scoring(steps: int | None, draws: int) -> Callable[..., Any]:
    """Scores of a learner on some tasks, given by the places of their images."""

    def score(learner: AbstractMetaLearner, source: Any, drawn: Any, key: Any, first: Any) -> dict[str, Any]:
        if steps is not None:  # as a loop: one step to compile instead of ten
            loop = {"inner_steps": steps, "test_steps": None, "remat": True}
            learner = with_inner(learner, lambda inner: replace(inner, **loop))
        found = score_batch(learner, source.expand(drawn), draws, key, first)
        return {name: found[name] for name in TOLD}

    return score


def compile_ahead(row: Row) -> None:
    """All programs of a row, for a GPU that is not here."""
    row.training.ahead(*row.training.stepping(row.training.states[0], 0))
    for steps, draws in row.judged:
        row.training.ahead(*row.judging(row.training.states[1], row.tests.val, steps, draws, VAL_SEED, 0))


def compile_row(row: Row) -> None:
    """All programs of a row, run once, and how fast it trains."""
    row.training.paced()
    tasks = replace(row.tests.val, stored=jax.tree.map(lambda leaf: leaf[:AT_ONCE], row.tests.val.stored))
    for steps, draws in row.judged:
        began = time.time()
        row.scored(row.training.states[1], tasks, steps, draws, VAL_SEED)
        taken = time.time() - began
        print(f"{row.training.job.row}: scores with {steps} steps, {draws} draws after {taken:.1f} s", flush=True)


def score_row(row: Row, folder: Path, about: dict[str, Any]) -> dict[str, Any]:
    """Inner steps chosen on validation tasks, then the scores of test tasks, by data set and over all."""
    learner, name = row.training.states[1], row.training.job.name
    tried = {steps: row.scored(learner, row.tests.choosing, steps, row.draws, SEARCH_SEED) for steps in row.options}
    means = {steps: float(scores.summary()["accuracy"]["mean"]) for steps, scores in tried.items()}
    steps = max(means, key=lambda one: means[one])
    scores = row.scored(learner, row.tests.test, steps, row.draws, TEST_SEED)
    folder.mkdir(parents=True, exist_ok=True)
    kinds: Any = {name: np.asarray(scores.values[name], np.float32) for name in TOLD}
    np.savez_compressed(folder / f"{name}.npz", family=scores.family, **kinds)
    sets = scores.family_summary(row.training.benchmark.families)
    all_of_them = scores.summary()
    line = " ".join(f"{name} {_percent(one['accuracy'])}" for name, one in {**sets, "all": all_of_them}.items())
    nll, ece = (all_of_them[name]["mean"] for name in ("nll", "ece"))
    print(f"{name}: {about['trained_on']} tasks, {steps} steps, {line} nll {nll:.3f} ece {ece:.3f}", flush=True)
    return {
        **about,
        "parameters": parameters(learner),
        "test_steps": steps,
        "validation": {str(key): value for key, value in means.items()},
        "draws": row.draws,
        "tasks": row.tests.test.num_tasks,
        "digest": row.tests.test.digest,
        "metrics": {"all": all_of_them, **sets},
    }


def _percent(one: Any) -> str:
    return f"{100 * one['mean']:.1f}±{100 * one['ci95']:.1f}"


def main() -> None:
    parser = arguments(__doc__, ["ahead", "compile", "train"], tasks=150_000)
    parser.add_argument("--data", required=True)
    parser.add_argument("--val-tasks", type=int, default=400)
    parser.add_argument("--test-tasks", type=int, default=4000)
    flags = parser.parse_args()
    opened = Config(data=str(flags.data), image_size=flags.image_size).open(Shelf())
    tests = Tests(opened, (flags.test_tasks, flags.val_tasks))
    programs = Programs(flags.programs)

    def work(job: Job) -> dict[str, Any] | None:
        experiment = changed(job, flags.image_size)
        settings: Any = replace(experiment.benchmark_settings, data=str(flags.data))  # pyright: ignore
        benchmark = settings.open(opened.shelf)
        row = Row(Training(job, experiment, benchmark, benchmark.train, programs, flags.until), tests)
        if flags.stage == "ahead":
            return compile_ahead(row)
        if flags.stage == "compile":
            return compile_row(row)
        about = row.training.train(row.accuracy, flags.folder / "states", fit=flags.fit, highest=True)
        return score_row(row, flags.folder / "scores", about)

    take_turns(flags, work)


if __name__ == "__main__":
    main()
