"""What a timed training runs on a device: programs of some steps and of scores, made ahead or at their first call."""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from ahead import Programs
from jaxtyping import PRNGKeyArray
from training_rows import here, on_host

from stmaml.benchmarks.base import Benchmark
from stmaml.benchmarks.sources import TaskSet
from stmaml.evaluation import score_batch, scores_of
from stmaml.methods.base import AbstractMetaLearner
from stmaml.methods.wrapper import in_use
from stmaml.metrics import Summary
from stmaml.recipes import Experiment
from stmaml.tasks import TaskBatch, TaskSpec
from stmaml.training import State, TrainConfig
from stmaml.training.steps import run_steps

AT_ONCE = 100  # validation tasks scored in one call
FEW = 5


@dataclass
class Steps:
    """The programs of one training, with what they are always given."""

    name: str
    programs: Programs
    config: TrainConfig
    benchmark: Benchmark
    train_key: Any
    val_key: Any
    count: int  # steps in one call

    def moved(
        self, state: State, mean: AbstractMetaLearner, rate: float, share: float, first: int
    ) -> tuple[State, AbstractMetaLearner, dict[str, float]]:
        """The state and the running mean of its weights after some steps, and what they told; waits for the device."""
        leaves, means, told = self.programs(*self.stepping(state, mean, rate, share, first))
        state, mean = (
            jax.tree.unflatten(jax.tree.structure(old), new) for old, new in ((state, leaves), (mean, means))
        )
        return state, mean, {name: float(value) for name, value in told.items()}

    def stepping(
        self, state: State, mean: AbstractMetaLearner, rate: float, share: float, first: int
    ) -> tuple[Any, ...]:
        """The name of that program, what it does, and what it is given."""
        config = self.config

        def run(state: State, mean: Any, rate: Any, share: Any, source: Any, key: Any, steps: Any) -> Any:
            state = eqx.tree_at(lambda s: s.rate, state, rate.astype(state.rate.dtype))
            state, (losses, logs, finite) = run_steps(state, source, key, steps, config)
            told = {"loss": losses.mean(), "finite": finite, **{name: each.mean() for name, each in logs.items()}}
            return jax.tree.leaves(state), jax.tree.leaves(blended(mean, state.learner, share)), told

        steps = first + jnp.arange(self.count)
        given = (state, mean, jnp.asarray(rate), jnp.asarray(share), self.benchmark.train, self.train_key, steps)
        return f"{self.name}-steps", run, *given

    def judged(self, learner: AbstractMetaLearner) -> dict[str, Summary]:
        """Scores on the validation tasks."""
        found = [self.programs(*self.judging(learner, index)) for index in range(len(self.batches))]
        count = self.val.num_tasks
        values = {name: np.concatenate([np.asarray(one[name]) for one in found])[:count] for name in found[0]}
        return scores_of(values, self.val, self.config.val_samples).summary()

    def judging(self, learner: AbstractMetaLearner, index: int) -> tuple[Any, ...]:
        """What scores one batch of validation tasks: name, program, and what it is given."""
        draws = self.config.val_samples

        def score(learner: AbstractMetaLearner, batch: Any, key: Any, first: Any) -> Any:
            return score_batch(in_use(learner), batch, draws, key, first)

        first = jnp.asarray(index * AT_ONCE)
        return f"{self.name}-judge", score, learner, here(self.batches[index]), self.val_key, first

    @cached_property
    def val(self) -> TaskSet:
        return self.benchmark.val_set(self.config.val_tasks)

    @cached_property
    def batches(self) -> list[TaskBatch]:
        with on_host():
            return list(self.val.chunks(AT_ONCE))


class Fewer(eqx.Module):
    """Tasks of a source, a share of which keep no more than FEW labelled examples."""

    source: Any
    share: float = eqx.field(static=True)

    @property
    def spec(self) -> TaskSpec:
        return self.source.spec

    def sample(self, num_tasks: int, *, key: PRNGKeyArray) -> TaskBatch:
        own, some, most = jr.split(key, 3)
        batch = self.source.sample(num_tasks, key=own)
        weight = batch.tasks.support.weight
        left = jr.randint(most, (num_tasks, 1), 1, FEW + 1)
        left = jnp.where(jr.bernoulli(some, self.share, (num_tasks, 1)), left, weight.shape[1])
        kept = weight * (jnp.arange(weight.shape[1])[None] < left)
        return eqx.tree_at(lambda b: b.tasks.support.weight, batch, kept)


def name_of(experiment: Experiment) -> str:
    """What the programs of an experiment are called: the same wherever its data lie."""
    changes = {"data": None} if hasattr(experiment.benchmark_settings, "data") else {}
    settings = replace(experiment.benchmark_settings, **changes)
    digest = hashlib.sha256(repr(replace(experiment, benchmark_settings=settings)).encode()).hexdigest()
    return f"{experiment.benchmark}-{experiment.method}-{experiment.preset}-{digest[:8]}"


def blended(mean: AbstractMetaLearner, now: AbstractMetaLearner, share: jax.Array) -> AbstractMetaLearner:
    """Weights of a running mean, in which those of now have a share."""
    arrays, rest = eqx.partition(mean, eqx.is_inexact_array)
    new = eqx.filter(now, eqx.is_inexact_array)
    return eqx.combine(jax.tree.map(lambda old, one: old + share.astype(old.dtype) * (one - old), arrays, new), rest)
