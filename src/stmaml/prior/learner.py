"""The learner: a table in, with the labelled rows of new groups, and a distribution for each row out.

Cells are read first (every value, with the target as one more cell), then rows as a whole. What it says is in units of
the linear mixed model of the table (`anchor.py`): at the start of training it is that model."""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stmaml.prior.anchor import Anchor, fit_anchor
from stmaml.prior.layers import CellLayer, Dense, Norm, Project, RowLayer, Rows

KINDS = 3
POOLED = 4
PARTS = 3
FAR = 10.0
NARROWEST, WIDEST = -5.0, 3.0


@dataclass(frozen=True)
class Sizes:
    """Widths and depths of the learner."""

    cell_width: int = 128
    cell_layers: int = 3
    row_width: int = 256
    row_layers: int = 6


class Read(eqx.Module):
    """Tables as the learner reads them, side by side; the first `num_train` groups are those to learn from."""

    x: Float[Array, "b g s c"]
    y: Float[Array, "b g s"]
    """Known where `labelled`; anything elsewhere. 0 and 1 for classes."""
    row: Float[Array, "b g s"]
    labelled: Float[Array, "b g s"]
    column: Float[Array, "b c"]
    kind: Int[Array, "b c"]
    is_class: Float[Array, " b"]
    num_train: int = eqx.field(static=True)


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
        self.value, self.column_in = Dense(2, width, key=keys[0]), Dense(KINDS + 2, width, key=keys[1])
        self.cell_out = Dense(width, width, key=keys[2])
        self.target_in, self.group_in = Dense(9, width, key=keys[3]), Dense(2, width, key=keys[4])
        self.table_in = Dense(4, width, key=keys[5])
        self.cells = eqx.filter_vmap(lambda k: CellLayer(width, key=k))(jr.split(keys[6], sizes.cell_layers))
        self.gather, self.seeds = Project(width, key=keys[7]), jr.normal(keys[8], (POOLED, width))
        self.to_row = Dense((POOLED + 1) * width, wide, key=keys[9])
        self.rows = eqx.filter_vmap(lambda k: RowLayer(wide, key=k))(jr.split(keys[10], sizes.row_layers))
        self.norm, self.head = Norm(wide), Dense(wide, 3 * PARTS + 2, scale=0.1, key=keys[11])
        self.sizes = sizes

    def __call__(self, read: Read, *, dtype: jnp.dtype = jnp.float32) -> Said:
        """What is said of all rows; that of labelled rows is not to be used."""
        y, scale, centre = _as_numbers(read)
        anchor = jax.vmap(lambda x, y, seen: fit_anchor(x, y, seen, read.num_train))(read.x, y, read.labelled)
        anchor = jax.lax.stop_gradient(anchor)
        rows = Rows(read.row, read.labelled, read.num_train)
        cells = jnp.concatenate([self._cells(read, anchor), self._target(read, y, anchor)[..., None, :]], axis=-2)
        column = jnp.concatenate([read.column, jnp.ones_like(read.column[:, :1])], axis=1)
        cells = _through(self.cells, cells.astype(dtype), lambda layer, state: layer(state, column, rows))
        x = self.to_row(self._gathered(cells, column))
        x = _through(self.rows, x, lambda layer, state: layer(state, rows))
        return _said(self.head(self.norm(x).astype(jnp.float32)), anchor, scale, centre)

    def _cells(self, read: Read, anchor: Anchor) -> Float[Array, "b g s c d"]:
        about = jnp.concatenate(
            [jax.nn.one_hot(read.kind, KINDS), anchor.slope[..., None], anchor.slope_std[..., None]], axis=-1
        )
        value = self.value(jnp.stack([read.x, jnp.tanh(read.x)], axis=-1))
        hidden = jax.nn.gelu(value + self.column_in(jnp.clip(about, -FAR, FAR))[:, None, None])
        return self.cell_out(hidden)

    def _target(self, read: Read, y: Array, anchor: Anchor) -> Float[Array, "b g s d"]:
        """The cell of the target: what is known of it, what the linear model says, and how sure that is."""
        known = read.labelled
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
        sizes = jnp.stack([known.sum(-1), read.row.sum(-1) * (jnp.arange(known.shape[1]) < read.num_train)], axis=-1)
        train = read.row[:, : read.num_train]
        counts = [train.sum((1, 2)), (train.sum(2) > 0).sum(1).astype(train.dtype)]
        table = jnp.stack([read.is_class, jnp.log(anchor.noise), *(jnp.log1p(count) for count in counts)], axis=-1)
        return row + self.group_in(jnp.log1p(sizes))[:, :, None] + self.table_in(table)[:, None, None]

    def _gathered(self, cells: Float[Array, "b g s c d"], column: Float[Array, "b c"]) -> Float[Array, "b g s f"]:
        """A row as a whole: what learnt questions find in its cells, beside the target's."""
        _, key, value = self.gather.heads(cells)
        asked = self.gather.into(self.seeds.astype(cells.dtype)).reshape(POOLED, 3, *key.shape[-2:])[:, 0]
        hidden = jnp.where(column > 0, 0.0, -1e9)[:, None, None, None, None, :]
        scores = jnp.einsum("phe,bgskhe->bgsphk", asked, key, preferred_element_type=jnp.float32)
        shares = jax.nn.softmax(scores * key.shape[-1] ** -0.5 + hidden, axis=-1).astype(cells.dtype)
        found = self.gather.joined(jnp.einsum("bgsphk,bgskhe->bgsphe", shares, value))
        return jnp.concatenate([found.reshape(*cells.shape[:3], -1), cells[..., -1, :]], axis=-1)


def _as_numbers(read: Read) -> tuple[Array, Array, Array]:
    """Targets in spreads about their mean, with the spread and the mean: classes are 0 or 1, numbers are so already."""
    weight = read.labelled[:, : read.num_train]
    total = jnp.maximum(weight.sum((1, 2)), 1.0)
    share = jnp.clip((read.y[:, : read.num_train] * weight).sum((1, 2)) / total, 0.02, 0.98)
    centre = jnp.where(read.is_class > 0, share, 0.0)[:, None, None]
    scale = jnp.where(read.is_class > 0, jnp.sqrt(share * (1 - share)), 1.0)[:, None, None]
    return jnp.where(read.labelled > 0, (read.y - centre) / scale, 0.0), scale, centre


def _through(layers, state, step):
    """The state after all layers, which are one program run several times."""
    arrays, rest = eqx.partition(layers, eqx.is_array)

    def one(state, layer):
        return step(eqx.combine(layer, rest), state), None

    return jax.lax.scan(one, state, arrays)[0]


def _said(raw: Float[Array, "b g s r"], anchor: Anchor, scale: Array, centre: Array) -> Said:
    """Raw outputs in units of the linear model."""
    log_weight, mean, log_std = (raw[..., i * PARTS : (i + 1) * PARTS] for i in range(3))
    log_std = jnp.clip(log_std + jnp.array([-0.3, 0.0, 0.7]), NARROWEST, WIDEST)
    log_weight = log_weight + jnp.array([0.5, 0.5, -1.0])
    task = jnp.exp(jnp.clip(raw[..., -2] - 1.0, NARROWEST, WIDEST))
    share = jnp.clip(centre + scale * anchor.mean, 0.02, 0.98)
    return Said(
        jax.nn.softmax(log_weight, axis=-1),
        anchor.mean[..., None] + anchor.std[..., None] * mean,
        anchor.std[..., None] * jnp.exp(log_std),
        anchor.std * task,
        jnp.log(share) - jnp.log1p(-share) + raw[..., -1],
    )
