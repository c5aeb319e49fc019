"""Pictures in folders or tar files, decoded to bytes of one size and kept in one file that opens at once."""

import hashlib
import math
import os
import zipfile
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Int32, Shaped, UInt8, UInt64
from PIL import Image, ImageOps

from stmaml.border.arrays import parse_array
from stmaml.border.files import open_file, read_file, read_pieces
from stmaml.border.pictures import PICTURE_BYTES, open_picture
from stmaml.data.archives import Bounds, members
from stmaml.data.folders import cache_folder
from stmaml.data.problems import BROKEN_SAVE, Problem, Problems, from_text, to_text
from stmaml.errors import SourceError
from stmaml.progress import tell

Channels = Literal["rgb", "grey"]

VERSION = 1  # of the saved form; files of another version are decoded anew
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
"""How names of pictures end, in small or capital letters; other files are passed over."""
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")

UNREADABLE = "unreadable picture, left out"
GREY = "grey picture, made colour"
CMYK = "CMYK picture, made RGB"

GREY_MODES = ("1", "L", "LA", "La")
COLOUR_MODES = ("P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV")
"""With those of `GREY_MODES`, the kinds with 8 bits a channel, which turn into bytes without a choice of scale."""
ALPHA_MODES = ("LA", "La", "PA", "RGBA", "RGBa")
BATCH = 64  # decoded by one thread at a time: hides the cost of handing over, and bounds what waits in memory
LIST_BYTES = 1 << 30  # of a list that lies beside the pictures
PIXELS = "pixels"  # the member of a saved file that holds the bytes of all pictures, one after the other


@dataclass(frozen=True)
class Pictures:
    """Pictures of one size as bytes, in the order of their sources and, in each, of their names."""

    pixels: UInt8[np.ndarray, "n h w c"]  # rows of one file, read from disk when they are looked at
    name: Shaped[np.ndarray, " n"]  # where each lies in its source, such as train/robin/0001.jpg
    source: Int32[np.ndarray, " n"]  # which of `sources` each is from
    digest: UInt64[np.ndarray, " n"]  # stands for a picture's pixels: two pictures with the same are the same
    sources: tuple[str, ...]  # names of the folders and archives, without endings such as .tar
    problems: dict[str, Problem] = field(default_factory=dict)  # what was wrong with the files, by kind
    path: Path | None = None  # the file that holds all this: enough to work with on another machine

    @property
    def size(self) -> int:
        """Rows and columns of a picture."""
        return self.pixels.shape[1]


def decode_pictures(sources: Sequence[Path], size: int, *, channels: Channels = "rgb", crop: bool = False) -> Pictures:
    """All pictures in folders (and those below) or tar files, scaled to `size` x `size` whatever their aspect.

    With `crop`, the middle square of each is taken first, which keeps the aspect.

    What cannot be decoded is left out, named and counted in `problems`. The result is kept in the cache folder and
    opened from there as long as the files, the size and the channels stay the same."""
    listed = [_list_source(source) for source in sources]
    form = _Form(size, channels, crop)
    cached = cache_folder() / "pictures" / f"{_fingerprint(listed, form)}.npz"
    if cached.exists():
        with suppress(SourceError):  # of another version or damaged: decoded anew
            return load_pictures(cached)
    part = cached.with_name(f".{cached.name}.{os.getpid()}.part")
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(part, "w") as archive:
            _decode(listed, form, archive)
        os.replace(part, cached)  # a reader never sees half a file
    except OSError as fault:
        raise SourceError(
            f"the decoded pictures could not be kept in {cached.parent}: {fault.strerror or fault}. Make room there, "
            "or set STMAML_CACHE to another folder."
        ) from None
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    return load_pictures(cached)


def load_pictures(path: Path) -> Pictures:
    """The pictures in a file that `decode_pictures` left in the cache folder; SourceError if it is not whole."""
    try:
        with zipfile.ZipFile(path) as archive:
            version = int(_array(archive, "version"))
            if version == VERSION:
                return _load(path, archive)
    except BROKEN_SAVE as fault:
        raise SourceError(
            f"{path} is no complete file of decoded pictures ({str(fault)[:200]}). Make it again from the pictures."
        ) from None
    raise SourceError(
        f"{path} holds pictures saved in version {version}; expected {VERSION}. Make it again from the pictures."
    )


def read_member(source: Path, name: str) -> bytes | None:
    """The content of the file called `name`, in whatever folder of a source it lies; None if there is none."""
    if source.is_dir():
        found = sorted(path for path in source.rglob(name) if path.is_file())
        return read_file(found[0], LIST_BYTES) if found else None
    found = members(source, lambda where: where.rpartition("/")[2] == name, Bounds(member_bytes=LIST_BYTES))
    return next((content for _, content, _ in found), None)


def source_name(source: Path) -> str:
    """What a folder or an archive is called, without the ending of an archive."""
    ending = next((ending for ending in ARCHIVES if source.name.endswith(ending)), "")
    return source.name if source.is_dir() else source.name.removesuffix(ending)


# Listing: what there is, and whether it has changed.


class _Source(NamedTuple):
    path: Path
    files: tuple[tuple[str, int, int], ...] | None
    """Name, size in bytes and time of change of each picture in a folder; None for an archive."""

    @property
    def name(self) -> str:
        """What it is called."""
        return source_name(self.path)

    @property
    def extent(self) -> int:
        """Bytes to read."""
        return self.path.stat().st_size if self.files is None else sum(size for _, size, _ in self.files)


def _list_source(source: Path) -> _Source:
    if source.is_dir():
        try:
            return _Source(source, tuple(sorted(_walk(source, ""))))
        except OSError as fault:
            raise SourceError(
                f"{fault.filename or source} could not be listed: {fault.strerror or fault}. Make it readable, or move "
                "it out of the pictures."
            ) from None
    if source.is_file() and source.name.endswith(ARCHIVES):
        return _Source(source, None)
    what = "is neither a folder nor a tar file" if source.exists() else "does not exist"
    raise SourceError(f"{source} {what}. Name a folder of pictures, or an archive that ends in {', '.join(ARCHIVES)}.")


def _walk(folder: Path, above: str, around: frozenset[str] = frozenset()) -> Iterator[tuple[str, int, int]]:
    """The pictures below a folder, which lies in those `around` it; a link back to one of them is not followed."""
    here = os.path.realpath(folder)
    if here in around:
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if _is_folder(entry):
                yield from _walk(Path(entry.path), f"{above}{entry.name}/", around | {here})
            elif _is_picture(entry.name):
                yield f"{above}{entry.name}", *_state(entry)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _state(entry: os.DirEntry[str]) -> tuple[int, int]:
    """Size in bytes and time of change; zeros for a link that leads nowhere, which is found unreadable later."""
    try:
        status = entry.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def _is_picture(name: str) -> bool:
    """By the name; hidden files, such as the ._ files macOS puts into archives, are none."""
    last = name.rpartition("/")[2]
    return last.lower().endswith(SUFFIXES) and not last.startswith(".")


def _fingerprint(listed: list[_Source], form: "_Form") -> str:
    """Changes whenever a file or a setting does; the same wherever the files lie."""
    digest = hashlib.sha256(f"{VERSION}:{form}\n".encode())
    for source in listed:
        if source.files is None:
            with open_file(source.path) as file:
                state = hashlib.file_digest(file, "sha256").hexdigest()
        else:
            state = repr(source.files)
        digest.update(f"{source.name}:{state}\n".encode())
    return digest.hexdigest()[:32]


# Decoding: one thread reads, others decode, the first writes in order.


class _Form(NamedTuple):
    """What is made of a picture."""

    size: int
    channels: Channels
    crop: bool


class _Encoded(NamedTuple):
    source: int
    name: str
    content: bytes


class _Decoded(NamedTuple):
    source: int
    name: str
    pixels: UInt8[np.ndarray, "h w c"] | None  # None if it could not be decoded
    digest: int
    remark: str | None  # the kind of problem, if there was one
    detail: str


def _decode(listed: list[_Source], form: _Form, archive: zipfile.ZipFile) -> None:
    """Writes all that `Pictures` holds into the archive, never holding more than a few pictures in memory."""
    problems = Problems()
    kept: list[tuple[str, int, int]] = []
    with archive.open(PIXELS, "w", force_zip64=True) as file:
        for one in _decoded(listed, form):
            if one.remark is not None:
                problems.add(one.remark, f"{listed[one.source].name}/{one.name}{one.detail}")
            if one.pixels is not None:
                file.write(one.pixels.data)
                kept.append((one.name, one.source, one.digest))
    name, source, digest = zip(*kept, strict=True) if kept else ((), (), ())
    arrays = {
        "version": np.array(VERSION),
        "shape": np.array((len(kept), form.size, form.size, 3 if form.channels == "rgb" else 1)),
        "name": np.array(name, dtype=str),
        "source": np.array(source, dtype=np.int32),
        "digest": np.array(digest, dtype=np.uint64),
        "sources": np.array([one.name for one in listed], dtype=str),
        "problems": np.array(to_text(problems.summary())),
    }
    for key, array in arrays.items():
        with archive.open(f"{key}.npy", "w") as file:
            np.lib.format.write_array(file, array, allow_pickle=False)


def _decoded(listed: list[_Source], form: _Form) -> Iterator[_Decoded]:
    """The pictures in order, telling how many of the sources' bytes are read."""
    waiting: deque[Future[list[_Decoded]]] = deque()
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


def _encoded(listed: list[_Source]) -> Iterator[tuple[_Encoded, int]]:
    """The pictures' files with the number of bytes read so far."""
    done = 0
    for index, source in enumerate(listed):
        if source.files is None:
            for where, content, position in members(source.path, _is_picture, Bounds(member_bytes=PICTURE_BYTES)):
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


def _decode_batch(batch: list[_Encoded], form: _Form) -> list[_Decoded]:
    return [_decode_one(picture, form) for picture in batch]


def _decode_one(encoded: _Encoded, form: _Form) -> _Decoded:
    try:
        pixels, mode = _decode_content(encoded.content, form)
    except Exception as fault:  # whatever a decoder makes of a broken file: one bad picture never ends a run
        return _Decoded(encoded.source, encoded.name, None, 0, UNREADABLE, f" ({fault or type(fault).__name__})")
    digest = int.from_bytes(hashlib.blake2b(pixels.data, digest_size=8).digest(), "little")
    remark = CMYK if mode == "CMYK" else GREY if mode in GREY_MODES and form.channels == "rgb" else None
    return _Decoded(encoded.source, encoded.name, pixels, digest, remark, "")


def _decode_content(content: bytes, form: _Form) -> tuple[UInt8[np.ndarray, "h w c"], str]:
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


# Opening what was kept.


def _load(path: Path, archive: zipfile.ZipFile) -> Pictures:
    shape = tuple(int(extent) for extent in _array(archive, "shape"))
    if len(shape) != 4 or min(shape) < 0:
        raise ValueError(f"pictures of shape {shape}")
    member = archive.getinfo(PIXELS)
    if member.compress_type != zipfile.ZIP_STORED or member.file_size != math.prod(shape):
        raise ValueError("its pixels are not as many as it says")
    pixels = _map(path, member, shape)
    if zlib.crc32(pixels.data) != member.CRC:  # a second for five gigabytes
        raise ValueError("its pixels are not those that were written")
    pictures = Pictures(
        pixels=pixels,
        name=_list(archive, "name", "U", shape[0]),
        source=_list(archive, "source", "i", shape[0]),
        digest=_list(archive, "digest", "u", shape[0]),
        sources=tuple(_list(archive, "sources", "U").tolist()),
        problems=from_text(str(_array(archive, "problems"))),
        path=path,
    )
    if shape[0] and not 0 <= pictures.source.min() <= pictures.source.max() < len(pictures.sources):
        raise ValueError("pictures of sources that it does not name")
    return pictures


def _list(archive: zipfile.ZipFile, name: str, kind: str, count: int | None = None) -> np.ndarray:
    """A list of so many entries of this kind, in NumPy's letters."""
    array = _array(archive, name)
    if array.ndim != 1 or array.dtype.kind != kind or (count is not None and len(array) != count):
        raise ValueError(f"its {name} are {array.dtype} of shape {array.shape}")
    return array


def _array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    info = archive.getinfo(f"{name}.npy")
    with archive.open(info) as file:
        return parse_array(read_pieces(file, min(info.file_size, LIST_BYTES), name))


def _map(path: Path, member: zipfile.ZipInfo, shape: tuple[int, ...]) -> np.ndarray:
    """The stored bytes of a member, which begin after its header, its name and an extra field."""
    if 0 in shape:
        return np.zeros(shape, np.uint8)
    with path.open("rb") as file:
        file.seek(member.header_offset + 26)
        lengths = file.read(4)
    start = member.header_offset + 30 + int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
    return np.memmap(path, np.uint8, mode="r", offset=start, shape=shape)
