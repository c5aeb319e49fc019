"""Inputs that look things up among labelled examples.

The layers are those of Nguyen, Grover, "Transformer Neural Processes", ICML 2022 (TNP-D): labelled examples look at
each other, unlabelled inputs look at them, in the same layers; no unlabelled input is ever looked at.
"""

import equinox as eqx
import jax
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.errors import SettingError
from stmaml.nets.attention import MultiHeadAttention
from stmaml.nets.layers import MLP


class CrossBlock(eqx.Module):
    """A transformer layer whose rows look at those of a weighted set, then are revised each on its own."""

    attention: MultiHeadAttention
    revise: MLP
    norms: tuple[eqx.nn.LayerNorm, eqx.nn.LayerNorm]

    def __init__(self, size: int, *, num_heads: int, key: PRNGKeyArray):
        """Rows of `size` numbers in and out; the revision is twice as wide inside."""
        attention_key, revise_key = jr.split(key)
        self.attention = MultiHeadAttention(size, size, num_heads=num_heads, key=attention_key)
        self.revise = MLP((size, 2 * size, size), init="glorot", key=revise_key)
        self.norms = (eqx.nn.LayerNorm(size), eqx.nn.LayerNorm(size))

    def __call__(
        self, rows: Float[Array, "q f"], seen: Float[Array, "n f"], weight: Float[Array, " n"]
    ) -> Float[Array, "q f"]:
        """The revised rows; normalised before each part, so that the sum of all stays a straight path."""
        normed, seen = jax.vmap(self.norms[0])(rows), jax.vmap(self.norms[0])(seen)
        rows = rows + self.attention(normed, seen, seen, weight)
        return rows + self.revise(jax.vmap(self.norms[1])(rows))


class Memory(eqx.Module):
    """A labelled set, ready to be looked at by inputs."""

    ask: MLP
    blocks: tuple[CrossBlock, ...]
    norm: eqx.nn.LayerNorm
    seen: tuple[Float[Array, "n f"], ...]
    """The set's rows as each layer meets them."""
    weight: Float[Array, " n"]

    def __call__(self, x: Float[Array, "q *dx"]) -> Float[Array, "q f"]:
        """What the set tells about each input."""
        rows = self.ask(x.reshape(x.shape[0], -1))
        for block, seen in zip(self.blocks, self.seen, strict=True):
            rows = block(rows, seen, self.weight)
        return jax.vmap(self.norm)(rows)


class Lookup(eqx.Module):
    """What inputs read from a labelled set: one vector for each input, whatever the size and order of the set."""

    pair: MLP
    ask: MLP
    blocks: tuple[CrossBlock, ...]
    norm: eqx.nn.LayerNorm

    def __init__(self, x_size: int, pair_size: int, size: int, *, layers: int, num_heads: int, key: PRNGKeyArray):
        """`pair_size` counts the numbers of one (x, y), `size` those of an answer."""
        if layers < 1:
            raise SettingError(f"--cross-attention counts layers, so it must be at least 0; got {layers}.")
        pair_key, ask_key, block_key = jr.split(key, 3)
        self.pair = MLP((pair_size, size, size), init="glorot", key=pair_key)
        self.ask = MLP((x_size, size, size), init="glorot", key=ask_key)
        self.blocks = tuple(CrossBlock(size, num_heads=num_heads, key=k) for k in jr.split(block_key, layers))
        self.norm = eqx.nn.LayerNorm(size)

    def __call__(self, xy: Float[Array, "n p"], weight: Float[Array, " n"]) -> Memory:
        """The set as it will be looked at: its rows before each layer."""
        rows = self.pair(xy)
        seen = [rows]
        for block in self.blocks[:-1]:
            seen.append(rows := block(rows, rows, weight))
        return Memory(self.ask, self.blocks, self.norm, tuple(seen), weight)
