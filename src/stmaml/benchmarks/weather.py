"""Temperature prediction: a task is a year of one weather station (the paper's NOAA GSOD experiment).

From ten days with their temperatures, the mean temperature of other days is to be told from the date and the day's
weather. Where the station lies, apart from its elevation, stays hidden: latitude and longitude are never inputs.
"""

import calendar
import gzip
import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt8

from stmaml.benchmarks.base import Benchmark, Showcase
from stmaml.data.folders import data_folder
from stmaml.data.noaa import read_stations
from stmaml.data.problems import Problem
from stmaml.data.stations import COLUMNS, FLAGS, MISSING, NAMES, STP_GAP, Stations
from stmaml.errors import SettingError, SourceError
from stmaml.tasks import Examples, Task, TaskBatch, TaskSpec

Split = Literal["train", "val", "test"]
Handling = Literal["correct", "released"]

BANDS = ("tropics", "temperate", "polar", "unknown")
"""Families of stations, by latitude."""
MEASURED = ("ELEVATION", *NAMES[1:])
"""The inputs that can be missing."""
DERIVED = ("PRESSURE_RATIO", "BAROMETRIC")
HARMONICS = ("SIN1", "COS1", "SIN2", "COS2")
PAPER_INPUTS = ("DATE", *MEASURED, *FLAGS)
"""The sixteen inputs, in the order of the authors' code."""
RICH_INPUTS = (*PAPER_INPUTS, *HARMONICS, *DERIVED, *(f"NO_{name}" for name in (*MEASURED, "BAROMETRIC")))

FILE_LIST = "authors_file_list.csv"
AUTHORS_SEED = 402
AUTHORS_VAL, AUTHORS_TEST = 5000, 1000
TEST_SHARE, VAL_SHARE = 0.12, 0.10
YEAR_DAYS = 366  # the longest
USUAL_SHOTS = 10  # which files are tested on is settled for these, so that other shots meet the same files
SHOWCASE_SHOTS = 10
ELEVATION_UNKNOWN = -999.0  # NOAA prints -999.9; no land lies below -430 m
RELEASED_LAST_DAY = 364.0
STATISTICS_ROWS = 500_000
CHUNK = 1 << 18
# Hypsometric equation: T = g h / (R ln(p0 / p)), with g / R in kelvin per metre. Below 50 m the ratio of the pressures
# drowns in their rounding.
KELVIN_PER_METRE = 0.0341632
BAROMETRIC_FROM = 50.0
BAROMETRIC_RANGE = (200.0, 340.0)


@dataclass(frozen=True)
class Config:
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
    inputs: Literal["paper", "rich"] = "paper"
    """The paper's sixteen inputs, or these with gaps marked, seasons as waves and what two pressures tell."""
    handling: Handling = "correct"
    """Defects of the files mended, or left as the authors' code leaves them."""
    min_days: int = 40
    """Leave out files with fewer days that have a temperature."""
    file_list: str | None = None
    """The authors' list for `split` file; else authors_file_list.csv or .csv.gz beside the data."""
    split_seed: int = AUTHORS_SEED
    """Decides which stations or files are held out."""

    def __post_init__(self):
        for name in ("shots", "query_size", "test_query_size", "min_days"):
            if getattr(self, name) < 1:
                raise SettingError(f"--{name.replace('_', '-')} must be at least 1; got {getattr(self, name)}.")
        if self.min_shots is not None and not 0 <= self.min_shots <= self.shots:
            raise SettingError(f"--min-shots must lie between 0 and --shots ({self.shots}); got {self.min_shots}.")
        for name, most in (("shots", YEAR_DAYS - 1), ("test_query_size", YEAR_DAYS - USUAL_SHOTS)):
            if getattr(self, name) > most:
                flag = f"--{name.replace('_', '-')}"
                raise SettingError(f"{flag} must be at most {most}, for a year has no more; got {getattr(self, name)}.")
        if self.inputs == "rich" and self.handling == "released":
            raise SettingError("--inputs rich needs --handling correct: the released handling hides what is missing.")

    def build(self) -> Benchmark:
        """The stations' days, shared out to training, validation and test."""
        return _build(self, self._path(), self._list_path())

    def stations(self) -> tuple[Stations, dict[Split, Int[np.ndarray, " f"]]]:
        """All that was read, and which of its files each split uses; files left out are counted in `problems`."""
        return _shared_out(self, self._path(), self._list_path())

    def _path(self) -> Path:
        return data_folder(self.data, "gsod")

    def _list_path(self) -> Path | None:
        if self.split == "station":
            return None
        path = self._path()
        folder = path if path.is_dir() else path.parent
        beside = [folder / FILE_LIST, folder / f"{FILE_LIST}.gz"]
        found = [p for p in ([Path(self.file_list).expanduser()] if self.file_list else beside) if p.is_file()]
        if not found:
            sought = self.file_list or f"{FILE_LIST} or {FILE_LIST}.gz in {folder}"
            raise SourceError(f"--split file needs the authors' list of files, but there is no {sought}.")
        return found[0]


@lru_cache(maxsize=1)
def _read(path: Path) -> Stations:
    return read_stations(path)


@lru_cache(maxsize=8)
def _build(settings: Config, path: Path, list_path: Path | None) -> Benchmark:
    # What the files hold does not depend on the sizes of the sets, so that a sweep over shots shares one copy.
    stations, files = _shared_out(settings, path, list_path)
    days = {split: _days(path, tuple(files[split].tolist())) for split in files}
    features = _features(days["train"], settings.inputs, settings.handling)
    held_out = replace(settings, query_size=settings.test_query_size, min_shots=None)
    test = Weather(days["test"], features, held_out)
    name = f"weather/by-{settings.split}"  # whatever is shown of a day, the tasks are the same days
    if settings.split_seed != AUTHORS_SEED:
        name += f"/split{settings.split_seed}"
    return Benchmark(
        train=Weather(days["train"], features, settings, training=True),
        val=Weather(days["val"], features, held_out),
        test=test,
        families=BANDS,
        test_name=f"{name}/shots{settings.shots}/query{settings.test_query_size}",
        showcases=lambda: tuple(_showcases(test, stations)),
        notes=tuple(f"left out: {kind}: {p.count:,}, such as {p.examples[0]}" for kind, p in stations.problems.items()),
    )


# Which file goes where.


def _shared_out(
    settings: Config, path: Path, list_path: Path | None
) -> tuple[Stations, dict[Split, Int[np.ndarray, " f"]]]:
    stations = _read(path)
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
        content = list_path.read_bytes()
        text = (gzip.decompress(content) if list_path.suffix == ".gz" else content).decode()
    except (OSError, EOFError, UnicodeDecodeError) as fault:
        raise SourceError(f"the list of files {list_path} cannot be read ({fault}).") from None
    listed = text.split()
    random.Random(seed).shuffle(listed)
    index = {
        f"{year}/{name}.csv": i for i, (year, name) in enumerate(zip(stations.year, stations.station, strict=True))
    }
    cuts = {
        "val": listed[:AUTHORS_VAL],
        "test": listed[AUTHORS_VAL : AUTHORS_VAL + AUTHORS_TEST],
        "train": listed[AUTHORS_VAL + AUTHORS_TEST :],
    }
    found = {split: sorted(index[name] for name in names if name in index) for split, names in cuts.items()}
    return {split: np.array(found[split], dtype=np.int64) for split in ("train", "val", "test")}


# What a row becomes.


class Days(eqx.Module):
    """The days of a split's files as printed, on the device."""

    readings: Int[Array, "rows columns"]
    day: Int[Array, " rows"]
    flags: UInt8[Array, " rows"]
    first: Int[Array, " files"]
    count: Int[Array, " files"]
    elevation: Float[Array, " files"]
    last_day: Float[Array, " files"]
    band: Int[Array, " files"]
    file: Int[Array, " files"]
    """Where a file is in `Stations`."""


@lru_cache(maxsize=6)
def _days(path: Path, files: tuple[int, ...]) -> Days:
    stations, chosen = _read(path), np.array(files)
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


def measured(
    readings: Int[Array, "n columns"], elevation: Float[Array, " n"], handling: Handling
) -> tuple[Float[Array, "n c"], Bool[Array, "n c"]]:
    """The columns of `MEASURED`, pressures in bars and elevation in kilometres, 0 if missing; and which are there."""
    whole = readings[:, 1:].astype(jnp.int32)
    present = whole != MISSING
    if handling == "correct":
        whole = repair_pressure(whole)
        known = elevation > ELEVATION_UNKNOWN  # not so for NaN
    else:
        # The authors replace 99.99, 999.9 and 9999.9 in every column, true readings or not. Of those in tenths only
        # 999.9 is left here: the reader knows the others for what they are. They do not know -999.9.
        present &= whole != 9999
        known = ~jnp.isnan(elevation)
        for code in (99.99, 999.9, 9999.9):
            known &= elevation != jnp.float32(code)
    units = {"SLP": 1000, "STP": 1000}
    divisor = np.array([c.scale * units.get(c.name, 1) for c in COLUMNS[1:]], dtype=np.float32)
    values = jnp.concatenate([elevation[:, None] / 1000, whole.astype(jnp.float32) / divisor[None, :]], axis=1)
    present = jnp.concatenate([known[:, None], present], axis=1)
    return jnp.where(present, values, 0), present


def repair_pressure(whole: Int[Array, "n c"]) -> Int[Array, "n c"]:
    """The same columns, STP with its lost leading 1: tenths of a millibar that are too few for any place on earth."""
    at = NAMES.index("STP") - 1
    stp = whole[:, at]
    cut = (stp != MISSING) & (stp < STP_GAP[0] * COLUMNS[at + 1].scale)
    return whole.at[:, at].add(jnp.where(cut, 1000 * COLUMNS[at + 1].scale, 0))


def flag_table(handling: Handling) -> Float[np.ndarray, "64 6"]:
    """The six flags of each value of FRSHTT.

    The authors' code reads it as a number, which loses leading zeros, and hands out the digits from the left: rain
    alone, 010000, becomes fog.
    """
    texts = [f"{bits:06b}" for bits in range(2 ** len(FLAGS))]
    if handling == "released":
        texts = [text.lstrip("0").ljust(len(FLAGS), "0") for text in texts]
    return np.array([[float(digit) for digit in text] for text in texts], dtype=np.float32)


class Features(eqx.Module):
    """Turns rows as printed into inputs."""

    inputs: Literal["paper", "rich"] = eqx.field(static=True)
    handling: Handling = eqx.field(static=True)
    mean: Float[Array, " g"]
    """Of what is there in training; stands for what is missing."""
    low: Float[Array, " g"]
    high: Float[Array, " g"]
    """All but one in a thousand of the training values lie above, and below."""
    common: Float[Array, " f"]
    """1 for flags seen on at least one of a thousand training days, else 0: rarer ones would be wild outliers."""

    @property
    def names(self) -> tuple[str, ...]:
        """What the inputs are."""
        return PAPER_INPUTS if self.inputs == "paper" else RICH_INPUTS

    def __call__(self, days: Days, rows: Int[Array, " n"], files: Int[Array, " n"]) -> Float[Array, "n dx"]:
        """The inputs of some rows of `days`, of which the files are known."""
        day = days.day[rows].astype(jnp.float32)
        last_day = days.last_day[files] if self.handling == "correct" else jnp.full_like(day, RELEASED_LAST_DAY)
        date = (day / last_day)[:, None]
        flags = jnp.asarray(flag_table(self.handling))[days.flags[rows].astype(jnp.int32)]
        readings, elevation = days.readings[rows], days.elevation[files]
        if self.inputs == "paper":
            return jnp.concatenate([date, measured(readings, elevation, self.handling)[0], flags], axis=1)
        values, present = gauged(readings, elevation)
        values = jnp.where(present, jnp.clip(values, self.low[None, :], self.high[None, :]), self.mean[None, :])
        angle = 2 * jnp.pi * day / (last_day + 1)
        waves = jnp.stack([jnp.sin(angle), jnp.cos(angle), jnp.sin(2 * angle), jnp.cos(2 * angle)], axis=1)
        flags = flags * self.common[None, :]
        own = len(MEASURED)
        lacking = jnp.delete(~present, own, axis=1).astype(jnp.float32)  # the ratio is there if both pressures are
        return jnp.concatenate([date, values[:, :own], flags, waves, values[:, own:], lacking], axis=1)


def gauged(
    readings: Int[Array, "n columns"], elevation: Float[Array, " n"]
) -> tuple[Float[Array, "n g"], Bool[Array, "n g"]]:
    """The columns of `MEASURED` and `DERIVED` for rich inputs, and which are there.

    Rain and snow are on a logarithmic scale. The logarithm of the ratio of pressure at sea level to pressure at the
    station, and the temperature (in units of 100 K) that the air between them must then have, are the two derived.
    """
    values, present = measured(readings, elevation, "correct")
    at = {name: index for index, name in enumerate(MEASURED)}
    values = values.at[:, at["PRCP"]].set(jnp.log1p(10 * values[:, at["PRCP"]]))
    values = values.at[:, at["SNDP"]].set(jnp.log1p(values[:, at["SNDP"]]))
    both = present[:, at["SLP"]] & present[:, at["STP"]]
    whole = repair_pressure(readings[:, 1:].astype(jnp.int32))
    sea, here = (jnp.where(both, whole[:, at[name] - 1], 10_000) for name in ("SLP", "STP"))
    # The difference of whole numbers is exact; that of logarithms would lose most of its digits.
    ratio = jnp.log1p((sea - here).astype(jnp.float32) / here.astype(jnp.float32))
    high_up = both & (elevation >= BAROMETRIC_FROM) & (ratio > 0)
    kelvin = KELVIN_PER_METRE * jnp.where(high_up, elevation, 0) / jnp.where(high_up, ratio, 1)
    sound = high_up & (kelvin > BAROMETRIC_RANGE[0]) & (kelvin < BAROMETRIC_RANGE[1])
    derived = jnp.stack([10 * ratio, jnp.where(sound, kelvin / 100, 0)], axis=1)
    there = jnp.stack([both, sound], axis=1)
    return jnp.concatenate([values, derived], axis=1), jnp.concatenate([present, there], axis=1)


def _features(train: Days, inputs: Literal["paper", "rich"], handling: Handling) -> Features:
    """The features fitted to training rows; those of the paper need no fit."""
    size = len(MEASURED) + len(DERIVED)
    mean, low, high = np.zeros((3, size), dtype=np.float32)
    common = np.ones(len(FLAGS), dtype=np.float32)
    if inputs == "rich":
        total = train.day.shape[0]
        # On the CPU, whatever else there is: a GPU's logarithms differ in the last digit, and with them the test tasks.
        with jax.default_device(jax.devices("cpu")[0]):
            rows = jnp.arange(0, total, max(1, total // STATISTICS_ROWS), dtype=jnp.int32)
            files = jnp.searchsorted(train.first, rows, side="right").astype(jnp.int32) - 1
            values, present = (np.asarray(a) for a in gauged(train.readings[rows], train.elevation[files]))
        for index in range(size):
            known = values[present[:, index], index]
            if len(known):
                low[index], high[index] = np.quantile(known, (0.001, 0.999))
                mean[index] = np.clip(known, low[index], high[index]).mean(dtype=np.float64)
        common = (flag_table(handling)[np.asarray(train.flags[rows])].mean(0) >= 0.001).astype(np.float32)
    return Features(inputs, handling, *(jnp.asarray(a) for a in (mean, low, high, common)))


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

        So the query stays the same, and a larger support holds the smaller, when only the number of shots changes.
        """
        day_key, shots_key = jr.split(key)
        shots, size = self.settings.shots, self.settings.query_size
        count = self.days.count[file]
        order = shuffled(count, key=day_key)
        support = self._examples(file, order[count - 1 - jnp.arange(shots)], self._shot_weights(shots_key))
        real = jnp.arange(size) < count - shots
        chosen = order[jnp.minimum(jnp.arange(size), count - 1)]
        return Task(support, self._examples(file, chosen, real.astype(float)))

    def _examples(self, file: Int[Array, ""], chosen: Int[Array, " n"], weight: Float[Array, " n"]) -> Examples:
        rows = self.days.first[file] + chosen.astype(jnp.int32)
        x, y = self._rows(rows, jnp.full(rows.shape, file))
        real = weight[:, None] > 0
        return Examples(jnp.where(real, x, 0), jnp.where(real, y, 0), weight)

    def _rows(
        self, rows: Int[Array, " n"], files: Int[Array, " n"]
    ) -> tuple[Float[Array, "n dx"], Float[Array, "n 1"]]:
        y = self.days.readings[rows, 0].astype(jnp.float32) / COLUMNS[0].scale
        return self.features(self.days, rows, files), y[:, None]

    def _shot_weights(self, key: PRNGKeyArray) -> Float[Array, " n"]:
        shots, fewest = self.settings.shots, self.settings.min_shots
        if fewest is None or not self.training:
            return jnp.ones(shots)
        return (jnp.arange(shots) < jr.randint(key, (), fewest, shots + 1, dtype=jnp.int32)).astype(float)

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
        for start in range(0, len(rows), CHUNK):
            part = slice(start, start + CHUNK)
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
            support=Examples.of(x[chosen], y[chosen]),
            x=x,
            truth=y,
            axis=test.days.day[rows].astype(jnp.float32),
        )
