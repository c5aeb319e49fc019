"""Functions that ONNX lacks, or has with too few digits, made of those that it has."""

from collections.abc import Callable

import jax.numpy as jnp
from jax.scipy.special import erf
from jaxtyping import Array, Float

Numbers = Float[Array, "*n"]
SMALL = 0.35  # below it in size, e^x - 1 is better by its series
_NEAR = (2.326819970068386e-2, -1.387039388740657e-1, 3.687424674597105e-1, -5.824733027278666e-1)
_NEAR += (6.210004621745983e-1, -4.944515323274145e-1, 3.404879937665872e-1, -2.741127028184656e-1)
_NEAR += (5.638259427386472e-1,)
_FAR = (-1.047766399936249e1, 1.297719955372516e1, -7.495518717768503, 2.921019019210786, -1.015265279202700)
_FAR += (4.218463358204948e-1, -2.820767439740514e-1, 5.641895067754075e-1)


def log1p(x: Numbers) -> Numbers:
    """log(1 + x), with its digits where x is small: the rounding of 1 + x is undone (HP-15C handbook, 1982)."""
    whole = 1 + x
    step = whole - 1
    return jnp.where(step == 0, x, jnp.log(whole) * (x / jnp.where(step == 0, 1.0, step)))


def expm1(x: Numbers) -> Numbers:
    """e^x - 1, with its digits where x is small."""
    series = x * (1 + x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5 * (1 + x / 6 * (1 + x / 7))))))
    return jnp.where(jnp.abs(x) < SMALL, series, jnp.exp(x) - 1)


def erfc(x: Numbers) -> Numbers:
    """1 - erf(x), with its digits where it is small: exp(-x^2) times a polynomial of 1 / x^2 (Cephes, ndtrf.c)."""
    size = jnp.maximum(jnp.abs(x), 1.0)
    inverse = 1 / size
    square = inverse * inverse
    tail = jnp.exp(-size * size) * inverse * jnp.where(size < 2, _polynomial(_NEAR, square), _polynomial(_FAR, square))
    beyond = jnp.where(x < 0, 2 - tail, tail)
    return jnp.where(jnp.abs(x) < 1, 1 - erf(x), beyond)


def sinh(x: Numbers) -> Numbers:
    """(e^x - e^-x) / 2, with its digits where x is small."""
    grown = expm1(jnp.abs(x))
    return jnp.sign(x) * (grown + grown / (grown + 1)) / 2


def cosh(x: Numbers) -> Numbers:
    """(e^x + e^-x) / 2."""
    return (jnp.exp(x) + jnp.exp(-x)) / 2


def rsqrt(x: Numbers) -> Numbers:
    """1 / sqrt(x)."""
    return 1 / jnp.sqrt(x)


def _polynomial(coefficients: tuple[float, ...], x: Numbers) -> Numbers:
    """By Horner's rule, the highest power first."""
    value = jnp.zeros_like(x)
    for coefficient in coefficients:
        value = value * x + coefficient
    return value


FUNCTIONS: dict[str, Callable[..., Numbers]] = {
    "log1p": log1p,
    "expm1": expm1,
    "erfc": erfc,
    "sinh": sinh,
    "cosh": cosh,
    "rsqrt": rsqrt,
}
