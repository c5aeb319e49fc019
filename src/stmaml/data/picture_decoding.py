"""Pictures' files turned into bytes of one size: one thread reads, others decode, in order."""

import hashlib
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps

from stmaml.border.files import read_file
from stmaml.border.pictures import PICTURE_BYTES, open_picture
from stmaml.data.archives import Bounds, members
from stmaml.data.picture_files import Source, is_picture
from stmaml.errors import SourceError
from stmaml.progress import tell

Channels = Literal["rgb", "grey"]
UNREADABLE = "unreadable picture, left out"
GREY = "grey picture, made colour"
CMYK = "CMYK picture, made RGB"
GREY_MODES = ("1", "L", "LA", "La")
COLOUR_MODES = ("P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV")
"""With those of `GREY_MODES`, the kinds with 8 bits a channel, which turn into bytes without a choice of scale."""
ALPHA_MODES = ("LA", "La", "PA", "RGBA", "RGBa")
BATCH = 64  # decoded by one thread at a time: hides the cost of handing over, and bounds what waits in memory


class Form(NamedTuple):
    """What is made of a picture."""

    size: int
    channels: Channels
    crop: bool


class _Encoded(NamedTuple):
    source: int
    name: str
    content: bytes


class Decoded(NamedTuple):
    """What became of one picture."""

    source: int
    name: str
    pixels: UInt8[np.ndarray, "h w c"] | None  # None if it could not be decoded
    digest: int
    remark: str | None  # the kind of problem, if there was one
    detail: str


def decoded(listed: list[Source], form: Form) -> Iterator[Decoded]:
    """The pictures in order, telling how many of the sources' bytes are read."""
    waiting: deque[Future[list[Decoded]]] = deque()
    batch: list[_Encoded] = []
    workers = os.cpu_count() or 1
    total = sum(source.extent for source in listed)
    with ThreadPoolExecutor(workers) as pool:
        try:
            for picture, position in _encoded(listed):
                batch.append(picture)
                if len(batch) == BATCH:
                    waiting.append(pool.submit(_decode_batch, batch, form))
                    batch = []
                    tell("decoding pictures", position, total)
                if len(waiting) > 2 * workers:  # bounds what is in memory
                    yield from waiting.popleft().result()
            waiting.append(pool.submit(_decode_batch, batch, form))
            while waiting:
                yield from waiting.popleft().result()
            tell("decoding pictures", total, total)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _encoded(listed: list[Source]) -> Iterator[tuple[_Encoded, int]]:
    """The pictures' files with the number of bytes read so far."""
    done = 0
    for index, source in enumerate(listed):
        if source.files is None:
            for where, content, position in members(source.path, is_picture, Bounds(member_bytes=PICTURE_BYTES)):
                yield _Encoded(index, where.removeprefix("./"), content), done + position
            done += source.extent
        else:
            for name, size, _ in source.files:
                done += size
                yield _Encoded(index, name, _content(source.path / name)), done


def _content(path: Path) -> bytes:
    with suppress(OSError, SourceError):
        return read_file(path, PICTURE_BYTES)
    return b""  # counted with the pictures that cannot be decoded


def _decode_batch(batch: list[_Encoded], form: Form) -> list[Decoded]:
    return [_decode_one(picture, form) for picture in batch]


def _decode_one(encoded: _Encoded, form: Form) -> Decoded:
    try:
        pixels, mode = _decode_content(encoded.content, form)
    except Exception as fault:  # whatever a decoder makes of a broken file: one bad picture never ends a run
        return Decoded(encoded.source, encoded.name, None, 0, UNREADABLE, f" ({fault or type(fault).__name__})")
    digest = int.from_bytes(hashlib.blake2b(pixels.data, digest_size=8).digest(), "little")
    remark = CMYK if mode == "CMYK" else GREY if mode in GREY_MODES and form.channels == "rgb" else None
    return Decoded(encoded.source, encoded.name, pixels, digest, remark, "")


def _decode_content(content: bytes, form: Form) -> tuple[UInt8[np.ndarray, "h w c"], str]:
    """A picture's bytes of colour or grey, and the mode (in Pillow's words) its file has."""
    size = form.size
    with open_picture(content) as picture:
        mode = picture.mode
        if mode not in (*GREY_MODES, *COLOUR_MODES):
            raise ValueError(f"mode {mode}; expected 8 bits a channel")
        picture.draft(None, (2 * size, 2 * size))  # a large JPEG is decoded at a fraction of its size
        upright = ImageOps.exif_transpose(picture)
        plain = _opaque(upright).convert("RGB" if form.channels == "rgb" else "L")
    if plain.size != (size, size):
        plain = plain.resize((size, size), Image.Resampling.LANCZOS, _middle(plain.size) if form.crop else None)
    return np.asarray(plain).reshape(size, size, -1), mode


def _middle(size: tuple[int, int]) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of the largest square in the middle."""
    side = min(size)
    left, top = ((extent - side) / 2 for extent in size)
    return left, top, left + side, top + side


def _opaque(picture: Image.Image) -> Image.Image:
    """On white, where it is transparent; the colours hidden there may be any."""
    if picture.mode not in ALPHA_MODES and "transparency" not in picture.info:
        return picture
    seen = picture.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen)
