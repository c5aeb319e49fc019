"""The one training loop: chunks of steps in one compiled scan, with tasks sampled inside it."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray, PyTree

from stmaml.benchmarks.sources import TaskSet, TaskSource, check_batch
from stmaml.errors import SettingError
from stmaml.evaluation import evaluate, scored
from stmaml.limits import AHEAD_BYTES, DRAWN_BYTES
from stmaml.methods.base import AbstractMetaLearner
from stmaml.metric_table import judged, metric
from stmaml.progress import remark, tell
from stmaml.tasks import Scalar, Task, TaskBatch
from stmaml.training.config import TrainConfig
from stmaml.training.memory import budget_for, choose, largest_divisor, recomputing, usual_chunk
from stmaml.training.observers import Observer
from stmaml.training.state import State, bundle, initial_state, unbundle

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
) -> Learners:
    """The learners with the best validation scores. Several are trained side by side as one compiled program. Training
    goes on from the step and the states in `start`, which remember the best scores but not who had them: hand these
    learners over as `best`, or, where no score improves, those in `start` come back."""
    loop = _Loop(source, val, config, keys, observers)
    step, states = start or (0, [initial_state(learner, config) for learner in learners])
    return loop.run(step, states, best or [state.learner for state in states], should_stop)


@dataclass
class _Loop:
    source: TaskSource
    val: TaskSet
    config: TrainConfig
    keys: list[PRNGKeyArray]
    observers: Sequence[Observer]
    task_bytes: int = 0
    """Size of one task, once a batch has been seen."""
    validated: str = ""
    """The latest validation score, in words."""
    kept: dict[int, int] = field(default_factory=dict)
    """The step whose weights are each learner's best, once there is one."""

    def run(self, step: int, states: States, best: Learners, should_stop: Callable[[], bool]) -> Learners:
        """Trains to the end of `config.steps`; the learners come back with the settings they came with."""
        given = [state.learner for state in states]
        batch = self.source.sample(min(self.config.tasks_per_batch, 64), key=self.keys[0])
        check_batch(batch, self.source.spec)
        self.task_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(batch)) // batch.family.shape[0]
        if step < self.config.steps:
            self._check_metric(given[0])
            states = self._plan(step, states)
        best = self._run(step, states, list(best), should_stop)
        return [_with_arrays_of(new, old) for new, old in zip(best, given, strict=True)]

    def _check_metric(self, learner: AbstractMetaLearner) -> None:
        """Refuses a score that cannot choose a learner before training instead of at the first validation."""
        wanted = self.config.val_metric
        if self.source.spec.target in metric(wanted).always:
            return  # tracing the network, to see what is scored, takes a second
        names = scored(learner, self.val)
        if wanted not in judged(names):
            why = "is neither good nor bad by itself" if wanted in names else "is not scored on these tasks"
            raise SettingError(f"--val-metric {wanted} {why}; choose one of {', '.join(judged(names))}.")

    def _plan(self, step: int, states: States) -> States:
        """Settles how a step is computed, within memory; gives the states with learners that compute it so."""
        config, image = self.config, self.source.spec.is_image
        most = config.task_chunk or usual_chunk(config.tasks_per_batch, self.source.spec)
        self.config = replace(config, task_chunk=most)
        if config.memory is None and not image:
            return states
        frugal = [_recomputing(state) for state in states]
        count = self._steps_at_once(min(config.steps_per_call, config.steps - step))
        source = self._source_of(step, count)

        def measure(chunk: int, recompute: bool) -> int:
            run, arguments = self._program(frugal if recompute else states, source, step, count)
            return _bytes_needed(run, (*arguments, replace(config, task_chunk=chunk)))

        tasks, budget = config.tasks_per_batch, budget_for(config.memory or "auto")
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
            after, (losses, logs, finite) = jax.block_until_ready(run(*arguments, self.config))
        except jax.errors.JaxRuntimeError as error:
            raise _explained(error, self.config) from error
        logs = {name: np.asarray(values).reshape(-1, count) for name, values in {"loss": losses, **logs}.items()}
        _check_finite(logs["loss"], np.asarray(finite).reshape(-1), step)
        return [after] if len(states) == 1 else unbundle(after, len(states)), logs

    def _program(self, states: States, source: Any, step: int, count: int) -> tuple[Any, tuple[Any, ...]]:
        """The compiled function that takes these steps, and its arguments but for the settings."""
        steps = step + jnp.arange(count)
        if len(states) == 1:
            return run_steps, (states[0], source, self.keys[0], steps)
        return _run_many, (bundle(states), source, jnp.stack(self.keys), steps)

    def _source_of(self, step: int, count: int) -> Any:
        return self.source if isinstance(self.source, eqx.Module) else self._draw(step, count)

    def _steps_at_once(self, count: int) -> int:
        """Steps in one compiled call: all, unless their batches come from the host and would fill much memory."""
        if isinstance(self.source, eqx.Module):
            return count
        return largest_divisor(count, DRAWN_BYTES // max(1, self.task_bytes * self.config.tasks_per_batch))

    def _draw(self, step: int, count: int) -> TaskBatch:
        """Host-made batches for the coming steps, checked and stacked; the same ones for every learner."""
        batches = []
        for index in range(step, step + count):
            data_key, _ = jr.split(_data_key(self.keys[0], index))  # as in run_steps: apart from the loss's key
            batch = self.source.sample(self.config.tasks_per_batch, key=data_key)
            check_batch(batch, self.source.spec)
            batches.append(batch)
        return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *batches)

    def _validate(self, step: int, states: States, best: Learners) -> tuple[States, Learners]:
        scores, improved, chosen, num_samples = [], [], self.config.val_metric, self.config.val_samples
        for i, state in enumerate(states):
            result = evaluate(state.learner, self.val, num_samples=num_samples, key=jr.fold_in(self.keys[i], 1))
            scores.append({name: summary["mean"] for name, summary in result.summary().items()})
            as_loss = metric(chosen).badness(scores[-1][chosen])
            improved.append(bool(as_loss < state.best))
            if improved[-1]:
                best[i], self.kept[i] = state.learner, step
                states[i] = eqx.tree_at(lambda s: s.best, state, jnp.asarray(as_loss, dtype=state.best.dtype))
        for observer in self.observers:
            observer.validated(step, scores, improved, bundle(states))
        self.validated = f"  val {chosen} {np.mean([score[chosen] for score in scores]):.3f}"
        return states, best

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


def _bytes_needed(run: Any, arguments: tuple[Any, ...]) -> int:
    """Memory that a compiled call takes. The program is kept: a later call with the same shapes compiles nothing."""
    try:
        stats = run.lower(*arguments).compile().compiled.memory_analysis()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" in str(error):  # the compiler tries kernels out
            return sys.maxsize
        raise
    return stats.temp_size_in_bytes + stats.argument_size_in_bytes + stats.output_size_in_bytes


def _explained(error: Exception, config: TrainConfig) -> Exception:
    if "RESOURCE_EXHAUSTED" not in str(error):
        return error
    what = f"the device ran out of memory with {config.task_chunk or config.tasks_per_batch} tasks at once"
    cure = "a smaller --task-chunk, --remat, or --order first (an approximation)"
    return SettingError(f"{what}. Try --memory auto or a size below what is free, {cure}.")


def _passes(step: int, count: int, every: int) -> bool:
    """Whether a multiple of `every` lies in the `count` steps that end at `step`."""
    return step // every > (step - count) // every


def _check_finite(losses: Float[np.ndarray, "l n"], finite: Bool[np.ndarray, " l"], step: int) -> None:
    for i, bad in enumerate(~np.isfinite(losses)):
        if bad.any() or not finite[i]:
            raise Diverged(step + (int(bad.argmax()) if bad.any() else len(bad)), i)


def _data_key(key: PRNGKeyArray, step: Any) -> PRNGKeyArray:
    return jr.fold_in(jr.fold_in(key, 0), step)


@eqx.filter_jit
def run_steps(
    state: State, source: Any, key: PRNGKeyArray, steps: Int[Array, " n"], config: TrainConfig
) -> tuple[State, tuple[Float[Array, " n"], dict[str, Float[Array, " n"]], Bool[Array, ""]]]:
    """Every step of `steps` in turn. `source` is sampled inside, or holds one ready batch a step."""
    data_keys, loss_keys = jax.vmap(lambda index: jr.split(_data_key(key, index)), out_axes=1)(steps)

    def step(state: State, inputs: tuple[PRNGKeyArray, PRNGKeyArray, TaskBatch | None]):
        data_key, loss_key, batch = inputs
        if batch is None:
            batch = source.sample(config.tasks_per_batch, key=data_key)
        return meta_step(state, batch, config, key=loss_key)

    batches = source if isinstance(source, TaskBatch) else _sample_ahead(source, data_keys, config)
    state, (losses, logs) = jax.lax.scan(step, state, (data_keys, loss_keys, batches))
    leaves = jax.tree.leaves(eqx.filter(state.learner, eqx.is_inexact_array))
    finite = jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves]).all()
    return state, (losses, logs, finite)


def _sample_ahead(source: Any, keys: Key[Array, " n"], config: TrainConfig) -> TaskBatch | None:
    """The batches of all steps, drawn together in a third of the time; none where they would fill much memory."""
    sample = jax.vmap(lambda key: source.sample(config.tasks_per_batch, key=key))
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(jax.eval_shape(sample, keys)))
    return sample(keys) if size <= AHEAD_BYTES else None


@eqx.filter_jit
def _run_many(bundle: State, source: Any, keys: Key[Array, " l"], steps: Int[Array, " n"], config: TrainConfig):
    return eqx.filter_vmap(lambda state, key: run_steps(state, source, key, steps, config))(bundle, keys)


def meta_step(
    state: State, batch: TaskBatch, config: TrainConfig, *, key: PRNGKeyArray
) -> tuple[State, tuple[Scalar, dict[str, Scalar]]]:
    """One step of the optimizer on the mean loss of a batch of tasks (Algorithm 1, line 12)."""

    @eqx.filter_value_and_grad(has_aux=True)
    def mean_loss(learner: AbstractMetaLearner, tasks: Task, keys: Key[Array, " m"]):
        losses, metrics = jax.vmap(lambda task, key: learner.loss(task, key=key))(tasks, keys)
        return losses.mean(), {name: values.mean() for name, values in metrics.items()}

    keys = jr.split(key, batch.family.shape[0])
    (loss, metrics), grads = _in_turns(mean_loss, state.learner, batch.tasks, keys, config.task_chunk)
    params = eqx.filter(state.learner, eqx.is_inexact_array)
    updates, opt_state = config.optimizer_of().update(grads, state.opt_state, params)
    learner = eqx.apply_updates(state.learner, jax.tree.map(lambda update: state.rate * update, updates))
    return State(learner, opt_state, state.rate, state.best), (loss, metrics)


def _in_turns(
    mean_of: Callable[..., Any], learner: AbstractMetaLearner, tasks: Task, keys: Key[Array, " m"], chunk: int | None
) -> Any:
    """The mean that `mean_of` takes over tasks, computed `chunk` of them at a time."""
    count = keys.shape[0]
    if chunk is None or chunk >= count:
        return mean_of(learner, tasks, keys)
    parts = jax.tree.map(lambda leaf: leaf.reshape(count // chunk, chunk, *leaf.shape[1:]), (tasks, keys))
    like = eqx.filter_eval_shape(mean_of, learner, *jax.tree.map(lambda leaf: leaf[0], parts))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)

    def add(total: PyTree, part: tuple[Task, Key[Array, " c"]]) -> tuple[PyTree, None]:
        return jax.tree.map(jnp.add, total, mean_of(learner, *part)), None

    total, _ = jax.lax.scan(add, zeros, parts)
    return jax.tree.map(lambda leaf: leaf * (chunk / count), total)
