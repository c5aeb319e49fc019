"""The six function families of 2D regression (the paper's appendix; ARML's benchmark)."""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, PRNGKeyArray


@dataclass(frozen=True)
class Family:
    """A function of x = (x1, x2) with uniform coefficients."""

    name: str
    low: tuple[float, ...]
    high: tuple[float, ...]
    function: Callable[[Array, Array, Array], Array]  # coefficients (k first), x1, x2 -> y
    uses_x2: bool = False


FAMILIES = (
    Family("sinusoid", (0.1, 0.8, 0.0), (5.0, 1.2, 2 * jnp.pi), lambda c, x1, x2: c[0] * jnp.sin(c[1] * x1 + c[2])),
    Family("line", (-3.0, -3.0), (3.0, 3.0), lambda c, x1, x2: c[0] * x1 + c[1]),
    Family("quadratic", (-0.2, -2.0, -3.0), (0.2, 2.0, 3.0), lambda c, x1, x2: (c[0] * x1 + c[1]) * x1 + c[2]),
    Family(
        "cubic",
        (-0.1, -0.2, -2.0, -3.0),
        (0.1, 0.2, 2.0, 3.0),
        lambda c, x1, x2: ((c[0] * x1 + c[1]) * x1 + c[2]) * x1 + c[3],
    ),
    Family("surface", (-1.0, -1.0), (1.0, 1.0), lambda c, x1, x2: c[0] * x1**2 + c[1] * x2**2, uses_x2=True),
    Family("ripple", (-0.2, -3.0), (0.2, 3.0), lambda c, x1, x2: jnp.sin(-c[0] * (x1**2 + x2**2)) + c[1], uses_x2=True),
)
NUM_COEFFICIENTS = 4


def draw_coefficients(family: Int[Array, ""], *, key: PRNGKeyArray) -> Float[Array, " k"]:
    """Coefficients of a family's function, padded with zeros to a common number."""
    ends = ([f.low for f in FAMILIES], [f.high for f in FAMILIES])
    low, high = (jnp.array([(*end, *[0.0] * (NUM_COEFFICIENTS - len(end))) for end in each]) for each in ends)
    return low[family] + (high[family] - low[family]) * jr.uniform(key, (NUM_COEFFICIENTS,))


def draw_inputs(family: Int[Array, ""], x: Float[Array, "n 2"]) -> Float[Array, "n 2"]:
    """The inputs as a family sees them: x2 is 1 where the function does not use it."""
    uses_x2 = jnp.array([f.uses_x2 for f in FAMILIES])[family]
    return x.at[:, 1].set(jnp.where(uses_x2, x[:, 1], 1.0))


def evaluate_family(
    family: Int[Array, ""], coefficients: Float[Array, " k"], x: Float[Array, "n 2"]
) -> Float[Array, " n"]:
    """The family's function at x, without noise."""
    return jnp.stack([f.function(coefficients, x[:, 0], x[:, 1]) for f in FAMILIES])[family]
