"""Tasks from the groups of a large table: drawn as from one in memory, read from shards on the host."""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

from stmaml.tables.groups import TaskSizes, draw_rows
from stmaml.tables.ondisk.shards import Shards
from stmaml.tasks import Examples, Task, TaskBatch, TaskSpec


@dataclass(frozen=True)
class ShardTasks:
    """The tasks that `GroupTasks` of the same groups would give for the same key."""

    shards: Shards
    start: Int[np.ndarray, " g"]
    count: Int[np.ndarray, " g"]
    spec: TaskSpec
    sizes: TaskSizes
    training: bool
    """Groups at random with any number of labelled rows; else one group after the other with all shots."""

    @property
    def num_groups(self) -> int:
        """Groups to draw from."""
        return len(self.start)

    def pooled(
        self, max_rows: int, seed: int
    ) -> tuple[Float[np.ndarray, "n dx"], Shaped[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """Inputs, targets and group of the rows of the first groups, as many as `max_rows` holds."""
        del seed
        chosen = max(1, int((np.cumsum(self.count) <= max_rows).sum()))
        each = [np.arange(start, start + count) for start, count in zip(self.start, self.count[:chosen], strict=False)]
        x, y = self.shards.at(np.concatenate(each))
        return x, self._labels(y)[..., 0] if self.spec.target != "class" else self._labels(y), _repeated(each)

    def sample(self, num_tasks: int, *, key: PRNGKeyArray) -> TaskBatch:
        """Tasks with freshly drawn rows; no row is in both support and query."""
        group_key, task_key = jr.split(key)
        group = np.arange(num_tasks) % self.num_groups
        if self.training:
            group = np.asarray(jr.randint(group_key, (num_tasks,), 0, self.num_groups))
        counts = jnp.asarray(self.count[group], dtype=jnp.int32)
        places, weight = (np.asarray(each) for each in _draw(counts, self.sizes, self.training, task_key))
        rows = self.start[group][:, None] + places
        x, y = self.shards.at(rows.reshape(-1))
        labels = self._labels(y)
        shape, shots = rows.shape, self.sizes.shots
        parts = (x.reshape(*shape, -1), labels.reshape(*shape, *labels.shape[1:]), weight.astype(np.float32))
        sets = [jax.vmap(Examples)(*(jnp.asarray(each[:, cut]) for each in parts)) for cut in _cuts(shots)]
        return TaskBatch(Task(*sets), jnp.zeros(num_tasks, dtype=int))

    def _labels(self, y: Float[np.ndarray, " n"]) -> Shaped[np.ndarray, "n *dy"]:
        return y.astype(np.int32) if self.spec.target == "class" else y[:, None].astype(np.float32)


def _cuts(shots: int) -> tuple[slice, slice]:
    return slice(shots), slice(shots, None)


def _repeated(each: list[np.ndarray]) -> Int[np.ndarray, " n"]:
    return np.repeat(np.arange(len(each)), [len(one) for one in each])


@eqx.filter_jit
def _draw(
    counts: Int[Array, " m"], sizes: TaskSizes, training: bool, key: PRNGKeyArray
) -> tuple[Int[Array, "m k"], Shaped[Array, "m k"]]:
    """Places of rows in each of the groups, and which of them count."""
    keys = jr.split(key, counts.shape[0])
    return jax.vmap(lambda count, key: draw_rows(count, sizes, training=training, key=key))(counts, keys)
