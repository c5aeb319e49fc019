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

from stmaml.benchmarks.base import TaskSet
from stmaml.errors import SettingError, SourceError
from stmaml.tasks import Examples, Task, TaskBatch, TaskSpec

MIN_GROUPS = 8
HELD_OUT_SHARE = 0.15
MIN_HELD_OUT = 2


@dataclass(frozen=True)
class Sizes:
    """How many rows of a group make a task."""

    shots: int = 10
    """Most labelled rows in a support set; training draws any number up to it."""
    query_size: int = 30
    """Most rows asked for."""
    min_query: int = 5
    """A group needs this many rows beside its labelled ones, or it is skipped."""

    def __post_init__(self):
        for name in ("shots", "query_size", "min_query"):
            if getattr(self, name) < 1:
                raise SettingError(f"--{name.replace('_', '-')} must be at least 1; got {getattr(self, name)}.")

    @property
    def min_rows(self) -> int:
        """Rows a group must have."""
        return self.shots + self.min_query


@dataclass(frozen=True)
class Split:
    """Names of the groups of each part; those too small are in none."""

    train: tuple[str, ...]
    val: tuple[str, ...]
    test: tuple[str, ...]
    skipped: tuple[str, ...]


def split_groups(names: Sequence[str], counts: Int[np.ndarray, " g"], sizes: Sizes) -> Split:
    """70 % of the groups to train on, 15 % to validate and calibrate, 15 % to test.

    A digest of its name ranks a group, so that the parts depend neither on the order of the rows nor on a seed.
    """
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
            f"{sizes.min_query} others take; at least {MIN_GROUPS} are needed. Lower --shots, or bring more groups."
        )
    ranked = sorted(large, key=lambda name: hashlib.sha256(name.encode()).digest())
    held = max(MIN_HELD_OUT, round(HELD_OUT_SHARE * len(ranked)))
    return Split(tuple(ranked[2 * held :]), tuple(ranked[:held]), tuple(ranked[held : 2 * held]), tuple(skipped))


class GroupTasks(eqx.Module):
    """Tasks drawn on the device from rows that lie there, one group after the other."""

    x: Float[Array, "n dx"]
    y: Shaped[Array, "n *dy"]
    start: Int[Array, " g"]
    count: Int[Array, " g"]
    spec: TaskSpec = eqx.field(static=True)
    sizes: Sizes = eqx.field(static=True)
    training: bool = eqx.field(static=True)
    """Groups at random with any number of labelled rows; else one group after the other with all shots."""

    def sample(self, num_tasks: int, *, key: PRNGKeyArray) -> TaskBatch:
        """Tasks with freshly drawn rows; no row is in both support and query."""
        group_key, task_key = jr.split(key)
        num_groups = self.start.shape[0]
        group = jnp.arange(num_tasks) % num_groups
        if self.training:
            group = jr.randint(group_key, (num_tasks,), 0, num_groups)
        tasks = jax.vmap(self._task)(group, jr.split(task_key, num_tasks))
        return TaskBatch(tasks, jnp.zeros(num_tasks, dtype=int))

    def _task(self, group: Int[Array, ""], key: PRNGKeyArray) -> Task:
        rows_key, shots_key = jr.split(key)
        shots = self.sizes.shots
        drawn, real = draw_distinct(self.count[group], shots + self.sizes.query_size, key=rows_key)
        rows = self.start[group] + drawn
        weight = real.astype(self.x.dtype)
        given = jr.randint(shots_key, (), 0, shots + 1) if self.training else shots
        examples = Examples(self.x[rows], self.y[rows], weight)
        support = jax.tree.map(lambda a: a[:shots], examples)
        query = jax.tree.map(lambda a: a[shots:], examples)
        return Task(eqx.tree_at(lambda s: s.weight, support, support.weight * (jnp.arange(shots) < given)), query)


def draw_distinct(
    count: Int[Array, ""], num_draws: int, *, key: PRNGKeyArray
) -> tuple[Int[Array, " k"], Shaped[Array, " k"]]:
    """`num_draws` different numbers below `count` in random order, or all of them if there are fewer.

    The second array says which entries are real. Floyd's algorithm: its cost does not grow with `count`, so that large
    groups beside small ones take no padding.
    """
    draw_key, order_key = jr.split(key)
    places = jnp.arange(num_draws)
    drawn = jnp.minimum(count, num_draws)
    # In step i the numbers 0 ... tops[i] are open, the last of them for the first time.
    tops = (count - drawn + places).astype(count.dtype)
    offers = jr.randint(draw_key, (num_draws,), 0, tops + 1, dtype=count.dtype)

    def step(chosen: Int[Array, " k"], place: Int[Array, ""]) -> tuple[Int[Array, " k"], None]:
        one = jnp.where((chosen == offers[place]).any(), tops[place], offers[place])
        return chosen.at[place].set(jnp.where(place < drawn, one, -1)), None

    chosen, _ = jax.lax.scan(step, jnp.full(num_draws, -1, dtype=count.dtype), places)
    # Floyd's set is uniform but its order is not; unused places go last.
    order = jnp.argsort(jr.uniform(order_key, (num_draws,)) + (places >= drawn))
    return jnp.maximum(chosen[order], 0), places < drawn


def with_shots(task_set: TaskSet, shots: int) -> TaskSet:
    """The same tasks with only the first `shots` rows of each support set labelled; the queries stay."""
    support = task_set.batch.tasks.support
    weight = np.asarray(support.weight) * (np.arange(support.weight.shape[1]) < shots).astype(np.float32)
    batch = eqx.tree_at(lambda b: b.tasks.support.weight, task_set.batch, weight)
    return TaskSet(f"{task_set.name}/shots-{shots}", batch, task_set.digest)
