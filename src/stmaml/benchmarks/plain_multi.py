"""Few-shot classification of images from several data sets (Plain-Multi of HSML and ARML, or anyone's own pictures).

A task is N classes of one data set, numbered at random: from K images of each, tell the class of others. Which data set
it is stays hidden. Classes of training, validation and test are different ones.
"""

import hashlib
import os
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, Int32, PRNGKeyArray, UInt8

from stmaml.benchmarks.base import Benchmark, BenchmarkConfig, Budget, Budgets, Shelf
from stmaml.benchmarks.sources import mirrored
from stmaml.data.folders import data_folder
from stmaml.data.pictures import ARCHIVES, UNREADABLE, Channels, Pictures, decode_pictures, load_pictures, source_name
from stmaml.data.problems import Problem, Problems, in_words
from stmaml.errors import SettingError, SourceError, at_least
from stmaml.limits import ONE_PART_IN
from stmaml.tasks import Examples, Task, TaskBatch, TaskSpec

Split = Literal["train", "val", "test"]

SPLITS: tuple[Split, ...] = ("train", "val", "test")
ELSEWHERE = "picture outside train/, val/ and test/, passed over"
REPEATED = "picture that its class has already, left out"
LEAKED = "picture that validation or test has too, left out"
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
        albums = shelf.once(("albums", *wanted), lambda: _read(*wanted))
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


class Images(eqx.Module):
    """Images as bytes on the device."""

    pixels: UInt8[Array, "n h w c"]

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows, columns and channels of an image."""
        return self.pixels.shape[1:]

    def __call__(self, rows: Int[Array, "*m"]) -> UInt8[Array, "*m h w c"]:
        """The images in these places."""
        return self.pixels[rows]


class Held:
    """Bytes on the host, told apart by being this object: compiled programs refer to it."""

    def __init__(self, pixels: UInt8[np.ndarray, "n h w c"], rows: Int[np.ndarray, " m"]):
        """The images of `pixels` in these places; read from disk, if they lie there, when asked for."""
        self._pixels, self._rows = pixels, rows

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows, columns and channels of an image."""
        return self._pixels.shape[1:]

    def look_up(self, rows: Int[ArrayLike, "*m"]) -> UInt8[np.ndarray, "*m h w c"]:
        """The images in these places."""
        return self._pixels[self._rows[np.asarray(rows)]]


class HostImages(eqx.Module):
    """Images that stay on the host until they are asked for: a batch at a time is sent to the device, as bytes."""

    held: Held = eqx.field(static=True)

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows, columns and channels of an image."""
        return self.held.shape

    def __call__(self, rows: Int[Array, "*m"]) -> UInt8[Array, "*m h w c"]:
        """The images in these places."""
        wanted = jax.ShapeDtypeStruct((*rows.shape, *self.shape), jnp.uint8)
        return jax.pure_callback(self.held.look_up, wanted, rows, vmap_method="expand_dims")


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
        """Tasks by the key."""
        tasks = self.expand(self.draw(num_tasks, key=key))
        if not (self.training and self.settings.mirror):
            return tasks
        return mirrored(tasks, key=jr.fold_in(key, 2))  # `draw` splits the key in two, which are its keys 0 and 1

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


# From files to the classes of each split.


@dataclass(frozen=True)
class ClassAlbum:
    """The pictures of one split, by data set and class."""

    rows: Int[np.ndarray, " n"]  # where they stand among all pictures, in order of data set, class and name
    classes: tuple[tuple[str, str, int], ...]  # data set, name and number of pictures of each class, in the same order


@dataclass(frozen=True)
class ClassAlbums:
    """What was read from a folder."""

    datasets: tuple[str, ...]
    pictures: Pictures
    splits: dict[Split, ClassAlbum]
    problems: dict[str, Problem]


def _read(path: Path, datasets: tuple[str, ...], size: int, channels: Channels) -> ClassAlbums:
    if path.is_file() and path.suffix == ".npz":
        pictures = _load(path, size, channels)
        names = _chosen(datasets, pictures.sources, path)
    else:
        found = find_datasets(path)
        names = _chosen(datasets, tuple(found), path)
        pictures = decode_pictures([found[name] for name in names], size, channels=channels)
    problems = Problems()
    splits = _split_up(pictures, names, problems)
    return ClassAlbums(names, pictures, splits, {**pictures.problems, **problems.summary()})


def _load(path: Path, size: int, channels: Channels) -> Pictures:
    pictures = load_pictures(path)
    depth = {"rgb": 3, "grey": 1}
    if pictures.pixels.shape[1:] != (size, size, depth[channels]):
        height, width, found = pictures.pixels.shape[1:]
        raise SourceError(
            f"{path} holds pictures of {height} x {width} in {found} channel{'s' * (found > 1)}; these settings need "
            f"{size} x {size} in {depth[channels]}. Use --image-size {height}{' --grey' * (found == 1)}, or the "
            "original pictures."
        )
    return pictures


def _chosen(wanted: tuple[str, ...], found: tuple[str, ...], path: Path) -> tuple[str, ...]:
    if unknown := [name for name in wanted if name not in found]:
        raise SettingError(f"{path} has no data set '{unknown[0]}'; it has: {', '.join(found)}.")
    return wanted or found


def find_datasets(path: Path) -> dict[str, Path]:
    """Folders and tar files by the names of their data sets; a set that is there as both is read from the folder."""
    if path.is_file():
        if not path.name.endswith(ARCHIVES):
            raise SourceError(
                f"{path} is neither a folder nor a tar file; expected <data set>/{{train,val,test}}/<class>/ of "
                "pictures in one of the two. Name another."
            )
        return {source_name(path): path}
    if _is_dataset(path):
        return {path.name: path}
    inside = sorted(path.iterdir())
    found = {source_name(p): p for p in inside if p.is_file() and p.name.endswith(ARCHIVES)}
    found |= {p.name: p for p in inside if p.is_dir() and _is_dataset(p)}
    if not found:
        raise SourceError(
            f"{path} holds no data set: expected <data set>/{{train,val,test}}/<class>/ of pictures, or <data set>.tar."
        )
    return {name: found[name] for name in sorted(found)}


def _is_dataset(folder: Path) -> bool:
    return any((folder / split).is_dir() for split in SPLITS)


def _split_up(pictures: Pictures, datasets: tuple[str, ...], problems: Problems) -> dict[Split, ClassAlbum]:
    """Each split's pictures in order, every one once in its class and in one split alone."""
    groups = _group(pictures, datasets, problems)
    for name in datasets:
        by_split: dict[Split, set[str]] = {split: {c for d, c in groups[split] if d == name} for split in SPLITS}
        _check_classes(name, by_split, pictures.problems.get(UNREADABLE))
    held_out: set[int] = set()
    splits: dict[Split, ClassAlbum] = {}
    for split in reversed(SPLITS):  # what testing has, validation and training have to do without
        rows: list[int] = []
        classes: list[tuple[str, str, int]] = []
        for (dataset, name), members in groups[split].items():
            kept = _distinct(members, pictures, held_out, f"{dataset}/{split}/{name}", problems)
            rows += kept
            classes.append((dataset, name, len(kept)))
        splits[split] = ClassAlbum(np.array(rows, dtype=np.int64), tuple(classes))
        held_out |= set(pictures.digest[splits[split].rows].tolist())
    return splits


def _group(
    pictures: Pictures, datasets: tuple[str, ...], problems: Problems
) -> dict[Split, dict[tuple[str, str], list[int]]]:
    """Rows of the pictures of each class of each split: data sets as given, classes and pictures by name."""
    found: dict[Split, dict[tuple[str, str], list[int]]] = {split: {} for split in SPLITS}
    known: dict[str, Split] = {split: split for split in SPLITS}
    tops: dict[str, str] = {}
    for row, (source, name) in enumerate(zip(pictures.source.tolist(), pictures.name.tolist(), strict=True)):
        dataset = pictures.sources[source]
        if dataset not in datasets:
            continue
        parts = name.removeprefix(f"{dataset}/").split("/")
        at = next((i for i, part in enumerate(parts) if part in known), len(parts))
        if len(parts) < at + 3:  # split, class and the picture itself
            problems.add(ELSEWHERE, f"{dataset}/{name}")
            continue
        top = "/".join((dataset, *parts[:at]))
        if tops.setdefault(dataset, top) != top:
            raise SourceError(
                f"{dataset} holds more than one data set: there are train/, val/ or test/ in {tops[dataset]} and in "
                f"{top}. Make each a folder or a tar file of its own."
            )
        found[known[parts[at]]].setdefault((dataset, parts[at + 1]), []).append(row)
    for split, groups in found.items():
        ordered = sorted(groups, key=lambda key: (datasets.index(key[0]), key[1]))
        found[split] = {key: sorted(groups[key], key=lambda row: str(pictures.name[row])) for key in ordered}
    return found


def _check_classes(dataset: str, classes: dict[Split, set[str]], unreadable: Problem | None) -> None:
    bad = f" (of all, {unreadable.count:,} could not be read, such as {unreadable.examples[0]})" if unreadable else ""
    for split in SPLITS:
        if not classes[split]:
            raise SourceError(
                f"{dataset}/{split} has no pictures{bad}; expected {dataset}/{split}/<class>/ with some. Add them, or "
                "leave the set out with --datasets."
            )
    for first, second in combinations(SPLITS, 2):
        if shared := sorted(classes[first] & classes[second]):
            raise SourceError(
                f"{dataset}/{first} and {dataset}/{second} share {len(shared)} of their classes, such as {shared[0]}; "
                "classes to be tested on must be new ones. Move each class to one of the two."
            )


def _distinct(members: list[int], pictures: Pictures, held_out: set[int], label: str, problems: Problems) -> list[int]:
    """The rows of a class without repeated pictures and without those that a later split holds."""
    kept: dict[int, int] = {}  # rows by their digests
    for row in members:
        digest = int(pictures.digest[row])
        if kind := REPEATED if digest in kept else LEAKED if digest in held_out else None:
            problems.add(kind, f"{label}/{str(pictures.name[row]).rpartition('/')[2]}")
        else:
            kept[digest] = row
    return list(kept.values())


# From classes to tasks.


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


def device_bytes() -> int:
    """Memory of the device that arrays are put on."""
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if limit is None else int(limit)
