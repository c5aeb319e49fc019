"""Reading archives, tar (compressed or not) and zip, to their very end, within bounds, and nothing to disk.

Only regular files are read. Links, pipes and devices are passed over; a sparse file, which states a size it does not
have, a name that leads out of the archive, and more bytes than real archives unpack to are refused.
"""

import bz2
import gzip
import io
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from stmaml.border.files import RATIO, SMALL_BYTES, Readable, open_file, read_pieces
from stmaml.errors import SourceError, forbidden

BROKEN = (tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, EOFError, OSError, RuntimeError)
BROKEN = (*BROKEN, ValueError, KeyError, IndexError, OverflowError, MemoryError)
"""What damaged archives raise; a zip file with a password is a RuntimeError."""
MEMBERS = 5_000_000
MEMBER_BYTES = 2 << 30  # of one file, which is held in memory
ARCHIVE_BYTES = 1 << 40
LZMA_BYTES = 256 << 20  # memory that unpacking .xz may take; 'xz -9' asks for 65 MiB
Wanted = Callable[[str], bool]


@dataclass(frozen=True)
class Bounds:
    """The most that an archive may hold."""

    members: int = MEMBERS
    member_bytes: int = MEMBER_BYTES
    total_bytes: int = ARCHIVE_BYTES

    def of(self, packed: int) -> "Bounds":
        """The same for an archive of so many bytes, which cannot hold more than a multiple of them."""
        return Bounds(self.members, self.member_bytes, min(self.total_bytes, max(SMALL_BYTES, RATIO * packed)))


USUAL = Bounds()


def members(
    archive: Path, wanted: Wanted = lambda name: True, bounds: Bounds = USUAL
) -> Iterator[tuple[str, bytes, int]]:
    """Name and content of each wanted file, and the position reached; SourceError if the archive is damaged."""
    last = "its beginning"
    try:
        with open_file(archive) as raw:
            unpack = _unzip if archive.name.lower().endswith(".zip") else _untar
            for name, content in unpack(raw, wanted, bounds.of(archive.stat().st_size)):
                last = name
                yield name, content, raw.tell()
    except SourceError as fault:
        if str(archive) in str(fault):
            raise
        raise SourceError(f"{archive} is not read beyond {last}: it holds {fault}. Pack it again without.") from None
    except PermissionError:
        raise SourceError(forbidden(archive)) from None
    except BROKEN as fault:
        why = str(fault).partition("\n")[0][:200] or type(fault).__name__
        raise SourceError(
            f"{archive} is damaged or cut short after {last} ({why}). Copy, download or pack it again."
        ) from None


def _check_name(name: str) -> None:
    """Refuses names that lead out of the folder an archive is unpacked in, though nothing is unpacked to disk."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise SourceError(f"a file called {name[:80]!r}, which leads out of it")


def _check_size(size: int, bounds: Bounds, name: str) -> None:
    if not 0 <= size <= bounds.member_bytes:
        raise SourceError(f"{name[:80]!r} of {size:,} bytes; at most {bounds.member_bytes:,} are read")


def _check_count(count: int, bounds: Bounds) -> None:
    if count > bounds.members:
        raise SourceError(f"more than {bounds.members:,} files")


def _untar(raw: io.BufferedReader, wanted: Wanted, bounds: Bounds) -> Iterator[tuple[str, bytes]]:
    # The decompressors notice a stream that ends early; tarfile's own take it for the end.
    plain = _Counted(_decompress(raw), bounds.total_bytes)
    with tarfile.open(fileobj=plain, mode="r|") as tar:
        for count, member in enumerate(tar, start=1):
            _check_count(count, bounds)
            if member.issparse():
                raise SourceError(f"the sparse file {member.name[:80]!r}")
            content = _tar_content(tar, member, bounds) if member.isreg() and wanted(member.name) else None
            if content is not None:
                yield member.name, content
        while rest := plain.read(1 << 20):  # to the end, where the checksum is
            if rest.strip(b"\0"):
                raise tarfile.ReadError("bytes that belong to no file")


def _tar_content(tar: tarfile.TarFile, member: tarfile.TarInfo, bounds: Bounds) -> bytes | None:
    _check_name(member.name)
    _check_size(member.size, bounds, member.name)
    content = tar.extractfile(member)
    return None if content is None else read_pieces(content, bounds.member_bytes, member.name)


def _unzip(raw: io.BufferedReader, wanted: Wanted, bounds: Bounds) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(raw) as packed:
        infos = packed.infolist()
        _check_count(len(infos), bounds)
        if (total := sum(info.file_size for info in infos)) > bounds.total_bytes:
            raise SourceError(f"files of {total:,} bytes together; at most {bounds.total_bytes:,} are read")
        for info in infos:
            if _is_plain(info) and wanted(info.filename):
                _check_name(info.filename)
                _check_size(info.file_size, bounds, info.filename)
                with packed.open(info) as file:  # in pieces: a file may unpack to more than it states
                    yield info.filename, read_pieces(file, info.file_size, info.filename)


def _is_plain(info: zipfile.ZipInfo) -> bool:
    """Whether it is a regular file: the upper half of its attributes is the mode on Unix, or nothing."""
    kind = stat.S_IFMT(info.external_attr >> 16)
    return not info.is_dir() and kind in (0, stat.S_IFREG)


class _Counted(io.RawIOBase):
    """A stream that ends in an error once more bytes were read than an archive may hold."""

    def __init__(self, plain: Readable, most: int):
        self._plain, self._most, self._count = plain, most, 0

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes."""
        piece = self._plain.read(size)
        self._count += len(piece)
        if self._count > self._most:
            raise SourceError(f"more than {self._most:,} bytes, which is more than archives of its size do")
        return piece


def _decompress(raw: io.BufferedReader) -> Readable:
    """The tar inside, found by how each compressed form begins, whatever the file is called."""
    openers = {b"\x1f\x8b": lambda raw: gzip.GzipFile(fileobj=raw), b"\xfd7zXZ\0": _unxz, b"BZh": bz2.BZ2File}
    return next((opener(raw) for magic, opener in openers.items() if raw.peek(6).startswith(magic)), raw)


def _unxz(raw: io.BufferedReader) -> lzma.LZMAFile:
    """The stream inside; refused where its head asks for more memory than any real one."""
    head = raw.peek(4096)[:4096]
    lzma.LZMADecompressor(memlimit=LZMA_BYTES).decompress(head, max_length=1)
    return lzma.LZMAFile(raw)
