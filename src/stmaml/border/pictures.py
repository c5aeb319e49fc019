"""Pictures that may be opened: those of a few formats, none of which starts a program, with a bounded number of pixels.

Pillow tries all its formats whatever a file is called, and for one of them, EPS, runs Ghostscript on it.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager

from PIL import Image, UnidentifiedImageError

from stmaml.errors import SourceError

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
PICTURE_BYTES = 256 << 20  # of an encoded picture
MAX_PIXELS = 80_000_000  # below what Pillow warns of
WEBP_SIZES = {b"VP8X": (24, 3, 1, 0xFFFFFF), b"VP8 ": (26, 2, 0, 0x3FFF)}
"""Where width and height stand in a WebP file by its first chunk: place, bytes of each, what to add, and a mask."""


@contextmanager
def open_picture(content: bytes) -> Iterator[Image.Image]:
    """The picture, whose pixels are not decoded yet; SourceError for what is no picture that may be opened."""
    _check_pixels(*_webp_size(content))  # Pillow makes room for a WebP picture before it tells the size
    try:
        picture = Image.open(io.BytesIO(content), formats=FORMATS)
    except UnidentifiedImageError:
        raise SourceError("not a picture") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise SourceError(f"more than {MAX_PIXELS:,} pixels") from None
    with picture:
        _check_pixels(*picture.size)
        yield picture


def _check_pixels(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise SourceError(f"{width} x {height} pixels; at most {MAX_PIXELS:,} are decoded")


def _webp_size(content: bytes) -> tuple[int, int]:
    """Width and height that the head of a WebP file states; zeros for other files."""
    if content[:4] != b"RIFF" or content[8:12] != b"WEBP" or content[12:16] not in WEBP_SIZES:
        return 0, 0
    start, size, more, mask = WEBP_SIZES[content[12:16]]
    sides = (content[at : at + size] for at in (start, start + size))
    width, height = (more + (int.from_bytes(side, "little") & mask) for side in sides)
    return width, height
