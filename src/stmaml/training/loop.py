"""The one training loop: chunks of steps in one compiled scan, with tasks sampled inside it."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray, PyTree

from stmaml.benchmarks.base import TaskSet, TaskSource, check_batch
from stmaml.errors import SettingError
from stmaml.evaluation import evaluate, scored
from stmaml.methods.base import AbstractMetaLearner
from stmaml.progress import tell
from stmaml.tasks import Task, TaskBatch
from stmaml.training.memory import budget_for, choose, is_image, largest_divisor, parse_size, recomputing, usual_chunk
from stmaml.training.optimizers import OptimizerName, optimizer

USUAL_METRICS = {"real": ("mse", "nll"), "binary": ("bce", "nll"), "class": ("accuracy", "nll")}
"""Scores that tasks with such targets always have."""
MAX_ROLLBACKS = 8
MAX_BYTES_AHEAD = 2**26
MAX_BYTES_DRAWN = 2**29
"""Batches made on the host that wait for one compiled call."""


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a training run."""

    steps: int = 60_000
    """Meta-steps."""
    tasks_per_batch: int = 25
    """Tasks m in a meta-step."""
    outer_lr: float = 1e-3
    """The optimizer's step size (gamma_2)."""
    optimizer: OptimizerName = "adam"
    """Adam, or Muon, whose steps turn weight matrices by orthogonal ones: worth a trial with attention, at a rate three
    to six times as high."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """How the step size goes on: down to zero along a half cosine, or level."""
    warmup: int = 0
    """Steps over which the step size first rises from zero; a quarter of all steps at most."""
    clip_norm: float = 10.0
    """Bound on the norm of the outer gradient."""
    val_every: int = 1000
    """Steps between validations; the learner with the best score is kept."""
    val_tasks: int = 300
    """Held-out tasks in a validation."""
    val_samples: int = 1
    """Predictors sampled for each of them."""
    val_metric: str = "mse"
    """The score that chooses, lower being better (accuracy: higher)."""
    checkpoint_every: int = 2000
    """Steps between checkpoints."""
    steps_per_call: int = 100
    """Steps in one compiled call; validations and checkpoints fall on its multiples."""
    on_divergence: Literal["stop", "rollback"] = "stop"
    """When a loss is not finite: stop, or go back to the last checkpoint and halve the step size."""
    task_chunk: int | None = None
    """Tasks whose gradients are taken at once, the others waiting their turn: less memory, the same result but for
    rounding. If not given: all, or one image task on a CPU, where that is faster."""
    memory: str | None = None
    """Memory that a step may take, such as 8GB, or auto for what is free: takes tasks in turns and recomputes inner
    steps as far as needed. If not given: auto for images, else not looked at."""

    def __post_init__(self):
        for name in (
            "steps",
            "tasks_per_batch",
            "val_every",
            "val_tasks",
            "val_samples",
            "checkpoint_every",
            "steps_per_call",
        ):
            if getattr(self, name) < 1:
                raise SettingError(f"--{name.replace('_', '-')} must be at least 1; got {getattr(self, name)}.")
        if self.warmup < 0:
            raise SettingError(f"--warmup must be at least 0; got {self.warmup}.")
        for name in ("outer_lr", "clip_norm"):
            if not getattr(self, name) > 0:
                raise SettingError(f"--{name.replace('_', '-')} must be above 0; got {getattr(self, name)}.")
        chunk = self.task_chunk
        if chunk is not None and (chunk < 1 or self.tasks_per_batch % chunk):
            raise SettingError(
                f"--task-chunk must divide --tasks-per-batch, which is {self.tasks_per_batch}; got {chunk}."
            )
        if self.memory is not None:
            parse_size(self.memory)

    @property
    def rise(self) -> int:
        """Steps of warm-up: `warmup`, unless a training made short would be little else."""
        return min(self.warmup, self.steps // 4)


class State(eqx.Module):
    """All that a training run needs to go on: what a checkpoint holds."""

    learner: AbstractMetaLearner
    opt_state: PyTree
    rate: Float[Array, ""]
    """Factor on the step size; a rollback halves it."""
    best: Float[Array, ""]
    """Best validation score so far, as a loss."""


class Diverged(Exception):
    """Training produced a number that is not finite."""

    def __init__(self, step: int, seed_index: int):
        """`seed_index` counts the learners trained side by side."""
        super().__init__(f"the loss is not finite from step {step} on")
        self.step, self.seed_index = step, seed_index


class Interrupted(Exception):
    """Training was asked to stop; its state is saved."""

    def __init__(self, step: int):
        """`step` is where it can go on."""
        super().__init__(f"stopped at step {step}")
        self.step = step


@runtime_checkable
class Observer(Protocol):
    """Who is told how training goes. All arrays have one entry a learner."""

    def progress(self, step: int, logs: dict[str, np.ndarray]) -> None:
        """After each chunk of steps: mean loss and metrics over the chunk."""
        ...

    def validated(self, step: int, scores: list[dict[str, float]], improved: list[bool], state: State) -> None:
        """After each validation."""
        ...

    def checkpoint(self, step: int, state: State) -> None:
        """When the state should be saved."""
        ...

    def rolled_back(self, step: int, to_step: int, seed_index: int, rate: float) -> None:
        """After a divergence, before going on from `to_step`."""
        ...


class Silent:
    """An observer that keeps nothing."""

    def progress(self, step: int, logs: dict[str, np.ndarray]) -> None:
        """Nothing."""

    def validated(self, step: int, scores: list[dict[str, float]], improved: list[bool], state: State) -> None:
        """Nothing."""

    def checkpoint(self, step: int, state: State) -> None:
        """Nothing."""

    def rolled_back(self, step: int, to_step: int, seed_index: int, rate: float) -> None:
        """Nothing."""


def train_learners(
    learners: list[AbstractMetaLearner],
    source: TaskSource,
    val: TaskSet,
    config: TrainConfig,
    *,
    keys: list[PRNGKeyArray],
    observer: Observer | None = None,
    start: tuple[int, list[State]] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[AbstractMetaLearner]:
    """The learners with the best validation scores. Several are trained side by side as one compiled program."""
    loop = _Loop(source, val, config, keys, observer or Silent())
    step, states = start or (0, [initial_state(learner, config) for learner in learners])
    return loop.run(step, states, should_stop)


def initial_state(learner: AbstractMetaLearner, config: TrainConfig) -> State:
    """A state with no step taken.

    Weakly typed leaves, such as the logarithm of a Python float, are given their type: a step would do so anyway, and
    the second chunk be compiled anew.
    """
    typed = jax.tree.map(lambda a: jnp.asarray(a, dtype=a.dtype), eqx.filter(learner, eqx.is_inexact_array))
    learner = eqx.combine(typed, learner)
    opt_state = _optimizer(config).init(eqx.filter(learner, eqx.is_inexact_array))
    return State(learner, opt_state, jnp.array(1.0, dtype=float), jnp.array(jnp.inf, dtype=float))


@dataclass
class _Loop:
    source: TaskSource
    val: TaskSet
    config: TrainConfig
    keys: list[PRNGKeyArray]
    observer: Observer
    task_bytes: int = 0
    """Size of one task, once a batch has been seen."""

    def run(self, step: int, states: list[State], should_stop: Callable[[], bool]) -> list[AbstractMetaLearner]:
        """Trains to the end of `config.steps`; the learners come back with the settings they came with."""
        given = [state.learner for state in states]
        batch = self.source.sample(min(self.config.tasks_per_batch, 64), key=self.keys[0])
        check_batch(batch, self.source.spec)
        self.task_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(batch)) // batch.family.shape[0]
        if step < self.config.steps:
            self._check_metric(given[0])
            states = self._plan(step, states)
        best = self._run(step, states, should_stop)
        return [_with_arrays_of(new, old) for new, old in zip(best, given, strict=True)]

    def _check_metric(self, learner: AbstractMetaLearner) -> None:
        """Refuses a misspelt score before training instead of at the first validation."""
        metric = self.config.val_metric
        if metric in USUAL_METRICS[self.source.spec.target]:
            return  # tracing the network, to see what is scored, takes a second
        names = scored(learner, self.val)
        if metric not in names:
            raise SettingError(
                f"--val-metric {metric} is not scored on these tasks; choose one of {', '.join(sorted(names))}."
            )

    def _plan(self, step: int, states: list[State]) -> list[State]:
        """Settles how a step is computed, within memory; gives the states with learners that compute it so."""
        config, image = self.config, is_image(self.source.spec)
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

        plan = choose(
            measure,
            tasks=config.tasks_per_batch,
            most_at_once=most,
            budget=budget_for(config.memory or "auto"),
            can_recompute=frugal[0] is not states[0],
        )
        tell(plan.sentence, 1, 1)
        self.config = replace(config, task_chunk=plan.task_chunk)
        return frugal if plan.recompute else states

    def _run(self, step: int, states: list[State], should_stop: Callable[[], bool]) -> list[AbstractMetaLearner]:
        config = self.config
        best = [state.learner for state in states]
        saved = (step, states)
        rollbacks = 0
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
            self.observer.progress(step, logs)
            done = step == config.steps
            if done or _passes(step, count, config.val_every):
                states, best = self._validate(step, states, best)
            stopping = should_stop()  # asked once: what is answered with Interrupted has been saved
            if done or stopping or _passes(step, count, config.checkpoint_every):
                self.observer.checkpoint(step, _bundle(states))
                saved = (step, states)
            if stopping and not done:
                raise Interrupted(step)
        return best

    def _advance(self, states: list[State], step: int, count: int) -> tuple[list[State], dict[str, np.ndarray]]:
        """`count` more steps for every learner."""
        size, parts = self._steps_at_once(count), []
        for first in range(step, step + count, size):
            states, logs = self._call(states, first, size)
            parts.append(logs)
        return states, {name: np.concatenate([part[name] for part in parts], 1).mean(1) for name in parts[0]}

    def _call(self, states: list[State], step: int, count: int) -> tuple[list[State], dict[str, np.ndarray]]:
        """The steps of one compiled call, with the losses and metrics of each."""
        run, arguments = self._program(states, self._source_of(step, count), step, count)
        try:
            after, (losses, logs, finite) = jax.block_until_ready(run(*arguments, self.config))
        except jax.errors.JaxRuntimeError as error:
            raise _explained(error, self.config) from error
        if len(states) == 1:
            states, finite = [after], np.asarray(finite)[None]
            logs = {name: np.asarray(values)[None] for name, values in {"loss": losses, **logs}.items()}
        else:
            states, finite = unbundle(after, len(states)), np.asarray(finite)
            logs = {name: np.asarray(values) for name, values in {"loss": losses, **logs}.items()}
        _check_finite(logs["loss"], finite, step)
        return states, logs

    def _program(self, states: list[State], source: Any, step: int, count: int) -> tuple[Any, tuple[Any, ...]]:
        """The compiled function that takes these steps, and its arguments but for the settings."""
        steps = step + jnp.arange(count)
        if len(states) == 1:
            return run_steps, (states[0], source, self.keys[0], steps)
        return _run_many, (_bundle(states), source, jnp.stack(self.keys), steps)

    def _source_of(self, step: int, count: int) -> Any:
        return self.source if isinstance(self.source, eqx.Module) else self._draw(step, count)

    def _steps_at_once(self, count: int) -> int:
        """Steps in one compiled call: all, unless their batches come from the host and would fill much memory."""
        if isinstance(self.source, eqx.Module):
            return count
        return largest_divisor(count, MAX_BYTES_DRAWN // max(1, self.task_bytes * self.config.tasks_per_batch))

    def _draw(self, step: int, count: int) -> TaskBatch:
        """Host-made batches for the coming steps, checked and stacked; the same ones for every learner."""
        batches = []
        for index in range(step, step + count):
            data_key, _ = jr.split(_data_key(self.keys[0], index))  # as in run_steps: apart from the loss's key
            batch = self.source.sample(self.config.tasks_per_batch, key=data_key)
            check_batch(batch, self.source.spec)
            batches.append(batch)
        return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *batches)

    def _validate(
        self, step: int, states: list[State], best: list[AbstractMetaLearner]
    ) -> tuple[list[State], list[AbstractMetaLearner]]:
        scores, improved = [], []
        for i, state in enumerate(states):
            result = evaluate(
                state.learner, self.val, num_samples=self.config.val_samples, key=jr.fold_in(self.keys[i], 1)
            )
            scores.append({name: summary["mean"] for name, summary in result.summary().items()})
            as_loss = _as_loss(self.config.val_metric, scores[-1])
            improved.append(bool(as_loss < state.best))
            if improved[-1]:
                best[i] = state.learner
                states[i] = eqx.tree_at(lambda s: s.best, state, jnp.asarray(as_loss, dtype=state.best.dtype))
        self.observer.validated(step, scores, improved, _bundle(states))
        return states, best

    def _roll_back(
        self, error: Diverged, saved: tuple[int, list[State]], reached: list[State]
    ) -> tuple[int, list[State]]:
        """The last saved states, with the step size of the learner that diverged halved, there and for good.

        The best validation scores stay those that were reached, as the learners that reached them do.
        """
        step, states = saved
        i = error.seed_index
        states[i] = eqx.tree_at(lambda s: s.rate, states[i], states[i].rate / 2)
        self.observer.rolled_back(error.step, step, i, float(states[i].rate))
        return step, [eqx.tree_at(lambda s: s.best, old, now.best) for old, now in zip(states, reached, strict=True)]


def _recomputing(state: State) -> State:
    """The state with inner steps recomputed in the backward pass, or itself where that changes nothing."""
    learner = recomputing(state.learner)
    return state if learner is None else replace(state, learner=learner)


def _with_arrays_of(new: AbstractMetaLearner, old: AbstractMetaLearner) -> AbstractMetaLearner:
    """`old` with its settings and the numbers of `new`."""
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
    """The error as advice, if it is a lack of memory."""
    if "RESOURCE_EXHAUSTED" not in str(error):
        return error
    chunk = config.task_chunk or config.tasks_per_batch
    return SettingError(
        f"the device ran out of memory with {chunk} tasks at once. Try --memory auto or a size below what is free, a "
        "smaller --task-chunk, --remat, or --order first (an approximation)."
    )


def _as_loss(metric: str, scores: dict[str, float]) -> float:
    return -scores[metric] if metric == "accuracy" else scores[metric]


def _passes(step: int, count: int, every: int) -> bool:
    """Whether a multiple of `every` lies in the `count` steps that end at `step`."""
    return step // every > (step - count) // every


def _check_finite(losses: Float[np.ndarray, "l n"], finite: Bool[np.ndarray, " l"], step: int) -> None:
    bad = ~np.isfinite(losses)
    for i in range(len(losses)):
        if bad[i].any() or not finite[i]:
            first = int(bad[i].argmax()) if bad[i].any() else losses.shape[1]
            raise Diverged(step + first, i)


def _bundle(states: list[State]) -> State:
    """States of several learners as one, on a leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *[eqx.filter(state, eqx.is_array) for state in states])


def unbundle(bundle: State, count: int) -> list[State]:
    """The opposite of `_bundle`."""
    return [jax.tree.map(lambda leaf, i=i: leaf[i], bundle) for i in range(count)]


def _optimizer(config: TrainConfig) -> optax.GradientTransformationExtraArgs:
    start = 0.0 if config.rise else config.outer_lr
    if config.schedule == "cosine":
        schedule = optax.warmup_cosine_decay_schedule(start, config.outer_lr, config.rise, config.steps)
    else:
        schedule = optax.warmup_constant_schedule(start, config.outer_lr, config.rise)
    return optimizer(config.optimizer, schedule, clip_norm=config.clip_norm)


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
    return sample(keys) if size <= MAX_BYTES_AHEAD else None


@eqx.filter_jit
def _run_many(bundle: State, source: Any, keys: Key[Array, " l"], steps: Int[Array, " n"], config: TrainConfig):
    run = eqx.filter_vmap(lambda state, key: run_steps(state, source, key, steps, config))
    return run(bundle, keys)


def meta_step(
    state: State, batch: TaskBatch, config: TrainConfig, *, key: PRNGKeyArray
) -> tuple[State, tuple[Float[Array, ""], dict[str, Float[Array, ""]]]]:
    """One step of the optimizer on the mean loss of a batch of tasks (Algorithm 1, line 12)."""

    @eqx.filter_value_and_grad(has_aux=True)
    def mean_loss(learner: AbstractMetaLearner, tasks: Task, keys: Key[Array, " m"]):
        losses, metrics = jax.vmap(lambda task, key: learner.loss(task, key=key))(tasks, keys)
        return losses.mean(), {name: values.mean() for name, values in metrics.items()}

    keys = jr.split(key, batch.family.shape[0])
    (loss, metrics), grads = _in_turns(mean_loss, state.learner, batch.tasks, keys, config.task_chunk)
    params = eqx.filter(state.learner, eqx.is_inexact_array)
    updates, opt_state = _optimizer(config).update(grads, state.opt_state, params)
    updates = jax.tree.map(lambda update: state.rate * update, updates)
    learner = eqx.apply_updates(state.learner, updates)
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
