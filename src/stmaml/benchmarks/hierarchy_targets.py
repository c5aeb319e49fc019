"""Targets of made-up tables: what all groups share, how they differ, what dates add, and noise."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.benchmarks.hierarchy_columns import Columns, bernoulli, log_uniform, scaled

UNITS, TREES, DEPTH, CURVES, REGIMES = 12, 2, 3, 6, 3
NOISE = (0.03, 2.5)  # spread of the noise over that of the rest


class Targets(eqx.Module):
    """The target of each row, and what it would be without noise."""

    y: Float[Array, "g s"]
    clean: Float[Array, "g s"]


def draw_targets(columns: Columns, rows: Float[Array, "g s"], key: PRNGKeyArray) -> Targets:
    """Targets of all rows, in units of their own."""
    keys = jr.split(key, 6)
    weight = _importance(keys[0], columns)
    shared = _shared(keys[1], _warped(keys[2], columns), weight, rows)
    signal = shared + _differences(keys[3], columns.true, weight, shared)
    signal = signal + _of_dates(keys[4], columns, rows.shape[1])
    spread = jnp.sqrt(jnp.sum(jnp.square(signal - _mean(signal, rows)) * rows) / jnp.maximum(rows.sum(), 1.0))
    noise = _noise(keys[5], columns.true, weight) * (spread + 0.05)
    return Targets(signal + noise, signal)


def _mean(values: Float[Array, "g s"], rows: Float[Array, "g s"]) -> Float[Array, ""]:
    return jnp.sum(values * rows) / jnp.maximum(rows.sum(), 1.0)


def _importance(key: PRNGKeyArray, columns: Columns) -> Float[Array, " c"]:
    """How much each column matters; some are of no use."""
    on, size = jr.split(key)
    used = bernoulli(on, 0.65, columns.real.shape).at[0].set(1.0)
    return used * columns.real * log_uniform(size, 0.2, 1.0, columns.real.shape)


def _warped(key: PRNGKeyArray, columns: Columns) -> Float[Array, "g s c"]:
    """Inputs of what is shared: in some tables a group is ahead of others in time, or faster."""
    shift_on, shift, speed_on, speed = jr.split(key, 4)
    groups = columns.true.shape[0]
    ahead = bernoulli(shift_on, 0.25) * 0.6 * jr.normal(shift, (groups, 1))
    faster = jnp.exp(bernoulli(speed_on, 0.2) * 0.3 * jr.normal(speed, (groups, 1)))
    return columns.true.at[..., 0].set(columns.true[..., 0] * faster + ahead)


def _shared(key: PRNGKeyArray, x: Array, weight: Array, rows: Array) -> Float[Array, "g s"]:
    """One of five kinds of functions, or a sum of two."""
    keys = jr.split(key, 8)
    forms = (_linear, _additive, _trees, _network, _periodic)
    values = jnp.stack([form(k, x, weight) for form, k in zip(forms, keys, strict=False)], axis=-1)
    first = jax.nn.one_hot(jr.categorical(keys[5], jnp.log(jnp.array([0.35, 0.2, 0.15, 0.2, 0.1]))), len(forms))
    also = jax.nn.one_hot(jr.randint(keys[6], (), 0, len(forms)), len(forms))
    on, size = jr.split(keys[7])
    share = first + bernoulli(on, 0.4) * 0.6 * also
    amount = log_uniform(size, 0.2, 2.0) * bernoulli(jr.fold_in(on, 1), 0.93)
    return amount * (scaled(values, rows) @ share)


def _linear(key: PRNGKeyArray, x: Array, weight: Array) -> Float[Array, "g s"]:
    return x @ (weight * jr.normal(key, weight.shape))


def _additive(key: PRNGKeyArray, x: Array, weight: Array) -> Float[Array, "g s"]:
    which, rate, phase, sign = jr.split(key, 4)
    wide = (1, 1, *weight.shape)
    angle = x * log_uniform(rate, 0.5, 3.0, wide) + 2 * jr.normal(phase, wide)
    form = jnp.broadcast_to(jr.randint(which, wide, 0, 3), x.shape)
    bent = jnp.select([form == 0, form == 1], [jnp.tanh(angle), jnp.sin(angle)], jnp.square(x + 0.3 * angle))
    return bent @ (weight * jr.normal(sign, weight.shape))


def _trees(key: PRNGKeyArray, x: Array, weight: Array) -> Float[Array, "g s"]:
    """Trees that ask the same question on each level."""
    which, at, leaves = jr.split(key, 3)
    column = jr.categorical(which, jnp.log(weight + 1e-6), shape=(TREES, DEPTH))
    asked = jnp.einsum("gsc,tdc->gstd", x, jax.nn.one_hot(column, weight.shape[0]))
    bits = (asked > 0.7 * jr.normal(at, (1, 1, TREES, DEPTH))).astype(jnp.int32)
    leaf = bits @ 2 ** jnp.arange(DEPTH)
    value = jr.normal(leaves, (TREES, 2**DEPTH))
    return jnp.einsum("gstl,tl->gs", jax.nn.one_hot(leaf, 2**DEPTH), value)


def _network(key: PRNGKeyArray, x: Array, weight: Array) -> Float[Array, "g s"]:
    size, into, bias, out = jr.split(key, 4)
    rate = log_uniform(size, 0.5, 3.0)
    inside = x @ (rate * weight[:, None] * jr.normal(into, (weight.shape[0], UNITS)))
    hidden = jnp.tanh(inside + jr.normal(bias, (1, 1, UNITS)))
    return hidden @ jr.normal(out, (UNITS,))


def _periodic(key: PRNGKeyArray, x: Array, weight: Array) -> Float[Array, "g s"]:
    rate, turn, phase = jr.split(key, 3)
    first = weight * jr.normal(turn, weight.shape) * jnp.where(jnp.arange(weight.shape[0]) == 0, 1.0, 0.2)
    return jnp.sin(log_uniform(rate, 1.0, 5.0) * (x @ first) + 6.28 * jr.uniform(phase))


def _differences(key: PRNGKeyArray, x: Array, weight: Array, shared: Array) -> Float[Array, "g s"]:
    """How a group's target differs: in level, slopes, curves, by the kind of group it is, and in amplitude."""
    keys = jr.split(key, 8)
    groups = x.shape[0]
    curves = jnp.tanh(x @ (weight[:, None] * 2 * jr.normal(keys[0], (weight.shape[0], CURVES))))
    features = jnp.concatenate([jnp.ones_like(x[..., :1]), x, curves], axis=-1)
    size = jnp.concatenate(
        [
            (bernoulli(keys[1], 0.9) * log_uniform(jr.fold_in(keys[1], 1), 0.1, 3.0))[None],
            bernoulli(keys[2], 0.5) * log_uniform(jr.fold_in(keys[2], 1), 0.05, 1.0) * weight * _some(keys[2], weight),
            jnp.full(CURVES, bernoulli(keys[3], 0.35) * log_uniform(jr.fold_in(keys[3], 1), 0.05, 0.5)),
        ]
    )
    kinds = jr.normal(keys[4], (REGIMES, size.shape[0]))[jr.randint(keys[5], (groups,), 0, REGIMES)]
    share = bernoulli(keys[6], 0.25) * 0.9
    own = jr.normal(jr.fold_in(keys[6], 1), (groups, size.shape[0]))
    own = jnp.sqrt(1 - share) * own + jnp.sqrt(share) * kinds
    together = bernoulli(keys[7], 0.3) * 0.7  # slopes that go with the level
    own = jnp.sqrt(1 - together**2) * own + together * own[:, :1]
    louder = jnp.exp(bernoulli(jr.fold_in(keys[7], 1), 0.2) * 0.4 * jr.normal(jr.fold_in(keys[7], 2), (groups, 1)))
    return jnp.einsum("gsf,gf->gs", features, own * size[None]) + (louder - 1) * shared


def _some(key: PRNGKeyArray, weight: Array) -> Float[Array, " c"]:
    """Slopes of the first column and of some others."""
    return bernoulli(jr.fold_in(key, 2), 0.4, weight.shape).at[0].set(1.0)


def _of_dates(key: PRNGKeyArray, columns: Columns, slots: int) -> Float[Array, "g s"]:
    """Effects that all groups share at a moment, alone or as a walk."""
    on, size, values, walk = jr.split(key, 4)
    steps = jr.normal(values, (4 * slots,))
    walked = jnp.cumsum(steps) / jnp.sqrt(2.0 * slots)
    effect = jnp.where(jr.bernoulli(walk), walked, steps)
    amount = bernoulli(on, 0.25) * columns.is_dated * log_uniform(size, 0.05, 0.7)
    return amount * effect[jnp.clip(columns.date, 0, 4 * slots - 1)]


def _noise(key: PRNGKeyArray, x: Array, weight: Array) -> Float[Array, "g s"]:
    """Normal or heavy-tailed noise, alike in all rows or not, alone or tied to that of the row before."""
    keys = jr.split(key, 7)
    shape = x.shape[:2]
    normal = jr.normal(keys[0], shape)
    square = jnp.square(jr.normal(keys[1], (3, *shape))).sum(0)
    heavy = normal * jnp.sqrt(3 / jnp.maximum(square, 0.05)) / 1.5  # Student's, with 3 degrees of freedom
    alone = jnp.where(jr.bernoulli(keys[2], 0.2), heavy, normal)
    tie = bernoulli(keys[3], 0.2) * jr.uniform(jr.fold_in(keys[3], 1), minval=0.3, maxval=0.95)
    lag = jnp.arange(shape[1])[:, None] - jnp.arange(shape[1])[None]
    root = jnp.where(lag >= 0, tie ** jnp.maximum(lag, 0), 0.0)
    root = root * jnp.where(
        jnp.arange(shape[1])[None] == 0, 1.0, jnp.sqrt(1 - tie**2)
    )  # the first row's has variance 1 too
    tied = jnp.where(tie > 0, alone @ root.T, alone)
    uneven = bernoulli(keys[4], 0.3) * 0.6 * jnp.tanh(x @ (weight * jr.normal(jr.fold_in(keys[4], 1), weight.shape)))
    by_group = bernoulli(keys[5], 0.3) * 0.4 * jr.normal(jr.fold_in(keys[5], 1), (shape[0], 1))
    return log_uniform(keys[6], *NOISE) * jnp.exp(uneven + by_group) * tied
