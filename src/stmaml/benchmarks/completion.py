"""Image completion: guess all pixels of an image from a few (the paper's MNIST, Fashion-MNIST and KMNIST, or any set).

A task is one image. Inputs are pixel coordinates, targets grey values, both in 0..1; the query is the whole image.
With `inputs` waves, sines and cosines of the coordinates stand beside them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt8

from stmaml.benchmarks.base import (
    Benchmark,
    BenchmarkConfig,
    Budget,
    Budgets,
    Floor,
    Shelf,
    Showcase,
    Sweep,
    check_shots,
)
from stmaml.benchmarks.sources import shot_weights
from stmaml.data.folders import data_folder
from stmaml.data.idx import holds_images, read_images
from stmaml.errors import SettingError, SourceError, at_least
from stmaml.metrics import Summary, summarise
from stmaml.nets.waves import octaves_for, waves
from stmaml.progress import tell
from stmaml.tasks import Examples, Task, TaskBatch, TaskSpec, pad

PAPER_FAMILIES = ("mnist", "fashion-mnist", "kmnist")
SWEEP = (4, 8, 20, 40, 100, 200)
SHOWCASE_PIXELS = (8, 40)
SHOWCASE_SEED = 13  # two of the eight pixels are bright in each of the paper's families
FLOOR_METRICS = ("bce", "bce_unseen")
"""Observed pixels are a random part of the image, so the unobserved ones have the same entropy on average."""


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
        albums = shelf.once(("albums", *wanted), lambda: _read_albums(*wanted))
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


class GreyAlbum(eqx.Module):
    """The images of all families, one after the other, as bytes on the device."""

    pixels: UInt8[Array, "n p"]
    counts: tuple[int, ...] = eqx.field(static=True)  # images of each family
    shape: tuple[int, int] = eqx.field(static=True)  # rows and columns of an image

    @property
    def starts(self) -> tuple[int, ...]:
        """Where each family begins."""
        return tuple(sum(self.counts[:i]) for i in range(len(self.counts)))

    def coordinates(self) -> Float[Array, "p 2"]:
        """Row and column of each pixel, from 0 to 1, in the order of `pixels`."""
        rows, columns = (jnp.arange(extent) / max(extent - 1, 1) for extent in self.shape)
        return jnp.stack(jnp.meshgrid(rows, columns, indexing="ij"), axis=-1).reshape(-1, 2)

    def intensities(self, row: Int[Array, ""]) -> Float[Array, "p 1"]:
        """The grey values of one image, from 0 to 1."""
        return self.pixels[row].astype(float)[:, None] / 255


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


@dataclass(frozen=True)
class GreyAlbums:
    """What was read from a folder: three albums of the same families."""

    families: tuple[str, ...]
    train: GreyAlbum
    val: GreyAlbum
    test: GreyAlbum
    notes: tuple[str, ...] = ()  # what a user should know of the files


def _read_albums(folder: Path, families: tuple[str, ...], val_share: float) -> GreyAlbums:
    found = find_families(folder)
    if unknown := [name for name in families if name not in found]:
        raise SettingError(f"{folder} has no images of a family '{unknown[0]}'; it has: {', '.join(found)}.")
    names = families or tuple(found)
    train, val, test, others = [], [], [], []
    for i, name in enumerate(names):
        known, asked = read_images(found[name], "train"), read_images(found[name], "t10k")
        if name in PAPER_FAMILIES:  # a name that promises certain images
            others += [f"{name} {part}" for part, split in (("train", known), ("t10k", asked)) if not split.verified]
        images = known.images
        held_out = _held_out(len(images), val_share, found[name])
        train.append(images[~held_out])
        val.append(images[held_out])
        test.append(asked.images)
        _check_sizes(name, test[-1], images, names[0], test[0])
        tell("reading families", i + 1, len(names))
    notes = (f"images without the checksum of the published files: {', '.join(others)}",) if others else ()
    return GreyAlbums(names, _album(train), _album(val), _album(test), notes)


def find_families(folder: Path) -> dict[str, Path]:
    """The sub-folders with images by name, those of the paper first; or the folder itself, if its own are images."""
    if not folder.is_dir():
        raise SourceError(f"{folder} is a file; expected a folder with images. Unpack it, and name the folder.")
    if holds_images(folder):
        return {folder.name: folder}
    found = {path.name: path for path in sorted(folder.iterdir()) if path.is_dir() and holds_images(path)}
    if not found:
        raise SourceError(
            f"{folder} holds no images: expected sub-folders such as {', '.join(PAPER_FAMILIES)}, each with "
            "train-images-idx3-ubyte.gz and t10k-images-idx3-ubyte.gz, or with pictures in train/ and test/."
        )
    return {name: found[name] for name in dict.fromkeys([*(n for n in PAPER_FAMILIES if n in found), *found])}


def _held_out(count: int, share: float, folder: Path) -> np.ndarray:
    """Which training images are for validation: evenly spread, as files may be sorted by class."""
    wanted = max(1, round(count * share))
    if count < 2 or wanted >= count:
        raise SourceError(
            f"{folder} has {count} training image(s), too few to keep {wanted} of them for validation. "
            "Add images, or change --val-share."
        )
    steps = np.arange(count + 1) * wanted // count
    return steps[1:] > steps[:-1]


def _check_sizes(name: str, test: np.ndarray, train: np.ndarray, first: str, first_test: np.ndarray) -> None:
    sizes = [" x ".join(str(extent) for extent in images.shape[1:]) for images in (train, test, first_test)]
    if sizes[0] != sizes[1]:
        raise SourceError(
            f"the training images of {name} have {sizes[0]} pixels, its test images {sizes[1]}. Scale or replace one."
        )
    if sizes[1] != sizes[2]:
        raise SourceError(
            f"the images of {name} have {sizes[1]} pixels, those of {first} {sizes[2]}; families must have one size. "
            "Choose among them with --families, or scale the images."
        )


def _album(groups: list[np.ndarray]) -> GreyAlbum:
    height, width = groups[0].shape[1:]
    pixels = np.concatenate([group.reshape(len(group), -1) for group in groups])
    return GreyAlbum(jnp.asarray(pixels), tuple(len(group) for group in groups), (height, width))


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


def entropy_of(albums: GreyAlbums) -> Floor:
    """What a predictor would score that knew every grey value: the entropy of the test images."""
    entropies = np.split(_entropies(np.asarray(albums.test.pixels)), np.cumsum(albums.test.counts)[:-1])
    each = {name: summarise(values) for name, values in zip(albums.families, entropies, strict=True)}
    return {
        "name": "entropy of the grey values",
        "tasks": sum(albums.test.counts),
        "metrics": dict.fromkeys(FLOOR_METRICS, _balanced_mean(list(each.values()))),
        "families": {name: dict.fromkeys(FLOOR_METRICS, summary) for name, summary in each.items()},
    }


def _entropies(pixels: UInt8[np.ndarray, "n p"]) -> Float[np.ndarray, " n"]:
    """Each image's mean binary entropy in nats, a grey value being the probability of white."""
    p = np.arange(256) / 255
    inner = p[1:-1]
    table = np.zeros(256)
    table[1:-1] = -inner * np.log(inner) - (1 - inner) * np.log1p(-inner)
    return table[pixels].mean(1)


def _balanced_mean(parts: list[Summary]) -> Summary:
    """The mean of independent means, each counting the same."""
    half = float(np.sqrt(np.sum(np.square([part["ci95"] for part in parts])))) / len(parts)
    return {"mean": float(np.mean([part["mean"] for part in parts])), "ci95": half}
