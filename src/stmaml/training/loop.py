"""The one training loop: chunks of steps, validations, checkpoints, and going back where a loss is not finite."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Bool, Float, PRNGKeyArray

from stmaml.benchmarks.sources import TaskSet, TaskSource, check_batch
from stmaml.errors import SourceError
from stmaml.limits import DRAWN_BYTES
from stmaml.methods.base import AbstractMetaLearner
from stmaml.progress import remark, tell
from stmaml.tasks import TaskBatch
from stmaml.training.config import TrainConfig
from stmaml.training.devices import ONE_DEVICE, Layout
from stmaml.training.hosts import least
from stmaml.training.memory import (
    budget_for,
    bytes_needed,
    choose,
    explained,
    largest_divisor,
    recomputing,
    usual_chunk,
)
from stmaml.training.observers import Observer
from stmaml.training.prefetch import Ahead
from stmaml.training.state import State, bundle, initial_state, typed, unbundle
from stmaml.training.steps import host_batches, run_many, run_steps, step_key
from stmaml.training.validation import Validation

MAX_ROLLBACKS = 8
Learners = list[AbstractMetaLearner]
States = list[State]


class Diverged(Exception):
    """Training produced a number that is not finite."""

    def __init__(self, step: int, seed_index: int):
        """`seed_index` counts the learners trained side by side."""
        super().__init__(f"the loss is not finite from step {step} on")
        self.step, self.seed_index = step, seed_index


class Interrupted(Exception):
    """Training was asked to stop; its state is saved."""

    def __init__(self, step: int):
        super().__init__(f"stopped at step {step}")
        self.step = step


def train_learners(
    learners: Learners,
    source: TaskSource,
    val: TaskSet,
    config: TrainConfig,
    *,
    keys: list[PRNGKeyArray],
    observers: Sequence[Observer] = (),
    start: tuple[int, States] | None = None,
    best: Learners | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    layout: Layout = ONE_DEVICE,
) -> Learners:
    """The learners with the best validation scores. Several are trained side by side as one compiled program. Training
    goes on from the step and the states in `start`, which remember the best scores but not who had them: hand these
    learners over as `best`, or, where no score improves, those in `start` come back. The devices of `layout` share the
    work, if there are several."""
    loop = _Loop(source, val, config, keys, observers, [typed(learner) for learner in learners], layout)
    step, states = start or (0, [initial_state(learner, config) for learner in learners])
    return loop.run(step, states, best or [state.learner for state in states], should_stop)


@dataclass
class _Loop:
    source: TaskSource
    val: TaskSet
    config: TrainConfig
    keys: list[PRNGKeyArray]
    observers: Sequence[Observer]
    untrained: Learners
    layout: Layout = ONE_DEVICE
    spread: Any = None
    """The source on all devices, where it draws there."""
    task_bytes: int = 0
    """Size of one task, once a batch has been seen."""
    validated: str = ""
    """The latest validation score, in words."""
    kept: dict[int, int] = field(default_factory=dict)
    """The step whose weights are each learner's best, once there is one."""

    def __post_init__(self):
        self._ahead = Ahead(self._draw)

    def run(self, step: int, states: States, best: Learners, should_stop: Callable[[], bool]) -> Learners:
        """Trains to the end of `config.steps`; the learners come back with the settings they came with."""
        given = [state.learner for state in states]
        batch = self.source.sample(min(self.config.tasks_per_batch, 64), key=self.keys[0])
        check_batch(batch, self.source.spec)
        self.task_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(batch)) // batch.family.shape[0]
        self.spread = self.layout.everywhere(self.source) if isinstance(self.source, eqx.Module) else None
        if step < self.config.steps:
            self._validation.check(given[0], self.source.spec)
            states = self._plan(step, states)
        best = self._run(step, states, list(best), should_stop)
        return [_with_arrays_of(new, old) for new, old in zip(best, given, strict=True)]

    def _plan(self, step: int, states: States) -> States:
        """Settles how a step is computed, within memory; gives the states with learners that compute it so."""
        config, image = self.config, self.source.spec.is_image
        tasks = self.layout.tasks_each(config.tasks_per_batch)
        most = largest_divisor(tasks, config.task_chunk or usual_chunk(tasks, self.source.spec))
        self.config = replace(config, task_chunk=most)
        if config.memory is None and not image:
            return states
        frugal = [_recomputing(state) for state in states]
        count = self._steps_at_once(min(config.steps_per_call, config.steps - step))
        source = self._source_of(step, count)

        def measure(chunk: int, recompute: bool) -> int:
            run, arguments = self._program(frugal if recompute else states, source, step, count)
            return bytes_needed(run, (*arguments, replace(config, task_chunk=chunk), self.layout))

        budget = least(budget_for(config.memory or "auto"))  # all processes make one plan
        can_recompute = frugal[0] is not states[0]
        plan = choose(measure, tasks=tasks, most_at_once=most, budget=budget, can_recompute=can_recompute)
        remark(plan.sentence)
        self.config = replace(config, task_chunk=plan.task_chunk)
        return frugal if plan.recompute else states

    def _run(self, step: int, states: States, best: Learners, should_stop: Callable[[], bool]) -> Learners:
        config, saved, rollbacks = self.config, (step, states), 0
        while step < config.steps:
            count = min(config.steps_per_call, config.steps - step)
            try:
                states, logs = self._advance(states, step, count)
            except Diverged as error:
                self._check_tasks(error)
                rollbacks += 1
                if config.on_divergence == "stop" or rollbacks > MAX_ROLLBACKS:
                    raise
                step, states = self._roll_back(error, saved, states)
                continue
            step += count
            for observer in self.observers:
                observer.progress(step, logs)
            text = f"loss {logs['loss'].mean():.3f}{self.validated}"
            tell("training", step, config.steps, text=text, tasks=config.tasks_per_batch * len(logs["loss"]))
            done = step == config.steps
            if done or _passes(step, count, config.val_every):
                states, best = self._validate(step, states, best)
            if done:
                self._compare(step, states)
            stopping = should_stop()  # asked once: what is answered with Interrupted has been saved
            if done or stopping or _passes(step, count, config.checkpoint_every):
                for observer in self.observers:
                    observer.checkpoint(step, bundle(states))
                saved = (step, states)
            if stopping and not done:
                raise Interrupted(step)
        self._say_what_is_kept()
        return best

    def _say_what_is_kept(self) -> None:
        """A remark where later training has made nothing better."""
        early, last = sorted({step for step in self.kept.values() if step < self.config.steps}), self.config.steps
        if early:
            steps = ", ".join(f"{step:,}" for step in early)
            remark(f"weights of step {steps} of {last:,} kept: none after it had a better {self.config.val_metric}")

    def _advance(self, states: States, step: int, count: int) -> tuple[States, dict[str, np.ndarray]]:
        size, parts = self._steps_at_once(count), []
        for first in range(step, step + count, size):
            states, logs = self._call(states, first, size)
            parts.append(logs)
        return states, {name: np.concatenate([part[name] for part in parts], 1).mean(1) for name in parts[0]}

    def _call(self, states: States, step: int, count: int) -> tuple[States, dict[str, np.ndarray]]:
        run, arguments = self._program(states, self._source_of(step, count), step, count)
        try:
            after, (losses, logs, finite) = jax.block_until_ready(run(*arguments, self.config, self.layout))
        except jax.errors.JaxRuntimeError as error:
            raise explained(error, self.config.task_chunk) from error
        after = self.layout.here(after)
        logs = {name: np.asarray(values).reshape(-1, count) for name, values in {"loss": losses, **logs}.items()}
        _check_finite(logs["loss"], np.asarray(finite).reshape(-1), step)
        return [after] if len(states) == 1 else unbundle(after, len(states)), logs

    def _program(self, states: States, source: Any, step: int, count: int) -> tuple[Any, tuple[Any, ...]]:
        """The compiled function that takes these steps, and its arguments but for the settings."""
        steps = step + jnp.arange(count)
        if len(states) == 1:
            run, (state, key) = run_steps, (states[0], self.keys[0])
        else:
            run, (state, key) = run_many, (bundle(states), jnp.stack(self.keys))
        state, key, steps = self.layout.everywhere((state, key, steps))
        return run, (state, source, key, steps)

    def _source_of(self, step: int, count: int) -> Any:
        """What a compiled call takes its tasks from, on the devices that share them."""
        if self.spread is not None:
            return self.spread
        return self.layout.parted(self._ahead.take(range(step, step + count), self.config.steps), axis=1)

    def _steps_at_once(self, count: int) -> int:
        """Steps in one compiled call: all, unless their batches come from the host and would fill much memory."""
        if isinstance(self.source, eqx.Module):
            return count
        return largest_divisor(count, DRAWN_BYTES // max(1, self.task_bytes * self.config.tasks_per_batch))

    def _draw(self, coming: range) -> TaskBatch:
        """Host-made batches for the coming steps, checked and stacked; the same ones for every learner."""
        tasks = self.config.tasks_per_batch
        return host_batches(
            self.source, self.keys[0], coming, tasks, lambda batch: check_batch(batch, self.source.spec)
        )

    def _validate(self, step: int, states: States, best: Learners) -> tuple[States, Learners]:
        judge, improved = self._validation, []
        scores = [judge.scores(state.learner, key=self._val_key(i)) for i, state in enumerate(states)]
        for i, state in enumerate(states):
            as_loss = judge.loss(scores[i])
            improved.append(judge.improves(as_loss, float(state.best)))
            if improved[-1]:
                best[i], self.kept[i] = state.learner, step
                reached = as_loss if np.isfinite(as_loss) else np.inf
                states[i] = eqx.tree_at(lambda s: s.best, state, jnp.asarray(reached, dtype=state.best.dtype))
        for observer in self.observers:
            observer.validated(step, scores, improved, bundle(states))
        self.validated = f"  val {judge.metric} {np.mean([score[judge.metric] for score in scores]):.3f}"
        return states, best

    @property
    def _validation(self) -> Validation:
        return Validation(self.val, self.config.val_metric, self.config.val_samples)

    def _val_key(self, learner: int) -> PRNGKeyArray:
        return jr.fold_in(self.keys[learner], 1)

    def _compare(self, step: int, states: States) -> None:
        """Notes which learners training has done no good."""
        for i, state in enumerate(states):
            untrained = _with_arrays_of(self.untrained[i], state.learner)  # else it would be compiled anew
            before = self._validation.scores(untrained, key=self._val_key(i))
            if note := self._validation.note(before, float(state.best)):
                remark(note)
                for observer in self.observers:
                    observer.noted(step, i, note)

    def _check_tasks(self, error: Diverged) -> None:
        """Says which task has spoilt a step, where one has: tasks drawn on the device are not looked at before."""
        if isinstance(self.source, eqx.Module):
            data_key, _ = jr.split(step_key(self.keys[error.seed_index], error.step))
            try:
                check_batch(self.source.sample(self.config.tasks_per_batch, key=data_key), self.source.spec)
            except SourceError as cause:
                raise SourceError(f"{error}, where {cause}") from error

    def _roll_back(self, error: Diverged, saved: tuple[int, States], reached: States) -> tuple[int, States]:
        """The last saved states, with the step size of the learner that diverged halved, there and for good. The best
        validation scores stay those that were reached, as the learners that reached them do."""
        (step, states), i = saved, error.seed_index
        states[i] = eqx.tree_at(lambda s: s.rate, states[i], states[i].rate / 2)
        for observer in self.observers:
            observer.rolled_back(error.step, step, i, float(states[i].rate))
        rate = f"{states[i].rate:g} of its schedule"
        remark(f"loss not finite at step {error.step}: back to step {step}, step size now {rate}")
        return step, [eqx.tree_at(lambda s: s.best, old, now.best) for old, now in zip(states, reached, strict=True)]


def _recomputing(state: State) -> State:
    """The state with inner steps recomputed in the backward pass, or itself where that changes nothing."""
    learner = recomputing(state.learner)
    return state if learner is None else replace(state, learner=learner)


def _with_arrays_of(new: AbstractMetaLearner, old: AbstractMetaLearner) -> AbstractMetaLearner:
    return jax.tree.unflatten(jax.tree.structure(old), jax.tree.leaves(new))


def _passes(step: int, count: int, every: int) -> bool:
    """Whether a multiple of `every` lies in the `count` steps that end at `step`."""
    return step // every > (step - count) // every


def _check_finite(losses: Float[np.ndarray, "l n"], finite: Bool[np.ndarray, " l"], step: int) -> None:
    for i, bad in enumerate(~np.isfinite(losses)):
        if bad.any() or not finite[i]:
            raise Diverged(step + (int(bad.argmax()) if bad.any() else len(bad)), i)
