"""Tasks from the groups of a table: some rows of a group are labelled, the others are asked for."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

from stmaml.draws import distinct_set
from stmaml.errors import SourceError, at_least
from stmaml.tasks import Examples, Task, TaskBatch, TaskSpec

MIN_GROUPS = 8
HELD_OUT_SHARE = 0.15
MIN_HELD_OUT = 2


@dataclass(frozen=True)
class Sizes:
    """How many rows of a group make a task."""

    shots: int | None = None
    """Most labelled rows to expect of a group; what half of the groups can spare, up to ten, if not given."""
    query_size: int = 30
    """For a single method: most rows asked for."""
    min_query: int | None = None
    """For a single method: a group needs this many rows beside its labelled ones, or it is skipped; what half of the
    groups have, up to five, if not given."""

    def __post_init__(self):
        at_least(1, shots=self.shots, query_size=self.query_size, min_query=self.min_query)

    def of(self, counts: Int[np.ndarray, " g"], *, ordered: bool = False) -> "TaskSizes":
        """Those for groups of these sizes, where none are given: half of the groups, and enough of them to learn from,
        have as many rows as they take."""
        middle = min(int(np.median(counts)), most_in_enough(counts))
        shots = usual_shots(np.array([middle])) if self.shots is None else self.shots
        least = int(np.clip(middle - shots, 1, 5)) if self.min_query is None else self.min_query
        return TaskSizes(shots, self.query_size, least, ordered)


@dataclass(frozen=True)
class TaskSizes:
    """How many rows of a group make a task, once the table is known."""

    shots: int
    """Most labelled rows in a support set; training draws any number up to it."""
    query_size: int
    """Most rows asked for."""
    min_query: int
    """Rows that a group has beside its labelled ones."""
    ordered: bool = False
    """Labelled rows are the first of a group and the rows asked for come after them."""

    @property
    def min_rows(self) -> int:
        """Rows a group must have."""
        return self.shots + self.min_query


def usual_shots(sizes: Int[np.ndarray, " g"], most: int = 10) -> int:
    """How many labelled rows to expect: as many as half of the groups can spare, up to `most`."""
    middle = int(np.median(sizes))
    return int(np.clip(middle - (1 if middle <= 5 else 2), 1, most))


def most_in_enough(counts: Int[np.ndarray, " g"]) -> int:
    """As many rows as the groups that it takes have at least, if they are the largest."""
    return int(np.sort(counts)[-MIN_GROUPS]) if len(counts) >= MIN_GROUPS else 0


@dataclass(frozen=True)
class Split:
    """Names of the groups of each part; those too small are in none."""

    train: tuple[str, ...]
    val: tuple[str, ...]
    test: tuple[str, ...]
    skipped: tuple[str, ...]


def split_groups(names: Sequence[str], counts: Int[np.ndarray, " g"], sizes: TaskSizes) -> Split:
    """70 % of the groups to train on, 15 % to validate and calibrate, 15 % to test.

    A digest of its name ranks a group, so that the parts depend neither on the order of the rows nor on a seed."""
    large = [name for name, count in zip(names, counts, strict=True) if count >= sizes.min_rows]
    skipped = [name for name, count in zip(names, counts, strict=True) if count < sizes.min_rows]
    if len(names) == 1:
        raise SourceError(
            f"the table has a single group, '{names[0]}'; learning across groups needs at least {MIN_GROUPS}. "
            "--task has to tell several of them apart."
        )
    if len(large) < MIN_GROUPS:
        raise SourceError(
            f"{len(large)} of {len(names)} groups have the {sizes.min_rows} rows that {sizes.shots} labelled and "
            f"{sizes.min_query} others take; at least {MIN_GROUPS} are needed. {_mended(counts, sizes)}"
        )
    ranked = sorted(large, key=lambda name: hashlib.sha256(name.encode()).digest())
    held = max(MIN_HELD_OUT, round(HELD_OUT_SHARE * len(ranked)))
    return Split(tuple(ranked[2 * held :]), tuple(ranked[:held]), tuple(ranked[held : 2 * held]), tuple(skipped))


def _mended(counts: Int[np.ndarray, " g"], sizes: TaskSizes) -> str:
    """What to do about groups that are too few or too small."""
    able = most_in_enough(counts)
    if able > sizes.min_query:
        return f"Use --shots {able - sizes.min_query}, or bring larger groups."
    if able > 1:
        return f"Use --shots {able - 1} --min-query 1, or bring larger groups."
    return "Bring more groups, or leave out --method: a pool takes fewer and smaller ones."


class GroupTasks(eqx.Module):
    """Tasks drawn on the device from rows that lie there, one group after the other."""

    x: Float[Array, "n dx"]
    y: Shaped[Array, "n *dy"]
    start: Int[Array, " g"]
    count: Int[Array, " g"]
    spec: TaskSpec = eqx.field(static=True)
    sizes: TaskSizes = eqx.field(static=True)
    training: bool = eqx.field(static=True)
    """Groups at random with any number of labelled rows; else one group after the other with all shots."""

    @property
    def num_groups(self) -> int:
        """Groups to draw from."""
        return self.start.shape[0]

    def pooled(
        self, max_rows: int, seed: int
    ) -> tuple[Float[np.ndarray, "n dx"], Shaped[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """Inputs, targets and group of all rows: whoever wants fewer chooses among them."""
        del max_rows, seed
        y, count = np.asarray(self.y), np.asarray(self.count)
        targets = y[:, 0].astype(float) if y.ndim == 2 else y
        return np.asarray(self.x), targets, np.repeat(np.arange(len(count)), count)

    def sample(self, num_tasks: int, *, key: PRNGKeyArray) -> TaskBatch:
        """Tasks with freshly drawn rows; no row is in both support and query."""
        group_key, task_key = jr.split(key)
        group = jnp.arange(num_tasks) % self.num_groups
        if self.training:
            group = jr.randint(group_key, (num_tasks,), 0, self.num_groups)
        tasks = jax.vmap(self._task)(group, jr.split(task_key, num_tasks))
        return TaskBatch(tasks, jnp.zeros(num_tasks, dtype=int))

    def _task(self, group: Int[Array, ""], key: PRNGKeyArray) -> Task:
        places, weight = draw_rows(self.count[group], self.sizes, training=self.training, key=key)
        rows, shots = self.start[group] + places, self.sizes.shots
        examples = Examples(self.x[rows], self.y[rows], weight.astype(self.x.dtype))
        return Task(jax.tree.map(lambda a: a[:shots], examples), jax.tree.map(lambda a: a[shots:], examples))


def draw_rows(
    count: Int[Array, ""], sizes: TaskSizes, *, training: bool, key: PRNGKeyArray
) -> tuple[Int[Array, " k"], Shaped[Array, " k"]]:
    """Places in a group of `count` rows to label, then to ask for, and which of them count; a training task labels any
    number of rows."""
    rows_key, shots_key = jr.split(key)
    shots = sizes.shots
    given = jr.randint(shots_key, (), 0, shots + 1) if training else jnp.asarray(shots)
    if sizes.ordered:
        places, real = _first_and_later(count, given, sizes, key=rows_key)
    else:
        places, real = draw_distinct(count, shots + sizes.query_size, key=rows_key)
    place = jnp.arange(len(places))
    return places, real & ((place >= shots) | (place < given))


def _first_and_later(
    count: Int[Array, ""], given: Int[Array, ""], sizes: TaskSizes, *, key: PRNGKeyArray
) -> tuple[Int[Array, " k"], Shaped[Array, " k"]]:
    """The first places to label, and to ask for any of those after the first `given`."""
    given = jnp.minimum(given, count).astype(count.dtype)
    first = jnp.arange(sizes.shots, dtype=count.dtype)
    later, real = draw_distinct(count - given, sizes.query_size, key=key)
    places = jnp.concatenate([jnp.minimum(first, count - 1), jnp.minimum(given + later, count - 1)])
    return places, jnp.concatenate([first < count, real])


def draw_distinct(
    count: Int[Array, ""], num_draws: int, *, key: PRNGKeyArray
) -> tuple[Int[Array, " k"], Shaped[Array, " k"]]:
    """`num_draws` different numbers below `count` in random order, or all of them if there are fewer.

    The second array says which entries are real. The cost does not grow with `count`, so that large groups beside
    small ones take no padding."""
    draw_key, order_key = jr.split(key)
    real = jnp.arange(num_draws) < count
    order = jnp.argsort(jr.uniform(order_key, (num_draws,)) + ~real)  # unused places go last
    return jnp.maximum(distinct_set(count, num_draws, key=draw_key)[order], 0), real
