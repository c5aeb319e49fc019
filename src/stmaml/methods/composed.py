"""A method and what it is wrapped in, put together in one place."""

from dataclasses import replace

from jaxtyping import PRNGKeyArray

from stmaml.methods.base import AbstractMetaLearner, MethodConfig
from stmaml.methods.looks_up import LookUp
from stmaml.methods.on_linear import OnLinear, Prior, extended
from stmaml.methods.standardised import Standardised
from stmaml.tasks import Scaling, TaskSpec


def build(
    method: MethodConfig,
    spec: TaskSpec,
    *,
    lookup: LookUp | None = None,
    linear: bool = False,
    scaling: Scaling | None = None,
    key: PRNGKeyArray,
) -> AbstractMetaLearner:
    """A fresh learner for tasks like `spec`: the method, its inputs looking up, on a Bayesian linear regression, all on
    scaled numbers; each as far as it is asked for."""
    if scaling is not None:
        spec = replace(spec, lattice=None)  # its coordinates are no longer in 0..1
    learner = (lookup or LookUp()).build(method, extended(spec) if linear else spec, key=key)
    if linear:
        num_classes = spec.y_size if spec.target == "class" else 0
        learner = OnLinear(learner, Prior(spec.x_size, spec.y_size), num_classes)
    return learner if scaling is None else Standardised(learner, scaling, scale_targets=spec.target == "real")
