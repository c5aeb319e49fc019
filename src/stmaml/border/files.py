"""Files that may be read: regular ones, of a size that memory holds, unpacked in bounded pieces."""

import gzip
import io
import os
import stat
from pathlib import Path
from typing import Protocol, runtime_checkable

from stmaml.errors import SourceError

FILE_BYTES = 8 << 30  # of a file that is read whole
UNPACKED_BYTES = 4 << 30  # of what one packed file holds
SMALL_BYTES = 64 << 20  # up to here no ratio is too high: a picture of one colour packs well
RATIO = 200  # bytes unpacked for one read; real tables and pictures stay below 50, bombs reach 1,000
PIECE = 1 << 20
KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}


@runtime_checkable
class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes, at most `size`; none at the end."""
        ...


def open_file(path: Path) -> io.BufferedReader:
    """The file, opened; SourceError for a pipe or a device, which may never answer, or answer without end."""
    _need_regular(path, os.stat(path).st_mode)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _need_regular(path, os.fstat(descriptor).st_mode)  # it may have been exchanged meanwhile
    except SourceError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def check_regular(path: Path) -> None:
    """Raises SourceError for what is there but is no regular file."""
    _need_regular(path, os.stat(path).st_mode)


def _need_regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = KINDS.get(stat.S_IFMT(mode), "no regular file")
        raise SourceError(f"{path} is {kind}; expected a regular file. Remove it, or name another.")


def read_file(path: Path, most: int = FILE_BYTES) -> bytes:
    """All bytes of a regular file, which must not be more than `most`."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(most + 1) if size <= most else b""
    if max(size, len(content)) > most:
        raise SourceError(f"{path} has {size:,} bytes; expected at most {most:,}. It is not the file it should be.")
    return content


def allowed(packed: int, most: int = UNPACKED_BYTES) -> int:
    """How many bytes so many packed ones may become."""
    return min(most, max(SMALL_BYTES, RATIO * packed))


def read_pieces(file: Readable, most: int, what: str) -> bytes:
    """All a stream holds, read piece by piece; SourceError as soon as it is more than `most` bytes."""
    pieces, total = [], 0
    while piece := file.read(PIECE):
        total += len(piece)
        if total > most:
            raise SourceError(f"{what} unpacks to more than {most:,} bytes, which no real file does. Do not trust it.")
        pieces.append(piece)
    return b"".join(pieces)


def read_exactly(file: Readable, size: int, what: str) -> bytearray:
    """The `size` bytes a stream holds, in memory once; SourceError where it holds fewer or more."""
    content, at = bytearray(size), 0
    while piece := file.read(PIECE):
        if at + len(piece) > size:
            raise SourceError(f"{what} unpacks to more than the {size:,} bytes it states. Do not trust it.")
        content[at : at + len(piece)] = piece
        at += len(piece)
    if at < size:
        raise SourceError(f"{what} unpacks to {at:,} of the {size:,} bytes it states. It is cut short.")
    return content


def gunzip(packed: bytes, what: str) -> bytes:
    """What a gzip file holds; raises what `gzip` does where it is damaged."""
    with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
        return read_pieces(file, allowed(len(packed)), what)
