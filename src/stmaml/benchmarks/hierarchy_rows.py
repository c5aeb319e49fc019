"""Groups and rows of made-up tables: how many there are, which of them a learner reads, and which are labelled."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, PRNGKeyArray

FEWEST_GROUPS, FEWEST_ROWS = 3, 2
FULL, EVEN, ORDERED, LONG = 0.3, 0.4, 0.5, 0.5  # shares of tables


@dataclass(frozen=True)
class Shape:
    """The most that a learner reads of tables drawn side by side, and how much more they may have."""

    groups: int
    """To learn from."""
    new_groups: int
    slots: int
    """Rows of a group."""
    columns: int
    most_groups: int = 0
    """Tables may have so many groups to learn from, of which no more than `groups` are drawn: they are alike."""
    longest: int = 0
    """Groups may have so many rows, of which `slots` are read, as far apart as possible."""

    @property
    def rows(self) -> tuple[int, int]:
        """All groups, the new ones last, and rows of each as they are drawn."""
        return self.groups + self.new_groups, max(self.slots, self.longest)


def draw_rows(shape: Shape, key: PRNGKeyArray) -> Float[Array, "g s"]:
    """1 for slots that hold rows; those of a group come first."""
    keys = jr.split(key, 6)
    groups, slots = shape.rows
    most = max(shape.groups, shape.most_groups)
    few = jnp.exp(jr.uniform(keys[0], minval=jnp.log(FEWEST_GROUPS), maxval=jnp.log(most + 1)))
    count = jnp.where(jr.bernoulli(jr.fold_in(keys[0], 1), FULL), shape.groups, few)
    long = jnp.where(jr.bernoulli(jr.fold_in(keys[1], 1), LONG), slots, shape.slots)
    low = jr.randint(keys[1], (), FEWEST_ROWS, long + 1)
    size = jnp.where(jr.bernoulli(keys[2], EVEN), long, jr.randint(keys[3], (groups, 1), low, long + 1))
    number = jnp.arange(groups)[:, None]
    there = (number < jnp.floor(count)) | (number >= shape.groups)
    return ((jnp.arange(slots)[None] < size) & there).astype(jnp.float32)


def label_rows(rows: Float[Array, "g s"], groups: int, key: PRNGKeyArray) -> Float[Array, "g s"]:
    """1 for rows that are labelled: all of groups to learn from; of new ones the first, or some at random."""
    *_, shots_key, order_key = jr.split(key, 6)
    shots = jnp.minimum(_shots(shots_key, *rows.shape), rows.sum(1, keepdims=True).astype(jnp.int32) - 1)
    order = jr.uniform(jr.fold_in(order_key, 1), rows.shape)
    order = jnp.where(jr.bernoulli(order_key, ORDERED), jnp.arange(rows.shape[1])[None], order)
    rank = jnp.argsort(jnp.argsort(jnp.where(rows > 0, order, jnp.inf), axis=1), axis=1)
    return rows * jnp.where(jnp.arange(rows.shape[0])[:, None] < groups, 1.0, rank < shots)


def _shots(key: PRNGKeyArray, groups: int, slots: int) -> Int[Array, "g 1"]:
    """None, or a number whose logarithm is about uniform."""
    none, some = jr.split(key)
    many = jnp.exp(jr.uniform(some, (groups, 1), minval=0.0, maxval=jnp.log(slots))).astype(jnp.int32)
    return jnp.where(jr.bernoulli(none, 0.2, (groups, 1)), 0, many)


def whole_rows(shape: Shape, shots: int) -> tuple[Float[Array, "g s"], Float[Array, "g s"]]:
    """All slots hold rows, of which the first ones of new groups are labelled; nothing is drawn beyond `slots`."""
    size = shape.groups + shape.new_groups, shape.slots
    new = jnp.arange(size[0])[:, None] >= shape.groups
    labelled = jnp.where(new & (jnp.arange(shape.slots)[None] >= shots), 0.0, 1.0)
    return jnp.ones(size), labelled


def train_rows(rows: Float[Array, "g s"], groups: int) -> Float[Array, "g s"]:
    """1 for rows of groups to learn from."""
    return rows * (jnp.arange(rows.shape[0])[:, None] < groups)


def evenly(rows: Float[Array, "g s"], most: int) -> Int[Array, "g k"]:
    """The slots that are read of each group: all of a small one, else the first, the last and some between them."""
    size = rows.sum(1, keepdims=True)
    place = jnp.arange(most)[None]
    spaced = jnp.round(place * (size - 1) / max(most - 1, 1))
    return jnp.where(size > most, spaced, place).astype(jnp.int32)


def thinned(values: Any, rows: Float[Array, "g s"], most: int) -> Any:
    """At most so many rows of each group, of arrays whose first axes are groups and slots."""
    if rows.shape[1] <= most:
        return values
    slots = evenly(rows, most)
    return jax.tree.map(lambda one: jax.vmap(lambda part, place: part[place])(one, slots), values)
