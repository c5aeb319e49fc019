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
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stmaml.border.files import open_file, read_file
from stmaml.data.archives import Bounds, members
from stmaml.data.folders import cache_folder
from stmaml.data.problems import Problems
from stmaml.data.stations import COLUMNS, FLAGS, MISSING, NAMES, STP_GAP, Column, Stations
from stmaml.errors import SourceError
from stmaml.limits import PARSED_BYTES
from stmaml.progress import tell

if TYPE_CHECKING:  # a machine that only opens what was read before needs no polars
    import polars as pl

NOT_CSV = "not CSV"
NOT_A_STATION = "not named like a station"
LACKS_COLUMN = "header lacks a column"
UNREADABLE_ROW = "unreadable row"
UNREADABLE_VALUE = "unreadable value"
OUT_OF_RANGE = "out-of-range value"
OTHER_YEAR = "date outside the year"
NO_TEMPERATURE = "no temperature"
DUPLICATE_DATE = "duplicate date"
DUPLICATE_FILE = "station and year twice"
NO_USABLE_ROW = "no usable row"

ARCHIVES = (".tar.gz", ".tgz", ".tar.xz")
STATION_BYTES = 64 << 20  # of a year of one station; a real one has some 100,000
STATION = re.compile(r"[0-9A-Za-z]{11}")
YEAR = re.compile(r"\d{4}")
PLACE = {"LATITUDE": 90.0, "LONGITUDE": 180.0, "ELEVATION": 9000.0}  # with the largest believable magnitude
REQUIRED = ("DATE", *PLACE, "NAME", *NAMES, "FRSHTT")
OBSERVATIONS = "STP_ATTRIBUTES"  # tells a station pressure of 999.9 mbar from the code for none


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


# Reading: one thread unpacks, others parse.


class _File(NamedTuple):
    label: str
    station: str
    year: int | None  # said by a folder or archive; otherwise most dates decide
    content: bytes


class _Member(NamedTuple):
    """A file whose header is known to hold all columns."""

    label: str
    station: str
    year: int | None
    lines: bytes  # its rows, without blank lines or a final line end


class _Part(NamedTuple):
    """What became of one batch: arrays named as in `Stations`, without offsets."""

    arrays: dict[str, np.ndarray]
    problems: Problems


def _read(path: Path, sources: list[Path]) -> Stations:
    problems = Problems()
    parts: list[_Part] = []
    waiting: deque[Future[_Part]] = deque()
    workers = min(4, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool:
        try:
            for header, batch in _batches(sources, problems):
                waiting.append(pool.submit(_parse, header, batch))
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


def _batches(sources: list[Path], problems: Problems) -> Iterator[tuple[tuple[str, ...], list[_Member]]]:
    """Members with the same header, some megabytes at a time."""
    open_batches: dict[tuple[str, ...], list[_Member]] = defaultdict(list)
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


def _split_header(file: _File, problems: Problems) -> tuple[tuple[str, ...], _Member] | None:
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
    return header, _Member(file.label, file.station, file.year, lines)


# Parsing: a batch's text to arrays.


def _parse(header: tuple[str, ...], batch: list[_Member]) -> _Part:
    """The arrays of a batch's good rows, and what was wrong with the others."""
    import polars as pl

    problems = Problems()
    table = _table(header, batch, problems)
    numbers = [*PLACE, *NAMES, "FRSHTT", *([OBSERVATIONS] if OBSERVATIONS in header else [])]
    table = table.with_columns(pl.col("DATE", *numbers).str.strip_chars())
    written = {name: (table[name].fill_null("") != "").to_numpy() for name in numbers}
    table = table.with_columns(pl.col(numbers).cast(pl.Float64, strict=False), DATE=_dates(table["DATE"]))
    values = {name: table[name].cast(pl.Float64).to_numpy() for name in numbers}
    member = table["member"].cast(pl.Int64).to_numpy()
    date = table["DATE"].to_numpy().astype("datetime64[D]")
    keep = _keep(_Blame(batch, member, problems), date, values["TEMP"], written["TEMP"])
    member, date = member[keep], date[keep]
    values = {name: column[keep] for name, column in values.items()}
    written = {name: flag[keep] for name, flag in written.items()}
    blame = _Blame(batch, member, problems)

    firsts, counts = np.unique(member, return_index=True, return_counts=True)[1:]
    kept = member[firsts]
    for index in sorted(set(range(len(batch))) - set(kept.tolist())):
        problems.add(NO_USABLE_ROW, batch[index].label)
    years = date.astype("datetime64[Y]")
    day = (date - years.astype("datetime64[D]")).astype(np.int16)
    arrays = {
        "station": np.array([batch[index].station for index in kept], dtype="U11"),
        "year": (years[firsts].astype(np.int64) + 1970).astype(np.int16),
        "name": np.array([str(name or "").strip() for name in table["NAME"][keep[firsts]]], dtype=np.str_),
        "count": counts.astype(np.int32),
        "label": np.array([batch[index].label for index in kept], dtype=np.str_),
        "day": day,
        "readings": np.stack([_whole(column, values, written, blame) for column in COLUMNS], axis=1),
        "flags": _bits(values["FRSHTT"], written["FRSHTT"], blame),
    }
    for name, largest in PLACE.items():
        arrays[name.lower()] = _place(name, largest, values[name], written[name], blame)[firsts]
    return _Part(arrays, problems)


def _dates(text: "pl.Series") -> "pl.Series":
    """Dates as the files write them, or else as NOAA's readme does."""
    dates = text.str.to_date("%Y-%m-%d", strict=False)
    if dates.null_count() > text.null_count():
        dates = dates.fill_null(text.str.to_date("%m/%d/%Y", strict=False))
    return dates


def _table(header: tuple[str, ...], batch: list[_Member], problems: Problems) -> "pl.DataFrame":
    """The batch's rows as text, with the index of each row's member; as fast as the files are clean."""
    import polars as pl

    places = {name: header.index(name) for name in (*REQUIRED, OBSERVATIONS) if name in header}
    tags = (b"%d," % index for index in range(len(batch)))
    tagged = b"\n".join(tag + m.lines.replace(b"\n", b"\n" + tag) for tag, m in zip(tags, batch, strict=True))
    fields = [f"column_{index}" for index in range(1, len(header) + 2)]  # the names polars wants where there are none
    tag, *texts = fields
    schema = dict.fromkeys(fields, pl.String)
    try:
        table = pl.read_csv(tagged, has_header=False, schema=schema)
    except pl.exceptions.PolarsError:
        table = pl.DataFrame(schema=schema)
    expected = np.array([member.lines.count(b"\n") + 1 for member in batch])
    owners = table[tag].cast(pl.Int64, strict=False).drop_nulls().to_numpy()
    cut_short = table[texts[-1]].is_null().any()
    if np.array_equal(np.bincount(owners, minlength=len(batch)), expected) and not cut_short:
        return table.select(pl.col(tag).alias("member"), *(pl.col(texts[at]).alias(n) for n, at in places.items()))
    if len(batch) > 1:  # some member is malformed: only that one is to be read line by line
        tables = (_table(header, [member], problems) for member in batch)
        return pl.concat([table.with_columns(member=pl.lit(str(index))) for index, table in enumerate(tables)])
    return _table_by_line(len(header), places, batch[0], problems)


def _table_by_line(width: int, places: dict[str, int], member: _Member, problems: Problems) -> "pl.DataFrame":
    """The readable rows of one member, judged line by line."""
    import polars as pl

    rows = []
    for number, line in enumerate(member.lines.decode("utf-8", "replace").split("\n"), start=2):
        try:
            row = next(csv.reader([line], strict=True), [])
        except csv.Error:
            row = []
        if len(row) == width:
            rows.append(["0", *(row[place] for place in places.values())])
        else:
            problems.add(UNREADABLE_ROW, f"{member.label} line {number}")
    return pl.DataFrame(rows, schema=dict.fromkeys(("member", *places), pl.String), orient="row")


class _Blame:
    """Counts the problems of rows under the labels of their files."""

    def __init__(self, batch: list[_Member], member: np.ndarray, problems: Problems):
        self.batch, self.member, self.problems = batch, member, problems

    def __call__(self, kind: str, rows: np.ndarray, detail: str = "") -> None:
        """Counts the rows that are true in `rows`."""
        for index, count in zip(*np.unique(self.member[rows], return_counts=True), strict=True):
            self.problems.add(kind, f"{self.batch[index].label}{detail}", int(count))


def _keep(blame: "_Blame", date: np.ndarray, temperature: np.ndarray, written: np.ndarray) -> np.ndarray:
    """Indices of the rows with a believable temperature on a day of the file's year, by member and day."""
    batch, member = blame.batch, blame.member
    good = np.ones(len(member), dtype=bool)

    def drop(kind: str, rows: np.ndarray, detail: str = "") -> None:
        nonlocal good
        blame(kind, good & rows, detail)
        good = good & ~rows

    drop(UNREADABLE_ROW, np.isnat(date) | (written & ~np.isfinite(temperature)))
    row_year = np.where(good, date.astype("datetime64[Y]").astype(np.int64) + 1970, 0)
    years = np.array([m.year or _most_common(row_year[(member == i) & good]) for i, m in enumerate(batch)])
    drop(OTHER_YEAR, row_year != years[member])
    column = COLUMNS[0]
    drop(NO_TEMPERATURE, ~written | np.isin(temperature, column.missing))
    drop(OUT_OF_RANGE, ~((temperature >= column.low) & (temperature <= column.high)), " TEMP")
    rows = np.flatnonzero(good)
    rows = rows[np.lexsort((date[rows], member[rows]))]  # stable: the first of equal dates stays first
    again = np.zeros(len(rows), dtype=bool)
    again[1:] = (member[rows][1:] == member[rows][:-1]) & (date[rows][1:] == date[rows][:-1])
    _Blame(batch, member[rows], blame.problems)(DUPLICATE_DATE, again)
    return rows[~again]


def _most_common(years: np.ndarray) -> int:
    """The year most rows have; 0 for none."""
    values, counts = np.unique(years, return_counts=True)
    return int(values[counts.argmax()]) if len(values) else 0


def _whole(column: Column, values: dict[str, np.ndarray], written: dict[str, np.ndarray], blame: _Blame) -> np.ndarray:
    """A column in tenths or hundredths, `MISSING` where there is none."""
    value = values[column.name]
    measured = written[column.name] & np.isfinite(value)
    blame(UNREADABLE_VALUE, written[column.name] & ~measured, f" {column.name}")
    coded = np.isin(value, column.missing)
    if column.name == "STP" and OBSERVATIONS in values:
        coded &= ~((value == column.missing[0]) & (values[OBSERVATIONS] > 0))  # a pressure of 999.9, measured
    measured &= ~coded
    believable = (value >= column.low) & (value <= column.high)
    if column.name == "STP":
        believable &= (value < STP_GAP[0]) | (value > STP_GAP[1])
    blame(OUT_OF_RANGE, measured & ~believable, f" {column.name}")
    measured &= believable
    return np.where(measured, np.rint(np.where(measured, value, 0) * column.scale), MISSING).astype(np.int16)


def _bits(value: np.ndarray, written: np.ndarray, blame: _Blame) -> np.ndarray:
    """FRSHTT's decimal digits as bits; none set where it cannot be read."""
    known = np.isfinite(value) & (value >= 0) & (value <= 111_111)
    number = np.where(known, value, 0).astype(np.int64)
    digits = [number // 10**place % 10 for place in range(len(FLAGS))]
    binary = known & (np.max(digits, axis=0) <= 1)
    blame(UNREADABLE_VALUE, written & ~binary, " FRSHTT")
    return np.where(binary, sum(digit << place for place, digit in enumerate(digits)), 0).astype(np.uint8)


def _place(name: str, largest: float, value: np.ndarray, written: np.ndarray, blame: _Blame) -> np.ndarray:
    """A coordinate, NaN where it is empty or impossible."""
    blame(UNREADABLE_VALUE, written & ~np.isfinite(value), f" {name}")
    impossible = np.abs(value) > largest
    blame(OUT_OF_RANGE, impossible, f" {name}")
    return np.where(np.isfinite(value) & ~impossible, value, np.nan)


def _join(parts: list[_Part], problems: Problems) -> Stations:
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
