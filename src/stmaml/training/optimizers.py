"""What turns outer gradients into steps."""

from typing import Literal

import jax
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
        return optax.chain(clip, optax.contrib.muon(schedule, **how))
    if weight_decay:
        return optax.chain(clip, optax.adamw(schedule, weight_decay=weight_decay, mask=_decaying))
    # One vector instead of many small arrays: fewer operations, which is what small networks wait for.
    return optax.with_extra_args_support(optax.flatten(optax.chain(clip, optax.adam(schedule))))


def _matrices(params: PyTree) -> PyTree:
    """Inputs and outputs of each weight matrix; nothing for biases, kernels of images and numbers in a table."""
    axes = optax.contrib.MuonDimensionNumbers(reduction_axis=0, output_axis=1)
    return jax.tree_util.tree_map_with_path(lambda path, leaf: axes if _is_matrix(path, leaf) else None, params)


def _decaying(params: PyTree) -> PyTree:
    """True for weight matrices, the only ones to decay."""
    return jax.tree_util.tree_map_with_path(_is_matrix, params)


def _is_matrix(path: jax.tree_util.KeyPath, leaf: jax.Array) -> bool:
    return leaf.ndim == 2 and getattr(path[-1], "name", None) == "weight"
