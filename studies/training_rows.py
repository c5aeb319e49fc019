"""Rows of a table, each trained by its recipe on a given number of tasks: what studies for a lent device share.

A JOB is ROW, ROW:SEED or ROW:SEED:TASKS. ROW may have changes behind an @, with a comma between several:
`maml@training.outer_lr=0.002` has one setting changed. Training goes on where it was stopped, and several processes may
share a FOLDER: each takes the next job that nobody has. A half cosine lowers the step size to zero, and the weights
that do best on validation tasks are kept."""

import argparse
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from ahead import Programs
from clock import falling
from resumed import OutOfTime, claimed, keep, kept

from stmaml.benchmarks.base import Benchmark
from stmaml.border.writing import write_json
from stmaml.experiments import fresh, run_keys, scaling_for
from stmaml.methods.base import AbstractMetaLearner
from stmaml.recipes import Experiment
from stmaml.recipes.base import with_changes
from stmaml.search.side_by_side import level
from stmaml.training import State, TrainConfig, initial_state
from stmaml.training.steps import run_steps

CHUNK = 25  # steps in one call, over which the step size stays level
LOOKS = 15  # validations in a training
SAVED_EVERY = 45  # seconds
RESERVED = 100  # seconds for the scores of a row that is to fit
LEAST = 60  # seconds of training without which such a row is not begun


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
        """What its programs and files are called: states have an @ of their own in their names."""
        return re.sub("[^a-z0-9.]+", "-", self.row.replace("method_settings.", ""))

    @property
    def recipe(self) -> str:
        """The row without its changes."""
        return self.row.partition("@")[0]

    @property
    def changes(self) -> dict[str, Any]:
        """What is changed, by its path; None for a word that stands alone."""
        pairs = [change.partition("=") for change in filter(None, self.row.partition("@")[2].split(","))]
        return {path: json.loads(value) if value else None for path, _, value in pairs}


@dataclass
class Training:
    """A job with all that training needs."""

    job: Job
    experiment: Experiment
    benchmark: Benchmark
    source: Any  # of training tasks
    programs: Programs
    until: float
    config: TrainConfig = field(init=False)
    states: tuple[State, AbstractMetaLearner] = field(init=False)
    """What training changes, and the learner that has done best on validation tasks."""
    key: Any = field(init=False)
    steps: int = field(init=False)

    def __post_init__(self):
        self.config = level(self.experiment.training)
        self.steps = CHUNK * -(-self.job.tasks // (CHUNK * self.config.tasks_per_batch))
        with on_host():
            init_key, train_key = run_keys(self.job.seed)
            scaling = scaling_for(self.experiment, self.benchmark)
            learner = fresh(self.experiment, self.benchmark.train.spec, scaling, key=init_key)
            state = initial_state(learner, self.config)
        self.key = here(train_key)
        self.states = (here(state), here(state.learner))

    def in_time(self) -> None:
        """Raises where the time that was given is up."""
        if time.time() > self.until:
            raise OutOfTime

    def program(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """What a program of this row makes of arguments."""
        return self.programs(f"{self.job.program}-{name}", function, *args)

    def ahead(self, name: str, function: Callable[..., Any], *args: Any) -> None:
        """Compiles a program of this row for a GPU that is not here."""
        self.programs.ahead(f"{self.job.program}-{name}", function, *args)

    def moved(self, state: State, start: int) -> tuple[State, float]:
        """The state after CHUNK steps, and their mean loss; which is not finite where the state is not."""
        rate = self.experiment.training.outer_lr * falling((start + CHUNK / 2) / self.steps)
        state = eqx.tree_at(lambda s: s.rate, state, jnp.asarray(rate, dtype=state.rate.dtype))
        leaves, loss = self.program(*self.stepping(state, start))
        return jax.tree.unflatten(jax.tree.structure(state), leaves), float(loss)

    def stepping(self, state: State, start: int) -> tuple[Any, ...]:
        """CHUNK steps: the name of their program, what it does, and what it is given."""
        steps, config = jnp.asarray(start + np.arange(CHUNK)), self.config

        def run(state: State, source: Any, key: Any, steps: Any) -> tuple[list[Any], Any]:
            after, (losses, _, finite) = run_steps(state, source, key, steps, config)
            return jax.tree.leaves(after), jnp.where(finite, losses.mean(), jnp.nan)

        return "train", run, state, self.source, self.key, steps

    def paced(self) -> None:
        """Compiles, and tells how fast it trains; nothing is kept."""
        state, began = self.states[0], time.time()
        for turn in range(3):
            state, loss = self.moved(state, turn * CHUNK)
            tasks, taken = CHUNK * self.config.tasks_per_batch, time.time() - began
            print(f"{self.job.row}: {tasks / taken:,.0f} tasks/s, loss {loss:.3f} (call {turn})", flush=True)
            began = time.time()

    def train(
        self, judge: Callable[[AbstractMetaLearner], float], folder: Path, *, fit: bool, highest: bool = False
    ) -> dict[str, Any]:
        """Trains to the end, kept in `folder` from time to time and when time is up. The learner with the lowest score
        by `judge` is the best, or that with the highest. With `fit`, the end comes as much sooner as the time that is
        left demands: the step size then falls faster."""
        (state, best), done, before = kept(self.states, self.job.name, folder)
        began = saved = time.time()
        step, looked, told, pace, started = done, done, [], 0.0, began
        try:
            while step < self.steps:
                self.in_time()
                if fit and pace:
                    left = CHUNK * int((self.until - RESERVED - time.time()) * pace / CHUNK)
                    self.steps = min(self.steps, step + max(CHUNK, left))
                state, loss = self.moved(state, step)
                step += CHUNK
                if step == done + CHUNK:  # reading or compiling a program is not training
                    started = time.time()
                else:
                    pace = (step - done - CHUNK) / (time.time() - started)
                if not math.isfinite(loss):
                    raise SystemExit(f"{self.job.name}: the loss is not finite at step {step}")
                if step >= self.steps or (step - looked) * LOOKS >= self.steps:
                    score, looked = judge(state.learner), step
                    told.append((step * self.config.tasks_per_batch, round(score, 4)))
                    lower = -score if highest else score
                    if lower < float(state.best):
                        best = state.learner
                        state = eqx.tree_at(lambda s: s.best, state, jnp.asarray(lower, dtype=state.best.dtype))
                    speed = pace * self.config.tasks_per_batch
                    print(f"{self.job.name}: {told[-1]}, loss {loss:.3f}, {speed:,.0f} tasks/s", flush=True)
                if time.time() - saved > SAVED_EVERY:
                    saved = time.time()
                    keep((state, best), self.job.name, folder, step, before + saved - began)
        finally:
            if step > done:
                keep((state, best), self.job.name, folder, step, before + time.time() - began)
        self.states = (state, best)
        about = {"row": self.job.row, "seed": self.job.seed, "batch": self.config.tasks_per_batch}
        trained = {"trained_on": step * self.config.tasks_per_batch, "seconds": before + time.time() - began}
        return {**about, **trained, "seen": told}


def on_host() -> AbstractContextManager[Any]:
    """Arrays that are made under it are the processor's, which compiles many small parts sooner than a GPU."""
    return jax.default_device(jax.local_devices(backend="cpu")[0])


def here(tree: Any) -> Any:
    """The tree with its arrays on the device."""
    return jax.tree.map(lambda leaf: jax.device_put(leaf, jax.local_devices()[0]) if eqx.is_array(leaf) else leaf, tree)


def some_of(stored: Any, first: int, count: int) -> Any:
    """`count` tasks of a set from the first on, in their short form; the last is repeated where there are fewer."""
    total = stored.family.shape[0]
    rows = np.minimum(np.arange(first, first + count), total - 1)
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[rows]), stored)


def with_settings(experiment: Experiment, changes: dict[str, Any], words: Iterable[str] = ()) -> Experiment:
    """The experiment with settings changed; `words` are left to the study."""
    return with_changes(experiment, {path: value for path, value in changes.items() if path not in words})


def take_turns(flags: argparse.Namespace, work: Callable[[Job], dict[str, Any] | None]) -> None:
    """`work` on every job that is not done and that no other process has; what it gives goes to FOLDER/rows."""
    jobs = {job.name: job for job in (Job.of(text, flags.tasks) for text in flags.jobs)}
    for name in claimed(list(jobs), flags.folder / "claims" / f"{flags.stage}-{flags.claim}"):
        began, path = time.time(), flags.folder / "rows" / f"{name}.json"
        if flags.fit and flags.until - began < LEAST + RESERVED:
            break
        if flags.stage == "train" and path.exists():
            continue
        try:
            told = work(jobs[name])
        except OutOfTime:
            print(f"{name}: out of time", flush=True)
            break
        if told is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, told)
        print(f"{name}: {flags.stage} took {time.time() - began:.0f} s", flush=True)


def arguments(about: str | None, stages: Iterable[str], tasks: int, jobs: str = "+") -> argparse.ArgumentParser:
    """The flags that these studies share."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=list(stages))
    parser.add_argument("folder", type=Path)
    parser.add_argument("jobs", nargs=jobs)
    parser.add_argument("--programs", type=Path, help="folder of compiled programs")
    parser.add_argument("--until", type=float, default=math.inf, help="seconds since 1970")
    parser.add_argument("--fit", action="store_true", help="fewer tasks where time is short, instead of none")
    parser.add_argument("--claim", default=str(os.getpid()), help="processes with the same one share the jobs")
    parser.add_argument("--tasks", type=int, default=tasks)
    parser.add_argument("--image-size", type=int, default=84)
    return parser
