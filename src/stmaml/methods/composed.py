"""A method and what it is wrapped in, put together in one place."""

from dataclasses import replace

from jaxtyping import PRNGKeyArray

from stmaml.errors import SettingError
from stmaml.methods.base import AbstractMetaLearner, MethodConfig
from stmaml.methods.both_ways import BothWays
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
    both_ways: bool = False,
    scaling: Scaling | None = None,
    key: PRNGKeyArray,
) -> AbstractMetaLearner:
    """A fresh learner for tasks like `spec`: the method, its inputs looking up, on a Bayesian linear regression, all on
    scaled numbers, images seen both ways; each as far as it is asked for."""
    if both_ways and not spec.is_image:
        raise SettingError("--both-ways turns images left to right, and these inputs are none; leave it out.")
    if scaling is not None:
        spec = replace(spec, lattice=None)  # its coordinates are no longer in 0..1
    learner = (lookup or LookUp()).build(method, extended(spec) if linear else spec, key=key)
    if linear:
        num_classes = spec.y_size if spec.target == "class" else 0
        learner = OnLinear(learner, Prior(spec.x_size, spec.y_size), num_classes)
    if scaling is not None:
        learner = Standardised(learner, scaling, scale_targets=spec.target == "real")
    return BothWays(learner) if both_ways else learner
