"""What trainings share whose step size is set from one compiled call to the next, by the clock or by a schedule."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from stmaml.training import State, TrainConfig
from stmaml.training.steps import run_steps


def falling(share: float) -> float:
    """The factor on a step size after this share of the time or the steps: down to zero along a half cosine."""
    return 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))


def chunk(state: State, rate: float, source: Any, key: Any, first: int, count: int, config: TrainConfig) -> Any:
    """`run_steps` for `count` steps at a level rate; waits for the device, else the clock would run ahead of it."""
    state = eqx.tree_at(lambda s: s.rate, state, jnp.asarray(rate, dtype=state.rate.dtype))
    return jax.block_until_ready(run_steps(state, source, key, first + jnp.arange(count), config))


def parameters(learner: Any) -> int:
    """How many numbers a learner has learnt."""
    return sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(learner, eqx.is_inexact_array)))
