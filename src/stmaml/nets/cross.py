"""Inputs that look things up among labelled examples.

The layers are those of Nguyen, Grover, "Transformer Neural Processes", ICML 2022 (TNP-D): labelled examples look at
each other, unlabelled inputs look at them, in the same layers; no unlabelled input is ever looked at."""

import equinox as eqx
import jax
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.nets.attention import AttentionBlock
from stmaml.nets.layers import MLP
from stmaml.nets.waves import LearntWaves
from stmaml.tasks import Weight


class Reader(MLP):
    """A small network that reads rows of numbers, and their waves if asked for."""

    waves: LearntWaves | None

    def __init__(self, row_size: int, size: int, octaves: int, *, key: PRNGKeyArray):
        self.waves = LearntWaves(row_size, octaves) if octaves else None
        width = row_size if self.waves is None else self.waves.size
        super().__init__((width, size, size), init="glorot", key=key)

    def __call__(self, x: Float[Array, "n i"]) -> Float[Array, "n o"]:
        """One output row for each input row."""
        return super().__call__(x if self.waves is None else self.waves(x))


class Memory(eqx.Module):
    """A labelled set, ready to be looked at by inputs."""

    ask: Reader
    blocks: tuple[AttentionBlock, ...]
    norm: eqx.nn.LayerNorm
    seen: tuple[Float[Array, "n f"], ...]
    """The set's rows as each layer meets them."""
    weight: Weight

    def __call__(self, x: Float[Array, "q *dx"]) -> Float[Array, "q f"]:
        """What the set tells about each input."""
        rows = self.ask(x.reshape(x.shape[0], -1))
        for block, seen in zip(self.blocks, self.seen, strict=True):
            rows = block.look(rows, seen, self.weight)
        return jax.vmap(self.norm)(rows)


class Lookup(eqx.Module):
    """What inputs read from a labelled set: one vector for each input, whatever the size and order of the set."""

    pair: Reader
    ask: Reader
    blocks: tuple[AttentionBlock, ...]
    norm: eqx.nn.LayerNorm

    def __init__(
        self,
        x_size: int,
        pair_size: int,
        size: int,
        *,
        layers: int,
        num_heads: int,
        octaves: int = 0,
        key: PRNGKeyArray,
    ):
        """`pair_size` counts the numbers of one (x, y), `size` those of an answer, `octaves` those of their waves."""
        pair_key, ask_key, block_key = jr.split(key, 3)
        self.pair = Reader(pair_size, size, octaves, key=pair_key)
        self.ask = Reader(x_size, size, octaves, key=ask_key)
        self.blocks = tuple(AttentionBlock(size, num_heads=num_heads, key=k) for k in jr.split(block_key, layers))
        self.norm = eqx.nn.LayerNorm(size)

    def __call__(self, xy: Float[Array, "n p"], weight: Weight) -> Memory:
        """The set as it will be looked at: its rows before each layer."""
        rows = self.pair(xy)
        seen = [rows]
        for block in self.blocks[:-1]:
            seen.append(rows := block(rows, weight))
        return Memory(self.ask, self.blocks, self.norm, tuple(seen), weight)
