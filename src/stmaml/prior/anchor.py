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


class _Sums(eqx.Module):
    """Products of each group's labelled rows, the level first."""

    gram: Float[Array, "g k k"]
    cross: Float[Array, "g k"]
    square: Float[Array, " g"]
    count: Float[Array, " g"]


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
    return Line(*_learn(_sums(_with_level(x), y, labelled)))


def fit_anchor(line: Line, x: Float[Array, "g s c"], y: Float[Array, "g s"], labelled: Float[Array, "g s"]) -> Anchor:
    """What the model says of the rows of groups, each from its own labelled rows."""
    z = _with_level(x)
    return _judged(line, z, y, labelled, _sums(z, y, labelled))


def _with_level(x: Float[Array, "g s c"]) -> Float[Array, "g s k"]:
    return jnp.concatenate([jnp.ones_like(x[..., :1]), x], axis=-1)


def _sums(z: Array, y: Array, labelled: Array) -> _Sums:
    known = z * labelled[..., None]
    gram = jnp.einsum("gsk,gsl->gkl", known, known)
    cross = jnp.einsum("gsk,gs->gk", known, y * labelled)
    return _Sums(gram, cross, jnp.sum(jnp.square(y) * labelled, axis=1), labelled.sum(1))


def _learn(sums: _Sums) -> tuple[Array, Array, Array, Array]:
    """Coefficients that all groups share, their covariance, variances across groups, and that of the noise."""
    k = sums.cross.shape[1]
    real = (jnp.diagonal(sums.gram.sum(0)) > 0).sum()  # the level and all columns but padding
    start = jnp.full(k, SLOPES / jnp.maximum(real, 1)).at[0].set(LEVEL)
    there = (sums.count > 0).astype(start.dtype)

    def revise(_: Any, state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        variance, noise = state[2:]
        inverse = inverted(sums.gram + noise * jnp.diag(1 / variance)[None])
        seen = sums.gram @ inverse
        left = (sums.gram - seen @ sums.gram).sum(0) / noise + RIDGE * jnp.eye(k)
        right = (sums.cross - jnp.einsum("gkl,gl->gk", seen, sums.cross)).sum(0) / noise
        covariance = inverted(left)
        mean = covariance @ right
        own = jnp.einsum("gkl,gl->gk", inverse, sums.cross - sums.gram @ mean)
        doubt = noise * jnp.diagonal(inverse, axis1=1, axis2=2)
        both = ((jnp.square(own) + doubt) * there[:, None]).sum(0) + PULL * start
        whole = mean[None] + own
        fit = jnp.einsum("gk,gkl,gl->g", whole, sums.gram, whole) - 2 * jnp.sum(whole * sums.cross, axis=1)
        left_over = (sums.square + fit + noise * jnp.einsum("gkl,glk->g", inverse, sums.gram)).sum()
        noise = (jnp.maximum(left_over, 0.0) + LEAST_NOISE) / (sums.count.sum() + 1)
        variance = jnp.minimum(both / (there.sum() + PULL), MOST_VARIANCE)
        return mean, covariance, variance, jnp.maximum(noise, LEAST_NOISE)

    first = (jnp.zeros(k), jnp.eye(k), start, jnp.asarray(0.5, dtype=start.dtype))
    return jax.lax.fori_loop(0, ROUNDS, revise, first)


def _judged(line: Line, z: Array, y: Array, labelled: Array, sums: _Sums) -> Anchor:
    mean, variance, noise = line.mean, line.variance, line.noise
    prior = line.covariance + jnp.diag(variance)
    inverse = inverted(sums.gram + noise * inverted(prior)[None])
    own = mean[None] + jnp.einsum("gkl,gl->gk", inverse, sums.cross - sums.gram @ mean)
    said, held = jnp.einsum("gsk,gk->gs", z, own), jnp.einsum("gsk,gkl,gsl->gs", z, inverse, z)
    rest = 1 - jnp.clip(held, 0, MOST_HELD)  # eq. of leaving one out: (y - said) / (1 - its own say)
    without = y - (y - said) / rest
    shared_variance = jnp.einsum("gsk,kl,gsl->gs", z, prior, z)
    return Anchor(
        jnp.where(labelled > 0, without, said),
        jnp.sqrt(noise * jnp.where(labelled > 0, 1 / rest, 1 + jnp.maximum(held, 0.0))),
        z @ mean,
        jnp.sqrt(jnp.maximum(shared_variance, 0.0) + noise),
        jnp.sqrt(noise),
        mean[1:],
        jnp.sqrt(variance[1:]),
    )


def inverted(matrix: Float[Array, "*g k k"]) -> Float[Array, "*g k k"]:
    """The inverse of symmetric positive matrices by sweeping one column after the other: many small ones at once, which
    a library's solver takes in turn."""
    k, lead = matrix.shape[-1], (1,) * (matrix.ndim - 2)
    least = ROUNDING * jnp.diagonal(
        matrix, axis1=-2, axis2=-1
    )  # what rounding leaves of a column that others say all of

    def sweep(p: Any, m: Array) -> Array:
        mine = jax.nn.one_hot(p, k, dtype=m.dtype)
        cross = (mine[:, None] + mine[None]).reshape(*lead, k, k)  # 1 in row and column of the pivot, 2 where they meet
        column = jnp.take(m, p, axis=-1)
        pivot = jnp.maximum(jnp.take(column, p, axis=-1), jnp.take(least, p, axis=-1))[..., None, None]
        inside = m - column[..., :, None] * column[..., None, :] / pivot
        return jnp.where(cross == 0, inside, jnp.where(cross == 1, m / pivot, -1 / pivot))

    return -jax.lax.fori_loop(0, k, sweep, matrix)
