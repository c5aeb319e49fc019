"""The learner: a table in, with the labelled rows of new groups, and a distribution for each row out.

Cells are read first (every value, with the target as one more cell), then rows as a whole. What it says is in units of
the linear mixed model of the table (`anchor.py`): at the start of training it is that model."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stmaml.prior.anchor import Anchor, Line, fit_anchor, learn_line
from stmaml.prior.layers import CellLayer, Dense, Norm, Project, RowLayer, Rows, Seen

KINDS = 3
POOLED = 4
PARTS = 3
START_STD, START_WEIGHT = (-0.3, 0.0, 0.7), (0.5, 0.5, -1.0)  # logs
FAR = 10.0
NARROWEST, WIDEST = -4.0, 3.0
RATES = (1.0, 2.0, 4.0)  # of the waves in which values and ranks are read too: near ones are told from far ones
READINGS = 3 + 4 * len(RATES)


@dataclass(frozen=True)
class Sizes:
    """Widths and depths of the learner."""

    cell_width: int = 128
    cell_layers: int = 2
    row_width: int = 256
    row_layers: int = 6


class Groups(eqx.Module):
    """Rows of groups of several tables, side by side."""

    x: Float[Array, "b g s c"]
    y: Float[Array, "b g s"]
    """Known where `labelled`; anything elsewhere. Numbers are in spreads about their mean, classes are 0 and 1."""
    labelled: Float[Array, "b g s"]


class About(eqx.Module):
    """What the columns and the target of tables are."""

    column: Float[Array, "b c"]
    """0 for padding."""
    kind: Int[Array, "b c"]
    is_class: Float[Array, " b"]


class Memory(eqx.Module):
    """All that is remembered of the groups to learn from."""

    about: About
    line: Line
    there: Float[Array, "b r"]
    values: Float[Array, "b r c"]
    scale: Float[Array, " b"]
    centre: Float[Array, " b"]
    counts: Float[Array, "b 2"]
    """Rows and groups."""
    cells: Seen | None = None
    """As each layer of cells met them, on a leading axis."""
    rows: Seen | None = None


class Begun(eqx.Module):
    """Tables before any layer has read them, with what their linear models say. No weight has a part in it, so that
    training may draw it ahead."""

    memory: Memory
    groups: Groups
    """Those to learn from, then new ones; targets in units of the linear model, 0 where not known."""
    rank: Float[Array, "b g s c"]
    anchor: Anchor
    count: int = eqx.field(static=True)
    """How many groups are there to learn from."""


class Said(eqx.Module):
    """What is said of each row: a mixture of normals for a number, the log-odds of 1 for a class."""

    weight: Float[Array, "b g s k"]
    mean: Float[Array, "b g s k"]
    std: Float[Array, "b g s k"]
    task_std: Float[Array, "b g s"]
    """How far the mean may be off, since the group is known by few rows."""
    odds: Float[Array, "b g s"]

    @property
    def expected(self) -> Float[Array, "b g s"]:
        """The mean of the mixture."""
        return jnp.sum(self.weight * self.mean, axis=-1)

    @property
    def variance(self) -> Float[Array, "b g s"]:
        """That of the mixture."""
        spread = jnp.square(self.std) + jnp.square(self.mean - self.expected[..., None])
        return jnp.sum(self.weight * spread, axis=-1)


class Learner(eqx.Module):
    """All weights."""

    value: Dense
    column_in: Dense
    cell_out: Dense
    target_in: Dense
    group_in: Dense
    table_in: Dense
    cells: CellLayer
    gather: Project
    seeds: Float[Array, "p d"]
    to_row: Dense
    rows: RowLayer
    norm: Norm
    head: Dense
    sizes: Sizes = eqx.field(static=True)

    def __init__(self, sizes: Sizes, *, key: PRNGKeyArray):
        keys = jr.split(key, 12)
        width, wide = sizes.cell_width, sizes.row_width
        self.value, self.column_in = Dense(READINGS, width, key=keys[0]), Dense(KINDS + 2, width, key=keys[1])
        self.cell_out = Dense(width, width, key=keys[2])
        self.target_in, self.group_in = Dense(9, width, key=keys[3]), Dense(2, width, key=keys[4])
        self.table_in = Dense(4, width, key=keys[5])
        self.cells = eqx.filter_vmap(lambda k: CellLayer(width, key=k))(jr.split(keys[6], sizes.cell_layers))
        self.gather, self.seeds = Project(width, key=keys[7]), jr.normal(keys[8], (POOLED, width))
        self.to_row = Dense((POOLED + 1) * width, wide, key=keys[9])
        self.rows = eqx.filter_vmap(lambda k: RowLayer(wide, key=k))(jr.split(keys[10], sizes.row_layers))
        self.norm, self.head = Norm(wide), Dense(wide, 3 * PARTS + 2, scale=0.1, key=keys[11])
        self.sizes = sizes

    def __call__(self, train: Groups, new: Groups, about: About, *, dtype: Any = jnp.float32) -> Said:
        """What is said of the rows of new groups; that of labelled ones is not to be used. In one pass, which compiles
        sooner than `remember` and `answer`, and says the same."""
        return self.say(begin(train, new, about), dtype=dtype)

    def say(self, begun: Begun, *, dtype: Any = jnp.float32) -> Said:
        """What is said of the rows of new groups of tables whose linear models are known."""
        x, *_ = self._read(begun.memory, begun.groups, begun.rank, begun.anchor, dtype, begun.count)
        return self._said(begun.memory, x[:, begun.count :], begun.anchor.at(slice(begun.count, None)))

    def remember(self, train: Groups, about: About, *, dtype: Any = jnp.float32) -> Memory:
        """What is there to learn from, read once; its rows are all labelled, but for padding."""
        memory = _begun(train, about)
        _, cells, rows = self._read(memory, *_anchored(memory, train), dtype, train.y.shape[1])
        return replace(memory, cells=cells, rows=rows)

    def answer(self, memory: Memory, new: Groups, *, dtype: Any = jnp.float32) -> Said:
        """What is said of the rows of new groups."""
        groups, rank, anchor = _anchored(memory, new)
        x, *_ = self._read(memory, groups, rank, anchor, dtype, 0)
        return self._said(memory, x, anchor)

    def _said(self, memory: Memory, x: Array, anchor: Anchor) -> Said:
        raw = self.head(self.norm(x.astype(jnp.float32)))
        return _said(raw, anchor, memory.scale[:, None, None], memory.centre[:, None, None])

    def _read(
        self, memory: Memory, groups: Groups, rank: Array, anchor: Anchor, dtype: Any, train: int
    ) -> tuple[Array, Seen, Seen]:
        """Rows after all layers, with what each layer saw. The first `train` groups are those to learn from; if there
        are none, what is remembered of them is seen."""
        known, about = Rows(groups.labelled, memory.there), memory.about
        target = self._target(memory, groups.labelled, groups.y, anchor, train)
        cells = jnp.concatenate([self._cells(about, groups.x, rank, anchor), target[..., None, :]], axis=-2).astype(
            dtype
        )
        column = jnp.concatenate([about.column, jnp.ones_like(about.column[:, :1])], axis=1)
        cells, seen = _through(self.cells, cells, memory.cells, lambda layer, x, seen: layer(x, column, known, seen))
        x = self.to_row(self._gathered(cells, column))
        x, seen_rows = _through(self.rows, x, memory.rows, lambda layer, x, seen: layer(x, known, seen))
        return x, seen, seen_rows

    def _cells(self, about: About, x: Array, rank: Array, anchor: Anchor) -> Float[Array, "b g s c d"]:
        column = jnp.concatenate(
            [jax.nn.one_hot(about.kind, KINDS), anchor.slope[..., None], anchor.slope_std[..., None]], axis=-1
        )
        value = self.value(_readings(x, rank))
        return self.cell_out(jax.nn.gelu(value + self.column_in(jnp.clip(column, -FAR, FAR))[:, None, None]))

    def _target(self, memory: Memory, known: Array, y: Array, anchor: Anchor, train: int) -> Float[Array, "b g s d"]:
        """The cell of the target: what is known of it, what the linear model says, and how sure that is."""
        parts = (
            known,
            known * y,
            known * (y - anchor.mean) / anchor.std,
            known * (y - anchor.shared) / anchor.shared_std,
            anchor.mean,
            anchor.shared,
            (anchor.mean - anchor.shared) / anchor.shared_std,
            jnp.log(anchor.std),
            jnp.log(anchor.shared_std),
        )
        row = self.target_in(jnp.clip(jnp.stack(parts, axis=-1), -FAR, FAR))
        size = jnp.log1p(known.sum(-1))
        group = self.group_in(jnp.stack([size, size * (jnp.arange(size.shape[1]) < train)[None]], axis=-1))
        logs = [memory.about.is_class[:, None], jnp.log(anchor.noise)[:, None], jnp.log1p(memory.counts)]
        return row + group[:, :, None] + self.table_in(jnp.concatenate(logs, axis=1))[:, None, None]

    def _gathered(self, cells: Float[Array, "b g s c d"], column: Float[Array, "b c"]) -> Float[Array, "b g s f"]:
        """A row as a whole: what learnt questions find in its cells, beside the target's."""
        _, key, value = self.gather.heads(cells)
        asked = self.gather.into(self.seeds.astype(cells.dtype)).reshape(POOLED, 3, *key.shape[-2:])[:, 0]
        hidden = jnp.where(column > 0, 0.0, -1e9)[:, None, None, None, None, :]
        scores = jnp.einsum("phe,bgskhe->bgsphk", asked, key, preferred_element_type=jnp.float32)
        shares = jax.nn.softmax(scores * key.shape[-1] ** -0.5 + hidden, axis=-1).astype(cells.dtype)
        found = self.gather.joined(jnp.einsum("bgsphk,bgskhe->bgsphe", shares, value))
        return jnp.concatenate([found.reshape(*cells.shape[:3], -1), cells[..., -1, :]], axis=-1)


def begin(train: Groups, new: Groups, about: About) -> Begun:
    """Tables with what their linear models say of all rows."""
    memory = _begun(train, about)
    both = jax.tree.map(lambda one, other: jnp.concatenate([one, other], axis=1), train, new)
    return Begun(memory, *_anchored(memory, both), train.y.shape[1])


def _anchored(memory: Memory, groups: Groups) -> tuple[Groups, Float[Array, "b g s c"], Anchor]:
    """Groups with targets in units of the linear model, the ranks of their values, and what the model says of them."""
    y = (groups.y - memory.centre[:, None, None]) / memory.scale[:, None, None] * groups.labelled
    anchor = jax.vmap(fit_anchor)(memory.line, groups.x, y, groups.labelled)
    rank = jax.vmap(_ranks)(groups.x, memory.values, memory.there)
    return Groups(groups.x, y, groups.labelled), rank, jax.lax.stop_gradient(anchor)


def _ranks(x: Float[Array, "g s c"], values: Float[Array, "r c"], there: Float[Array, " r"]) -> Float[Array, "g s c"]:
    """Where each value stands among those of the rows to learn from: -1 below all, 1 above all."""
    one = x[:, :, None]
    side = jnp.sign(one - values[None, None]) * there[None, None, :, None]
    return side.sum(2) / jnp.maximum(there.sum(), 1.0)


def _readings(x: Float[Array, "*n"], rank: Float[Array, "*n"]) -> Float[Array, "*n f"]:
    """A value and its rank in several forms."""
    waves = [wave(rate * part) for part in (x, jnp.pi * rank) for rate in RATES for wave in (jnp.sin, jnp.cos)]
    count = 2 * len(RATES)
    return jnp.stack([jnp.clip(x, -FAR, FAR), jnp.tanh(x), *waves[:count], rank, *waves[count:]], axis=-1)


def _begun(train: Groups, about: About) -> Memory:
    """What is known of the groups to learn from before the layers have read them."""
    total = train.labelled.sum((1, 2))
    share = jnp.clip((train.y * train.labelled).sum((1, 2)) / jnp.maximum(total, 1.0), 0.02, 0.98)
    centre = jnp.where(about.is_class > 0, share, 0.0)
    scale = jnp.where(about.is_class > 0, jnp.sqrt(share * (1 - share)), 1.0)
    y = (train.y - centre[:, None, None]) / scale[:, None, None] * train.labelled
    line = jax.lax.stop_gradient(jax.vmap(learn_line)(train.x, y, train.labelled))
    counts = jnp.stack([total, (train.labelled.sum(2) > 0).sum(1).astype(total.dtype)], axis=-1)
    there = train.labelled.reshape(total.shape[0], -1)
    return Memory(about, line, there, train.x.reshape(*there.shape, -1), scale, centre, counts)


def _through(
    layers: Any, state: Array, given: Seen | None, step: Callable[[Any, Array, Seen | None], tuple[Array, Seen]]
) -> tuple[Array, Seen]:
    """The state after all layers, which are one program run several times, and what each of them saw."""
    arrays, rest = eqx.partition(layers, eqx.is_array)

    def one(state: Array, item: tuple[Any, Seen | None]) -> tuple[Array, Seen]:
        return step(eqx.combine(item[0], rest), state, item[1])

    return jax.lax.scan(one, state, (arrays, given))


def _said(raw: Float[Array, "b g s r"], anchor: Anchor, scale: Array, centre: Array) -> Said:
    """Raw outputs in units of the linear model."""
    log_weight, mean, log_std = (raw[..., i * PARTS : (i + 1) * PARTS] for i in range(3))
    log_std = jnp.clip(log_std + jnp.array(START_STD).reshape(1, 1, 1, PARTS), NARROWEST, WIDEST)
    log_weight = log_weight + jnp.array(START_WEIGHT).reshape(1, 1, 1, PARTS)
    task = jnp.exp(jnp.clip(raw[..., -2] - 1.0, NARROWEST, WIDEST))
    share = jnp.clip(centre + scale * anchor.mean, 0.02, 0.98)
    return Said(
        jax.nn.softmax(log_weight, axis=-1),
        anchor.mean[..., None] + anchor.std[..., None] * mean,
        anchor.std[..., None] * jnp.exp(log_std),
        anchor.std * task,
        jnp.log(share) - jnp.log1p(-share) + raw[..., -1],
    )
