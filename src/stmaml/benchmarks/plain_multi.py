"""Few-shot classification of images from several data sets (Plain-Multi of HSML and ARML, or anyone's own pictures).

A task is N classes of one data set, numbered at random: from K images of each, tell the class of others. Which data set
it is stays hidden. Classes of training, validation and test are different ones.
"""

import hashlib
from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, Int32, PRNGKeyArray

from stmaml.benchmarks.altered import cropped, mirrored, tinted
from stmaml.benchmarks.base import Benchmark, BenchmarkConfig, Budget, Budgets, Shelf
from stmaml.benchmarks.class_albums import SPLITS, ClassAlbums, Split, read_albums
from stmaml.benchmarks.held_images import Held, HostImages, Images, device_bytes
from stmaml.data.folders import data_folder
from stmaml.data.problems import Problems, in_words
from stmaml.errors import SettingError, SourceError, at_least
from stmaml.limits import ONE_PART_IN
from stmaml.tasks import Examples, Task, TaskBatch, TaskSpec

TOO_FEW = "class with too few pictures, left out"


@dataclass(frozen=True)
class Config(BenchmarkConfig):
    """Settings of few-shot classification."""

    data: str | None = None
    """Folder with <data set>/{train,val,test}/<class>/ of pictures, each set a folder or a tar file, or a file of
    decoded pictures; `plain-multi` in the folder STMAML_DATA names if not given."""
    datasets: tuple[str, ...] = ()
    """Names of the data sets to use; all there are if not given."""
    ways: int = 5
    """Classes in a task."""
    shots: int = 5
    """Labelled images of each class in a support set."""
    query_per_class: int = 15
    """Images of each class in the query set of a training task; fewer where a class has fewer."""
    test_query_per_class: int | None = None
    """The same for validation and test tasks; as many as `shots` if not given."""
    image_size: int = 84
    """Rows and columns that pictures are scaled to."""
    grey: bool = False
    """Read pictures as grey, one channel, instead of as colour."""
    mirror: bool = False
    """Turn each image of a training task left to right with probability one half."""
    crop: float = 1.0
    """Show a window of each image of a training task, scaled up: the smallest side it may have, as a share."""
    tint: float = 0.0
    """Change brightness, contrast and colours of each image of a training task: by factors up to 1 +- this."""
    images_on: Literal["auto", "device", "host"] = "auto"
    """Keep decoded images on the device, or on the host and send those that are asked for; by their size if auto."""
    budgets = Budgets(
        smoke=Budget(steps=2, tasks_per_batch=2, seeds=1, tasks=8, samples=2, val_tasks=4),
        cpu=Budget(steps=200, tasks_per_batch=4, seeds=1, tasks=400, samples=5, steps_per_call=20, val_tasks=40),
        paper=Budget(steps=None, seeds=1, tasks=4_000, steps_per_call=50, own_pace=True),
    )

    def __post_init__(self):
        at_least(2, ways=self.ways)
        at_least(1, shots=self.shots, query_per_class=self.query_per_class, image_size=self.image_size)
        at_least(1, test_query_per_class=self.test_query_per_class)
        if not 0 < self.crop <= 1:
            raise SettingError(f"--crop must be a share of the image's side, above 0 and at most 1; got {self.crop}.")
        if not 0 <= self.tint < 1:
            raise SettingError(f"--tint must be at least 0 and below 1; got {self.tint}.")
        if len(set(self.datasets)) < len(self.datasets):
            raise SettingError(f"--datasets names one twice: {' '.join(self.datasets)}. Name each once.")

    @property
    def test_query(self) -> int:
        """Images of each class in the query set of a validation or test task."""
        return self.shots if self.test_query_per_class is None else self.test_query_per_class

    def open(self, shelf: Shelf | None = None) -> Benchmark:
        """Tasks of the classes in train/, val/ and test/."""
        shelf = shelf or Shelf()
        path, channels = data_folder(self.data, "plain-multi").resolve(), "grey" if self.grey else "rgb"
        wanted = (path, self.datasets, self.image_size, channels)
        albums = shelf.once(("albums", *wanted), lambda: read_albums(*wanted))
        problems = Problems()
        train, val, test = (_few_shot(albums, split, self, problems, shelf) for split in SPLITS)
        conditions = {"datasets": albums.datasets, "ways": self.ways, "shots": self.shots, "query": self.test_query}
        conditions |= {"image_size": self.image_size, "grey": self.grey}
        return Benchmark(
            settings=self,
            train=train,
            val=val,
            test=test,
            families=albums.datasets,
            conditions=conditions,
            notes=(*in_words(albums.problems), *in_words(problems.summary())),
            shelf=shelf,
        )


class Draw(eqx.Module):
    """Tasks by the places of their images, class after class: a thousand fit where ten would not."""

    support: Int[Array, "m n"]
    query: Int[Array, "m q"]
    weight: Float[Array, "m q"]  # of the queries: 0 where a class has no more images
    family: Int[Array, " m"]


class FewShot(eqx.Module):
    """N-way K-shot tasks of the classes of one split."""

    images: Images | HostImages
    table: Int32[Array, "k i"]
    """A class's images by their places, the first repeated where there are no more. Classes stand by data set."""
    counts: Int32[Array, " k"]  # images of each class
    num_classes: tuple[int, ...] = eqx.field(static=True)  # classes of each data set
    content_digest: str = eqx.field(static=True)  # stands for the images and the order they stand in
    settings: Config = eqx.field(static=True)
    training: bool = eqx.field(static=True)
    """Data sets at random and as many queries as there are, up to `query_per_class`; else data sets in turn and
    all queries, `test_query` of each class."""

    @property
    def spec(self) -> TaskSpec:
        """An image, one of N classes."""
        return TaskSpec(x_shape=self.images.shape, y_size=self.settings.ways, target="class")

    @property
    def query_per_class(self) -> int:
        """Queries of each class."""
        return self.settings.query_per_class if self.training else self.settings.test_query

    def sample(self, num_tasks: int, *, key: PRNGKeyArray) -> TaskBatch:
        """Tasks by the key; of training images altered as the settings say."""
        tasks = self.expand(self.draw(num_tasks, key=key))
        if not self.training:
            return tasks
        if self.settings.mirror:
            tasks = mirrored(tasks, key=jr.fold_in(key, 2))  # `draw` splits the key in two, which are its keys 0 and 1
        if self.settings.crop < 1:
            tasks = cropped(tasks, self.settings.crop, key=jr.fold_in(key, 3))
        return tinted(tasks, self.settings.tint, key=jr.fold_in(key, 4)) if self.settings.tint else tasks

    def draw(self, num_tasks: int, *, key: PRNGKeyArray) -> Draw:
        """The places of the images of `sample`'s tasks.

        With more shots the same classes and queries, and the same supports with more beside them, as long as a class
        has the images. The first tasks do not depend on how many are asked for."""
        family_key, task_key = jr.split(key)
        index = jnp.arange(num_tasks)
        family = index % len(self.num_classes)
        if self.training:
            family = jax.vmap(lambda i: jr.randint(jr.fold_in(family_key, i), (), 0, len(self.num_classes)))(index)
        keys = jax.vmap(lambda i: jr.fold_in(task_key, i))(index)
        support, query, weight = jax.vmap(self._task)(family, keys)
        return Draw(support, query, weight, family)

    def expand(self, drawn: Draw) -> TaskBatch:
        """The tasks, with images as numbers in 0..1."""
        support, query = (self._examples(jnp.asarray(rows)) for rows in (drawn.support, drawn.query))
        query = eqx.tree_at(lambda examples: examples.weight, query, jnp.asarray(drawn.weight, dtype=float))
        return TaskBatch(Task(support, query), jnp.asarray(drawn.family))

    def _examples(self, rows: Int[Array, "m n"]) -> Examples:
        """Sets of images, classes after one another."""
        x = self.images(rows).astype(float) / 255
        y = jnp.repeat(jnp.arange(self.settings.ways), rows.shape[1] // self.settings.ways)
        return jax.vmap(Examples.of, in_axes=(0, None))(x, y)

    def _task(
        self, family: Int[Array, ""], key: PRNGKeyArray
    ) -> tuple[Int[Array, " n"], Int[Array, " q"], Float[Array, " q"]]:
        """Places of support and query, and the queries' weights. The order of classes is random, so labels are too."""
        class_key, image_key = jr.split(key)
        classes, shots = self._classes(family, key=class_key), self.settings.shots
        places, count = self.table[classes], self.counts[classes]
        real = jnp.arange(places.shape[1])[None] < count[:, None]
        order = jr.uniform(image_key, places.shape)
        # Supports from one end of a random order and queries from the other: they never meet, and neither depends on
        # how many of the other there are.
        support = jax.lax.top_k(jnp.where(real, order, -1.0), shots)[1]
        query = jax.lax.top_k(jnp.where(real, -order, -2.0), min(self.query_per_class, places.shape[1]))[1]
        query = jnp.pad(query, ((0, 0), (0, self.query_per_class - query.shape[1])))
        weight = (jnp.arange(self.query_per_class)[None] < (count - shots)[:, None]).astype(float)
        rows = [jnp.take_along_axis(places, chosen, axis=1).reshape(-1) for chosen in (support, query)]
        return rows[0], rows[1], weight.reshape(-1)

    def _classes(self, family: Int[Array, ""], *, key: PRNGKeyArray) -> Int[Array, " n"]:
        """N different classes of a data set in random order."""
        number = jnp.array(self.num_classes)
        score = jr.uniform(key, (max(self.num_classes),))
        among = jnp.arange(score.shape[0]) < number[family]
        chosen = jax.lax.top_k(jnp.where(among, score, -1.0), self.settings.ways)[1]
        return (jnp.cumsum(number) - number)[family] + chosen


def _few_shot(albums: ClassAlbums, split: Split, settings: Config, problems: Problems, shelf: Shelf) -> FewShot:
    album, training = albums.splits[split], split == "train"
    needed = settings.shots + (1 if training else settings.test_query)
    starts = np.cumsum([0, *(count for _, _, count in album.classes)])
    listed = [(*one, start) for one, start in zip(album.classes, starts[:-1].tolist(), strict=True)]
    for dataset, name, count, _ in (one for one in listed if one[2] < needed):
        problems.add(TOO_FEW, f"{dataset}/{split}/{name}, which has {count} of {needed}")
    usable = [(dataset, start, count) for dataset, _, count, start in listed if count >= needed]
    num_classes = tuple(sum(one[0] == dataset for one in usable) for dataset in albums.datasets)
    _check_ways(albums, split, num_classes, settings.ways, needed)
    place = np.arange(max(count for _, _, count in usable))
    table = np.stack([start + np.where(place < count, place, 0) for _, start, count in usable]).astype(np.int32)
    digest = hashlib.sha256(albums.pictures.digest[album.rows].tobytes() + table.tobytes())
    return FewShot(
        images=_images(albums, split, settings, shelf),
        table=jnp.asarray(table),
        counts=jnp.asarray([count for _, _, count in usable], dtype=jnp.int32),
        num_classes=num_classes,
        content_digest=digest.hexdigest(),
        settings=settings,
        training=training,
    )


def _check_ways(albums: ClassAlbums, split: Split, num_classes: tuple[int, ...], ways: int, needed: int) -> None:
    for dataset, count in zip(albums.datasets, num_classes, strict=True):
        if count < ways:
            all_of_them = sum(name == dataset for name, _, _ in albums.splits[split].classes)
            short = f" ({all_of_them - count} more have fewer than {needed} pictures)" if all_of_them > count else ""
            raise SourceError(
                f"{dataset}/{split} has {count} classes{short}; --ways {ways} needs as many. Use fewer ways, or leave "
                "the set out with --datasets."
            )


def _images(albums: ClassAlbums, split: Split, settings: Config, shelf: Shelf) -> Images | HostImages:
    """A split's images in one place, the same object for all settings that use them."""
    pixels, rows = albums.pictures.pixels, albums.splits[split].rows
    size = sum(len(album.rows) for album in albums.splits.values()) * int(np.prod(pixels.shape[1:]))
    fitting = "device" if size <= device_bytes() // ONE_PART_IN else "host"
    place = fitting if settings.images_on == "auto" else settings.images_on

    def make() -> Images | HostImages:
        return HostImages(Held(pixels, rows)) if place == "host" else Images(jnp.asarray(pixels[rows]))

    return shelf.once(("images", id(albums), split, place), make)  # the shelf holds the albums, so their id is theirs
