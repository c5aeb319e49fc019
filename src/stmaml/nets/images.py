"""Networks that read images for a task encoder: their weights are shared by all tasks and never fine-tuned."""

import math
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.likelihoods import likelihood_for
from stmaml.nets.autoencoder import SampleEmbedding
from stmaml.nets.conv import Conv, ConvBody, Shape, feature_shape
from stmaml.nets.layers import Linear
from stmaml.tasks import TaskSpec, Weight, weighted_mean

EMBEDDING_BLOCKS = 2
EMBEDDING_WIDTH = 384


class ImageReader(eqx.Module):
    """A set of images as one vector, whatever their order: blocks, mean over positions, a layer, mean over the set."""

    body: ConvBody
    linear: Linear

    def __init__(self, x_shape: Shape, conv: Conv, size: int, *, key: PRNGKeyArray):
        body_key, linear_key = jr.split(key)
        self.body = ConvBody(x_shape, conv, key=body_key)
        self.linear = Linear(conv.channels, size, key=linear_key)

    def __call__(self, x: Float[Array, "n rows cols c"], weight: Weight) -> Float[Array, " s"]:
        """The mean code of the images that count."""
        pooled = self.body.maps(x, weight).mean((1, 2))
        return weighted_mean(jax.nn.relu(self.linear(pooled)), weight)


class ImageEmbedding(eqx.Module):
    """Each image as a vector, by two blocks without normalisation and two ReLU layers; its label's code may follow."""

    body: ConvBody
    layers: tuple[Linear, Linear]
    reads_targets: bool = eqx.field(static=True)

    def __init__(self, x_shape: Shape, conv: Conv, size: int, *, reads_targets: bool = True, key: PRNGKeyArray):
        body_key, wide_key, out_key = jr.split(key, 3)
        small = replace(conv, conv_blocks=EMBEDDING_BLOCKS, norm="none")
        self.body = ConvBody(x_shape, small, key=body_key)
        features = math.prod(feature_shape(x_shape, small))
        wide, out = Linear(features, EMBEDDING_WIDTH, key=wide_key), Linear(EMBEDDING_WIDTH, size, key=out_key)
        self.layers, self.reads_targets = (wide, out), reads_targets

    def __call__(self, x: Float[Array, "n rows cols c"], code: Float[Array, "n k"]) -> Float[Array, "n e"]:
        """One vector for each example; `code` holds the encoded targets."""
        rows = self.body(x)
        for layer in self.layers:
            rows = jax.nn.relu(layer(rows))
        return jnp.concatenate([rows, code], axis=1) if self.reads_targets else rows


ExampleEmbedding = SampleEmbedding | ImageEmbedding


def example_embedding(
    spec: TaskSpec, conv: Conv, size: int, *, reads_targets: bool = True, key: PRNGKeyArray
) -> tuple[ExampleEmbedding, int]:
    """What makes a vector of each example of such tasks, and that vector's length: beside images, labels add to it."""
    code_size = likelihood_for(spec).code_size
    if spec.is_image:
        embed = ImageEmbedding(spec.x_shape, conv, size, reads_targets=reads_targets, key=key)
        return embed, size + code_size * reads_targets
    return SampleEmbedding(spec.x_size, code_size, size, reads_targets=reads_targets, key=key), size
