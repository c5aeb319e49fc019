"""Auto-encoders over a set of rows: a code of the whole set, and how badly the rows are rebuilt."""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.nets.layers import Linear
from stmaml.tasks import Scalar, Weight, weighted_mean

Embedding = Literal["mean", "rnn"]
UNROLL = 5  # sequences up to this length, such as class prototypes, run without a loop: faster to compile and to run


class SampleEmbedding(eqx.Module):
    """Each example as a vector, by one linear layer on [x, y] or on x alone; for images see `ImageEmbedding`."""

    linear: Linear
    reads_targets: bool = eqx.field(static=True)

    def __init__(self, x_size: int, code_size: int, size: int, *, reads_targets: bool = True, key: PRNGKeyArray):
        """`code_size` counts the numbers that encode one target."""
        self.linear = Linear(x_size + code_size * reads_targets, size, init="glorot", key=key)
        self.reads_targets = reads_targets

    def __call__(self, x: Float[Array, "n *dx"], code: Float[Array, "n c"]) -> Float[Array, "n e"]:
        """One vector for each example; `code` holds the encoded targets."""
        x = x.reshape(x.shape[0], -1)
        return self.linear(jnp.concatenate([x, code], axis=1) if self.reads_targets else x)


class PoolingAutoEncoder(eqx.Module):
    """Encodes and rebuilds each row on its own; the code reads the mean, so the order of the rows is irrelevant."""

    encoder: Linear
    decoder: Linear
    pooled: Linear

    def __init__(self, row_size: int, code_size: int, *, key: PRNGKeyArray):
        sizes = ((row_size, code_size), (code_size, row_size), (code_size, code_size))
        self.encoder, self.decoder, self.pooled = (
            Linear(i, o, init="glorot", key=k) for (i, o), k in zip(sizes, jr.split(key, 3), strict=True)
        )

    def __call__(self, rows: Float[Array, "n e"], weight: Weight) -> tuple[Float[Array, " d"], Scalar]:
        """The code of the set, and half the mean squared error of its reconstruction."""
        codes = jax.nn.relu(self.encoder(rows))
        code = jax.nn.relu(self.pooled(weighted_mean(codes, weight)))
        return code, _squared_error(self.decoder(codes), rows, weight) / 2


class GRUCell(eqx.Module):
    """A gated recurrent unit in its first form: the reset gate acts on the state before the candidate's matrix does."""

    gates: Linear
    candidate: Linear

    def __init__(self, in_size: int, state_size: int, *, key: PRNGKeyArray):
        """Gate biases start at 1, so that a fresh cell mostly remembers."""
        gates_key, candidate_key = jr.split(key)
        gates = Linear(in_size + state_size, 2 * state_size, init="glorot", key=gates_key)
        self.gates = eqx.tree_at(lambda layer: layer.bias, gates, jnp.ones(2 * state_size))
        self.candidate = Linear(in_size + state_size, state_size, init="glorot", key=candidate_key)

    def __call__(self, state: Float[Array, " d"], x: Float[Array, " i"]) -> Float[Array, " d"]:
        """The state after reading `x`."""
        reset, keep = jnp.split(jax.nn.sigmoid(self.gates(jnp.concatenate([x, state]))), 2)
        candidate = jnp.tanh(self.candidate(jnp.concatenate([x, reset * state])))
        return keep * state + (1 - keep) * candidate


class RecurrentAutoEncoder(eqx.Module):
    """Reads the rows one after the other and rebuilds them from the last state, in reverse: their order matters."""

    encoder: GRUCell
    decoder: GRUCell
    output: Linear
    code_size: int = eqx.field(static=True)

    def __init__(self, row_size: int, code_size: int, *, key: PRNGKeyArray):
        encoder_key, decoder_key, output_key = jr.split(key, 3)
        self.encoder = GRUCell(row_size, code_size, key=encoder_key)
        self.decoder = GRUCell(row_size, code_size, key=decoder_key)
        self.output = Linear(code_size, row_size, init="glorot", key=output_key)
        self.code_size = code_size

    def __call__(self, rows: Float[Array, "n e"], weight: Weight) -> tuple[Float[Array, " d"], Scalar]:
        """The code of the sequence, the mean of the encoder's states, and its mean squared reconstruction error."""
        last, states = self._encode(rows, weight)
        rebuilt = self._decode(last, rows.shape[1], weight)
        return weighted_mean(states, weight), _squared_error(rebuilt, rows, weight)

    def _encode(self, rows: Float[Array, "n e"], weight: Weight) -> tuple[Float[Array, " d"], Float[Array, "n d"]]:
        def step(state: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
            x, w = row
            state = jnp.where(w > 0, self.encoder(state, x), state)  # padding is not read
            return state, state

        return jax.lax.scan(step, jnp.zeros(self.code_size), (rows, weight), unroll=UNROLL)

    def _decode(self, state: Float[Array, " d"], row_size: int, weight: Weight) -> Float[Array, "n e"]:
        def step(carry: tuple[Array, Array], w: Array) -> tuple[tuple[Array, Array], Array]:
            state = self.decoder(*carry)
            after = (state, self.output(state))  # each output is the next input
            carry = jax.tree.map(lambda new, old: jnp.where(w > 0, new, old), after, carry)
            return carry, carry[1]

        return jax.lax.scan(step, (state, jnp.zeros(row_size)), weight, reverse=True, unroll=UNROLL)[1]


SetAutoEncoder = PoolingAutoEncoder | RecurrentAutoEncoder


def set_autoencoder(embedding: Embedding, row_size: int, code_size: int, *, key: PRNGKeyArray) -> SetAutoEncoder:
    """The auto-encoder that goes by the name `embedding`."""
    kind = RecurrentAutoEncoder if embedding == "rnn" else PoolingAutoEncoder
    return kind(row_size, code_size, key=key)


def _squared_error(rebuilt: Float[Array, "n e"], rows: Float[Array, "n e"], weight: Weight) -> Scalar:
    return weighted_mean(jnp.square(rebuilt - rows).mean(-1), weight)
