"""A distribution of tables with groups, drawn on the device: what a learner may expect of a table it has never seen.

A table has columns of several kinds (`hierarchy_columns.py`), a target that depends on them in a way that all groups
share, groups that differ by level, slopes, curves, regime, time shift, amplitude and noise, and dates with effects of
their own (`hierarchy_targets.py`). Some groups are new: a few of their rows are labelled, the others are asked for.
Numbers of rows, groups and columns vary below those of a `Shape`; what is beyond them is padding of weight 0.

`linear_tables` draws from the part of it where the best possible prediction is known: targets linear in the columns,
normal differences of level and slopes, normal noise. `bayes_limit` is that prediction, the mixed model's with the true
variances."""

import operator
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from stmaml.benchmarks.hierarchy_columns import (
    MOST_SCALED,
    NUMBER,
    Columns,
    bernoulli,
    draw_columns,
    log_uniform,
    scaled,
)
from stmaml.benchmarks.hierarchy_rows import Shape, draw_rows, label_rows, thinned, train_rows, whole_rows
from stmaml.benchmarks.hierarchy_targets import Targets, draw_targets

CLASSES, SKEWED = 0.25, 0.25  # shares of tables
MOST_TARGET = 12.0  # spreads


class Table(eqx.Module):
    """A table of `g` groups, the new ones last, with `s` rows each and `c` columns; several on a leading axis."""

    x: Float[Array, "*m g s c"]
    y: Float[Array, "*m g s"]
    """In spreads about the mean of the rows to learn from; 0 or 1 for classes."""
    clean: Float[Array, "*m g s"]
    """Without noise; for classes without meaning."""
    row: Float[Array, "*m g s"]
    """1 for a row, 0 for padding."""
    labelled: Float[Array, "*m g s"]
    """1 where the target is known: all rows of groups to learn from, some of new ones."""
    column: Float[Array, "*m c"]
    """1 for a column, 0 for padding."""
    kind: Int[Array, "*m c"]
    is_class: Bool[Array, "*m"]
    num_train: int = eqx.field(static=True)
    """How many of the groups are there to learn from."""

    @property
    def asked(self) -> Float[Array, "*m g s"]:
        """1 for rows of new groups whose target is not told."""
        return (self.row - self.labelled).at[..., : self.num_train, :].set(0.0)


def table_key(seed: int | Int[Array, ""]) -> PRNGKeyArray:
    """A key to draw tables with. Its bits come from one instruction: the usual ones, written out for each of a hundred
    draws, take minutes to compile."""
    return jr.key(seed, impl="unsafe_rbg")


def sample_tables(
    shape: Shape, num_tables: int, *, shots: int | None = None, linear: int = 0, key: PRNGKeyArray
) -> Table:
    """Fresh tables: the same key gives the same ones. With `shots`, all have as many groups and rows as the shape says,
    and so many labelled rows in each new group. The last `linear` of them are as `linear_tables` draws them."""
    keys = jr.split(key, num_tables)
    if not linear:
        return jax.vmap(partial(_table, shape, shots, None))(keys)
    return jax.vmap(partial(_table, shape, shots))(jnp.arange(num_tables) >= num_tables - linear, keys)


def _table(shape: Shape, shots: int | None, is_linear: Bool[Array, ""] | None, key: PRNGKeyArray) -> Table:
    rows_key, column_key, target_key, form_key, class_key = jr.split(key, 5)
    drawn = draw_rows(shape, rows_key) if shots is None else whole_rows(shape, shots)[0]
    columns = draw_columns(drawn, train_rows(drawn, shape.groups), shape.columns, column_key)
    found = draw_targets(columns, drawn, target_key)
    rows, columns, found = thin_table(drawn, columns, found, shape)
    train = train_rows(rows, shape.groups)
    labelled = label_rows(rows, shape.groups, rows_key) if shots is None else whole_rows(shape, shots)[1]
    found = skewed(found, form_key, train)
    is_class = jr.bernoulli(class_key, CLASSES)
    classes = chosen(found.y, columns, jr.fold_in(class_key, 1), train)
    y, clean = jnp.where(is_class, classes, found.y) * rows, found.clean * rows
    if is_linear is not None:
        line, _ = linear_targets(columns.seen, rows, train, jr.fold_in(key, 1))
        y, clean = jnp.where(is_linear, line.y, y), jnp.where(is_linear, line.clean, clean)
        is_class = is_class & ~is_linear
    return Table(columns.seen, y, clean, rows, labelled, columns.real, columns.kind, is_class, shape.groups)


def thin_table(
    drawn: Float[Array, "g s"], columns: Columns, found: Targets, shape: Shape
) -> tuple[Float[Array, "g k"], Columns, Targets]:
    """The rows that are read, with their columns and targets; numbers are then in spreads of these rows."""
    if drawn.shape[1] <= shape.slots:
        return drawn, columns, found
    parts = drawn, columns.seen, columns.true, columns.date, found
    rows, seen, true, date, found = thinned(parts, drawn, shape.slots)
    train = train_rows(rows, shape.groups)
    number = (columns.kind == NUMBER)[None, None]
    seen = jnp.where(number, jnp.clip(scaled(seen, train), -MOST_SCALED, MOST_SCALED), seen) * rows[..., None]
    return rows, Columns(seen, true, columns.kind, columns.real, date, columns.is_dated), found


def skewed(found: Targets, key: PRNGKeyArray, train: Float[Array, "g s"]) -> Targets:
    """Targets in spreads about their mean; in some tables bent first, so that large ones lie far out."""
    y, clean = _standard(found.y, found.clean, train)
    bend = bernoulli(key, SKEWED) * jr.uniform(jr.fold_in(key, 1), minval=0.3, maxval=1.0)
    bent = [jnp.where(bend > 0, jnp.exp(bend * jnp.clip(value, -8, 5)), value) for value in (y, clean)]
    y, clean = _standard(bent[0], bent[1], train)
    return Targets(jnp.clip(y, -MOST_TARGET, MOST_TARGET), jnp.clip(clean, -MOST_TARGET, MOST_TARGET))


def _standard(y: Array, clean: Array, train: Array) -> tuple[Array, Array]:
    total = jnp.maximum(train.sum(), 1.0)
    mean = (y * train).sum() / total
    spread = jnp.sqrt((jnp.square(y - mean) * train).sum() / total) + 1e-6
    return (y - mean) / spread, (clean - mean) / spread


def chosen(y: Float[Array, "g s"], columns: Columns, key: PRNGKeyArray, train: Array) -> Float[Array, "g s"]:
    """One class against the others: beyond a threshold, between two, or preferred to another thing to choose."""
    which, at, width, other = jr.split(key, 4)
    low = jr.uniform(at, minval=-1.2, maxval=1.2)
    high = low + log_uniform(width, 0.5, 2.0)
    rival = columns.true @ jr.normal(other, columns.real.shape) * 0.5 + low
    form = jr.categorical(which, jnp.log(jnp.array([0.6, 0.2, 0.2])))
    found = jnp.select([form == 0, form == 1], [y > low, (y > low) & (y < high)], y > rival).astype(jnp.float32)
    share = (found * train).sum() / jnp.maximum(train.sum(), 1.0)
    usable = (share > 0) & (share < 1)  # a table of one class teaches nothing: halves then
    return jnp.where(usable, found, (y > 0).astype(jnp.float32))


class Variances(eqx.Module):
    """What a linear table was drawn with, in units of its target; several on a leading axis."""

    mean: Float[Array, "*m"]
    """Of the target, before anything is known."""
    slope: Float[Array, "*m k"]
    """Of the level and of the coefficients that all groups share."""
    group: Float[Array, "*m k"]
    """Of the differences of a group's level and coefficients from them."""
    noise: Float[Array, "*m"]


def linear_tables(
    shape: Shape, num_tables: int, *, shots: int | None = None, key: PRNGKeyArray
) -> tuple[Table, Variances]:
    """Tables whose best possible predictions are known. With `shots`, all have as many groups and rows as the shape
    says, and so many labelled rows in each new group."""
    return jax.vmap(partial(_linear_table, shape, shots))(jr.split(key, num_tables))


def _linear_table(shape: Shape, shots: int | None, key: PRNGKeyArray) -> tuple[Table, Variances]:
    rows_key, column_key = jr.split(key, 8)[:2]
    drawn = draw_rows(shape, rows_key) if shots is None else whole_rows(shape, shots)[0]
    columns = draw_columns(drawn, train_rows(drawn, shape.groups), shape.columns, column_key)
    nothing = Targets(jnp.zeros_like(drawn), jnp.zeros_like(drawn))
    rows, columns, _ = thin_table(drawn, columns, nothing, shape)
    labelled = label_rows(rows, shape.groups, rows_key) if shots is None else whole_rows(shape, shots)[1]
    found, truth = linear_targets(columns.seen, rows, train_rows(rows, shape.groups), key)
    numbers = jnp.zeros((), dtype=bool)
    table = Table(columns.seen, found.y, found.clean, rows, labelled, columns.real, columns.kind, numbers, shape.groups)
    return table, truth


def linear_targets(
    x: Float[Array, "g s c"], rows: Float[Array, "g s"], train: Float[Array, "g s"], key: PRNGKeyArray
) -> tuple[Targets, Variances]:
    """Targets linear in all columns, in spreads about their mean, and what they were drawn with."""
    keys = jr.split(key, 8)
    k = x.shape[-1] + 1
    slope = jnp.full(k, 1.0) * log_uniform(keys[2], 0.1, 1.0)
    level, slopes = log_uniform(keys[3], 0.05, 3.0), bernoulli(keys[4], 0.6) * log_uniform(keys[4], 0.01, 0.3)
    group = jnp.concatenate([level[None], jnp.full(k - 1, slopes)])
    noise = log_uniform(keys[5], 0.01, 2.0)
    own = jnp.sqrt(slope)[None] * jr.normal(keys[6], (1, k)) + jnp.sqrt(group)[None] * jr.normal(
        keys[7], (rows.shape[0], k)
    )
    clean = jnp.einsum("gsk,gk->gs", with_level(x), own)
    y = clean + jnp.sqrt(noise) * jr.normal(jr.fold_in(key, 1), rows.shape)
    total = jnp.maximum(train.sum(), 1.0)
    mean = (y * train).sum() / total
    spread = jnp.sqrt((jnp.square(y - mean) * train).sum() / total) + 1e-6
    square = jnp.square(spread)
    truth = Variances(-mean / spread, slope / square, group / square, noise / square)
    return Targets(*(rows * (value - mean) / spread for value in (y, clean))), truth


def with_level(x: Float[Array, "*g s c"]) -> Float[Array, "*g s k"]:
    """The columns after one of ones."""
    return jnp.concatenate([jnp.ones_like(x[..., :1]), x], axis=-1)


def bayes_limit(table: Table, truth: Variances) -> tuple[Float[np.ndarray, "g s"], Float[np.ndarray, "g s"]]:
    """Mean and variance of the target of each asked row of one table given all labelled rows, when the variances are
    known: a conditional normal distribution, in double precision. Zero elsewhere."""
    slope, group, noise, centre = (
        np.asarray(part, dtype=float) for part in (truth.slope, truth.group, truth.noise, truth.mean)
    )
    known, asked = np.argwhere(np.asarray(table.labelled) > 0), np.argwhere(np.asarray(table.asked) > 0)
    places = np.concatenate([known, asked])
    z = np.insert(np.asarray(table.x, dtype=float)[tuple(places.T)], 0, 1.0, axis=1)
    same = places[:, :1] == places[:, 0][None]
    signal = (z * slope[None]) @ z.T + same * ((z * group[None]) @ z.T)
    count = len(known)
    gain = np.linalg.solve(signal[:count, :count] + noise * np.eye(count), signal[:count, count:])
    y = np.asarray(table.y, dtype=float)[tuple(known.T)]
    mean, variance = np.zeros((2, *table.row.shape))
    mean[tuple(asked.T)] = centre + (y - centre) @ gain
    left = np.diag(signal)[count:] - np.sum(signal[:count, count:] * gain, axis=0)
    variance[tuple(asked.T)] = left + noise
    return mean, variance


def one_of(tables: Any, place: int) -> Any:
    """One of several tables, or what was known of it."""
    return jax.tree.map(operator.itemgetter(place), tables)
