"""The optimizer: Muon for the square blocks of layers' matrices, Adam for all else. Both know one array each, so that
little has to be compiled.

Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024. Departures: a matrix is taken apart into
square blocks, which are made orthogonal each on its own; steps have the size of Adam's (0.2 on average)."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ROUNDS = 5
KEEP, KEEP_FIRST, KEEP_SECOND = 0.95, 0.9, 0.99
SIZE = 0.2
DECAY = 0.01
LONGEST = 1.0


class Memory(eqx.Module):
    """What the optimizer remembers: of blocks by their size, and of all other weights."""

    momentum: dict[int, Float[Array, "n d d"]]
    first: Float[Array, " w"]
    second: Float[Array, " w"]
    count: Float[Array, ""]


def begin_steps(weights: Any) -> Memory:
    """Nothing is remembered yet."""
    blocks, rest = _apart(weights)
    flat = ravel_pytree(rest)[0]
    return Memory(jax.tree.map(jnp.zeros_like, blocks), jnp.zeros_like(flat), jnp.zeros_like(flat), jnp.zeros(()))


def moved(weights: Any, slopes: Any, memory: Memory, rate: Float[Array, ""]) -> tuple[Any, Memory]:
    """The weights a step later."""
    share = jnp.minimum(1.0, LONGEST / (length(slopes) + 1e-9))
    blocks, rest = _apart(slopes)
    momentum = jax.tree.map(lambda old, new: KEEP * old + share * new, memory.momentum, blocks)
    ahead = jax.tree.map(lambda old, new: KEEP * old + share * new, momentum, blocks)
    turned = {d: SIZE * d**0.5 * orthogonal(block) for d, block in ahead.items()}
    flat, back = ravel_pytree(rest)
    first = KEEP_FIRST * memory.first + (1 - KEEP_FIRST) * share * flat
    second = KEEP_SECOND * memory.second + (1 - KEEP_SECOND) * jnp.square(share * flat)
    count = memory.count + 1
    step = first / (1 - KEEP_FIRST**count) / (jnp.sqrt(second / (1 - KEEP_SECOND**count)) + 1e-8)
    moves = _together(weights, turned, back(step))
    new = jax.tree.map(lambda weight, move: weight * (1 - DECAY * rate) - rate * move, weights, moves)
    return new, Memory(momentum, first, second, count)


def length(slopes: Any) -> Float[Array, ""]:
    """Of all slopes together."""
    return jnp.sqrt(jnp.stack([jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(slopes)]).sum())


def orthogonal(matrix: Float[Array, "n d d"]) -> Float[Array, "n d d"]:
    """Nearly the orthogonal part of each matrix, by Newton's and Schulz's iteration."""
    a, b, c = COEFFICIENTS
    size = jnp.sqrt(jnp.sum(jnp.square(matrix), axis=(1, 2), keepdims=True))

    def revise(_: Any, x: Array) -> Array:
        square = x @ x.swapaxes(1, 2)
        return a * x + (b * square + c * square @ square) @ x

    half = (matrix / (size + 1e-9)).astype(jnp.bfloat16)
    return jax.lax.fori_loop(0, ROUNDS, revise, half).astype(matrix.dtype)


def _apart(weights: Any) -> tuple[dict[int, Array], list[Array]]:
    """Square blocks of the layers' matrices, by size, and all other weights."""
    leaves = jax.tree.leaves(weights)
    found: dict[int, list[Array]] = {}
    for leaf in leaves:
        if leaf.ndim == 3:
            found.setdefault(min(leaf.shape[1:]), []).append(_blocks(leaf))
    return {d: jnp.concatenate(parts) for d, parts in found.items()}, [leaf for leaf in leaves if leaf.ndim != 3]


def _blocks(leaf: Float[Array, "l i o"]) -> Float[Array, "n d d"]:
    layers, rows, columns = leaf.shape
    d = min(rows, columns)
    return leaf.reshape(layers, rows // d, d, columns // d, d).swapaxes(2, 3).reshape(-1, d, d)


def _together(like: Any, blocks: dict[int, Array], rest: list[Array]) -> Any:
    """The inverse of `_apart`."""
    leaves, tree = jax.tree.flatten(like)
    place, others, found = dict.fromkeys(blocks, 0), iter(rest), []
    for leaf in leaves:
        if leaf.ndim != 3:
            found.append(next(others))
            continue
        layers, rows, columns = leaf.shape
        d = min(rows, columns)
        count = leaf.size // d**2
        part = blocks[d][place[d] : place[d] + count].reshape(layers, rows // d, columns // d, d, d)
        found.append(part.swapaxes(2, 3).reshape(leaf.shape))
        place[d] += count
    return jax.tree.unflatten(tree, found)
