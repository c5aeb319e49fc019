"""All that a training run needs to go on."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from stmaml.methods.base import AbstractMetaLearner
from stmaml.tasks import Scalar
from stmaml.training.config import TrainConfig


class State(eqx.Module):
    """All that a training run needs to go on: what a checkpoint holds."""

    learner: AbstractMetaLearner
    opt_state: PyTree
    rate: Scalar
    """Factor on the step size; a rollback halves it."""
    best: Scalar
    """Best validation score so far, as a loss."""


def initial_state(learner: AbstractMetaLearner, config: TrainConfig) -> State:
    """A state with no step taken."""
    learner = typed(learner)
    opt_state = config.optimizer_of().init(eqx.filter(learner, eqx.is_inexact_array))
    return State(learner, opt_state, jnp.array(1.0, dtype=float), jnp.array(jnp.inf, dtype=float))


def typed(learner: AbstractMetaLearner) -> AbstractMetaLearner:
    """The learner without weakly typed leaves, such as the logarithm of a Python float: a step would type them, and
    compile all anew."""
    strict = jax.tree.map(lambda a: jnp.asarray(a, dtype=a.dtype), eqx.filter(learner, eqx.is_inexact_array))
    return eqx.combine(strict, learner)


def bundle(states: list[State]) -> State:
    """States of several learners as one, on a leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *[eqx.filter(state, eqx.is_array) for state in states])


def unbundle(bundle: State, count: int) -> list[State]:
    """The opposite of `bundle`."""
    return [jax.tree.map(lambda leaf, i=i: leaf[i], bundle) for i in range(count)]
