"""The table of Plain-Multi on equal terms: every row by its recipe, on a given number of tasks, then scored.

    python studies/equal_pictures.py ahead FOLDER JOB ... --data PICTURES --programs PROGRAMS    for a GPU not here
    python studies/equal_pictures.py compile FOLDER JOB ... --data PICTURES --programs PROGRAMS    and a first speed
    python studies/equal_pictures.py train FOLDER JOB ... --data PICTURES --programs PROGRAMS [--until UNIX_SECONDS]

A JOB is ROW, ROW:SEED or ROW:SEED:TASKS. ROW may have changes behind an @: `arml@augmented` is ARML with what `best`
does with pictures (turned, cut out, tinted; seen both ways in use), `maml@training.outer_lr=0.002` has one setting
changed, and a comma stands between several. Training goes on where it was stopped, and several processes may share a
FOLDER: each takes the next job that nobody has. A half cosine lowers the step size to zero. The weights with the best
accuracy on validation tasks are kept, and other validation tasks say whether 5 or 10 inner steps are taken in the test:
the same rule for every row. FOLDER/rows gets the scores, FOLDER/scores those of each task."""

import argparse
import json
import math
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from ahead import Programs
from clock import falling, parameters
from resumed import OutOfTime, claimed, keep, kept

from stmaml.benchmarks.base import SEARCH_SEED, TEST_SEED, VAL_SEED, Benchmark, Shelf
from stmaml.benchmarks.plain_multi import Config, FewShot
from stmaml.benchmarks.sources import TaskSet
from stmaml.border.writing import write_json
from stmaml.evaluation import Scores, score_batch, scores_of
from stmaml.experiments import fresh, run_keys, scaling_for
from stmaml.methods.base import AbstractMetaLearner
from stmaml.methods.wrapper import inner_loop, method_of, with_inner
from stmaml.recipes import Experiment
from stmaml.recipes.base import with_changes
from stmaml.reproduction import method_cells
from stmaml.search.side_by_side import level
from stmaml.training import State, TrainConfig, initial_state
from stmaml.training.steps import run_steps

NAME = "plain-multi"
BEST, AUGMENTED = "st-maml-best", "augmented"
CHUNK = 25  # steps in one call, over which the step size stays level
LOOKS = 15  # validations in a training
AT_ONCE = 40  # tasks scored in one call
DRAWS = 5  # predictors in the test, of methods that sample them
TEST_STEPS = (5, 10)  # inner steps in the test that are tried
SAVED_EVERY = 45  # seconds
RESERVED = 100  # seconds for the scores of a row that is to fit
LEAST = 60  # seconds of training without which such a row is not begun
TOLD = ("accuracy", "nll", "ece")


@dataclass(frozen=True)
class Job:
    """A row, its seed, and how many tasks it is trained on."""

    row: str
    seed: int
    tasks: int

    @staticmethod
    def of(text: str, tasks: int) -> "Job":
        row, *rest = text.split(":")
        return Job(row, int(rest[0]) if rest else 0, int(rest[1]) if len(rest) > 1 else tasks)

    @property
    def name(self) -> str:
        return f"{self.program}-seed-{self.seed}"

    @property
    def program(self) -> str:
        """What its programs are called: states have an @ of their own in their names."""
        return re.sub("[^a-z0-9.]+", "-", self.row)


def experiments() -> dict[str, Experiment]:
    """The experiment of every row: recipes, ablations, `best`."""
    usual, large = method_cells(NAME, Config.budgets.paper)
    return {cell.name: cell.experiment for cell in (*usual, *large)}


def changed(row: str, image_size: int) -> Experiment:
    """The experiment of a row, with its changes."""
    known, (name, _, changes) = experiments(), row.partition("@")
    experiment = known[name]
    for change in filter(None, changes.split(",")):
        path, _, value = change.partition("=")
        if path == AUGMENTED:
            best = known[BEST]
            wanted = {"benchmark_settings": best.benchmark_settings, "modelling": best.modelling}
        else:
            wanted = {path: json.loads(value)}
        experiment = with_changes(experiment, wanted)
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


@dataclass
class Row:
    """A job with all that its programs need."""

    job: Job
    experiment: Experiment
    programs: Programs
    tests: Tests
    until: float
    benchmark: Benchmark = field(init=False)
    config: TrainConfig = field(init=False)
    states: tuple[State, AbstractMetaLearner] = field(init=False)
    """What training changes, and the learner that has done best on validation tasks."""
    key: Any = field(init=False)
    steps: int = field(init=False)

    def __post_init__(self):
        known: Any = self.tests.opened.settings
        settings: Any = replace(self.experiment.benchmark_settings, data=known.data)
        self.benchmark = settings.open(self.tests.opened.shelf)
        self.config = level(self.experiment.training)
        self.steps = CHUNK * -(-self.job.tasks // (CHUNK * self.config.tasks_per_batch))
        with jax.default_device(jax.local_devices(backend="cpu")[0]):  # compiles its many small parts sooner
            init_key, train_key = run_keys(self.job.seed)
            scaling = scaling_for(self.experiment, self.benchmark)
            learner = fresh(self.experiment, self.benchmark.train.spec, scaling, key=init_key)
            state = initial_state(learner, self.config)
        self.key = _here(train_key)
        self.states = (_here(state), _here(state.learner))

    def moved(self, state: State, start: int) -> tuple[State, float]:
        """The state after CHUNK steps, and their mean loss; which is not finite where the state is not."""
        rate = self.experiment.training.outer_lr * falling((start + CHUNK / 2) / self.steps)
        state = eqx.tree_at(lambda s: s.rate, state, jnp.asarray(rate, dtype=state.rate.dtype))
        leaves, loss = self.programs(*self.training(state, start))
        return jax.tree.unflatten(jax.tree.structure(state), leaves), float(loss)

    def training(self, state: State, start: int) -> tuple[Any, ...]:
        """CHUNK steps: the name of their program, what it does, and what it is given."""
        steps, config = jnp.asarray(start + np.arange(CHUNK)), self.config

        def run(state: State, source: Any, key: Any, steps: Any) -> tuple[list[Any], Any]:
            after, (losses, _, finite) = run_steps(state, source, key, steps, config)
            return jax.tree.leaves(after), jnp.where(finite, losses.mean(), jnp.nan)

        return f"{self.job.program}-train", run, state, self.benchmark.train, self.key, steps

    def scored(self, learner: AbstractMetaLearner, tasks: TaskSet, steps: int | None, draws: int, seed: int) -> Scores:
        """Scores of each task with so many inner steps."""
        parts = []
        for first in range(0, tasks.num_tasks, AT_ONCE):
            if time.time() > self.until:
                raise OutOfTime
            found = self.programs(*self.scoring(learner, tasks, steps, draws, seed, first))
            parts.append({key: np.asarray(values) for key, values in found.items()})
        values = {key: np.concatenate([one[key] for one in parts])[: tasks.num_tasks] for key in parts[0]}
        return scores_of(values, tasks, draws)

    def scoring(
        self, learner: AbstractMetaLearner, tasks: TaskSet, steps: int | None, draws: int, seed: int, first: int
    ) -> tuple[Any, ...]:
        """The scores of AT_ONCE tasks from the first one on: name, program, and what it is given."""
        rows = np.minimum(np.arange(first, first + AT_ONCE), tasks.num_tasks - 1)
        drawn = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[rows]), tasks.stored)
        name = f"{self.job.program}-score-{steps}-{draws}"
        return name, scoring(steps, draws), learner, self.tests.source, drawn, jr.key(seed), jnp.asarray(first)

    @property
    def judged(self) -> list[tuple[int | None, int]]:
        """Inner steps and draws of all programs that score: in validation one draw, then those of the test."""
        return list(dict.fromkeys([(self.options[0], 1), *((steps, self.draws) for steps in self.options)]))

    @property
    def options(self) -> list[int | None]:
        """Inner steps that are tried."""
        return [None] if inner_loop(self.states[1]) is None else list(TEST_STEPS)

    @property
    def draws(self) -> int:
        settings = getattr(method_of(self.states[1]), "settings", None)
        return DRAWS if getattr(settings, "stochastic", hasattr(settings, "kl_weight")) else 1


def _here(tree: Any) -> Any:
    """The tree with its arrays on the device."""
    return jax.tree.map(lambda leaf: jax.device_put(leaf, jax.local_devices()[0]) if eqx.is_array(leaf) else leaf, tree)


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
    row.programs.ahead(*row.training(row.states[0], 0))
    for steps, draws in row.judged:
        row.programs.ahead(*row.scoring(row.states[1], row.tests.val, steps, draws, VAL_SEED, 0))


def compile_row(row: Row) -> None:
    """All programs of a row, run once, and how fast it trains."""
    state, began = row.states[0], time.time()
    for turn in range(3):
        state, loss = row.moved(state, turn * CHUNK)
        tasks, taken = CHUNK * row.config.tasks_per_batch, time.time() - began
        print(f"{row.job.row}: {tasks / taken:,.0f} tasks/s, loss {loss:.3f} (call {turn})", flush=True)
        began = time.time()
    tasks = replace(row.tests.val, stored=jax.tree.map(lambda leaf: leaf[:AT_ONCE], row.tests.val.stored))
    for steps, draws in row.judged:
        began = time.time()
        row.scored(row.states[1], tasks, steps, draws, VAL_SEED)
        print(f"{row.job.row}: scores with {steps} steps, {draws} draws after {time.time() - began:.1f} s", flush=True)


def train_row(row: Row, folder: Path, *, fit: bool) -> dict[str, Any]:
    """Trains to the end, kept in `folder` from time to time and when time is up. With `fit`, the end comes as much
    sooner as the time that is left demands: the step size then falls faster."""
    (state, best), done, before = kept(row.states, row.job.name, folder)
    began = saved = time.time()
    step, looked, told, pace, started = done, done, [], 0.0, began
    try:
        while step < row.steps:
            if time.time() > row.until:
                raise OutOfTime
            if fit and pace:
                left = CHUNK * int((row.until - RESERVED - time.time()) * pace / CHUNK)
                row.steps = min(row.steps, step + max(CHUNK, left))
            state, loss = row.moved(state, step)
            step += CHUNK
            if step == done + CHUNK:  # reading or compiling a program is not training
                started = time.time()
            else:
                pace = (step - done - CHUNK) / (time.time() - started)
            if not math.isfinite(loss):
                raise SystemExit(f"{row.job.name}: the loss is not finite at step {step}")
            if step >= row.steps or (step - looked) * LOOKS >= row.steps:
                accuracy, looked = _accuracy(row, state.learner), step
                told.append((step * row.config.tasks_per_batch, round(accuracy, 4)))
                if -accuracy < float(state.best):
                    best = state.learner
                    state = eqx.tree_at(lambda s: s.best, state, jnp.asarray(-accuracy, dtype=state.best.dtype))
                speed = pace * row.config.tasks_per_batch
                print(f"{row.job.name}: {told[-1]}, loss {loss:.3f}, {speed:,.0f} tasks/s", flush=True)
            if time.time() - saved > SAVED_EVERY:
                saved = time.time()
                keep((state, best), row.job.name, folder, step, before + saved - began)
    finally:
        if step > done:
            keep((state, best), row.job.name, folder, step, before + time.time() - began)
    row.states = (state, best)
    return {"trained_on": step * row.config.tasks_per_batch, "seconds": before + time.time() - began, "seen": told}


def _accuracy(row: Row, learner: AbstractMetaLearner) -> float:
    scores = row.scored(learner, row.tests.val, row.options[0], 1, VAL_SEED)
    return float(scores.summary()["accuracy"]["mean"])


def score_row(row: Row, folder: Path, about: dict[str, Any]) -> dict[str, Any]:
    """Inner steps chosen on validation tasks, then the scores of test tasks, by data set and over all."""
    learner = row.states[1]
    tried = {steps: row.scored(learner, row.tests.choosing, steps, row.draws, SEARCH_SEED) for steps in row.options}
    means = {steps: float(scores.summary()["accuracy"]["mean"]) for steps, scores in tried.items()}
    steps = max(means, key=lambda one: means[one])
    scores = row.scored(learner, row.tests.test, steps, row.draws, TEST_SEED)
    folder.mkdir(parents=True, exist_ok=True)
    kinds: Any = {name: np.asarray(scores.values[name], np.float32) for name in TOLD}
    np.savez_compressed(folder / f"{row.job.name}.npz", family=scores.family, **kinds)
    sets = scores.family_summary(row.benchmark.families)
    all_of_them = scores.summary()
    line = " ".join(f"{name} {_percent(one['accuracy'])}" for name, one in {**sets, "all": all_of_them}.items())
    nll, ece = (all_of_them[name]["mean"] for name in ("nll", "ece"))
    print(f"{row.job.name}: {about['trained_on']} tasks, {steps} steps, {line} nll {nll:.3f} ece {ece:.3f}", flush=True)
    return {
        "row": row.job.row,
        "seed": row.job.seed,
        **about,
        "parameters": parameters(learner),
        "test_steps": steps,
        "validation": {str(key): value for key, value in means.items()},
        "draws": row.draws,
        "batch": row.config.tasks_per_batch,
        "tasks": row.tests.test.num_tasks,
        "digest": row.tests.test.digest,
        "metrics": {"all": all_of_them, **sets},
    }


def _percent(one: Any) -> str:
    return f"{100 * one['mean']:.1f}±{100 * one['ci95']:.1f}"


def work(row: Row, flags: Any) -> None:
    """One stage for one job."""
    if flags.stage == "ahead":
        return compile_ahead(row)
    if flags.stage == "compile":
        return compile_row(row)
    path = flags.folder / "rows" / f"{row.job.name}.json"
    if path.exists():
        return None
    about = train_row(row, flags.folder / "states", fit=flags.fit)
    told = score_row(row, flags.folder / "scores", about)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, told)
    return None


def main() -> None:
    flags = parsed()
    changes = {"data": str(flags.data), "image_size": flags.image_size}
    opened = Config(**changes).open(Shelf())
    tests = Tests(opened, (flags.test_tasks, flags.val_tasks))
    programs = Programs(flags.programs)
    jobs = {job.name: job for job in (Job.of(text, flags.tasks) for text in flags.jobs)}
    for name in claimed(list(jobs), flags.folder / "claims" / f"{flags.stage}-{flags.claim}"):
        began, job = time.time(), jobs[name]
        if flags.fit and flags.until - began < LEAST + RESERVED:
            break
        experiment = changed(job.row, flags.image_size)
        try:
            row = Row(job, experiment, programs, tests, flags.until)
            print(f"{name}: ready after {time.time() - began:.0f} s", flush=True)
            work(row, flags)
        except OutOfTime:
            print(f"{name}: out of time", flush=True)
            break
        print(f"{name}: {flags.stage} took {time.time() - began:.0f} s", flush=True)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["ahead", "compile", "train"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("jobs", nargs="+")
    parser.add_argument("--data", required=True)
    parser.add_argument("--programs", type=Path, help="folder of compiled programs")
    parser.add_argument("--until", type=float, default=math.inf, help="seconds since 1970")
    parser.add_argument("--fit", action="store_true", help="fewer tasks where time is short, instead of none")
    parser.add_argument("--claim", default=str(os.getpid()), help="processes with the same one share the jobs")
    parser.add_argument("--tasks", type=int, default=150_000)
    parser.add_argument("--val-tasks", type=int, default=400)
    parser.add_argument("--test-tasks", type=int, default=4000)
    parser.add_argument("--image-size", type=int, default=84)
    return parser.parse_args()


if __name__ == "__main__":
    main()
