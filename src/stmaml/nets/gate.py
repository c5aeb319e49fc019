"""A gate on every weight and bias of a network."""

from typing import TypeVar

import equinox as eqx
import jax
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.nets.layers import Linear

Net = TypeVar("Net", bound=eqx.Module)


class Gate(eqx.Module):
    """Scales each parameter of a network by a number in 0..1 read from a task's code, one linear layer a tensor."""

    layers: tuple[Linear, ...]

    def __init__(self, code_size: int, theta: eqx.Module, *, key: PRNGKeyArray):
        """A gate for networks of the shape of `theta`."""
        leaves = jax.tree.leaves(theta)
        keys = jr.split(key, len(leaves))
        self.layers = tuple(
            Linear(code_size, leaf.size, init="glorot", key=k) for leaf, k in zip(leaves, keys, strict=True)
        )

    def __call__(self, theta: Net, code: Float[Array, " c"]) -> Net:
        """sigmoid(W code + b) * theta."""
        leaves, structure = jax.tree.flatten(theta)
        gated = [
            jax.nn.sigmoid(layer(code)).reshape(leaf.shape) * leaf
            for layer, leaf in zip(self.layers, leaves, strict=True)
        ]
        return jax.tree.unflatten(structure, gated)


def perturb(theta: Net, *, scale: float = 0.01, key: PRNGKeyArray) -> Net:
    """`theta` with a little noise: a gate on a parameter that starts at zero, as biases do, would get no gradient."""
    leaves, structure = jax.tree.flatten(theta)
    keys = jr.split(key, len(leaves))
    moved = [leaf + scale * jr.normal(k, leaf.shape) for leaf, k in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(structure, moved)
