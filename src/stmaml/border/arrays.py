"""Named arrays in one file, as NumPy's .npz: never pickled, of the shape they state, and known by a digest.

The digest stands in the comment of the zip file, which NumPy passes over. Files without one, of older versions, open.
"""

import hashlib
import io
import math
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from stmaml.border.files import allowed, open_file, read_exactly
from stmaml.errors import SourceError

MEMBERS = 100_000
ARRAY_BYTES = 64 << 30  # of all arrays of a file, which are held in memory
HEADER = 1 << 17  # more than the longest header of an array
KINDS = "biufcUS"  # kinds of numbers and text: all that is ever saved
MARK = b"sha256:"
DAMAGE = (OSError, ValueError, EOFError, KeyError, TypeError, RuntimeError, MemoryError, OverflowError)
DAMAGE = (*DAMAGE, SyntaxError, zipfile.BadZipFile, zlib.error)
"""What NumPy and zipfile raise over a file with a wrong byte: they may take it for another kind, packed or encrypted.
SourceError is among them, being a ValueError."""


def pack_arrays(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The bytes of an .npz file with a digest; the same for the same arrays."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    with zipfile.ZipFile(buffer, "a") as file:
        file.comment = MARK + digest_of(arrays).encode()
    return buffer.getvalue()


def digest_of(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of names, types, shapes and numbers, in the order of names."""
    found = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        found.update(f"{name}:{array.dtype.str}:{array.shape}\n".encode())
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def unpack_arrays(path: Path, *, sealed: bool = False) -> dict[str, np.ndarray]:
    """All arrays of an .npz file, checked against their checksums and the digest; one of DAMAGE where it is not whole.

    FileNotFoundError, where there is none, is one of these. A `sealed` file must have a digest."""
    with open_file(path) as raw, zipfile.ZipFile(raw) as file:
        _check_directory(file, os.fstat(raw.fileno()).st_size)
        arrays = {info.filename.removesuffix(".npy"): _array(file, info) for info in file.infolist()}
        comment = file.comment
    if (comment or sealed) and comment != MARK + digest_of(arrays).encode():
        raise SourceError("its digest is not that of its arrays")
    return arrays


def _check_directory(file: zipfile.ZipFile, size: int) -> None:
    infos = file.infolist()
    if len(infos) > MEMBERS or len(infos) != len({info.filename for info in infos}):
        raise SourceError(f"{len(infos):,} arrays, or two of one name")
    if (total := sum(info.file_size for info in infos)) > allowed(size, ARRAY_BYTES):
        raise SourceError(f"it would unpack to {total:,} bytes")


def _array(file: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    """An array whose header states just as many numbers as follow it."""
    if not info.filename.endswith(".npy"):
        raise SourceError(f"'{info.filename[:60]}' is no array")
    with file.open(info) as member:
        return parse_array(read_exactly(member, info.file_size, info.filename))


def parse_array(content: bytes | bytearray) -> np.ndarray:
    """The array in the bytes of an .npy file, which it shares."""
    stream = io.BytesIO(content[:HEADER])
    if np.lib.format.read_magic(stream) not in ((1, 0), (2, 0)):
        raise SourceError("an array of an unknown version of NumPy's format")
    read_header = np.lib.format.read_array_header_1_0 if content[6] == 1 else np.lib.format.read_array_header_2_0
    shape, by_columns, dtype = read_header(stream)
    size = math.prod(shape)
    if dtype.kind not in KINDS or dtype.itemsize == 0 or min(shape, default=0) < 0:
        raise SourceError(f"an array of type {dtype} and shape {shape}")
    if len(content) - stream.tell() != size * dtype.itemsize:
        raise SourceError(f"{len(content) - stream.tell()} bytes for an array of {size} x {dtype.itemsize}")
    array = np.frombuffer(content, dtype, count=size, offset=stream.tell())
    return array.reshape(shape[::-1]).T if by_columns else array.reshape(shape)
