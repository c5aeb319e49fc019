"""Trials that differ in rates and weights alone, trained as one compiled program."""

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PRNGKeyArray

from stmaml.benchmarks.base import Benchmark
from stmaml.benchmarks.sources import check_batch
from stmaml.experiments import fresh, run_keys, scaling_for
from stmaml.inner import InnerLoop
from stmaml.methods.base import AbstractMetaLearner, AbstractPredictor, Metrics
from stmaml.methods.wrapper import with_inner, with_settings
from stmaml.progress import tell
from stmaml.recipes import Experiment
from stmaml.search.grid import INNER_LR, KL_WEIGHT, OUTER_LR, Trial
from stmaml.tasks import Examples, Scalar, Task, TaskBatch
from stmaml.training import State, TrainConfig, initial_state
from stmaml.training.state import bundle, unbundle
from stmaml.training.steps import host_batches, run_each, run_many

CHUNK = 50  # steps in one compiled call, over which the outer rate stays level


class TracedInner(InnerLoop):
    """An inner loop that does not compare its step size, which may be traced, with numbers."""

    def __post_init__(self):
        pass


class Varied(AbstractMetaLearner):
    """A learner whose inner rate and KL weight are numbers of the compiled program, not settings."""

    learner: AbstractMetaLearner
    inner_lr: Float[Array, "..."] | None
    kl_weight: Float[Array, "..."] | None

    def loss(self, task: Task, *, key: PRNGKeyArray) -> tuple[Scalar, Metrics]:
        """The learner's own, under these numbers."""
        return with_settings(self.learner, self._vary).loss(task, key=key)

    def adapt(self, support: Examples, *, num_samples: int, key: PRNGKeyArray) -> AbstractPredictor:
        """The learner's own, under these numbers."""
        return with_settings(self.learner, self._vary).adapt(support, num_samples=num_samples, key=key)

    def with_steps(self, inner_steps: int) -> "Varied":
        """The same with another number of inner steps."""
        return replace(self, learner=with_inner(self.learner, lambda inner: replace(inner, inner_steps=inner_steps)))

    def _vary(self, settings: Any) -> Any:
        if self.inner_lr is not None:
            inner = _unchecked(TracedInner(), **vars(settings.inner))
            inner = _unchecked(inner, inner_lr=jax.lax.stop_gradient(self.inner_lr))
            settings = _unchecked(settings, inner=inner)
        if self.kl_weight is not None:
            settings = _unchecked(settings, kl_weight=jax.lax.stop_gradient(self.kl_weight))
        return settings


def _unchecked(settings: Any, **changes: Any) -> Any:
    """A copy of frozen settings with traced values in it, which its own checks could not compare."""
    changed = copy.copy(settings)
    for name, value in changes.items():
        object.__setattr__(changed, name, value)
    return changed


def varied(base: Experiment, trial: Trial, benchmark: Benchmark) -> tuple[Varied, PRNGKeyArray]:
    """A trial's untrained learner, the same program for all trials of its group, and its key of training."""
    mine = trial.of(base)
    init_key, train_key = run_keys(trial.seed)
    learner = fresh(mine, benchmark.train.spec, scaling_for(mine, benchmark), key=init_key)
    shared: Any = Trial(dict(trial.group)).of(base).method_settings
    inner_lr, kl_weight = (_number(trial.settings.get(path)) for path in (INNER_LR, KL_WEIGHT))
    return Varied(with_settings(learner, lambda _: shared), inner_lr, kl_weight), train_key


def _number(value: float | None) -> Scalar | None:
    return None if value is None else jnp.asarray(value, dtype=float)


def train_group(
    base: Experiment, trials: Sequence[Trial], *, benchmarks: Sequence[Benchmark], tasks: int, width: int
) -> list[list[Varied]]:
    """Every trial on the training tasks of every benchmark, in that order: learners as they are after `tasks` tasks.

    Trials are of one group. The last is repeated up to `width` of them, so that another call with fewer trials need not
    be compiled. A trial whose numbers are no longer finite goes on so and harms no other."""
    padded = [*trials, *[trials[-1]] * (width - len(trials))]
    training = level(trials[0].of(base).training)
    pairs = [(trial, benchmark) for trial in padded for benchmark in benchmarks]
    made = [varied(base, trial, benchmark) for trial, benchmark in pairs]
    states = bundle([initial_state(learner, training) for learner, _ in made])
    keys = jnp.stack([key for _, key in made])
    rates = jnp.array([trial.settings[OUTER_LR] for trial, _ in pairs])
    steps = CHUNK * -(-tasks // (CHUNK * training.tasks_per_batch))
    states = _run(states, [benchmark for _, benchmark in pairs], keys, rates, training, steps)
    learners = [_learner(state) for state in unbundle(states, len(pairs))]
    each = len(benchmarks)
    return [learners[i * each : (i + 1) * each] for i in range(len(trials))]


def _learner(state: State) -> Varied:
    assert isinstance(state.learner, Varied)
    return state.learner


def level(training: TrainConfig) -> TrainConfig:
    """The training's optimizer at rate 1: rates and their way down are numbers of the program."""
    return TrainConfig(
        steps=1,
        tasks_per_batch=training.tasks_per_batch,
        outer_lr=1.0,
        optimizer=training.optimizer,
        schedule="constant",
        clip_norm=training.clip_norm,
        noise_rate=training.noise_rate,
        task_chunk=training.task_chunk,
    )


def _run(
    states: State,
    benchmarks: Sequence[Benchmark],
    keys: Key[Array, " l"],
    rates: Float[Array, " l"],
    training: TrainConfig,
    steps: int,
) -> State:
    """All steps, with rates that fall along a half cosine, level within each call."""
    own = any(benchmark is not benchmarks[0] for benchmark in benchmarks)
    run, source = (run_each, stacked(benchmarks)) if own else (run_many, benchmarks[0].train)
    for start in range(0, steps, CHUNK):
        falling = 0.5 * (1 + math.cos(math.pi * (start + CHUNK / 2) / steps))
        states = eqx.tree_at(lambda s: s.rate, states, rates * falling)
        ready = source if isinstance(source, eqx.Module) else _drawn(source, keys[0], start, training)
        states, _ = run(states, ready, keys, start + jnp.arange(CHUNK), training)
        tell("training", min(start + CHUNK, steps), steps, tasks=training.tasks_per_batch * len(benchmarks))
    return jax.block_until_ready(states)


def stacked(benchmarks: Sequence[Benchmark]) -> Any:
    """The training sources on a leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *[benchmark.movable for benchmark in benchmarks])


def _drawn(source: Any, key: PRNGKeyArray, start: int, training: TrainConfig) -> TaskBatch:
    """The coming batches of a source that is called on the host; the same ones for every trial."""
    coming, tasks = range(start, start + CHUNK), training.tasks_per_batch
    return host_batches(source, key, coming, tasks, lambda batch: check_batch(batch, source.spec))
