"""What of the benchmarks' data is there, complete and intact."""

import gzip
import lzma
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stmaml.data.catalogue import COLLECTIONS, Collection, Origin
from stmaml.data.fetching import digest_of, recorded

State = Literal["intact", "present", "other", "damaged", "missing"]
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz")
UNREADABLE = (OSError, EOFError, tarfile.TarError, lzma.LZMAError, zlib.error, gzip.BadGzipFile)


@dataclass(frozen=True)
class Finding:
    """What is known of one file or folder."""

    name: str
    state: State
    words: str


def check(name: str, wanted: Collection, root: Path, *, deep: bool = True) -> list[Finding]:
    """The files of a data set; without `deep`, contents are not looked at."""
    found = [_file(origin, root, deep=deep) for origin in wanted.files]
    if wanted.files and not all(one.state == "missing" for one in found):
        return found
    folder = root / wanted.folder
    archives = [p for p in sorted(folder.glob("*")) if p.is_file() and p.name.endswith(ARCHIVES)]
    if wanted.benchmark != "completion" and (archives or _holds_files(folder)):
        return [_archive(path, root, deep=deep) for path in archives] or [_loose(folder, root)]
    how = wanted.by_hand or f"stmaml data fetch {name}"
    return [Finding(wanted.files[0].path if wanted.files else f"{wanted.folder}/", "missing", how)]


def check_all(root: Path, *, deep: bool = True) -> dict[str, list[Finding]]:
    """The files of all data sets, by name."""
    return {name: check(name, wanted, root, deep=deep) for name, wanted in COLLECTIONS.items()}


def missing(benchmark: str, root: Path | None) -> dict[str, str]:
    """Data sets of a benchmark that are not there, with how to get them."""
    wanted = {name: one for name, one in COLLECTIONS.items() if one.benchmark == benchmark}
    if root is None:
        return {name: one.by_hand or f"stmaml data fetch {name}" for name, one in wanted.items()}
    found = {name: check(name, one, root, deep=False) for name, one in wanted.items()}
    return {name: each[0].words for name, each in found.items() if all(one.state == "missing" for one in each)}


def _file(origin: Origin, root: Path, *, deep: bool) -> Finding:
    path = root / origin.path
    if not path.is_file():
        part = path.with_name(f"{path.name}.part")
        words = f"{part.stat().st_size:,} bytes of it are; fetch again to go on" if part.is_file() else "not there"
        return Finding(origin.path, "missing", words)
    if not deep:
        return Finding(origin.path, "present", f"{path.stat().st_size:,} bytes")
    if origin.digest:
        kind, _, wanted = origin.digest.partition(":")
        same = digest_of(path, kind) == wanted
        words = f"{kind} as it should be" if same else f"its {kind} is not the source's: a part, or another file"
        return Finding(origin.path, "intact" if same else "other", words)
    return _archive(path, root, deep=True)


def _archive(path: Path, root: Path, *, deep: bool) -> Finding:
    name, size = str(path.relative_to(root)), f"{path.stat().st_size:,} bytes"
    if not deep:
        return Finding(name, "present", size)
    if known := recorded(path):
        same = digest_of(path) == known
        return Finding(name, "intact" if same else "damaged", f"SHA-256 {'as' if same else 'other than'} recorded")
    try:
        members = _count_members(path)
    except UNREADABLE as fault:
        return Finding(name, "damaged", f"{size}, but cannot be read to its end ({str(fault)[:80]})")
    return Finding(name, "present", f"{members:,} files, readable to the end; no checksum is known")


def _count_members(path: Path) -> int:
    """Files in an archive, read to its end."""
    with tarfile.open(path, "r|*") as archive:
        return sum(member.isfile() for member in archive)


def _loose(folder: Path, root: Path) -> Finding:
    count = sum(1 for path in folder.rglob("*") if path.is_file())
    return Finding(f"{folder.relative_to(root)}/", "present", f"{count:,} files")


def _holds_files(folder: Path) -> bool:
    return folder.is_dir() and any(path.is_file() for path in folder.rglob("*"))
