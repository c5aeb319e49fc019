"""Tiny faces in CelebA's layout, for tests of whatever reads them."""

import io
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from stmaml.benchmarks.celeba import SPLIT

NAMES = tuple(sorted(name for part in SPLIT for name in part))
STEP = 4
"""Between two numbers in a colour: JPEG moves a plain colour by less."""


def plain(number: int, *, width: int = 16, height: int = 16) -> bytes:
    """A JPEG of one colour, from which `number_of` reads its number."""
    colour = (8 + STEP * (number % 60), 8 + STEP * (number // 60), 128)
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(buffer, format="JPEG", quality=95, subsampling=0)
    return buffer.getvalue()


def number_of(pixels: np.ndarray) -> np.ndarray:
    """The numbers of plain pictures, as bytes or in 0..1."""
    corner = np.asarray(pixels, dtype=float)[..., 0, 0, :]
    corner = corner if np.asarray(pixels).dtype == np.uint8 else corner * 255
    steps = np.rint((corner - 8) / STEP).astype(int)
    return steps[..., 0] + 60 * steps[..., 1]


@dataclass
class FaceFiles:
    """The content of a data set; tests change it before it is written."""

    attributes: np.ndarray
    """One row a picture, of 1 and -1."""
    partition: np.ndarray
    person: np.ndarray | None
    pictures: dict[str, bytes] = field(default_factory=dict)
    names: tuple[str, ...] = NAMES
    count: int | None = None
    """What the first line of the attributes says; the truth if not given."""

    def __post_init__(self):
        self.pictures = self.pictures or {name: plain(i) for i, name in enumerate(self.listed)}

    @property
    def listed(self) -> list[str]:
        """The pictures the lists name."""
        return [f"{i + 1:06d}.jpg" for i in range(len(self.partition))]

    def files(self) -> dict[str, bytes]:
        """Every file by its path."""
        rows = [f"{name} {' '.join(f'{value:2d}' for value in row)}" for name, row in self._rows()]
        count = len(self.partition) if self.count is None else self.count
        found = {
            "list_attr_celeba.txt": "\n".join([str(count), " ".join(self.names) + " ", *rows]) + "\n",
            "list_eval_partition.txt": self._numbers(self.partition),
        }
        if self.person is not None:
            found["identity_CelebA.txt"] = self._numbers(self.person)
        texts = {name: text.encode() for name, text in found.items()}
        return {**texts, **{f"img_align_celeba/{name}": content for name, content in self.pictures.items()}}

    def write(self, folder: Path) -> Path:
        """Writes all as a folder."""
        for name, content in self.files().items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return folder

    def pack(self, archive: Path) -> Path:
        """Writes all as a tar file, packed as its name says."""
        with tarfile.open(archive, "w:gz" if archive.name.endswith("gz") else "w") as tar:
            for name, content in self.files().items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        return archive

    def _rows(self) -> list[tuple[str, np.ndarray]]:
        return list(zip(self.listed, self.attributes, strict=True))

    def _numbers(self, values: np.ndarray) -> str:
        return "".join(f"{name} {value}\n" for name, value in zip(self.listed, values, strict=True))


def faces(parts: tuple[int, int, int] = (90, 60, 90), *, seed: int = 0) -> FaceFiles:
    """Pictures of so many in each part, two of each person, with fair coins for attributes."""
    total = sum(parts)
    values = np.random.default_rng(seed).choice([-1, 1], (total, len(NAMES)))
    return FaceFiles(values, np.repeat(np.arange(3), parts), 7 + np.arange(total) // 2)
