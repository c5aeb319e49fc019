"""Tiny files in the IDX format, for tests of whatever reads them."""

import gzip
from pathlib import Path

import numpy as np


def idx_bytes(array: np.ndarray) -> bytes:
    """An array of bytes in the IDX format: 0, 0, type 8, rank, the extents, the data."""
    head = bytes((0, 0, 8, array.ndim)) + b"".join(extent.to_bytes(4, "big") for extent in array.shape)
    return head + array.astype(np.uint8).tobytes()


def write_idx(path: Path, array: np.ndarray) -> Path:
    """Writes an IDX file, compressed if its name ends in .gz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = idx_bytes(array)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def grey(count: int, *, first: int = 0, height: int = 5, width: int = 4) -> np.ndarray:
    """Images that differ: number i has `first + i` as its top left byte and then counts on in steps of 7."""
    start = first + np.arange(count)[:, None]
    return ((start + 7 * np.arange(height * width)) % 256).astype(np.uint8).reshape(count, height, width)


def write_family(
    folder: Path, *, train: np.ndarray, test: np.ndarray, labels: bool = True, ending: str = ".gz"
) -> Path:
    """Writes the four files of a set like MNIST (two without labels)."""
    for part, images in (("train", train), ("t10k", test)):
        write_idx(folder / f"{part}-images-idx3-ubyte{ending}", images)
        if labels:
            write_idx(folder / f"{part}-labels-idx1-ubyte{ending}", np.arange(len(images)) % 10)
    return folder


def write_digits(folder: Path, **size: int) -> Path:
    """Writes three families of the paper's names: 40, 30 and 20 training and 12, 9 and 6 test images, all different."""
    for i, (name, count) in enumerate((("mnist", 40), ("fashion-mnist", 30), ("kmnist", 20))):
        train = grey(count, first=80 * i, **size)
        write_family(folder / name, train=train, test=grey(3 * count // 10, first=80 * i + count, **size))
    return folder
