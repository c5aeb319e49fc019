"""Training images that are never twice the same: turned, cut out and tinted at random.

Labels stay as they are, so a learner that sees few pictures of a class cannot learn them by heart."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.tasks import Examples, Task, TaskBatch

Pictures = Float[Array, "m n rows cols c"]
Alteration = Callable[[Pictures, PRNGKeyArray], Pictures]


def mirrored(batch: TaskBatch, *, key: PRNGKeyArray) -> TaskBatch:
    """The tasks with about half of their images turned left to right, each by a toss of its own."""

    def turn(x: Pictures, key: PRNGKeyArray) -> Pictures:
        return jnp.where(jr.bernoulli(key, shape=x.shape[:2])[..., None, None, None], x[..., ::-1, :], x)

    return _altered(batch, turn, key=key)


def cropped(batch: TaskBatch, smallest: float, *, key: PRNGKeyArray) -> TaskBatch:
    """The tasks with a window of each image in its place, scaled to the whole size: its sides are a share of the
    image's, drawn between `smallest` and 1, and it lies anywhere."""

    def crop(x: Pictures, key: PRNGKeyArray) -> Pictures:
        drawn = jr.uniform(key, (*x.shape[:2], 3))
        side = smallest + (1 - smallest) * drawn[..., 0]
        corner = drawn[..., 1:] * (1 - side[..., None])
        return jax.vmap(jax.vmap(_window))(x, side, corner)

    return _altered(batch, crop, key=key)


def tinted(batch: TaskBatch, strength: float, *, key: PRNGKeyArray) -> TaskBatch:
    """The tasks with each image's brightness, contrast and colours changed by factors up to 1 +- `strength`."""

    def tint(x: Pictures, key: PRNGKeyArray) -> Pictures:
        count, channels = x.shape[:2], x.shape[-1]
        factors = 1 + strength * jr.uniform(key, (*count, 2 + channels), minval=-1.0)
        brightness, contrast, colour = jnp.split(factors[:, :, None, None], (1, 2), axis=-1)
        mean = x.mean((2, 3, 4), keepdims=True)
        return jnp.clip((mean + contrast * (x - mean)) * brightness * colour, 0, 1)

    return _altered(batch, tint, key=key)


def _window(
    image: Float[Array, "rows cols c"], side: Float[Array, ""], corner: Float[Array, "2"]
) -> Float[Array, "rows cols c"]:
    size = jnp.asarray(image.shape[:2])
    scale = jnp.broadcast_to(1 / side, (2,))
    return jax.image.scale_and_translate(
        image, image.shape, (0, 1), scale, -corner * size * scale, method="linear", antialias=False
    )


def _altered(batch: TaskBatch, alter: Alteration, *, key: PRNGKeyArray) -> TaskBatch:
    """Support and query by keys of their own."""

    def of(examples: Examples, key: PRNGKeyArray) -> Examples:
        return eqx.tree_at(lambda e: e.x, examples, alter(examples.x, key))

    support_key, query_key = jr.split(key)
    tasks = Task(of(batch.tasks.support, support_key), of(batch.tasks.query, query_key))
    return eqx.tree_at(lambda b: b.tasks, batch, tasks)
