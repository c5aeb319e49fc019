"""Reading tar archives, compressed or not, to their very end."""

import bz2
import gzip
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from stmaml.errors import SourceError

BROKEN = (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError)


def members(archive: Path, wanted: Callable[[str], bool] = lambda name: True) -> Iterator[tuple[str, bytes, int]]:
    """Name and content of each wanted file, and the position reached; SourceError if the archive is damaged."""
    try:
        # The decompressors notice a stream that ends early; tarfile's own take it for the end.
        with (
            archive.open("rb") as raw,
            _decompress(archive, raw) as plain,
            tarfile.open(fileobj=plain, mode="r|") as tar,
        ):
            for member in tar:
                content = tar.extractfile(member) if member.isfile() and wanted(member.name) else None
                if content is not None:
                    yield member.name, content.read(), raw.tell()
            while rest := plain.read(1 << 20):  # to the end, where the checksum is
                if rest.strip(b"\0"):
                    raise tarfile.ReadError("bytes that belong to no file")
    except BROKEN as fault:
        raise SourceError(
            f"{archive} is damaged or cut short ({fault or type(fault).__name__}). Copy or download it again."
        ) from None


def _decompress(archive: Path, raw: BinaryIO) -> gzip.GzipFile | lzma.LZMAFile | bz2.BZ2File | BinaryIO:
    if archive.name.endswith((".gz", ".tgz")):
        return gzip.GzipFile(fileobj=raw)
    if archive.name.endswith(".xz"):
        return lzma.LZMAFile(raw)
    return bz2.BZ2File(raw) if archive.name.endswith(".bz2") else raw
