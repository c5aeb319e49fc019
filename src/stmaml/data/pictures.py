"""Pictures in folders or tar files, decoded to bytes of one size and kept in one file that opens at once."""

import hashlib
import math
import os
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import Int32, Shaped, UInt8, UInt64

from stmaml.border.arrays import parse_array
from stmaml.border.files import open_file, read_pieces
from stmaml.data.folders import cache_folder
from stmaml.data.picture_decoding import Channels, Form, decoded
from stmaml.data.picture_files import LIST_BYTES, Source, list_source
from stmaml.data.problems import BROKEN_SAVE, Problem, Problems, from_text, to_text
from stmaml.errors import SourceError

VERSION = 1  # of the saved form; files of another version are decoded anew
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
    listed = [list_source(source) for source in sources]
    form = Form(size, channels, crop)
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


def _fingerprint(listed: list[Source], form: "Form") -> str:
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


def _decode(listed: list[Source], form: Form, archive: zipfile.ZipFile) -> None:
    """Writes all that `Pictures` holds into the archive, never holding more than a few pictures in memory."""
    problems = Problems()
    kept: list[tuple[str, int, int]] = []
    with archive.open(PIXELS, "w", force_zip64=True) as file:
        for one in decoded(listed, form):
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
