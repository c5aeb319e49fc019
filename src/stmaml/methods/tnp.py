"""TNP-D: Nguyen, Grover, "Transformer Neural Processes", ICML 2022, in its diagonal form: every asked input sees the
support and itself, no other asked input.

Departures: layers normalise before they look and before they revise, and once more at the end, where the authors'
normalise after; heads have no biases; a number of its own tells an asked input, whose target is set to 0, from an
example whose target is 0; the spread of targets is the likelihood's affair. Images are read by one convolutional
network, whose features stand in the place of x. The support goes through the layers once, and asked inputs look at what
it was in each: the authors' masked layer over both sets gives the same for more work."""

import math
from dataclasses import dataclass, field, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.errors import at_least
from stmaml.likelihoods import AbstractLikelihood, likelihood_for
from stmaml.methods import base
from stmaml.methods.base import AbstractOneNet
from stmaml.nets.attention import AttentionBlock
from stmaml.nets.backbone import image_body
from stmaml.nets.conv import Conv, ConvBody, feature_shape
from stmaml.nets.cross import Reader
from stmaml.nets.layers import MLP
from stmaml.tasks import Examples, TaskSpec, Weight


@dataclass(frozen=True)
class Config:
    """Settings of the transformer neural process."""

    width: int = 64
    """Numbers in a row as the layers pass it on."""
    layers: int = 6
    """Layers of attention."""
    num_heads: int = 4
    """Heads of each; they divide the width."""
    waves: int = 0
    """Octaves of waves in which inputs and targets are read, beside the numbers themselves; their rates are learnt."""
    conv: Conv = field(default_factory=Conv)

    def __post_init__(self):
        at_least(1, width=self.width, layers=self.layers, num_heads=self.num_heads)
        at_least(0, waves=self.waves)

    def build(self, spec: TaskSpec, *, key: PRNGKeyArray) -> "TNP":
        """A fresh TNP for tasks like `spec`."""
        read_key, block_key, head_key, image_key = jr.split(key, 4)
        likelihood = likelihood_for(spec)
        x_size = math.prod(feature_shape(spec.x_shape, self.conv)) if spec.is_image else spec.x_size
        keys = jr.split(block_key, self.layers)
        return TNP(
            read=Reader(x_size + likelihood.code_size + 1, self.width, self.waves, key=read_key),
            blocks=tuple(AttentionBlock(self.width, num_heads=self.num_heads, key=k) for k in keys),
            norm=eqx.nn.LayerNorm(self.width),
            head=MLP((self.width, 2 * self.width, likelihood.raw_size), init="glorot", key=head_key),
            likelihood=likelihood,
            settings=self,
            image=image_body(spec, self.conv, key=image_key),
        )


class Answering(eqx.Module):
    """The layers, with the support as each of them meets it."""

    read: Reader
    blocks: tuple[AttentionBlock, ...]
    norm: eqx.nn.LayerNorm
    head: MLP
    image: ConvBody | None
    seen: tuple[Float[Array, "n f"], ...]
    weight: Weight
    code_size: int = eqx.field(static=True)

    def __call__(self, x: Float[Array, "q *dx"], *, weight: Weight | None = None) -> Float[Array, "q r"]:
        """Raw outputs at each input, whatever the others are."""
        x = x.reshape(x.shape[0], -1) if self.image is None else base.image_features(self.image, x, weight)
        rows = self.read(_marked(x, jnp.zeros((x.shape[0], self.code_size)), asked=True))
        for block, seen in zip(self.blocks, self.seen, strict=True):
            rows = block.look_with_self(rows, seen, self.weight)
        return self.head(jax.vmap(self.norm)(rows))

    def settle(self, x: Float[Array, "n *dx"], weight: Weight) -> "Answering":
        """The same, with what the convolutions remember of a support set."""
        return self if self.image is None else replace(self, image=self.image.settle(x, weight))


class TNP(AbstractOneNet):
    """A transformer that reads labelled examples and asked inputs alike."""

    read: Reader
    blocks: tuple[AttentionBlock, ...]
    norm: eqx.nn.LayerNorm
    head: MLP
    likelihood: AbstractLikelihood
    settings: Config = eqx.field(static=True)
    image: ConvBody | None = None

    def network(self, support: Examples) -> Answering:
        """The layers that have read the support. The last is never asked what it makes of the support itself."""
        code = self.likelihood.encode(support.y)
        rows = self.read(_marked(base.features_of(support, self.image), code, asked=False))
        seen = [rows]
        for block in self.blocks[:-1]:
            seen.append(rows := block(rows, support.weight))
        parts = (self.read, self.blocks, self.norm, self.head, self.image)
        return base.settle(Answering(*parts, tuple(seen), support.weight, code.shape[1]), support)


def _marked(x: Float[Array, "n dx"], code: Float[Array, "n c"], *, asked: bool) -> Float[Array, "n p"]:
    """Rows [x, y, asked]."""
    return jnp.concatenate([x, code, jnp.full((x.shape[0], 1), float(asked))], axis=1)
