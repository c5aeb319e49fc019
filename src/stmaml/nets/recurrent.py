"""A recurrent reader of labelled sets, in the order they are given."""

from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.tasks import Scalar, Weight

UNROLL = 16  # rows read in one piece: a loop's own steps cost more than those of a small cell, above all on a GPU

State = tuple[Float[Array, " h"], Float[Array, " h"]]


class BiLSTM(eqx.Module):
    """Stacked LSTM layers that read a set forwards and backwards. Rows of weight 0 leave the state as it is, so they
    may stand anywhere; an empty set gives zeros."""

    forward: tuple[eqx.nn.LSTMCell, ...]
    backward: tuple[eqx.nn.LSTMCell, ...]

    def __init__(self, in_size: int, hidden: tuple[int, ...], *, key: PRNGKeyArray):
        forward_key, backward_key = jr.split(key)
        sizes = [in_size, *(2 * width for width in hidden)]
        self.forward = _cells(sizes, key=forward_key)
        self.backward = _cells(sizes, key=backward_key)

    def __call__(self, xs: Float[Array, "n p"], weight: Weight) -> Float[Array, " s"]:
        """The last layer's two final states: of the forward reading at the last row, of the backward at the first."""
        final = jnp.zeros(0)
        for forward, backward in zip(self.forward, self.backward, strict=True):
            ahead, end = _read(forward, xs, weight, reverse=False)
            back, start = _read(backward, xs, weight, reverse=True)
            xs, final = jnp.concatenate([ahead, back], axis=1), jnp.concatenate([end, start])
        return final


def _cells(sizes: list[int], *, key: PRNGKeyArray) -> tuple[eqx.nn.LSTMCell, ...]:
    keys = jr.split(key, len(sizes) - 1)
    return tuple(eqx.nn.LSTMCell(i, o // 2, key=k) for (i, o), k in zip(pairwise(sizes), keys, strict=True))


def _read(
    cell: eqx.nn.LSTMCell, xs: Float[Array, "n p"], weight: Weight, *, reverse: bool
) -> tuple[Float[Array, "n h"], Float[Array, " h"]]:
    """The state's output after each row, and after the last row read."""

    def step(state: State, row: tuple[Float[Array, " p"], Scalar]) -> tuple[State, Float[Array, " h"]]:
        x, counts = row
        state = jax.tree.map(lambda new, old: jnp.where(counts > 0, new, old), cell(x, state), state)
        return state, state[0]

    empty = (jnp.zeros(cell.hidden_size), jnp.zeros(cell.hidden_size))
    (final, _), outputs = jax.lax.scan(step, empty, (xs, weight), reverse=reverse, unroll=UNROLL)
    return outputs, final
