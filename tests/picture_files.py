"""Tiny pictures in the layout of Plain-Multi, for tests of whatever reads them."""

import io
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image


def colours(index: int, *, size: int = 8) -> np.ndarray:
    """A picture of its own for every index: a colour that no other has, with a slope over it."""
    base = np.array([index * 37 % 251, index * 101 % 241, index * 17 % 239])
    slope = np.arange(size)[:, None, None] + 2 * np.arange(size)[None, :, None]
    return ((base + slope) % 256).astype(np.uint8)


def encoded(pixels: np.ndarray, kind: str = "png") -> bytes:
    """A picture as the bytes of a file."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def write_picture(path: Path, pixels: np.ndarray) -> Path:
    """Writes a picture, without loss if its name ends in .png."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def write_dataset(
    folder: Path, *, classes: tuple[int, int, int] = (6, 5, 5), images: int = 8, first: int = 0, size: int = 8
) -> Path:
    """Writes a data set: classes for training, validation and test, all pictures different."""
    index = first
    for split, count in zip(("train", "val", "test"), classes, strict=True):
        for number in range(count):
            for image in range(images):
                name = folder / split / f"{split}{number}" / f"{image:03d}.png"
                write_picture(name, colours(index, size=size))
                index += 1
    return folder


def pack(folder: Path, archive: Path, *, mode: str = "w") -> Path:
    """A tar file of a folder, the folder's name on top."""
    with tarfile.open(archive, mode) as tar:  # pyright: ignore[reportArgumentType, reportCallIssue]
        tar.add(folder, arcname=folder.name)
    return archive


def turned(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Which pictures of sets were turned left to right; the others must be as they were."""
    same, mirrored = ((each == after).all((2, 3, 4)) for each in (before, before[:, :, :, ::-1]))
    assert (same ^ mirrored).all()
    return mirrored
