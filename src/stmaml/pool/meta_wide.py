"""Training tasks from all groups and rows of a large table, of which most members read some."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from stmaml.pool.base import Draw
from stmaml.pool.meta_tasks import Drawn, random_numbers, task_places
from stmaml.tasks import Examples

SMALLEST = 1 << 13  # rows of a call's table: calls of like size share compiled programs


@runtime_checkable
class Stored(Protocol):
    """Rows that are told by their places."""

    def at(self, places: Int[np.ndarray, " n"]) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, " n"]]:
        """Inputs and targets of some."""
        ...


@dataclass(frozen=True)
class InMemory:
    """All rows of a table in memory, of which most members read some."""

    x: Float[np.ndarray, "n d"]
    y: Float[np.ndarray, " n"]

    def at(self, places: Int[np.ndarray, " n"]) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, " n"]]:
        """Inputs and targets of some."""
        return self.x[places], self.y[places]


@dataclass(frozen=True)
class Wide:
    """All groups of a table, of which some are those that all members learn from."""

    shards: Stored
    start: Int[np.ndarray, " g"]
    count: Int[np.ndarray, " g"]
    sampled: Int[np.ndarray, " g"]
    """Which of the groups that all members learn from each is, -1 for others: these are held out from nobody."""
    mean: float
    std: float
    """Of the target; 0 and 1 for classes."""

    def tasks(
        self, parts: Sequence[Int[np.ndarray, " _"]], draw: Draw, steps: Sequence[int], num_tasks: int
    ) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, " n"], Drawn]:
        """Tasks of each step and each part, a set of groups in memory with all that are not: the rows of all tasks, and
        where the tasks have theirs among them."""
        numbers = random_numbers(draw, steps, num_tasks, besides=3)
        group = (numbers[..., 0] * len(self.start)).astype(int)
        drawn = []
        for part in parts:
            allowed = self._may_learn(part)
            others = np.flatnonzero(allowed)
            instead = others[(numbers[..., 1] * len(others)).astype(int)]
            chosen = np.where(allowed[group], group, instead)
            drawn.append(task_places(chosen, self.start, self.count, draw, numbers[..., 2:]))
        return self._gathered(Drawn.stacked(drawn))

    def _may_learn(self, part: Int[np.ndarray, " k"]) -> np.ndarray:
        """For each group, whether a part may learn from it."""
        allowed = np.zeros(int(self.sampled.max()) + 2, dtype=bool)
        allowed[part], allowed[-1] = True, True  # the last place is that of -1
        return allowed[self.sampled]

    def _gathered(self, drawn: Drawn) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, " n"], Drawn]:
        """The rows behind places, each once, and the tasks with places among these rows."""
        both = np.concatenate([drawn.support.reshape(-1), drawn.query.reshape(-1)])
        rows, place = np.unique(both, return_inverse=True)
        support, query = np.split(place.reshape(-1), [drawn.support.size])
        x, y = self.shards.at(rows)
        shapes = drawn.support.shape, drawn.query.shape
        there = Drawn(support.reshape(shapes[0]), drawn.given, query.reshape(shapes[1]), drawn.asked)
        return x, (y - self.mean) / self.std, there


def as_table(x: Float[np.ndarray, "n d"], y: Float[np.ndarray, " n"], num_inputs: int, num_classes: int) -> Examples:
    """Rows on the device, those without a target with weight 0. Tables of like size are padded to one, so that they
    share compiled programs."""
    size = max(SMALLEST, 1 << (len(y) - 1).bit_length())
    known = np.isfinite(y)
    inputs = np.zeros((size, num_inputs), dtype=np.float32)
    targets, weight = np.zeros(size, dtype=np.float32), np.zeros(size, dtype=np.float32)
    inputs[: len(x), : x.shape[1]] = x
    targets[: len(y)], weight[: len(y)] = np.where(known, y, 0.0), known
    labels = targets.astype(np.int32) if num_classes else targets[:, None]
    return Examples(jnp.asarray(inputs), jnp.asarray(labels), jnp.asarray(weight))
