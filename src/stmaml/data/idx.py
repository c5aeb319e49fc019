"""Grey images from IDX files (the format of MNIST and its kin) or from folders of pictures."""

import gzip
import hashlib
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import UInt8

from stmaml.border.files import gunzip, read_file
from stmaml.border.pictures import PICTURE_BYTES, open_picture
from stmaml.errors import SourceError
from stmaml.progress import tell

Part = Literal["train", "t10k"]

PUBLISHED_MD5 = {
    "f68b3c2dcbeaaa9fbdd348bbdeb94873": "MNIST train",
    "9fb629c4189551a2d022fa330f9573f3": "MNIST t10k",
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d": "Fashion-MNIST train",
    "bef4ecab320f06d8554ea6380940ec79": "Fashion-MNIST t10k",
    "6bbc9ace898e44ae57da46a324031adb": "MNIST train, unpacked",
    "2646ac647ad5339dbf082846283269ea": "MNIST t10k, unpacked",
    "f4a8712d7a061bf5bd6d2ca38dc4d50a": "Fashion-MNIST train, unpacked",
    "8181f5470baa50b63fa0f6fddb340f0a": "Fashion-MNIST t10k, unpacked",
    "bdb82020997e1d708af4cf47b453dcf7": "KMNIST train",
    "5c965bf0a639b31b8f53240b1b52f4d7": "KMNIST t10k",
}
"""Sums of the image files as their makers distribute them, compressed, and of some of them unpacked."""
GZIP_MAGIC = b"\x1f\x8b"
UNSIGNED_BYTE = 8
IDX_BYTES = 2 << 30
MOST_RANK = 8
PICTURES = (".png", ".jpg", ".jpeg")
GREY_MODES = ("1", "L", "LA", "P", "RGB", "RGBA")
"""Kinds of picture with at most 8 bits a channel, which turn into bytes of grey without a choice of scale."""
PICTURE_FOLDERS: dict[Part, str] = {"train": "train", "t10k": "test"}


@dataclass(frozen=True)
class Split:
    """The training or the test images of a set."""

    images: UInt8[np.ndarray, "n h w"]
    verified: bool
    """Whether the file is, byte for byte, one that the makers of MNIST, Fashion-MNIST or KMNIST distribute."""


def holds_images(folder: Path) -> bool:
    """Whether a folder looks like a set of images: IDX files or folders of pictures, for training or for testing."""
    parts: tuple[Part, ...] = ("train", "t10k")
    return any(_find(folder, part, "images") or _pictures_in(folder, part) for part in parts)


def read_images(folder: Path, part: Part) -> Split:
    """The images of one part of a set, whichever of the two layouts it has."""
    if _find(folder, part, "images") is None and _pictures_in(folder, part):
        return Split(read_grey_folder(folder / PICTURE_FOLDERS[part]), verified=False)
    return read_split(folder, part)


def read_split(folder: Path, part: Part) -> Split:
    """The images of `<part>-images-idx3-ubyte`, compressed or not; labels, if there are any, must be as many."""
    path = _find(folder, part, "images")
    if path is None:
        raise SourceError(
            f"{folder} has no {part}-images-idx3-ubyte.gz (or the same uncompressed), nor pictures in "
            f"{PICTURE_FOLDERS[part]}/. Put the file there, or name another folder."
        )
    content = _read(path)
    images = _parse(content, path, dimensions=3)
    if 0 in images.shape:
        raise SourceError(f"{path} holds no pixels: its shape is {_times(images.shape)}. Replace the file.")
    labels = _find(folder, part, "labels")
    if labels is not None and len(counted := read_idx(labels, dimensions=1)) != len(images):
        raise SourceError(
            f"{path} holds {len(images)} images but {labels.name} has {len(counted)} labels; they should be as many. "
            "One of the two files is not of this set: replace it."
        )
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    return Split(images, verified=md5 in PUBLISHED_MD5)


def read_idx(path: Path, *, dimensions: int | None = None) -> UInt8[np.ndarray, "..."]:
    """The bytes of an IDX file in their shape; whether it is compressed is seen from its content, not its name."""
    return _parse(_read(path), path, dimensions)


def _find(folder: Path, part: Part, what: Literal["images", "labels"]) -> Path | None:
    rank = 3 if what == "images" else 1
    stems = (f"{part}-{what}-idx{rank}-ubyte", f"{part}-{what}.idx{rank}-ubyte")
    candidates = (folder / f"{stem}{ending}" for stem in stems for ending in (".gz", ""))
    return next((path for path in candidates if path.is_file()), None)


def _read(path: Path) -> bytes:
    try:
        return read_file(path, IDX_BYTES)
    except OSError as error:
        raise SourceError(f"{path} could not be read: {error.strerror or error}.") from error


def _parse(content: bytes, path: Path, dimensions: int | None) -> UInt8[np.ndarray, "..."]:
    """Four bytes of magic (0, 0, type, rank), an extent of four bytes for each dimension, then the data."""
    try:
        plain = gunzip(content, str(path)) if content.startswith(GZIP_MAGIC) else content
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SourceError(f"{path} is a gzip file that is cut short or damaged ({error}). Replace the file.") from error
    rank = plain[3] if len(plain) > 3 else 0
    wanted = dimensions or rank
    if plain[:3] != bytes((0, 0, UNSIGNED_BYTE)) or not 0 < rank <= MOST_RANK or rank != wanted:
        expected = f"0x0000080{wanted}" if wanted in (1, 3) else "0x00000803 (images) or 0x00000801 (labels)"
        raise SourceError(
            f"{path} is not the IDX file expected there: it begins with 0x{plain[:4].hex()} instead of {expected}. "
            "Replace the file."
        )
    start = 4 + 4 * rank
    shape = tuple(int.from_bytes(plain[at : at + 4], "big") for at in range(4, start, 4))
    size = math.prod(shape)
    if len(plain) - start != size:
        raise SourceError(
            f"{path} promises {_times(shape)} = {size} bytes of data but has {max(0, len(plain) - start)}. The file is "
            "cut short or damaged: replace it."
        )
    return np.frombuffer(plain, np.uint8, offset=start).reshape(shape)


def read_grey_folder(folder: Path) -> UInt8[np.ndarray, "n h w"]:
    """All .png and .jpg pictures in a folder and those below it, in the order of their paths, as bytes of grey."""
    paths = sorted(_pictures(folder))
    if not paths:
        raise SourceError(f"{folder} has no .png or .jpg pictures. Put some there, or name another folder.")
    images: list[np.ndarray] = []
    for path in paths:
        images.append(_read_picture(path))
        if images[-1].shape != images[0].shape:
            raise SourceError(
                f"{path} has {_times(images[-1].shape)} pixels but {paths[0].name} has {_times(images[0].shape)}; all "
                "pictures of a folder must be of one size. Scale or remove it."
            )
        tell("reading images", len(images), len(paths))
    return np.stack(images)


def _pictures_in(folder: Path, part: Part) -> bool:
    return any(True for _ in _pictures(folder / PICTURE_FOLDERS[part]))


def _pictures(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.suffix.lower() in PICTURES and path.is_file())


def _read_picture(path: Path) -> UInt8[np.ndarray, "h w"]:
    try:
        with open_picture(read_file(path, PICTURE_BYTES)) as picture:
            if picture.mode not in GREY_MODES:
                raise SourceError(f"it is a picture of mode {picture.mode}; expected 8-bit grey or colour")
            return np.asarray(picture.convert("L"))
    except Exception as error:  # whatever a decoder makes of a broken file
        raise SourceError(f"{path} is not a readable picture: {error}. Replace or remove it.") from error


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(str(extent) for extent in shape)
