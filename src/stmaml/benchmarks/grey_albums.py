"""Albums of grey images by family, read from a folder, and the entropy of their grey values."""

from dataclasses import dataclass
from pathlib import Path

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt8

from stmaml.benchmarks.base import Floor
from stmaml.data.idx import holds_images, read_images
from stmaml.errors import SettingError, SourceError
from stmaml.metrics import Summary, summarise
from stmaml.progress import tell

PAPER_FAMILIES = ("mnist", "fashion-mnist", "kmnist")
FLOOR_METRICS = ("bce", "bce_unseen")
"""Observed pixels are a random part of the image, so the unobserved ones have the same entropy on average."""


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


@dataclass(frozen=True)
class GreyAlbums:
    """What was read from a folder: three albums of the same families."""

    families: tuple[str, ...]
    train: GreyAlbum
    val: GreyAlbum
    test: GreyAlbum
    notes: tuple[str, ...] = ()  # what a user should know of the files


def read_albums(folder: Path, families: tuple[str, ...], val_share: float) -> GreyAlbums:
    """The images of some families, or of all, a share of the training images kept for validation."""
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
