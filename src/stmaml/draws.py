"""Random draws without replacement."""

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Int, PRNGKeyArray


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
