"""Where tasks come from: sources, frozen sets of their tasks, and how far their numbers spread."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray, Shaped

from stmaml.errors import SourceError
from stmaml.limits import SCALING_BYTES
from stmaml.tasks import Examples, Scaling, Task, TaskBatch, TaskSpec

CHECKED = 8  # tasks in a short form that are looked at whole before the others are trusted
MAX_GROUPS = 1000  # of one set of tasks
LARGEST = 1e15  # of inputs and targets: squares of larger ones, summed up, leave single precision
KNOTS = 65  # quantiles of an input between which its rank is interpolated


@runtime_checkable
class TaskSource(Protocol):
    """An endless supply of tasks. Stateless: the same key gives the same tasks.

    A source that is an `eqx.Module` is sampled on the device, inside the compiled training step; any other object is
    called on the host."""

    @property
    def spec(self) -> TaskSpec:
        """What its tasks look like."""
        ...

    def sample(self, num_tasks: int, *, key: PRNGKeyArray) -> TaskBatch:
        """`num_tasks` tasks, all of the same shape."""
        ...


class Pool(eqx.Module):
    """A fixed number of tasks, from which whole tasks are drawn with replacement."""

    batch: TaskBatch
    spec: TaskSpec = eqx.field(static=True)

    def sample(self, num_tasks: int, *, key: PRNGKeyArray) -> TaskBatch:
        """Tasks of the pool, uniformly."""
        chosen = jr.randint(key, (num_tasks,), 0, self.batch.family.shape[0])
        return jax.tree.map(lambda leaf: leaf[chosen], self.batch)


@runtime_checkable
class DrawingSource(TaskSource, Protocol):
    """A source whose tasks have a short form, such as the places of their images: a thousand of them fit in memory."""

    @property
    def content_digest(self) -> str:
        """Stands for whatever the short forms refer to."""
        ...

    def draw(self, num_tasks: int, *, key: PRNGKeyArray) -> Any:
        """The short form of the tasks that `sample` gives: arrays with a leading axis of tasks, one named `family`."""
        ...

    def expand(self, drawn: Any) -> TaskBatch:
        """The tasks themselves."""
        ...


def _as_stored(stored: TaskBatch) -> TaskBatch:
    return stored


@dataclass(frozen=True)
class TaskSet:
    """A frozen set of tasks, so that two runs are scored on the same ones."""

    stored: Any  # the tasks, or their short form
    digest: str  # first 16 digits of the SHA-256 of all its numbers; of a short form also of what that refers to
    expand: Callable[[Any], TaskBatch] = _as_stored  # makes tasks of what is stored
    num_groups: int = 0
    """Groups that the tasks are of, all in turn, where several are of one: those are not independent."""

    @property
    def batch(self) -> TaskBatch:
        """All tasks at once: large, where they are stored in a short form."""
        return self.expand(self.stored)

    @property
    def family(self) -> Int[np.ndarray, " m"]:
        """The kind of each task."""
        return np.asarray(self.stored.family)

    @cached_property
    def targets_digest(self) -> str:
        """Which tasks these are, however their inputs are shown; of classes, whose numbers say little, the digest."""
        if np.issubdtype(next(self.chunks(1)).tasks.query.y.dtype, np.integer):
            return self.digest
        found = hashlib.sha256()
        for batch in self.chunks(min(self.num_tasks, 100)):
            sets = (batch.tasks.support, batch.tasks.query)
            for leaf in (leaf for examples in sets for leaf in (examples.y, examples.weight)):
                found.update(np.rint(np.asarray(leaf, dtype=float) * 1000).astype(np.int64).tobytes())
        return found.hexdigest()[:16]

    @property
    def num_tasks(self) -> int:
        """Tasks in the set."""
        return self.stored.family.shape[0]

    @property
    def task_bytes(self) -> int:
        """Bytes of one task."""
        one = jax.eval_shape(self.expand, self._rows(np.zeros(1, dtype=int)))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(one))

    def chunks(self, size: int) -> Iterator[TaskBatch]:
        """The tasks in order, `size` at a time; the last chunk repeats its final task to keep the shape."""
        for start in range(0, self.num_tasks, size):
            yield self.expand(self._rows(np.minimum(np.arange(start, start + size), self.num_tasks - 1)))

    def with_shots(self, shots: int) -> "TaskSet":
        """The same tasks with only the first `shots` rows of each support set labelled; the queries stay."""
        weight = np.asarray(self.batch.tasks.support.weight)
        kept = weight * (np.arange(weight.shape[1]) < shots).astype(np.float32)
        return replace(self, stored=eqx.tree_at(lambda b: b.tasks.support.weight, self.batch, kept), expand=_as_stored)

    def _rows(self, rows: Int[np.ndarray, " k"]) -> Any:
        return jax.tree.map(lambda leaf: leaf[rows], self.stored)


def freeze(source: TaskSource, num_tasks: int, *, seed: int) -> TaskSet:
    """The first `num_tasks` tasks of `source` under `seed`, in their short form if they have one.

    Drawn in double precision on the CPU and rounded to single, so that the set, and its digest, are the same on any
    hardware."""
    short = isinstance(source, DrawingSource)
    draw = source.draw if short else source.sample
    with jax.default_device(jax.local_devices(backend="cpu")[0]), jax.enable_x64(True):
        drawn = (eqx.filter_jit(draw) if isinstance(source, eqx.Module) else draw)(num_tasks, key=jr.key(seed))
        stored = jax.tree.map(_single, drawn) if short or isinstance(drawn, TaskBatch) else drawn
    frozen = TaskSet(stored, "", source.expand if short else _as_stored)
    check_batch(next(frozen.chunks(min(num_tasks, CHECKED))) if short else stored, source.spec)
    digest = hashlib.sha256(source.content_digest.encode() if short else b"")
    for leaf in jax.tree.leaves(stored):
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return replace(frozen, digest=digest.hexdigest()[:16])


def in_turn(source: TaskSource, num_groups: int, num_tasks: int, *, seed: int) -> TaskSet:
    """Frozen tasks of a source that deals its groups in turn: all equally often, about `num_tasks` together."""
    few = min(num_groups, MAX_GROUPS)  # those dealt first, which is as good as at random
    turns = 1 if few < num_groups else max(1, round(num_tasks / few))
    return replace(freeze(source, turns * few, seed=seed), num_groups=few)


def shot_weights(
    shots: int, fewest: int | None, *, key: PRNGKeyArray, dtype: DTypeLike = int
) -> Float[Array, " {shots}"]:
    """Weights of a support set: of the first rows, as many as are drawn between `fewest` and all; of all if None."""
    if fewest is None:
        return jnp.ones(shots)
    return (jnp.arange(shots) < jr.randint(key, (), fewest, shots + 1, dtype=dtype)).astype(float)


def _single(leaf: jax.Array) -> np.ndarray:
    array = np.asarray(leaf)
    return array.astype(np.float32 if np.issubdtype(array.dtype, np.floating) else np.int32)


def check_batch(batch: object, spec: TaskSpec) -> None:
    """Raises SourceError if a batch does not fit `spec` or holds numbers that cannot be learnt from."""
    if not isinstance(batch, TaskBatch):
        raise SourceError(f"sample returned {type(batch).__name__}; expected a TaskBatch, such as TaskBatch.of makes.")
    for part, examples in (("support", batch.tasks.support), ("query", batch.tasks.query)):
        x, y, weight = (np.asarray(a) for a in (examples.x, examples.y, examples.weight))
        dims = map(str, spec.x_shape)
        if weight.ndim != 2 or x.shape != (*weight.shape, *spec.x_shape):
            raise SourceError(
                f"the {part} inputs have shape {x.shape}; expected (tasks, examples, {', '.join(dims)}) with "
                f"weights of shape (tasks, examples), and the weights have {weight.shape}. Make them agree with spec."
            )
        y_shape = weight.shape if spec.target == "class" else (*weight.shape, spec.y_size)
        if y.shape != y_shape:
            raise SourceError(f"the {part} targets have shape {y.shape}; expected {y_shape} from spec.")
        if spec.target == "class" and not np.issubdtype(y.dtype, np.integer):
            raise SourceError(f"the {part} classes are {y.dtype} numbers; expected integers from 0 on.")
        if not (np.isfinite(weight) & (weight >= 0)).all():
            raise SourceError(f"the {part} weights hold NaN, infinity or a negative number; expected 0 or more.")
        real = weight > 0
        for what, values in (("inputs", x), ("targets", y)):
            _check_numbers(f"the {part} {what}", values.reshape(len(weight), -1))
        if part == "query" and not real.any(1).all():
            raise SourceError(f"task {int(np.argmin(real.any(1)))} has an empty query set; give it at least one row.")
        if spec.target == "class" and real.any() and not (y[real].min() >= 0 and y[real].max() < spec.y_size):
            raise SourceError(
                f"the {part} classes must be 0 to {spec.y_size - 1}; found {y[real].min()} to {y[real].max()}."
            )
    if not (np.asarray(batch.tasks.support.weight) > 0).any():
        raise SourceError("every support set of the batch is empty; a method needs labelled examples to learn from.")


def _check_numbers(what: str, values: Shaped[np.ndarray, "m n"]) -> None:
    """Rows of weight 0 count too: zero times NaN is NaN."""
    small = np.abs(values) <= LARGEST  # nor is NaN
    if small.all():
        return
    task = int(np.argmin(small.all(1)))
    found = values[task][~small[task]][0]
    more = f", as do {int((~small.all(1)).sum()) - 1} more" if (~small.all(1)).sum() > 1 else ""
    hold = f"{found:.3g}, beyond {LARGEST:g}" if np.isfinite(found) else "NaN or infinity"
    raise SourceError(
        f"{what} of task {task} hold {hold}{more}. Drop or fill those rows, or give them weight 0 and a finite number."
    )


def measure_scaling(source: TaskSource, *, by_rank: bool = False, num_tasks: int = 2000, seed: int = 0) -> Scaling:
    """Means and standard deviations of inputs and targets over queries of `source`.

    `by_rank`: also quantiles of inputs, of the support too, since few rows leave the ends of a range unseen."""
    frozen = freeze(source, num_tasks, seed=seed)
    if isinstance(source, DrawingSource):  # a few hundred images tell as much
        num_tasks = min(num_tasks, max(1, SCALING_BYTES // frozen.task_bytes))
    tasks = next(frozen.chunks(num_tasks)).tasks
    moments = (*_moments(tasks.query, tasks.query.x), *_moments(tasks.query, tasks.query.y))
    return Scaling(*moments, *(_quantiles(tasks) if by_rank else ()))


def _real_rows(examples: Examples, values: Shaped[ArrayLike, "m n *d"]) -> Float[np.ndarray, "k d"]:
    """The values of all rows that count."""
    real = np.asarray(examples.weight) > 0
    return np.asarray(values, dtype=float)[real].reshape(real.sum(), -1)


def _moments(examples: Examples, values: Shaped[ArrayLike, "m n *d"]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each column."""
    rows = _real_rows(examples, values)
    std = rows.std(0)
    return tuple(rows.mean(0).tolist()), tuple(np.where(std > 1e-6, std, 1.0).tolist())


def _quantiles(tasks: Task) -> tuple[tuple[tuple[float, ...], ...], tuple[tuple[float, ...], ...]]:
    """The quantiles of each input, and their ranks."""
    rows = np.concatenate([_real_rows(examples, examples.x) for examples in (tasks.support, tasks.query)])
    knots, ranks = zip(*(_knots(column) for column in rows.T), strict=True)
    return knots, ranks


def _knots(column: Float[np.ndarray, " k"]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Quantiles and their ranks. Equal ones are one, at their mean rank; repeats of the last make up the number."""
    levels = np.linspace(0, 1, KNOTS)
    # As inputs are rounded: quantiles that differ by less would be equal knots of different ranks.
    quantiles = np.quantile(column, levels).astype(np.float32)
    knots, place = np.unique(quantiles, return_inverse=True)
    ranks = np.bincount(place, levels) / np.bincount(place)
    missing = (0, KNOTS - len(knots))
    return tuple(np.pad(knots, missing, "edge").tolist()), tuple(np.pad(ranks, missing, "edge").tolist())
