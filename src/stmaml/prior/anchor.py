"""What a linear mixed model says of each row: where the learner begins, and the units it answers in.

Level and slopes of a group are normal about those that all share; their variances and the noise's come from a few
rounds of EM on the groups to learn from. A labelled row is judged by what the others of its group say of it."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

ROUNDS = 8
PULL, LEVEL, SLOPES = 2.0, 0.3, 0.1  # variances are as if so many more groups had been seen that have these
RIDGE = 1.0
ROUNDING = 1e-6
LEAST_NOISE, MOST_VARIANCE = 3e-4, 30.0
MOST_HELD = 0.99  # of a row's own say in what is predicted for it


class Anchor(eqx.Module):
    """The linear model of a table's rows; a labelled row is left out of what is said of it."""

    mean: Float[Array, "*b g s"]
    std: Float[Array, "*b g s"]
    shared: Float[Array, "*b g s"]
    """Without knowing any row of the group."""
    shared_std: Float[Array, "*b g s"]
    noise: Float[Array, "*b"]
    """A standard deviation."""
    slope: Float[Array, "*b c"]
    """Of each column, that all groups share."""
    slope_std: Float[Array, "*b c"]
    """Across groups."""

    def at(self, groups: slice) -> "Anchor":
        """That of some groups of several tables."""
        mean, std, shared, shared_std = (
            part[:, groups] for part in (self.mean, self.std, self.shared, self.shared_std)
        )
        return Anchor(mean, std, shared, shared_std, self.noise, self.slope, self.slope_std)


class Line(eqx.Module):
    """What is known of a group before any of its rows: level and slopes of a linear model."""

    mean: Float[Array, "*b k"]
    covariance: Float[Array, "*b k k"]
    """Of the mean, which comes from so many groups only."""
    variance: Float[Array, "*b k"]
    """Across groups."""
    noise: Float[Array, "*b"]


def learn_line(x: Float[Array, "g s c"], y: Float[Array, "g s"], labelled: Float[Array, "g s"]) -> Line:
    """The linear model of the groups of one table."""
    return Line(*_learn(_with_level(x) * labelled[..., None], y * labelled, labelled.sum(1)))


def fit_anchor(line: Line, x: Float[Array, "g s c"], y: Float[Array, "g s"], labelled: Float[Array, "g s"]) -> Anchor:
    """What the model says of the rows of groups, each from its own labelled rows."""
    z, known = _with_level(x), labelled / jnp.sqrt(line.noise)
    shared = z @ line.mean
    far = z @ rooted(line.covariance + jnp.diag(line.variance))
    inside, inverse = orthogonal(far * known[..., None])
    reach = far @ inverse
    held = jnp.square(reach).sum(-1) / line.noise
    said = shared + jnp.einsum("gsk,gtk,gt->gs", reach, inside, (y - shared) * known)
    rest = 1 - jnp.clip(held, 0, MOST_HELD)  # eq. of leaving one out: (y - said) / (1 - its own say)
    without = y - (y - said) / rest
    return Anchor(
        jnp.where(labelled > 0, without, said),
        jnp.sqrt(line.noise * jnp.where(labelled > 0, 1 / rest, 1 + held)),
        shared,
        jnp.sqrt(jnp.square(far).sum(-1) + line.noise),
        jnp.sqrt(line.noise),
        line.mean[1:],
        jnp.sqrt(line.variance[1:]),
    )


def _with_level(x: Float[Array, "g s c"]) -> Float[Array, "g s k"]:
    return jnp.concatenate([jnp.ones_like(x[..., :1]), x], axis=-1)


def _learn(z: Array, y: Array, count: Array) -> tuple[Array, Array, Array, Array]:
    """Coefficients that all groups share, their covariance, variances across groups, and that of the noise.

    Rows without a label are 0. No products of rows are subtracted: rounding eats the difference where columns are
    collinear and there is little noise."""
    k = z.shape[2]
    real = jnp.any(z != 0, axis=(0, 1)).sum()  # the level and all columns but padding
    start = jnp.full(k, SLOPES / jnp.maximum(real, 1)).at[0].set(LEVEL)
    there = (count > 0).astype(start.dtype)

    def revise(_: Any, state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        variance, noise = state[2:]
        spread, noise_std = jnp.sqrt(variance), jnp.sqrt(noise)
        x = z * (spread / noise_std)[None, None]
        inside, inverse = orthogonal(x)
        slope = inverse @ inside.swapaxes(1, 2)  # from rows to the group's own coefficients, in spreads of theirs
        both = jnp.concatenate([slope, slope @ x], axis=-1)
        told = jnp.einsum("gkt,glt->kl", both, both) / (spread[:, None] * spread[None])
        covariance = inverted(told + RIDGE * jnp.eye(k))
        mean = covariance @ (jnp.einsum("gks,gs->k", slope, y) / (noise_std * spread))
        off = y - z @ mean
        own = jnp.einsum("gks,gs->gk", slope, off) * (spread / noise_std)[None]
        doubt = jnp.square(inverse).sum(-1) * variance[None]
        square = ((jnp.square(own) + doubt) * there[:, None]).sum(0) + PULL * start
        left_over = jnp.square(off - jnp.einsum("gsk,gk->gs", z, own)).sum() + noise * jnp.square(inside).sum()
        noise = (left_over + LEAST_NOISE) / (count.sum() + 1)
        variance = jnp.minimum(square / (there.sum() + PULL), MOST_VARIANCE)
        return mean, covariance, variance, jnp.maximum(noise, LEAST_NOISE)

    first = (jnp.zeros(k), jnp.eye(k), start, jnp.asarray(0.5, dtype=start.dtype))
    return jax.lax.fori_loop(0, ROUNDS, revise, first)


def orthogonal(x: Float[Array, "g s k"]) -> tuple[Float[Array, "g s k"], Float[Array, "g k k"]]:
    """X / R and 1 / R of each group, where R'R = X'X + 1, by Gram-Schmidt on X over the identity: without X'X, and for
    many small groups at once, which a library's solver takes in turn."""
    k = x.shape[-1]
    whole = jnp.concatenate([x, jnp.broadcast_to(jnp.eye(k), (len(x), k, k))], axis=1)

    def take_out(p: Any, whole: Array) -> Array:
        mine = jax.nn.one_hot(p, k, dtype=x.dtype)[None, None]
        column = jnp.take(whole, p, axis=-1)  # its length is at least 1, that of its part of the identity
        column = column / jnp.sqrt(jnp.square(column).sum(-1, keepdims=True))
        share = jnp.einsum("gt,gtk->gk", column, whole) * (jnp.arange(k) > p)[None]
        return whole * (1 - mine) + column[..., None] * (mine - share[:, None])

    whole = jax.lax.fori_loop(0, k, take_out, whole)
    return whole[:, : x.shape[1]], whole[:, x.shape[1] :]


def inverted(matrix: Float[Array, "k k"]) -> Float[Array, "k k"]:
    """The inverse of a symmetric positive matrix."""
    root = jax.lax.linalg.triangular_solve(rooted(matrix), jnp.eye(len(matrix)), left_side=True, lower=True)
    return root.T @ root


def rooted(matrix: Float[Array, "k k"]) -> Float[Array, "k k"]:
    """The triangular L with LL' = a symmetric matrix that is positive but for rounding."""
    k = len(matrix)
    least = ROUNDING * jnp.diagonal(matrix)  # what rounding leaves of a column that others say all of

    def take_out(p: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
        rest, root = state
        length = jnp.sqrt(jnp.maximum(jnp.diagonal(rest), least))
        column = jnp.clip(jnp.take(rest, p, axis=1) / length[p], -length, length)  # as of all positive matrices
        column = jnp.where(jnp.arange(k) > p, column, 0.0).at[p].set(length[p])
        return rest - column[:, None] * column[None], root.at[:, p].set(column)

    return jax.lax.fori_loop(0, k, take_out, (matrix, jnp.zeros_like(matrix)))[1]
