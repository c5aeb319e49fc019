"""Which files of weather stations are trained on, validated on and tested on."""

import hashlib
import random
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Int

from stmaml.border.files import gunzip, read_file
from stmaml.data.problems import Problem
from stmaml.data.stations import Stations
from stmaml.errors import SourceError

Split = Literal["train", "val", "test"]
Files = dict[Split, Int[np.ndarray, " f"]]

FILE_LIST = "authors_file_list.csv"
AUTHORS_SEED = 402
AUTHORS_VAL, AUTHORS_TEST = 5000, 1000
TEST_SHARE, VAL_SHARE = 0.12, 0.10


@dataclass(frozen=True)
class Sharing:
    """What settles where a file goes."""

    seed: int
    years: dict[Split, tuple[int, ...]]
    """Years of each split."""
    fewest: dict[Split, int]
    """Days that a file of each split must have."""
    list_path: Path | None = None
    """The authors' list of files; without it, a station's number decides."""


def share_out(sharing: Sharing, stations: Stations, path: Path) -> tuple[Stations, Files]:
    """The files of each split; those that are too short are counted among the problems of the stations."""
    splits = by_station(stations, sharing.seed)
    if sharing.list_path is not None:
        splits = _by_file(stations, sharing.list_path, sharing.seed)
    used: Files = {}
    problems = dict(stations.problems)
    for split, everywhere in splits.items():
        files = everywhere[np.isin(stations.year[everywhere], sharing.years[split])]
        enough = stations.count[files] >= sharing.fewest[split]
        used[split] = files[enough]
        if not enough.all():
            labels = tuple(f"{stations.year[i]}/{stations.station[i]}.csv" for i in files[~enough][:5])
            kind = f"{split} file with fewer than {sharing.fewest[split]} days"
            problems[kind] = Problem(int((~enough).sum()), labels)
    if not all(len(files) for files in used.values()):
        raise _too_few(sharing, used, path)
    return replace(stations, problems=problems), used


def _too_few(sharing: Sharing, used: Files, path: Path) -> SourceError:
    numbers = ", ".join(f"{len(files)} {split}" for split, files in used.items())
    return SourceError(
        f"{path} has too few files for a benchmark: {numbers} with enough days ({sharing.fewest['train']} for "
        f"training, {sharing.fewest['test']} held out). Add stations, or lower --shots, --test-query-size or "
        "--min-days."
    )


def by_station(stations: Stations, seed: int) -> Files:
    """Each station where its own number puts it, whichever others there are, and in every year."""
    place = {station: place_of(str(station), seed) for station in np.unique(stations.station)}
    places = np.array([place[station] for station in stations.station])
    test, val = places < TEST_SHARE, places < TEST_SHARE + VAL_SHARE
    return {"train": np.flatnonzero(~val), "val": np.flatnonzero(val & ~test), "test": np.flatnonzero(test)}


def place_of(station: str, seed: int) -> float:
    """A number in 0..1, as good as random, that belongs to a station."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{station}".encode()).digest()[:8]) / 2**64


def _by_file(stations: Stations, list_path: Path, seed: int) -> Files:
    """The authors' shuffled list cut in three, as far as its files are here; files that are not on it are not used."""
    try:
        content = read_file(list_path)
        text = (gunzip(content, str(list_path)) if list_path.suffix == ".gz" else content).decode()
    except (OSError, EOFError, ValueError, zlib.error) as fault:
        raise SourceError(f"the list of files {list_path} cannot be read ({fault}).") from None
    listed = text.split()
    random.Random(seed).shuffle(listed)
    here = enumerate(zip(stations.year, stations.station, strict=True))
    index = {f"{year}/{name}.csv": i for i, (year, name) in here}
    last = AUTHORS_VAL + AUTHORS_TEST
    cuts: dict[Split, list[str]] = {"train": listed[last:], "val": listed[:AUTHORS_VAL]}
    cuts["test"] = listed[AUTHORS_VAL:last]
    found = {split: sorted(index[name] for name in names if name in index) for split, names in cuts.items()}
    return {split: np.array(found[split], dtype=np.int64) for split in cuts}


def find_list(given: str | None, path: Path) -> Path:
    """The authors' list of files: as given, or beside the data."""
    folder = path if path.is_dir() else path.parent
    beside = [folder / FILE_LIST, folder / f"{FILE_LIST}.gz"]
    found = [p for p in ([Path(given).expanduser()] if given else beside) if p.is_file()]
    if not found:
        sought = given or f"{FILE_LIST} or {FILE_LIST}.gz in {folder}"
        raise SourceError(f"--split file needs the authors' list of files, but there is no {sought}.")
    return found[0]
