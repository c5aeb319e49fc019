"""What turns outer gradients into steps."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jaxtyping import PyTree

OptimizerName = Literal["adam", "muon"]
# The length of an orthogonal step of rate 1, root mean square by element: about what Adam's steps have, so that both
# take rates of like size (Liu et al., "Muon is Scalable for LLM Training", 2025).
MUON_RMS = 0.2


def optimizer(
    name: OptimizerName, schedule: optax.Schedule, clip_norm: float, weight_decay: float = 0.0
) -> optax.GradientTransformationExtraArgs:
    """Adam, or Muon with Adam for all that is no weight matrix; gradients longer than `clip_norm` are cut first."""
    clip = optax.clip_by_global_norm(clip_norm)
    if name == "muon":
        how = {"muon_weight_dimension_numbers": _matrices, "consistent_rms": MUON_RMS, "weight_decay": weight_decay}
        return _by_shape(optax.chain(clip, optax.contrib.muon(schedule, **how)))
    if weight_decay:
        return optax.chain(clip, optax.adamw(schedule, weight_decay=weight_decay, mask=_decaying))
    # One vector instead of many small arrays: fewer operations, which is what small networks wait for.
    return optax.with_extra_args_support(optax.flatten(optax.chain(clip, optax.adam(schedule))))


def _by_shape(rule: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """The rule for matrices of one shape as one array, and all the rest as one vector: a handful of operations, where
    fifteen small products for each matrix are what a GPU would wait for."""

    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        steps, state = rule.update(_gathered(updates), state, None if params is None else _gathered(params))
        return _returned(steps, updates), state

    return optax.with_extra_args_support(
        optax.GradientTransformation(lambda params: rule.init(_gathered(params)), update)
    )


def _gathered(tree: PyTree) -> dict[str, Any]:
    """Weight matrices stacked by shape, and a vector of all other numbers."""
    matrices, rest = _parted(tree)
    stacks = {name: jnp.stack([leaf for _, leaf in some]) for name, some in matrices.items()}
    return {"matrices": stacks, "rest": jnp.concatenate([jnp.ravel(leaf) for _, leaf in rest]) if rest else None}


def _returned(gathered: Any, like: PyTree) -> PyTree:
    """The opposite of `_gathered`, for a tree of this form."""
    matrices, rest = _parted(like)
    leaves = {place: gathered["matrices"][name][i] for name, s in matrices.items() for i, (place, _) in enumerate(s)}
    start = 0
    for place, leaf in rest:
        leaves[place] = gathered["rest"][start : start + leaf.size].reshape(leaf.shape)
        start += leaf.size
    return jax.tree.unflatten(jax.tree.structure(like), [leaves[place] for place in range(len(leaves))])


def _parted(tree: PyTree) -> tuple[dict[str, list[tuple[int, Any]]], list[tuple[int, Any]]]:
    """Weight matrices by shape and type, and the other leaves, each with its place among all leaves."""
    matrices, rest = {}, []
    for place, (path, leaf) in enumerate(jax.tree_util.tree_flatten_with_path(tree)[0]):
        if _is_matrix(path, leaf):
            matrices.setdefault(f"{leaf.dtype}-{leaf.shape[0]}-{leaf.shape[1]}", []).append((place, leaf))
        else:
            rest.append((place, leaf))
    return matrices, rest


def _matrices(gathered: PyTree) -> PyTree:
    """Inputs and outputs of each stack of weight matrices; nothing for biases, kernels of images and numbers in a
    table."""
    axes = optax.contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=2)
    return {"matrices": dict.fromkeys(gathered["matrices"], axes), "rest": None}


def _decaying(params: PyTree) -> PyTree:
    """True for weight matrices, the only ones to decay."""
    return jax.tree_util.tree_map_with_path(_is_matrix, params)


def _is_matrix(path: jax.tree_util.KeyPath, leaf: jax.Array) -> bool:
    return leaf.ndim == 2 and getattr(path[-1], "name", None) == "weight"
