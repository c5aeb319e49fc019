"""Learners around learners: what is the same for every method, such as the scale of its inputs."""

import abc
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp

from stmaml.inner import InnerLoop
from stmaml.methods.base import AbstractMetaLearner, AbstractPredictor
from stmaml.nets.set_encoder import DiagonalNormal
from stmaml.tasks import Examples

Extra = TypeVar("Extra", bound=eqx.Module)


class AbstractWrapper(AbstractMetaLearner):
    """A learner that shows another one each task in a way of its own."""

    learner: eqx.AbstractVar[AbstractMetaLearner]

    @abc.abstractmethod
    def seen(self, support: Examples) -> Examples:
        """Labelled examples as the wrapped learner sees them."""

    def task_distribution(self, support: Examples) -> DiagonalNormal | None:
        """What the wrapped learner makes of the support as it sees it."""
        return self.learner.task_distribution(self.seen(support))


def beside_each(predictors: AbstractPredictor, extra: Extra) -> Extra:
    """What stacked predictors share, once for each of them."""
    count = jax.tree.leaves(eqx.filter(predictors, eqx.is_array))[0].shape[0]
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), extra)


def as_seen(learner: AbstractMetaLearner, support: Examples) -> Examples:
    """Labelled examples as what is inside the outermost wrapper sees them, if there is one."""
    return learner.seen(support) if isinstance(learner, AbstractWrapper) else support


def method_of(learner: AbstractMetaLearner) -> AbstractMetaLearner:
    """The method itself, whatever it is wrapped in."""
    return method_of(learner.learner) if isinstance(learner, AbstractWrapper) else learner


def inner_loop(learner: AbstractMetaLearner) -> InnerLoop | None:
    """The settings of a method's inner loop; None if it has none."""
    return getattr(getattr(method_of(learner), "settings", None), "inner", None)


def with_settings(learner: AbstractMetaLearner, change: Callable[[Any], Any]) -> AbstractMetaLearner:
    """The same learner, whose method has other settings."""
    changed: Any = learner
    if isinstance(learner, AbstractWrapper):
        return replace(changed, learner=with_settings(learner.learner, change))
    return replace(changed, settings=change(changed.settings))


def with_inner(learner: AbstractMetaLearner, change: Callable[[InnerLoop], InnerLoop]) -> AbstractMetaLearner:
    """The same learner, whose method has another inner loop; ask `inner_loop` first whether it has one."""
    return with_settings(learner, lambda settings: replace(settings, inner=change(settings.inner)))


def in_use(learner: AbstractMetaLearner) -> AbstractMetaLearner:
    """The same learner with as many inner steps as it takes once it is trained."""
    inner = inner_loop(learner)
    if inner is None or inner.test_steps is None:
        return learner
    return with_inner(learner, lambda inner: replace(inner, inner_steps=inner.test_steps, test_steps=None))
