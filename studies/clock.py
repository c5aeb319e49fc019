"""What trainings share whose step size is set from one compiled call to the next, by the clock or by a schedule."""

import math
from typing import Any

import equinox as eqx
import jax


def falling(share: float) -> float:
    """The factor on a step size after this share of the time or the steps: down to zero along a half cosine."""
    return 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))


def parameters(learner: Any) -> int:
    """How many numbers a learner has learnt."""
    return sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(learner, eqx.is_inexact_array)))
