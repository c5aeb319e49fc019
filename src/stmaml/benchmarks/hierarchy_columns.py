"""Columns of made-up tables with groups, already encoded as `tables/` encodes real ones: scaled numbers (dates among
them), yes or no (of a category, or of a missing cell), waves of a date."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jax.scipy.special import ndtr
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

NUMBER, FLAG, WAVE = 0, 1, 2
MOST_SCALED = 8.0
CONSTANT, MIXED = 0.25, 0.4  # shares of columns that are constant within a group; that differ between groups in part
TIME, WAVES, BLOCK, GAPS = 0.6, 0.2, 0.3, 0.15  # shares of tables that have them
BENT = 0.25  # share of columns of numbers that are seen in another unit than the target feels them in


class Columns(eqx.Module):
    """What the rows of a table hold beside the target, in groups of padded length."""

    seen: Float[Array, "g s c"]
    """As a learner reads it: scaled, gaps filled."""
    true: Float[Array, "g s c"]
    """What the target depends on: the same without gaps, or a bent form of it."""
    kind: Int[Array, " c"]
    real: Float[Array, " c"]
    """0 for padding."""
    date: Int[Array, "g s"]
    """Which moment a row is of, where rows have an order; moments are shared by groups."""
    is_dated: Float[Array, ""]


def bernoulli(key: PRNGKeyArray, share: float, shape: tuple[int, ...] = ()) -> Float[Array, "..."]:
    """1 with this probability, else 0."""
    return jr.bernoulli(key, share, shape).astype(jnp.float32)


def log_uniform(key: PRNGKeyArray, low: float, high: float, shape: tuple[int, ...] = ()) -> Float[Array, "..."]:
    """Numbers whose logarithm is uniform."""
    return jnp.exp(jr.uniform(key, shape, minval=jnp.log(low), maxval=jnp.log(high)))


def scaled(values: Float[Array, "g s *c"], weight: Float[Array, "g s"]) -> Float[Array, "g s *c"]:
    """Values with mean 0 and spread 1 over the rows that count; constant ones become 0."""
    weight = weight.reshape(*weight.shape, *(1,) * (values.ndim - 2))
    total = jnp.maximum(weight.sum((0, 1), keepdims=True), 1.0)
    mean = (values * weight).sum((0, 1), keepdims=True) / total
    spread = jnp.sqrt((jnp.square(values - mean) * weight).sum((0, 1), keepdims=True) / total)
    return (values - mean) / jnp.where(spread > 1e-6, spread, jnp.inf)


def draw_columns(rows: Float[Array, "g s"], train: Float[Array, "g s"], num_columns: int, key: PRNGKeyArray) -> Columns:
    """Columns for tables with these rows; scales are those of the rows to train from."""
    keys = jr.split(key, 9)
    shape = (*rows.shape, num_columns)
    count = jr.randint(keys[0], (), 1, num_columns + 1)
    place = jnp.arange(num_columns)
    share, (block, block_share) = _shares(keys[1], num_columns), _block(keys[2], num_columns)
    latent = _latent(keys[3], shape, jnp.where(block, block_share, share))
    moment, is_dated = _moments(keys[4], rows.shape)
    dated = ((place == 0) & (is_dated > 0))[None, None]
    numbers = jnp.where(dated, moment[..., None].astype(jnp.float32), _margins(keys[5], latent))
    flag = jr.bernoulli(keys[6], 0.3, (num_columns,)) & ((place > 0) | (is_dated == 0))
    true = jnp.clip(scaled(numbers, train), -MOST_SCALED, MOST_SCALED)
    true = jnp.where(flag[None, None], _yes(jr.fold_in(keys[6], 1), latent), true)
    true = jnp.where(block[None, None], _one_of(latent, block), true)
    kind = jnp.where(block | flag, FLAG, NUMBER)
    true, kind = _with_waves(keys[7], true, kind, moment, count, is_dated)
    real = (place < count).astype(jnp.float32)
    there = real[None, None] * rows[..., None]
    shown = jnp.where((kind == NUMBER)[None, None], _bent(jr.fold_in(key, 1), true, train), true)
    seen, kind, true = _with_gaps(keys[8], shown * there, true * there, kind, count)
    return Columns(seen * there, true, kind, real, moment, is_dated)


def _yes(key: PRNGKeyArray, latent: Float[Array, "g s c"]) -> Float[Array, "g s c"]:
    """1 beyond a threshold."""
    return (latent > 0.8 * jr.normal(key, (1, 1, latent.shape[-1]))).astype(jnp.float32)


def _one_of(latent: Float[Array, "g s c"], block: Bool[Array, " c"]) -> Float[Array, "g s c"]:
    """1 for the level of a category that a row is of."""
    return (latent == jnp.where(block[None, None], latent, -jnp.inf).max(-1, keepdims=True)).astype(jnp.float32)


def _shares(key: PRNGKeyArray, num_columns: int) -> Float[Array, " c"]:
    """How much of each column's variance lies between groups: all, some, or none."""
    which, amount = jr.uniform(key, (2, num_columns))
    return jnp.where(which < CONSTANT, 1.0, jnp.where(which < CONSTANT + MIXED, amount, 0.0))


def _block(key: PRNGKeyArray, num_columns: int) -> tuple[Array, Array]:
    """Which columns are the levels of one category, if any; and the share of it between groups."""
    on, size, share = jr.split(key, 3)
    place = jnp.arange(num_columns)
    last = 1 + jr.randint(size, (), 2, max(num_columns, 3))
    inside = (place >= 1) & (place < last) & jr.bernoulli(on, BLOCK) & (num_columns > 2)
    return inside, bernoulli(share, 0.5)


def _latent(key: PRNGKeyArray, shape: tuple[int, ...], share: Float[Array, " c"]) -> Float[Array, "g s c"]:
    """Normal numbers, alike within groups by their share, and correlated across columns."""
    group_key, row_key, mix_key, on_key = jr.split(key, 4)
    between, within = jr.normal(group_key, (shape[0], 1, shape[2])), jr.normal(row_key, shape)
    share = share[None, None]
    alone = jnp.sqrt(share) * between + jnp.sqrt(1 - share) * within
    sparse = jr.normal(mix_key, (shape[2],) * 2) * bernoulli(on_key, 0.3, (shape[2],) * 2)
    sparse = sparse * (share[0] < 1)  # what is constant within groups stays so
    return (alone + alone @ sparse) / jnp.sqrt(1 + jnp.square(sparse).sum(0))[None, None]


def _margins(key: PRNGKeyArray, latent: Float[Array, "g s c"]) -> Float[Array, "g s c"]:
    """Normal, heavy-tailed, skewed, uniform or rounded numbers."""
    which = jr.categorical(key, jnp.log(jnp.array([0.4, 0.15, 0.15, 0.2, 0.1])), shape=(latent.shape[-1],))
    forms = (latent, jnp.sinh(1.5 * latent), jnp.exp(latent), ndtr(latent), jnp.round(1.5 * latent))
    return jnp.select([jnp.broadcast_to(which == i, latent.shape) for i in range(len(forms))], forms)


def _moments(key: PRNGKeyArray, shape: tuple[int, ...]) -> tuple[Int[Array, "g s"], Float[Array, ""]]:
    """Moments in rising order: the same for all groups, begun at different times, or with some left out."""
    on, start_on, start, skip_on, skip = jr.split(key, 5)
    groups, slots = shape
    begun = bernoulli(start_on, 0.4) * jr.randint(start, (groups, 1), 0, slots)
    steps = 1 + bernoulli(skip_on, 0.4) * jr.randint(skip, shape, 0, 3)
    return (begun + jnp.cumsum(steps, axis=1) - 1).astype(jnp.int32), bernoulli(on, TIME)


def _with_waves(
    key: PRNGKeyArray, true: Array, kind: Array, moment: Array, count: Array, is_dated: Array
) -> tuple[Float[Array, "g s c"], Int[Array, " c"]]:
    """The last two columns become waves of the date in some tables."""
    on, cycles = jr.split(key)
    place, use = jnp.arange(kind.shape[0]), jr.bernoulli(on, WAVES) & (is_dated > 0) & (count > 3)
    angle = 2 * jnp.pi * moment / log_uniform(cycles, 3.0, 40.0)
    sine, cosine = use & (place == count - 2), use & (place == count - 1)
    true = jnp.where(sine[None, None], jnp.sin(angle)[..., None], true)
    true = jnp.where(cosine[None, None], jnp.cos(angle)[..., None], true)
    return true, jnp.where(sine | cosine, WAVE, kind)


def _bent(key: PRNGKeyArray, true: Float[Array, "g s c"], train: Float[Array, "g s"]) -> Float[Array, "g s c"]:
    """Some columns crowded at one end, as times and doses are, while the target feels them evenly."""
    on, size, side = jr.split(key, 3)
    wide = (1, 1, true.shape[-1])
    rate = log_uniform(size, 0.3, 2.0, wide) * jnp.where(jr.bernoulli(side, 0.75, wide), 1.0, -1.0)
    bent = jnp.clip(scaled(jnp.exp(rate * jnp.clip(true, -3, 3)), train), -MOST_SCALED, MOST_SCALED)
    return jnp.where(jr.bernoulli(on, BENT, wide), bent, true)


def _with_gaps(
    key: PRNGKeyArray, shown: Array, true: Array, kind: Array, count: Array
) -> tuple[Float[Array, "g s c"], Int[Array, " c"], Float[Array, "g s c"]]:
    """In some tables a column of numbers has gaps, filled with the middle, and the last one says where."""
    on, share, where = jr.split(key, 3)
    place = jnp.arange(kind.shape[0])
    use = jr.bernoulli(on, GAPS) & (count > 2) & (kind[1] == NUMBER) & (kind[count - 1] != WAVE)
    gap = (jr.uniform(where, true.shape[:2]) < jr.uniform(share, maxval=0.4)) & use
    said, hidden = use & (place == count - 1), place == 1
    seen = jnp.where(gap[..., None] & hidden[None, None], 0.0, shown)
    seen = jnp.where(said[None, None], gap[..., None].astype(true.dtype), seen)
    return seen, jnp.where(said, FLAG, kind), jnp.where(said[None, None], 0.0, true)
