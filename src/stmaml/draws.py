"""Random draws: standard normal ones, and numbers without replacement."""

from functools import partial

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, PRNGKeyArray


@partial(jax.jit, static_argnums=1)  # noqa: TID251  a call that keeps its name, by which `exporting` finds it
def standard_normal(key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "*shape"]:
    """Independent draws of mean 0 and spread 1. All noise of an adaptation is drawn here, so that an exported one can
    read it from an input instead."""
    return jr.normal(key, shape)


def distinct_set(total: Int[Array, ""], count: int, *, key: PRNGKeyArray) -> Int[Array, " count"]:
    """`count` different numbers below `total`, every set equally likely but not every order (Floyd's algorithm).

    If there are fewer numbers, all of them, and -1 in the places left over. The time does not grow with `total`, which
    need not be known when the program is compiled."""
    places = jnp.arange(count)
    drawn = jnp.minimum(total, count)
    # In step i the numbers 0 ... tops[i] are open, the last of them for the first time.
    tops = (total - drawn + places).astype(total.dtype)
    offers = jr.randint(key, (count,), 0, tops + 1, dtype=total.dtype)

    def step(chosen: Int[Array, " count"], place: Int[Array, ""]) -> tuple[Int[Array, " count"], None]:
        one = jnp.where((chosen == offers[place]).any(), tops[place], offers[place])
        return chosen.at[place].set(jnp.where(place < drawn, one, -1)), None

    return jax.lax.scan(step, jnp.full(count, -1, dtype=total.dtype), places)[0]
