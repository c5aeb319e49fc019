"""Where distributions reach a probability: bisection on the smaller tail, and Student's t."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtr
from jaxtyping import Array, Bool, Float, Int

HALVINGS = 40  # as many as end below single precision, whatever the bracket
HALVINGS_BETWEEN = 24  # the same for a bracket that is no wider than what is sought
FRACTION_TERMS = 20  # relative errors of a continued fraction of about 1e-5, up to a thousand degrees of freedom
_FARTHEST = 43.0  # sinh of it can still be squared


def bisect(
    is_below: Callable[[Float[Array, "*n"]], Bool[Array, "*n"]],
    low: Float[Array, "*n"],
    high: Float[Array, "*n"],
    halvings: int = HALVINGS,
) -> Float[Array, "*n"]:
    """Where `is_below` turns from true to false between `low` and `high`."""

    def halve(_: Int[Array, ""], bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        middle = (low + high) / 2
        below = is_below(middle)
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    low, high = jax.lax.fori_loop(0, halvings, halve, (low, high))
    return (low + high) / 2


def at_normal_score(
    tail: Callable[[Float[Array, "*n"], Float[Array, ""]], Float[Array, "*n"]],
    score: Float[Array, ""],
    ends: Float[Array, "k *n"],
) -> Float[Array, "*n"]:
    """Where a distribution has as much on the far side as the standard normal has beyond `score`: between the outermost
    of `ends`. `tail` is the probability at or below a value for a side of 1, above it for a side of -1."""
    side = jnp.where(score > 0, -1.0, 1.0)  # the smaller tail, where floats have digits to spare
    wanted = ndtr(side * score)
    low, high = ends.min(0), ends.max(0)
    return bisect(lambda value: side * (tail(value, side) - wanted) < 0, low, high, HALVINGS_BETWEEN)


def student_density(t: Float[Array, "*n"], freedom: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """The density of Student's distribution."""
    return jnp.exp(_student_log_density(t, freedom))


def student_tail(t: Float[Array, "*n"], freedom: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """The probability at or below `t` under Student's distribution, with all its digits where it is small.

    By the continued fraction of the incomplete beta function (DLMF 8.17.22), of fixed length: `betainc` is far slower.
    """
    square = jnp.square(t)
    near = square * (freedom + 2) < 3 * freedom  # where the fraction of what lies inside is the one that converges
    x = jnp.where(near, square, freedom) / (freedom + square)
    a, b = jnp.where(near, 0.5, freedom / 2), jnp.where(near, freedom / 2, 0.5)
    share = jnp.exp(jnp.log(jnp.abs(t)) + _student_log_density(t, freedom)) / (a * _beta_fraction(a, b, x))
    beyond = jnp.where(near, 1 - share, share) / 2
    return jnp.where(t < 0, beyond, 1 - beyond)


def _student_log_density(t: Float[Array, "*n"], freedom: Float[Array, "*n"]) -> Float[Array, "*n"]:
    log_norm = _log_gamma_step(freedom / 2) - jnp.log(jnp.pi * freedom) / 2
    return log_norm - (freedom + 1) / 2 * jnp.log1p(jnp.square(t) / freedom)


def _beta_fraction(a: Float[Array, "*n"], b: Float[Array, "*n"], x: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """The continued fraction that x^a (1 - x)^b / (a B(a, b)) is divided by."""
    fraction = jnp.ones_like(x)
    for term in range(FRACTION_TERMS, 0, -1):
        k = term // 2
        odd = -(a + k) * (a + b + k) / ((a + 2 * k) * (a + 2 * k + 1))
        fraction = 1 + x / fraction * (odd if term % 2 else k * (b - k) / ((a + 2 * k - 1) * (a + 2 * k)))
    return fraction


def _log_gamma_step(a: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """log Gamma(a + 1/2) - log Gamma(a), whose own logarithms would leave it few digits: Stirling's series at a + 4."""
    far = a + 4
    back = jnp.log(a * (a + 1) * (a + 2) * (a + 3) / ((a + 0.5) * (a + 1.5) * (a + 2.5) * (a + 3.5)))
    return jnp.log(far) / 2 - 1 / (8 * far) + 1 / (192 * far**3) - 1 / (640 * far**5) + back


def student_at(tail: Float[Array, "*n"], freedom: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Where Student's distribution reaches a probability of at most one half."""
    # On a scale that is straight near 0 and logarithmic far out: heavy tails reach far.
    far, near = jnp.full_like(tail, -_FARTHEST), jnp.zeros_like(tail)
    return jnp.sinh(bisect(lambda u: student_tail(jnp.sinh(u), freedom) < tail, far, near))
