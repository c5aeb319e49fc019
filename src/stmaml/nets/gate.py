"""A gate on every weight and bias of a network."""

from typing import TypeVar

import equinox as eqx
import jax
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.nets.conv import Norm
from stmaml.nets.layers import Linear

Net = TypeVar("Net", bound=eqx.Module)


class Gate(eqx.Module):
    """Scales each parameter of a network by a number in 0..1 read from a task's code, one linear layer a tensor. The
    scale and shift of a normalisation are left alone."""

    layers: tuple[Linear, ...]

    def __init__(self, code_size: int, theta: eqx.Module, *, key: PRNGKeyArray):
        leaves = [leaf for leaf in jax.tree.leaves(theta, is_leaf=_is_norm) if not _is_norm(leaf)]
        each = zip(leaves, jr.split(key, len(leaves)), strict=True)
        self.layers = tuple(Linear(code_size, leaf.size, init="glorot", key=k) for leaf, k in each)

    def __call__(self, theta: Net, code: Float[Array, " c"]) -> Net:
        """sigmoid(W code + b) * theta."""
        leaves, structure = jax.tree.flatten(theta, is_leaf=_is_norm)
        gates = (jax.nn.sigmoid(layer(code)) for layer in self.layers)
        gated = [leaf if _is_norm(leaf) else next(gates).reshape(leaf.shape) * leaf for leaf in leaves]
        return jax.tree.unflatten(structure, gated)


def _is_norm(node: object) -> bool:
    return isinstance(node, Norm)


def perturb(theta: Net, *, scale: float = 0.01, key: PRNGKeyArray) -> Net:
    """`theta` with a little noise: a gate on a parameter that starts at zero, as biases do, would get no gradient."""
    leaves, structure = jax.tree.flatten(theta)
    keys = jr.split(key, len(leaves))
    moved = [leaf + scale * jr.normal(k, leaf.shape) for leaf, k in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(structure, moved)
