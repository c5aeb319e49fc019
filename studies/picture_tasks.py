"""Random images as tasks, as large as those that few-shot learners are usually compared on."""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr

from stmaml.tasks import TaskBatch, TaskSpec

INNER_LR, OUTER_LR = 0.01, 1e-3


@dataclass(frozen=True)
class ConvSize:
    """The sizes of the `conv` workload."""

    image: int = 84
    channels: int = 32
    blocks: int = 4
    ways: int = 5
    shots: int = 5
    queries: int = 15
    inner_steps: int = 5
    album: int = 500


CONV_SIZES = {
    "full": ConvSize(),
    "tiny": ConvSize(image=8, channels=4, blocks=2, ways=2, shots=1, queries=2, inner_steps=1, album=20),
}


class Pictures(eqx.Module):
    """Tasks of random images that lie on the device as bytes; the label of an image is a matter of its place."""

    album: jax.Array
    size: ConvSize = eqx.field(static=True)

    @staticmethod
    def of(size: ConvSize, *, key: jax.Array) -> "Pictures":
        shape = (size.album, size.image, size.image, 3)
        return Pictures(jr.randint(key, shape, 0, 256).astype(jnp.uint8), size)

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec(self.album.shape[1:], self.size.ways, target="class")

    def sample(self, num_tasks: int, *, key: jax.Array) -> TaskBatch:
        size = self.size
        support, query = size.ways * size.shots, size.ways * size.queries
        chosen = jr.randint(key, (num_tasks, support + query), 0, size.album)
        x, y = self.album[chosen].astype(float) / 255, jnp.tile(jnp.arange(support + query) % size.ways, (num_tasks, 1))
        return TaskBatch.of(x[:, :support], y[:, :support], x[:, support:], y[:, support:])
