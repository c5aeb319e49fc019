"""Years of weather stations: where the files of a year lie, and several years as one."""

import os
from collections.abc import Sequence
from pathlib import Path

from stmaml.data.noaa import ARCHIVES, read_stations
from stmaml.data.stations import Stations, joined
from stmaml.errors import SourceError


def read_years(path: Path, years: Sequence[int] = (), also: Sequence[int] = ()) -> tuple[Stations, tuple[int, ...]]:
    """The files of `years` and of those in `also`, and which years the former are: all of `path` if none are named.

    A year is looked for in `path`, and in a folder or archive of its own in it or beside it (`source_of`)."""
    first = _of_years(path, years) if years else [read_stations(path)]
    named = tuple(sorted({int(year) for part in first for year in part.year}))
    further = _of_years(path, [year for year in also if year not in named])
    return joined([*first, *further]), named


def _of_years(path: Path, years: Sequence[int]) -> list[Stations]:
    """Stations of each of these years."""
    parts, rest = [], list(years)
    if path.suffix != ".npz":  # a saved file may hold several years, and then comes first
        sources = {year: source_of(path, year) for year in rest}
        parts = [read_stations(source).of_years([year]) for year, source in sources.items() if source is not None]
        rest = [year for year, source in sources.items() if source is None]
    if rest:
        whole = read_stations(path)
        here = [year for year in rest if year in whole.year]
        parts += [whole.of_years(here)] if here else []
        parts += [_beside(path, year) for year in rest if year not in here]
    if lacking := [year for year, found in zip(years, _found(parts, years), strict=True) if not found]:
        raise _missing(path, lacking[0])
    return parts


def _found(parts: list[Stations], years: Sequence[int]) -> list[bool]:
    known = {int(year) for part in parts for year in part.year}
    return [year in known for year in years]


def _beside(path: Path, year: int) -> Stations:
    source = source_of(path, year)
    if source is None:
        raise _missing(path, year)
    return read_stations(source).of_years([year])


def _missing(path: Path, year: int) -> SourceError:
    folder = path if path.is_dir() else path.parent
    where = f"Put NOAA's {year}.tar.gz (or .tar.xz) into {folder}, or into a folder {folder.name}-{year} beside it."
    return SourceError(f"{path} has no station of {year}. {where}")


def source_of(path: Path, year: int) -> Path | None:
    """The folder or archive of one year, in `path`, in its folder, or in one named after the year beside that."""
    folder = path if path.is_dir() else path.parent
    root = os.environ.get("STMAML_DATA")
    beside = [folder.parent / f"{folder.name}-{year}", folder.parent / f"gsod-{year}"]
    beside += [Path(root).expanduser() / f"gsod-{year}", Path(root).expanduser() / "gsod"] if root else []
    return next((found for place in (folder, *beside) for found in _year_in(place, year)), None)


def _year_in(folder: Path, year: int) -> list[Path]:
    """An archive of the year in a folder, or a folder of its station files."""
    archives = [folder / f"{year}{ending}" for ending in ARCHIVES]
    own = folder / str(year)
    return [*(path for path in archives if path.is_file()), *[own] * (own.is_dir() and any(own.glob("*.csv")))]


def year_words(years: Sequence[int]) -> str:
    """Years as a condition of a test: `2019+2022`."""
    return "+".join(map(str, sorted(years)))
