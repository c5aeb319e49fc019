"""The learner of a meta-learned member: a method on a linear model, which it first leaves as it is."""

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from stmaml.inner import InnerLoop
from stmaml.likelihoods import Rising, likelihood_for
from stmaml.methods import METHODS, st_maml, tnp
from stmaml.methods.base import AbstractMetaLearner, MethodConfig
from stmaml.methods.classes_on_linear import ClassesOnLinear, ShiftedClasses
from stmaml.methods.looks_up import LooksUp, LookUp
from stmaml.methods.on_linear import OnLinear, Prior, extended
from stmaml.tasks import TaskSpec
from stmaml.training.optimizers import OptimizerName

EARLY_LOOKS = 4
LAYERS = 3  # of attention in which rows look labelled ones up


@dataclass(frozen=True)
class Plan:
    """What a member's learner is made of, and how it is trained: all by the size of the table."""

    method: str
    num_inputs: int
    """Columns, with those of zeros that make the number even: tables of like width share compiled programs."""
    num_classes: int
    """0 for numbers."""
    shots: int
    query_size: int
    width: int = 32
    """Of each of two hidden layers."""
    inner_steps: int = 1
    prior_draws: int = 2
    """Predictors in a training task's mixture."""
    num_samples: int = 16
    """Predictors drawn for a prediction."""
    tasks: int = 8
    """In a step."""
    steps: int = 1000
    """At most."""
    every: int = 50
    """Steps from one look at held-out groups to the next, and twice as many after the first few looks."""
    patience: int = 3
    """Looks without gain before training ends."""
    rate: float = 5e-3
    decay: float = 0.1
    """Of the weights, in each step and times the rate."""
    averaged: float = 0.98
    """Of the averaged weights, what stays in a step."""
    lookup: int = 0
    """Width of the attention by which each row looks labelled rows up; 0 is none."""
    waves: int = 0
    """Octaves of waves in which that attention reads each number."""
    optimizer: OptimizerName = "adam"
    warmup: int = 20
    """Steps up to the full rate."""
    seed: int = 0

    def strides(self, step: int) -> int:
        """How often so many steps are taken before the next look: most is gained early."""
        return 1 if step < EARLY_LOOKS * self.every else 2

    @property
    def spec(self) -> TaskSpec:
        """What its tasks look like."""
        if self.num_classes:
            return TaskSpec((self.num_inputs,), self.num_classes, target="class")
        return TaskSpec((self.num_inputs,), 1, noise="predicted")

    def vector(self, *, key: PRNGKeyArray) -> Float[Array, " w"]:
        """All weights of a fresh method, one after the other."""
        return as_vector(eqx.filter(self.fresh(key=key), eqx.is_inexact_array))

    def learner(self, vector: Float[Array, " w"], prior: Prior) -> OnLinear | ClassesOnLinear:
        """The learner that has these weights, on the linear model of this prior."""
        rest = eqx.partition(_skeleton(self), _is_shape)[1]
        method = eqx.combine(self.weights(vector), rest)
        return ClassesOnLinear(method, prior, self.num_classes) if self.num_classes else OnLinear(method, prior, 0)

    def weights(self, vector: Float[Array, " w"]) -> Any:
        """The weights in the places that they have in a method."""
        leaves, tree = jax.tree.flatten(eqx.filter(_skeleton(self), _is_shape))
        ends = np.cumsum([leaf.size for leaf in leaves])
        parts = [vector[end - leaf.size : end].reshape(leaf.shape) for leaf, end in zip(leaves, ends, strict=True)]
        return jax.tree.unflatten(tree, parts)

    def fresh(self, *, key: PRNGKeyArray) -> AbstractMetaLearner:
        """A method whose outputs first count for nothing."""
        learner: Any = looking(self).build(method_settings(self), extended(self.spec), key=key)
        inner = within(learner)
        likelihood = ShiftedClasses(self.num_classes) if self.num_classes else inner.likelihood
        zeros = jnp.zeros(self.raw_size)
        inner = replace(inner, likelihood=Rising(likelihood, zeros, zeros))
        return replace(learner, learner=inner) if isinstance(learner, LooksUp) else inner

    @property
    def raw_size(self) -> int:
        """Numbers that the network says of a row."""
        return likelihood_for(self.spec).raw_size


@lru_cache(maxsize=32)
def _skeleton(plan: Plan) -> AbstractMetaLearner:
    """A method with shapes in place of arrays."""
    return eqx.filter_eval_shape(lambda: plan.fresh(key=jr.key(0)))


def as_vector(weights: PyTree) -> Float[Array, " w"]:
    """All of them one after the other."""
    return jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(weights)])


def _is_shape(leaf: Any) -> bool:
    return isinstance(leaf, jax.ShapeDtypeStruct)


def within(method: AbstractMetaLearner) -> Any:
    """The method itself, of one whose inputs may look labelled rows up."""
    return method.learner if isinstance(method, LooksUp) else method


def looking(plan: Plan) -> LookUp:
    """What reads labelled rows for others to look up; TNP does by itself."""
    if not plan.lookup or plan.method == "tnp":
        return LookUp()
    return LookUp("attention", plan.lookup, lookup_layers=LAYERS, lookup_waves=plan.waves)


def method_settings(plan: Plan) -> MethodConfig:
    """Settings of a method for networks of this size."""
    widths, code = (plan.width, plan.width), plan.width // 4
    inner = InnerLoop(inner_lr=1e-2, inner_steps=plan.inner_steps)
    if plan.method == "st-maml":
        encoder = st_maml.Encoding((plan.width, plan.width), z_hidden=(), z_size=code)
        return st_maml.Config(hidden=widths, h_size=code, prior_draws=plan.prior_draws, encoder=encoder, inner=inner)
    if plan.method == "tnp" and plan.lookup:
        return tnp.Config(plan.lookup, layers=LAYERS + 1, num_heads=8, waves=plan.waves)
    config: Any = METHODS[plan.method]()
    wanted: dict[str, Any] = dict.fromkeys(("hidden", "encoder", "decoder", "keys"), widths)
    wanted |= {"inner": inner, "z_size": code, "num_particles": 4}
    known = {field.name for field in fields(config)}
    return replace(config, **{name: value for name, value in wanted.items() if name in known})
