"""Daily weather stations: NOAA's Global Summary of the Day (GSOD), as its own CSV files or yearly archives.

A file holds a year of one station, a row a day, every field quoted. What is kept of it are the columns of `COLUMNS`,
exactly as printed; dew point, highest and lowest temperature are left out, for they give the mean temperature away.
"""

import csv
import hashlib
import os
import re
from collections import defaultdict, deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stmaml.border.files import open_file, read_file
from stmaml.data.archives import Bounds, members
from stmaml.data.folders import cache_folder
from stmaml.data.noaa_rows import NO_USABLE_ROW, REQUIRED, Member, Part, parse
from stmaml.data.problems import Problems
from stmaml.data.stations import Stations
from stmaml.errors import SourceError
from stmaml.limits import PARSED_BYTES
from stmaml.progress import tell

NOT_CSV = "not CSV"
NOT_A_STATION = "not named like a station"
LACKS_COLUMN = "header lacks a column"
DUPLICATE_FILE = "station and year twice"
ARCHIVES = (".tar.gz", ".tgz", ".tar.xz")
STATION_BYTES = 64 << 20  # of a year of one station; a real one has some 100,000
STATION = re.compile(r"[0-9A-Za-z]{11}")
YEAR = re.compile(r"\d{4}")


def read_stations(path: Path) -> Stations:
    """The stations in `path`: a folder of CSV files, year folders or archives, one archive, or what `save` wrote.

    What was read is kept in the cache folder and opened from there as long as the files stay the same."""
    if not path.exists():
        raise SourceError(f"{path} does not exist. Name a folder of NOAA's station files or a yearly archive.")
    if path.is_file() and path.suffix == ".npz":
        return Stations.load(path)
    sources = _sources(path)
    cached = cache_folder() / "noaa" / f"{_fingerprint(sources)}.npz"
    if cached.exists():
        with suppress(SourceError):  # of another version or damaged: read anew
            return Stations.load(cached)
    stations = _read(path, sources)
    with suppress(OSError):  # no room or no right to write there: the next run reads the files again
        stations.save(cached)
    return stations


def _sources(path: Path) -> list[Path]:
    """The station files and archives in `path`, in a fixed order."""
    if path.is_file():
        if path.name.endswith((".csv", *ARCHIVES)):
            return [path]
        raise SourceError(f"{path} is not a station file (.csv), an archive ({', '.join(ARCHIVES)}) or a saved .npz.")
    folders = [path, *sorted(p for p in path.iterdir() if p.is_dir() and YEAR.fullmatch(p.name))]
    files = [p for folder in folders for p in sorted(folder.glob("*.csv")) if STATION.fullmatch(p.stem)]
    archives = sorted(p for p in path.iterdir() if p.is_file() and p.name.endswith(ARCHIVES))
    if not files and not archives:
        raise SourceError(
            f"{path} holds no station file. Expected <station>.csv with a station number of 11 characters, year "
            "folders of them, or NOAA's yearly archives such as 2019.tar.gz."
        )
    return files + archives


def _fingerprint(sources: list[Path]) -> str:
    """Changes whenever a file does; the same wherever the files lie."""
    digest = hashlib.sha256()
    for source in sources:
        status = source.stat()
        state = str(status.st_mtime_ns)
        if source.name.endswith(ARCHIVES):
            with open_file(source) as file:
                state = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{source.parent.name}/{source.name}:{status.st_size}:{state}\n".encode())
    return digest.hexdigest()[:32]


class _File(NamedTuple):
    label: str
    station: str
    year: int | None  # said by a folder or archive; otherwise most dates decide
    content: bytes


def _read(path: Path, sources: list[Path]) -> Stations:
    problems = Problems()
    parts: list[Part] = []
    waiting: deque[Future[Part]] = deque()
    workers = min(4, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool:
        try:
            for header, batch in _batches(sources, problems):
                waiting.append(pool.submit(parse, header, batch))
                if len(waiting) > 2 * workers:  # bounds what is in memory
                    parts.append(waiting.popleft().result())
            parts.extend(future.result() for future in waiting)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    for part in parts:
        problems.update(part.problems)
    if not any(len(part.arrays["station"]) for part in parts):
        found = "; ".join(f"{kind}: {problem.count}" for kind, problem in problems.summary().items())
        raise SourceError(f"no file in {path} has a usable row ({found or 'the archives are empty'}).")
    return _join(parts, problems)


def _batches(sources: list[Path], problems: Problems) -> Iterator[tuple[tuple[str, ...], list[Member]]]:
    """Members with the same header, some megabytes at a time."""
    open_batches: dict[tuple[str, ...], list[Member]] = defaultdict(list)
    sizes: dict[tuple[str, ...], int] = defaultdict(int)
    for file in _files(sources, problems):
        split = _split_header(file, problems)
        if split is None:
            continue
        header, member = split
        open_batches[header].append(member)
        sizes[header] += len(member.lines)
        if sizes[header] >= PARSED_BYTES:
            yield header, open_batches.pop(header)
            sizes.pop(header)
    yield from open_batches.items()


def _files(sources: list[Path], problems: Problems) -> Iterator[_File]:
    """All station files, telling how many of the sources' bytes are read."""
    total = sum(source.stat().st_size for source in sources)
    done = 0
    for source in sources:
        if source.name.endswith(ARCHIVES):
            for file, position in _archive_files(source, problems):
                yield file
                tell("reading stations", done + position, total)
        else:
            year = _year(source.parent.name)
            yield _File(f"{source.parent.name}/{source.name}", source.stem, year, read_file(source, STATION_BYTES))
        done += source.stat().st_size
        tell("reading stations", done, total)


def _archive_files(archive: Path, problems: Problems) -> Iterator[tuple[_File, int]]:
    """The station files of an archive with the position reached in it; SourceError if it is damaged or cut short."""
    year = _year(archive.name.split(".")[0])

    def is_station(name: str) -> bool:
        where = Path(name)
        named_so = where.suffix == ".csv" and STATION.fullmatch(where.stem) is not None
        if not named_so:
            problems.add(NOT_A_STATION, f"{archive.name}/{where}")
        return named_so

    for name, content, position in members(archive, is_station, Bounds(member_bytes=STATION_BYTES)):
        where = Path(name)
        yield _File(f"{archive.name}/{where}", where.stem, _year(where.parent.name) or year, content), position


def _year(name: str) -> int | None:
    return int(name) if YEAR.fullmatch(name) else None


def _split_header(file: _File, problems: Problems) -> tuple[tuple[str, ...], Member] | None:
    """A file's column names and the rest; None, and a problem counted, if they are not GSOD's."""
    first, _, rest = file.content.partition(b"\n")
    if not file.content.isascii():  # names of places may come in any encoding
        rest = rest.decode("utf-8", "replace").encode()
    try:
        header = tuple(field.strip() for field in next(csv.reader([first.decode("utf-8-sig", "replace")]), []))
    except csv.Error:
        header = ()
    if b"\0" in file.content or not {"DATE", "TEMP"} & set(header):
        problems.add(NOT_CSV, file.label)
        return None
    if lacking := [name for name in REQUIRED if name not in header]:
        problems.add(LACKS_COLUMN, f"{file.label} lacks {', '.join(lacking)}")
        return None
    lines = rest.replace(b"\r\n", b"\n").strip(b"\n")
    if b"\n\n" in lines:
        lines = re.sub(rb"\n{2,}", b"\n", lines)
    if not lines.strip():
        problems.add(NO_USABLE_ROW, file.label)
        return None
    return header, Member(file.label, file.station, file.year, lines)


def _join(parts: list[Part], problems: Problems) -> Stations:
    """All parts as one, files in order of year and station."""
    joined = {name: np.concatenate([part.arrays[name] for part in parts]) for name in parts[0].arrays}
    labels = joined.pop("label")
    offset = np.cumsum(joined["count"]) - joined["count"]
    order = np.lexsort((joined["station"], joined["year"]))
    year, station = joined["year"][order], joined["station"][order]
    again = np.zeros(len(order), dtype=bool)
    again[1:] = (year[1:] == year[:-1]) & (station[1:] == station[:-1])
    for label in labels[order[again]]:
        problems.add(DUPLICATE_FILE, str(label))
    order = order[~again]
    count = joined["count"][order]
    new_offset = np.cumsum(count) - count
    rows = np.repeat(offset[order] - new_offset, count) + np.arange(count.sum())
    per_row = {name: joined.pop(name)[rows] for name in ("day", "readings", "flags")}
    per_file = {name: array[order] for name, array in joined.items()}
    return Stations(**per_file, **per_row, offset=new_offset.astype(np.int64), problems=problems.summary())
