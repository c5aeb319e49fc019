"""Reading archives, tar (compressed or not) and zip, to their very end."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from stmaml.errors import SourceError

BROKEN = (tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, EOFError, OSError, RuntimeError)
"""What damaged archives raise; a zip file with a password is a RuntimeError."""


def members(archive: Path, wanted: Callable[[str], bool] = lambda name: True) -> Iterator[tuple[str, bytes, int]]:
    """Name and content of each wanted file, and the position reached; SourceError if the archive is damaged."""
    last = "its beginning"
    try:
        with archive.open("rb") as raw:
            unpack = _unzip if archive.name.lower().endswith(".zip") else _untar
            for name, content in unpack(raw, wanted):
                last = name
                yield name, content, raw.tell()
    except BROKEN as fault:
        why = str(fault).partition("\n")[0] or type(fault).__name__
        raise SourceError(
            f"{archive} is damaged or cut short after {last} ({why}). Copy, download or pack it again."
        ) from None


def _untar(raw: io.BufferedReader, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    # The decompressors notice a stream that ends early; tarfile's own take it for the end.
    with _decompress(raw) as plain, tarfile.open(fileobj=plain, mode="r|") as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isfile() and wanted(member.name) else None
            if content is not None:
                yield member.name, content.read()
        while rest := plain.read(1 << 20):  # to the end, where the checksum is
            if rest.strip(b"\0"):
                raise tarfile.ReadError("bytes that belong to no file")


def _unzip(raw: io.BufferedReader, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(raw) as packed:
        for name in filter(wanted, packed.namelist()):
            yield name, packed.read(name)


def _decompress(raw: io.BufferedReader) -> gzip.GzipFile | lzma.LZMAFile | bz2.BZ2File | BinaryIO:
    """The tar inside, found by how each compressed form begins, whatever the file is called."""
    openers = {b"\x1f\x8b": lambda raw: gzip.GzipFile(fileobj=raw), b"\xfd7zXZ\0": lzma.LZMAFile, b"BZh": bz2.BZ2File}
    return next((opener(raw) for magic, opener in openers.items() if raw.peek(6).startswith(magic)), raw)
