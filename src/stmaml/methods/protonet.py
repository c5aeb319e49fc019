"""Prototypical networks: Snell, Swersky, Zemel, "Prototypical Networks for Few-shot Learning", NeurIPS 2017.

A reference without inner loop: what a good embedding does on its own.

Departures: training takes as many ways as testing; a class without examples in the support has its prototype at zero.
Vectors are embedded by a perceptron."""

from dataclasses import dataclass, field

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.errors import SettingError
from stmaml.likelihoods import AbstractLikelihood, likelihood_for
from stmaml.methods.base import AbstractOneNet, class_means, settle
from stmaml.nets.backbone import image_body
from stmaml.nets.conv import Conv, ConvBody
from stmaml.nets.layers import MLP
from stmaml.tasks import Examples, TaskSpec, Weight


@dataclass(frozen=True)
class Config:
    """Settings of prototypical networks."""

    hidden: tuple[int, ...] = (40, 40)
    """Widths of the embedding's layers, the last of which is linear; images are read by convolutions instead."""
    conv: Conv = field(default_factory=Conv)

    def build(self, spec: TaskSpec, *, key: PRNGKeyArray) -> "ProtoNet":
        """A fresh embedding for tasks like `spec`, which must be of classes."""
        if spec.target != "class":
            needed = "protonet compares class means, so it needs class targets"
            raise SettingError(f"{needed}; these are {spec.target}. Choose another method.")
        embed = image_body(spec, self.conv, key=key) or MLP((spec.x_size, *self.hidden), key=key)
        return ProtoNet(embed=embed, likelihood=likelihood_for(spec), settings=self)


class Prototypes(eqx.Module):
    """An embedding with the class means of a support set."""

    embed: ConvBody | MLP
    means: Float[Array, "k f"]

    def __call__(self, x: Float[Array, "n *dx"], *, weight: Weight | None = None) -> Float[Array, "n k"]:
        """Minus the squared distance of each input to each class mean."""
        features = _features(self.embed, x, weight)
        return -jnp.square(features[:, None] - self.means[None]).sum(-1)

    def settle(self, x: Float[Array, "n *dx"], weight: Weight) -> "Prototypes":
        """The same, with what the embedding remembers of a support set."""
        return self if isinstance(self.embed, MLP) else Prototypes(self.embed.settle(x, weight), self.means)


class ProtoNet(AbstractOneNet):
    """An embedding in which an input belongs to the class whose mean is nearest."""

    embed: ConvBody | MLP
    likelihood: AbstractLikelihood
    settings: Config = eqx.field(static=True)

    def network(self, support: Examples) -> Prototypes:
        """The embedding with the support's class means; the query's logits are minus squared distances to them."""
        features = _features(self.embed, support.x, support.weight)
        means, _ = class_means(features, self.likelihood.encode(support.y), support.weight)
        return settle(Prototypes(self.embed, means), support)


def _features(embed: ConvBody | MLP, x: Float[Array, "n *dx"], weight: Weight | None) -> Float[Array, "n f"]:
    return embed(x, weight) if isinstance(embed, ConvBody) else embed(x.reshape(x.shape[0], -1))
