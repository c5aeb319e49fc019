"""Where pictures lie: folders and tar files, what is in them, and whether it has changed."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from stmaml.border.files import read_file
from stmaml.data.archives import Bounds, members
from stmaml.errors import SourceError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
"""How names of pictures end, in small or capital letters; other files are passed over."""
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
LIST_BYTES = 1 << 30  # of a list that lies beside the pictures


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


class Source(NamedTuple):
    """A folder or an archive of pictures, with what tells whether it has changed."""

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


def list_source(source: Path) -> Source:
    """What lies in a folder or an archive; SourceError where it is neither."""
    if source.is_dir():
        try:
            return Source(source, tuple(sorted(_walk(source, ""))))
        except OSError as fault:
            raise SourceError(
                f"{fault.filename or source} could not be listed: {fault.strerror or fault}. Make it readable, or move "
                "it out of the pictures."
            ) from None
    if source.is_file() and source.name.endswith(ARCHIVES):
        return Source(source, None)
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
            elif is_picture(entry.name):
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


def is_picture(name: str) -> bool:
    """By the name; hidden files, such as the ._ files macOS puts into archives, are none."""
    last = name.rpartition("/")[2]
    return last.lower().endswith(SUFFIXES) and not last.startswith(".")
