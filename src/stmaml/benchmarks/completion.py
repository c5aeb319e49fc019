"""Image completion: guess all pixels of an image from a few (the paper's MNIST, Fashion-MNIST and KMNIST, or any set).

A task is one image. Inputs are pixel coordinates, targets grey values, both in 0..1; the query is the whole image.
With `inputs` waves, sines and cosines of the coordinates stand beside them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stmaml.benchmarks.base import Benchmark, BenchmarkConfig, Budget, Budgets, Shelf, Showcase, Sweep, check_shots
from stmaml.benchmarks.grey_albums import GreyAlbum, entropy_of, read_albums
from stmaml.benchmarks.sources import shot_weights
from stmaml.data.folders import data_folder
from stmaml.errors import SettingError, at_least
from stmaml.nets.waves import octaves_for, waves
from stmaml.tasks import Examples, Task, TaskBatch, TaskSpec, pad

SWEEP = (4, 8, 20, 40, 100, 200)
SHOWCASE_PIXELS = (8, 40)
SHOWCASE_SEED = 13  # two of the eight pixels are bright in each of the paper's families


@dataclass(frozen=True)
class Config(BenchmarkConfig):
    """Settings of the image completion benchmark."""

    data: str | None = None
    """Folder with a sub-folder for each family: IDX files like those of MNIST or pictures in train/ and test/; `digits`
    in the folder STMAML_DATA names if not given."""
    families: tuple[str, ...] = ()
    """Names of the sub-folders to use; all there are if not given."""
    shots: int = 40
    """Observed pixels."""
    min_shots: int | None = None
    """Draw each training task's number of observed pixels between this and `shots`; always `shots` if not given."""
    query_size: int | None = None
    """Pixels asked in training, drawn at random from the whole image; all if not given or if there are no more. Tests
    ask all."""
    inputs: Literal["coordinates", "waves"] = "coordinates"
    """Row and column of a pixel, or these with their sines and cosines down to waves of two to four pixels."""
    shift: int = 0
    """Move each training image by up to this many pixels up or down and left or right; its border fills the gap."""
    distort: float = 0.0
    """Turn, stretch and shear half of the training images: how far the four numbers of a random linear map lie from
    those of the identity, as a standard deviation. 0.1 is much."""
    val_share: float = 0.05
    """Share of the training images kept for validation."""
    balanced: bool = True
    """Every family equally often in a training batch, instead of at random. Validation and test sets always are."""
    page = "pixels"
    budgets = Budgets(
        smoke=Budget(steps=20, tasks_per_batch=3, seeds=1, tasks=30, quick=True),
        cpu=Budget(steps=1_000, tasks_per_batch=12, seeds=1, tasks=300, sweep=True),
        paper=Budget(steps=None, seeds=3, tasks=3_000, steps_per_call=500, own_pace=True, sweep=True),
    )

    def __post_init__(self):
        check_shots(self.shots, self.min_shots)
        at_least(1, query_size=self.query_size)
        at_least(0, shift=self.shift)
        if not 0 <= self.distort < 1:
            raise SettingError(f"--distort must be at least 0 and below 1; got {self.distort}.")
        if not 0 < self.val_share < 1:
            raise SettingError(f"--val-share must lie between 0 and 1; got {self.val_share}.")
        if len(set(self.families)) < len(self.families):
            raise SettingError(f"--families names one twice: {' '.join(self.families)}. Name each once.")

    def open(self, shelf: Shelf | None = None) -> Benchmark:
        """Training and validation tasks from the training images, test tasks from the test images."""
        shelf = shelf or Shelf()
        wanted = (data_folder(self.data, "digits").resolve(), self.families, self.val_share)
        albums = shelf.once(("albums", *wanted), lambda: read_albums(*wanted))
        self._check_size(*albums.test.shape)
        test = Completion(albums.test, self)
        pixels = albums.test.shape[0] * albums.test.shape[1]
        return Benchmark(
            settings=self,
            train=Completion(albums.train, self, training=True),
            val=Completion(albums.val, self),
            test=test,
            families=albums.families,
            conditions={"families": albums.families, "shots": self.shots},
            showcases=lambda: tuple(_showcases(test, albums.families)),
            floor=lambda: entropy_of(albums),
            sweep=Sweep(tuple(n for n in SWEEP if n <= pixels), "observed pixels", "pixels"),
            notes=albums.notes,
            shelf=shelf,
        )

    def _check_size(self, height: int, width: int) -> None:
        why = f"as the images have {height} x {width} pixels"
        if self.shots > height * width:
            raise SettingError(f"--shots must be at most {height * width}, {why}; got {self.shots}.")
        if self.shift >= min(height, width):
            raise SettingError(f"--shift must be below {min(height, width)}, {why}; got {self.shift}.")


class Completion(eqx.Module):
    """Tasks of completing the images of an album."""

    album: GreyAlbum
    settings: Config = eqx.field(static=True)
    training: bool = eqx.field(static=True, default=False)
    """Images with replacement, `min_shots`, `query_size`, `shift` and `distort` heeded; else every image once before
    any comes twice, all shots and all pixels."""

    @property
    def spec(self) -> TaskSpec:
        """Two coordinates, or these with their waves; one grey value."""
        size = 2 if self.settings.inputs == "coordinates" else 2 + 4 * self._octaves
        return TaskSpec(x_shape=(size,), y_size=1, target="binary", lattice=self.album.shape)

    @property
    def _octaves(self) -> int:
        return octaves_for(max(self.album.shape))

    def inputs(self) -> Float[Array, "p d"]:
        """What a method is told of each pixel's place: its coordinates, and their waves if asked for."""
        x = self.album.coordinates()
        return x if self.settings.inputs == "coordinates" else waves(x, self._octaves)

    def sample(self, num_tasks: int, *, key: PRNGKeyArray) -> TaskBatch:
        """Tasks by the key; with other shots the same images, with more or fewer of the same pixels observed."""
        image_key, pixel_key = jr.split(key)
        family, row = (self._draw if self.training else self._deal)(num_tasks, key=image_key)
        keys = jax.vmap(lambda i: jr.fold_in(pixel_key, i))(jnp.arange(num_tasks))
        return TaskBatch(jax.vmap(self._task)(row, keys), family)

    def _draw(self, num_tasks: int, *, key: PRNGKeyArray) -> tuple[Int[Array, " m"], Int[Array, " m"]]:
        """Families in turn from a random start, or at random; an image of each with replacement."""
        family_key, image_key = jr.split(key)
        count = len(self.album.counts)
        if self.settings.balanced:
            family = (jnp.arange(num_tasks) + jr.randint(family_key, (), 0, count)) % count
        else:
            family = jr.randint(family_key, (num_tasks,), 0, count)
        within = jr.randint(image_key, (num_tasks,), 0, jnp.array(self.album.counts)[family])
        return family, jnp.array(self.album.starts)[family] + within

    def _deal(self, num_tasks: int, *, key: PRNGKeyArray) -> tuple[Int[Array, " m"], Int[Array, " m"]]:
        """Families in turn; the images of each in random order, from the beginning again when all were dealt.

        The first tasks do not depend on how many are asked for."""
        count = len(self.album.counts)
        turns = jnp.arange(-(-num_tasks // count))
        columns = [
            start + jr.permutation(jr.fold_in(key, i), size)[turns % size]
            for i, (start, size) in enumerate(zip(self.album.starts, self.album.counts, strict=True))
        ]
        return jnp.arange(num_tasks) % count, jnp.stack(columns, axis=1).reshape(-1)[:num_tasks]

    def _task(self, row: Int[Array, ""], key: PRNGKeyArray) -> Task:
        observed_key, asked_key, shots_key = jr.split(key, 3)
        x, y = self.inputs(), self.album.intensities(row)
        if self.training and self.settings.shift:
            y = self._shifted(y, key=jr.fold_in(key, 3))
        if self.training and self.settings.distort:
            y = self._distorted(y, key=jr.fold_in(key, 4))
        observed = choose(x.shape[0], self.settings.shots, key=observed_key)
        fewest = self.settings.min_shots if self.training else None
        support = Examples(x[observed], y[observed], shot_weights(self.settings.shots, fewest, key=shots_key))
        size = self.settings.query_size
        if not self.training or size is None or size >= x.shape[0]:
            return Task(support, Examples.of(x, y))
        asked = choose(x.shape[0], size, key=asked_key)
        return Task(support, Examples.of(x[asked], y[asked]))

    def _shifted(self, y: Float[Array, "p 1"], *, key: PRNGKeyArray) -> Float[Array, "p 1"]:
        """The image moved by whole pixels; what comes in from outside is a copy of its border."""
        moves = jr.randint(key, (2,), -self.settings.shift, self.settings.shift + 1)
        height, width = self.album.shape
        rows = jnp.clip(jnp.arange(height) - moves[0], 0, height - 1)
        columns = jnp.clip(jnp.arange(width) - moves[1], 0, width - 1)
        return y[(rows[:, None] * width + columns[None, :]).reshape(-1)]

    def _distorted(self, y: Float[Array, "p 1"], *, key: PRNGKeyArray) -> Float[Array, "p 1"]:
        """Half of the time the image under a random linear map about its middle, between pixels by interpolation.

        The other half stays as it is: interpolated images have softer edges than those that are asked in a test."""
        map_key, whether_key = jr.split(key)
        change = self.settings.distort * jr.normal(map_key, (2, 2))
        return jnp.where(jr.bernoulli(whether_key), linearly_mapped(y, self.album.shape, jnp.eye(2) + change), y)


def linearly_mapped(y: Float[Array, "p 1"], shape: tuple[int, int], matrix: Float[Array, "2 2"]) -> Float[Array, "p 1"]:
    """The image whose pixel at c + v has the grey value that `y` has at c + matrix v, c being its middle.

    Bilinear between pixels; outside, what is at the nearest border."""
    away = [jnp.arange(extent) - (extent - 1) / 2 for extent in shape]
    down, right = (part.reshape(-1) for part in jnp.meshgrid(*away, indexing="ij"))
    low, part = [], []
    for i, extent in enumerate(shape):
        source = jnp.clip(matrix[i, 0] * down + matrix[i, 1] * right + (extent - 1) / 2, 0, extent - 1)
        low.append(jnp.minimum(jnp.floor(source).astype(int), extent - 2))
        part.append(source - low[i])
    corners = [
        y[(low[0] + i) * shape[1] + low[1] + j, 0] * jnp.abs(1 - i - part[0]) * jnp.abs(1 - j - part[1])
        for i, j in ((0, 0), (0, 1), (1, 0), (1, 1))
    ]
    return sum(corners[1:], start=corners[0])[:, None]


def choose(total: int, count: int, *, key: PRNGKeyArray) -> Int[Array, " count"]:
    """`count` distinct numbers below `total` in random order; with the same key, fewer are the first of more."""
    return jax.lax.top_k(jr.uniform(key, (total,)), count)[1]  # on a CPU six times as fast as a permutation


def _showcases(source: Completion, families: tuple[str, ...]) -> Iterator[Showcase]:
    """The first test image of each family, seen through few pixels and through more."""
    album, x = source.album, source.inputs()
    most = min(max(SHOWCASE_PIXELS), x.shape[0])
    for i, name in enumerate(families):
        y = album.intensities(jnp.asarray(album.starts[i]))
        order = choose(x.shape[0], most, key=jr.fold_in(jr.key(SHOWCASE_SEED), i))
        for pixels in SHOWCASE_PIXELS:
            observed = order[:pixels]
            yield Showcase(
                name=f"{name}-pixels{pixels}",
                figure="completion",
                labels={"family": name, "pixels": pixels},
                support=pad(Examples.of(x[observed], y[observed]), most),  # one shape, one trace
                x=x,
                truth=y,
                axis=jnp.tile(jnp.arange(album.shape[1], dtype=float), album.shape[0]),  # each pixel's column
            )
