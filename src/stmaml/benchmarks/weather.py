"""Temperature prediction: a task is a year of one weather station (the paper's NOAA GSOD experiment).

From ten days with their temperatures, the mean temperature of other days is to be told from the date and the day's
weather. Where the station lies, apart from its elevation, stays hidden: latitude and longitude are never inputs.
"""

import calendar
import hashlib
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stmaml.benchmarks.base import Benchmark, BenchmarkConfig, Budget, Budgets, Rows, Shelf, Showcase, check_shots
from stmaml.benchmarks.sources import shot_weights
from stmaml.benchmarks.weather_inputs import Days, Features, Handling, Inputs, fit_features
from stmaml.border.files import gunzip, read_file
from stmaml.data.folders import data_folder
from stmaml.data.noaa import read_stations
from stmaml.data.problems import Problem, in_words
from stmaml.data.stations import COLUMNS, Stations
from stmaml.errors import SettingError, SourceError, at_least
from stmaml.limits import POOLED_ROWS
from stmaml.tasks import Examples, Task, TaskBatch, TaskSpec

Split = Literal["train", "val", "test"]

BANDS = ("tropics", "temperate", "polar", "unknown")  # families of stations, by latitude
FILE_LIST = "authors_file_list.csv"
AUTHORS_SEED = 402
AUTHORS_VAL, AUTHORS_TEST = 5000, 1000
TEST_SHARE, VAL_SHARE = 0.12, 0.10
YEAR_DAYS = 366  # the longest
USUAL_SHOTS = 10  # which files are tested on is settled for these, so that other shots meet the same files
LONGEST_QUERY = YEAR_DAYS - USUAL_SHOTS
SHOWCASE_SHOTS = 10


@dataclass(frozen=True)
class Config(BenchmarkConfig):
    """Settings of the weather benchmark."""

    data: str | None = None
    """Folder of NOAA's station files or archives, one archive, or saved stations; else gsod in STMAML_DATA."""
    shots: int = 10
    """Labelled days in a support set."""
    min_shots: int | None = None
    """Draw each training task's number of days between this and `shots`; always `shots` if not given."""
    query_size: int = 30
    """Days in the query set of a training task."""
    test_query_size: int = 100
    """Days in the query set of a validation or test task."""
    split: Literal["station", "file"] = "station"
    """No station in two splits, or the authors' list of files, where a station's other years may be in another."""
    inputs: Inputs = "paper"
    """The paper's sixteen inputs, or these with gaps marked, seasons as waves and what two pressures tell."""
    handling: Handling = "correct"
    """Defects of the files mended, or left as the authors' code leaves them."""
    date_shift: int = 0
    """Move the dates of each training task, all together, by up to this many days to either side: a learner then knows
    the seasons, not what the weather was on some day of the years it was trained on. For use in other years."""
    min_days: int = 40
    """Leave out files with fewer days that have a temperature."""
    file_list: str | None = None
    """The authors' list for `split` file; else authors_file_list.csv or .csv.gz beside the data."""
    split_seed: int = AUTHORS_SEED
    """Decides which stations or files are held out."""
    page = "years"
    budgets = Budgets(
        smoke=Budget(steps=100, tasks_per_batch=4, seeds=1, tasks=50, quick=True),
        cpu=Budget(steps=2_000, tasks_per_batch=8, seeds=1, tasks=1_000),
        paper=Budget(steps=None, seeds=3, tasks=1_000, steps_per_call=500, own_pace=True),
    )

    def __post_init__(self):
        at_least(1, query_size=self.query_size, test_query_size=self.test_query_size, min_days=self.min_days)
        check_shots(self.shots, self.min_shots)
        if not 0 <= self.date_shift < YEAR_DAYS // 2:
            raise SettingError(f"--date-shift must lie between 0 and {YEAR_DAYS // 2 - 1} days; got {self.date_shift}.")
        limits = (("shots", self.shots, YEAR_DAYS - 1), ("test-query-size", self.test_query_size, LONGEST_QUERY))
        for name, value, most in limits:
            if value > most:
                raise SettingError(f"--{name} must be at most {most}, for a year has no more; got {value}.")
        if self.inputs == "rich" and self.handling == "released":
            raise SettingError("--inputs rich needs --handling correct: the released handling hides what is missing.")

    def open(self, shelf: Shelf | None = None) -> Benchmark:
        """The stations' days, shared out to training, validation and test."""
        shelf = shelf or Shelf()
        stations, files = self.stations(shelf)
        days = {split: _days(stations, files[split], shelf) for split in files}
        features = fit_features(days["train"], self.inputs, self.handling)
        train = Weather(days["train"], features, self, training=True)
        held_out = replace(self, query_size=self.test_query_size, min_shots=None)
        test = Weather(days["test"], features, held_out)
        seed = {} if self.split_seed == AUTHORS_SEED else {"split_seed": self.split_seed}
        most_told = self if self.handling == "released" else replace(self, inputs="rich")
        return Benchmark(
            settings=self,
            train=train,
            val=Weather(days["val"], features, held_out),
            test=test,
            families=BANDS,
            # Whatever is shown of a day, the tasks are the same days.
            conditions={"split": self.split, **seed, "shots": self.shots, "query": self.test_query_size},
            showcases=lambda: tuple(_showcases(test, stations)),
            rows=Rows(most_told, train.pooled, time_input=0),
            notes=tuple(f"left out: {note}" for note in in_words(stations.problems)),
            shelf=shelf,
        )

    def stations(self, shelf: Shelf | None = None) -> tuple[Stations, dict[Split, Int[np.ndarray, " f"]]]:
        """All that was read, and which of its files each split uses; files left out are counted in `problems`."""
        path = data_folder(self.data, "gsod")
        stations = (shelf or Shelf()).once(("stations", path), lambda: read_stations(path))
        return _shared_out(self, stations, path, None if self.split == "station" else self._list_path(path))

    def _list_path(self, path: Path) -> Path:
        folder = path if path.is_dir() else path.parent
        beside = [folder / FILE_LIST, folder / f"{FILE_LIST}.gz"]
        found = [p for p in ([Path(self.file_list).expanduser()] if self.file_list else beside) if p.is_file()]
        if not found:
            sought = self.file_list or f"{FILE_LIST} or {FILE_LIST}.gz in {folder}"
            raise SourceError(f"--split file needs the authors' list of files, but there is no {sought}.")
        return found[0]


# Which file goes where.


def _shared_out(
    settings: Config, stations: Stations, path: Path, list_path: Path | None
) -> tuple[Stations, dict[Split, Int[np.ndarray, " f"]]]:
    splits = _by_station(stations, settings.split_seed)
    if list_path is not None:
        splits = _by_file(stations, list_path, settings.split_seed)
    fewest_train = max(settings.min_days, settings.shots + 1)
    fewest_held_out = max(fewest_train, settings.test_query_size + USUAL_SHOTS)
    used: dict[Split, np.ndarray] = {}
    problems = dict(stations.problems)
    for split, files in splits.items():
        fewest = fewest_train if split == "train" else fewest_held_out
        enough = stations.count[files] >= fewest
        used[split] = files[enough]
        if not enough.all():
            labels = tuple(f"{stations.year[i]}/{stations.station[i]}.csv" for i in files[~enough][:5])
            problems[f"{split} file with fewer than {fewest} days"] = Problem(int((~enough).sum()), labels)
    if not all(len(files) for files in used.values()):
        numbers = ", ".join(f"{len(files)} {split}" for split, files in used.items())
        raise SourceError(
            f"{path} has too few files for a benchmark: {numbers} with enough days ({fewest_train} for training, "
            f"{fewest_held_out} held out). Add stations, or lower --shots, --test-query-size or --min-days."
        )
    return replace(stations, problems=problems), used


def _by_station(stations: Stations, seed: int) -> dict[Split, Int[np.ndarray, " f"]]:
    """Each station where its own number puts it, whichever others there are."""
    place = {station: _place(str(station), seed) for station in np.unique(stations.station)}
    places = np.array([place[station] for station in stations.station])
    test, val = places < TEST_SHARE, places < TEST_SHARE + VAL_SHARE
    return {"train": np.flatnonzero(~val), "val": np.flatnonzero(val & ~test), "test": np.flatnonzero(test)}


def _place(station: str, seed: int) -> float:
    """A number in 0..1, as good as random, that belongs to a station."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{station}".encode()).digest()[:8]) / 2**64


def _by_file(stations: Stations, list_path: Path, seed: int) -> dict[Split, Int[np.ndarray, " f"]]:
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


# What a row becomes.


def _days(stations: Stations, chosen: Int[np.ndarray, " f"], shelf: Shelf) -> Days:
    """The days of some files on the device: one copy for all settings that use the same ones."""
    return shelf.once(("days", chosen.tobytes()), lambda: _days_of(stations, chosen))


def _days_of(stations: Stations, chosen: Int[np.ndarray, " f"]) -> Days:
    count = stations.count[chosen].astype(np.int32)
    first = (np.cumsum(count) - count).astype(np.int32)
    rows = np.repeat(stations.offset[chosen] - first, count) + np.arange(count.sum())
    last_day = np.array([365 if calendar.isleap(year) else 364 for year in stations.year[chosen]], dtype=np.float32)
    return Days(
        readings=jnp.asarray(stations.readings[rows]),
        day=jnp.asarray(stations.day[rows]),
        flags=jnp.asarray(stations.flags[rows]),
        first=jnp.asarray(first),
        count=jnp.asarray(count),
        elevation=jnp.asarray(stations.elevation[chosen].astype(np.float32)),
        last_day=jnp.asarray(last_day),
        band=jnp.asarray(bands(stations.latitude[chosen])),
        file=jnp.asarray(chosen.astype(np.int32)),
    )


def bands(latitude: Float[np.ndarray, " f"]) -> Int[np.ndarray, " f"]:
    """Each latitude's index in `BANDS`."""
    north = np.abs(latitude)
    known = np.where(north < 23.5, 0, np.where(north < 66.5, 1, 2))
    return np.where(np.isnan(latitude), BANDS.index("unknown"), known).astype(np.int32)


# Tasks.


class Weather(eqx.Module):
    """Tasks from the files of one split: days drawn afresh, on the device, inside the training step."""

    days: Days
    features: Features
    settings: Config = eqx.field(static=True)
    training: bool = eqx.field(static=True, default=False)

    @property
    def spec(self) -> TaskSpec:
        """The day's weather, one temperature in degrees Fahrenheit."""
        return TaskSpec(x_shape=(len(self.features.names),), y_size=1)

    @property
    def num_files(self) -> int:
        """Years of stations to draw from."""
        return self.days.count.shape[0]

    def sample(self, num_tasks: int, *, key: PRNGKeyArray) -> TaskBatch:
        """Tasks of files drawn with replacement in training, else of all files in turn, in an order from the key."""
        file_key, task_key = jr.split(key)
        # Types are spelt out where numbers are drawn: others would be drawn in double precision.
        if self.training:
            files = jr.randint(file_key, (num_tasks,), 0, self.num_files, dtype=jnp.int32)
        else:
            order = jnp.argsort(jr.bits(file_key, (self.num_files,), dtype=jnp.uint32))
            files = order[jnp.arange(num_tasks) % self.num_files]
        tasks = jax.vmap(self._task)(files, jr.split(task_key, num_tasks))
        return TaskBatch(tasks, self.days.band[files])

    def _task(self, file: Int[Array, ""], key: PRNGKeyArray) -> Task:
        """Days of one file in an order from the key: the query from its front, the support from its end.

        So the query stays the same, and a larger support holds the smaller, when only the number of shots changes."""
        day_key, shots_key = jr.split(key)
        shots, size = self.settings.shots, self.settings.query_size
        count = self.days.count[file]
        order, shift = shuffled(count, key=day_key), self._shift(jr.fold_in(key, 2))
        fewest = self.settings.min_shots if self.training else None
        weights = shot_weights(shots, fewest, key=shots_key, dtype=jnp.int32)
        support = self._examples(file, order[count - 1 - jnp.arange(shots)], weights, shift)
        real = jnp.arange(size) < count - shots
        chosen = order[jnp.minimum(jnp.arange(size), count - 1)]
        return Task(support, self._examples(file, chosen, real.astype(float), shift))

    def _shift(self, key: PRNGKeyArray) -> Int[Array, ""] | None:
        """Days by which a task's dates are moved."""
        most = self.settings.date_shift
        return jr.randint(key, (), -most, most + 1, dtype=jnp.int32) if most and self.training else None

    def _examples(
        self, file: Int[Array, ""], chosen: Int[Array, " n"], weight: Float[Array, " n"], shift: Int[Array, ""] | None
    ) -> Examples:
        rows = self.days.first[file] + chosen.astype(jnp.int32)
        x, y = self._rows(rows, jnp.full(rows.shape, file), shift)
        real = weight[:, None] > 0
        return Examples(jnp.where(real, x, 0), jnp.where(real, y, 0), weight)

    def _rows(
        self, rows: Int[Array, " n"], files: Int[Array, " n"], shift: Int[Array, ""] | None = None
    ) -> tuple[Float[Array, "n dx"], Float[Array, "n 1"]]:
        y = self.days.readings[rows, 0].astype(jnp.float32) / COLUMNS[0].scale
        return self.features(self.days, rows, files, shift), y[:, None]

    def pooled(
        self, max_rows: int, seed: int
    ) -> tuple[Float[np.ndarray, "n dx"], Float[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """Inputs, temperatures and file (its index in `Stations`) of days drawn from all files without replacement."""
        total = self.days.day.shape[0]
        rows = np.arange(total, dtype=np.int32)
        if max_rows < total:
            rows = np.sort(np.asarray(jr.permutation(jr.key(seed), total)[:max_rows]).astype(np.int32))
        files = (np.searchsorted(np.asarray(self.days.first), rows, side="right") - 1).astype(np.int32)
        x = np.empty((len(rows), len(self.features.names)), dtype=np.float32)
        y = np.empty(len(rows), dtype=np.float32)
        for start in range(0, len(rows), POOLED_ROWS):
            part = slice(start, start + POOLED_ROWS)
            chunk_x, chunk_y = self._rows(jnp.asarray(rows[part]), jnp.asarray(files[part]))
            x[part], y[part] = chunk_x, chunk_y[:, 0]
        return x, y, np.asarray(self.days.file)[files]


def shuffled(count: Int[Array, ""], *, key: PRNGKeyArray) -> Int[Array, " d"]:
    """The numbers from 0 to `count` - 1 in random order, then those up to the longest year."""
    index = jnp.arange(YEAR_DAYS, dtype=jnp.uint32)
    lots = jr.bits(key, (YEAR_DAYS,), dtype=jnp.uint32) >> 1
    # A lot's lowest 9 bits hold its index: sorting one array of numbers takes a quarter of an argsort's time.
    lots = (lots & ~jnp.uint32(511)) | index
    return (jnp.sort(jnp.where(index < count, lots, lots | jnp.uint32(1 << 31))) & 511).astype(jnp.int32)


def _showcases(test: Weather, stations: Stations) -> Iterator[Showcase]:
    """A year of one test station of each band, with as many days as any has."""
    count, band = np.asarray(test.days.count), np.asarray(test.days.band)
    for index, name in enumerate(BANDS):
        inside = np.flatnonzero(band == index)
        if not len(inside):
            continue
        longest = inside[count[inside] == count[inside].max()]
        places = [_place(str(stations.station[int(test.days.file[i])]), 0) for i in longest]
        file = int(longest[int(np.argmin(places))])
        rows = int(test.days.first[file]) + jnp.arange(int(count[file]), dtype=jnp.int32)
        x, y = test._rows(rows, jnp.full(rows.shape, file, dtype=jnp.int32))
        chosen = jnp.sort(jr.permutation(jr.key(index), int(count[file]))[:SHOWCASE_SHOTS])
        yield Showcase(
            name=f"{name}-{stations.station[int(test.days.file[file])]}",
            figure="years",
            labels={"band": name, "station": str(stations.station[int(test.days.file[file])])},
            support=Examples.of(x[chosen], y[chosen]),
            x=x,
            truth=y,
            axis=test.days.day[rows].astype(jnp.float32),
        )
