"""Temperature prediction: a task is a year of one weather station (the paper's NOAA GSOD experiment).

From ten days with their temperatures, the mean temperature of other days is to be told from the date and the day's
weather. Where the station lies, apart from its elevation, stays hidden: latitude and longitude are never inputs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Int

from stmaml.benchmarks.base import Benchmark, BenchmarkConfig, Budget, Budgets, Rows, Shelf, Showcase, check_shots
from stmaml.benchmarks.weather_inputs import AROUND, UNDATED, Days, Handling, Inputs, fit_features
from stmaml.benchmarks.weather_splits import AUTHORS_SEED, Files, Sharing, find_list, place_of, share_out
from stmaml.benchmarks.weather_tasks import BANDS, YEAR_DAYS, Moves, Sizes, Weather, days_of
from stmaml.data.folders import data_folder
from stmaml.data.problems import in_words
from stmaml.data.stations import Stations
from stmaml.data.years import read_years, year_words
from stmaml.errors import SettingError, at_least
from stmaml.tasks import Examples

USUAL_SHOTS = 10  # which files are tested on is settled for these, so that other shots meet the same files
LONGEST_QUERY = YEAR_DAYS - USUAL_SHOTS
SHOWCASE_SHOTS = 10
OTHER_YEARS_SHIFT = 20  # days by which baselines' dates move, where they are tested in other years
KNOWS_ITS_YEARS = (
    "dates are told as they are: a learner may remember the weather of single days, which other years do not have. "
    "For use in other years, train with --preset years or --date-shift."
)


@dataclass(frozen=True)
class Config(BenchmarkConfig):
    """Settings of the weather benchmark."""

    data: str | None = None
    """Folder of NOAA's station files or archives, one archive, or saved stations; else gsod in STMAML_DATA."""
    years: tuple[int, ...] = ()
    """Years to train on, such as 2019 2022: archives in the data folder, or in folders like gsod-2022 beside it; all
    that the data hold if not given. A station is in one part alone, in all years."""
    test_years: tuple[int, ...] = ()
    """Years of the test stations, if not those trained on."""
    val_years: tuple[int, ...] = ()
    """Years of the validation stations, if not those trained on."""
    shots: int = 10
    """Labelled days in a support set."""
    min_shots: int | None = None
    """Draw each training task's number of days between this and `shots`; always `shots` if not given."""
    most_shots: int | None = None
    """Draw it up to this number instead of `shots`, 2 to 4 days as often as 10 to 20."""
    query_size: int = 30
    """Days in the query set of a training task."""
    test_query_size: int = 100
    """Days in the query set of a validation or test task."""
    split: Literal["station", "file"] = "station"
    """No station in two splits, or the authors' list of files, where a station's other years may be in another."""
    inputs: Inputs = "paper"
    """The paper's sixteen inputs; these with gaps marked, seasons as waves and what two pressures tell (rich); or those
    with the date left out, but for the season and how many days lie between two days (seasons). With -around, how
    readings differ on the day before and on the day after is told too."""
    handling: Handling = "correct"
    """Defects of the files mended, or left as the authors' code leaves them."""
    date_shift: int = 0
    """Move the dates of each training task, all together, by up to this many days to either side: a learner then knows
    the seasons, not what the weather was on some day of the years it was trained on. For use in other years."""
    date_mirror: bool = False
    """Let the year run backwards in half of the training tasks, about the coldest and the warmest time: another way to
    keep seasons and lose single days."""
    val_shift: int = 0
    """Move the dates of each validation task like that: chooses a learner that does not rely on knowing them."""
    val_mirror: bool = False
    """Let the year run backwards in half of the validation tasks."""
    anomaly: float = 0.0
    """Add a random course, smooth over weeks and with this standard deviation in degrees, to the temperatures of each
    training task: as other years differ, so that a learner does not promise more for them than it can hold."""
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
        at_least(1, shots=self.shots)
        at_least(0, anomaly=self.anomaly)
        check_shots(self._most_shots, self.min_shots)
        for name, days in (("date-shift", self.date_shift), ("val-shift", self.val_shift)):
            if not 0 <= days < YEAR_DAYS // 2:
                raise SettingError(f"--{name} must lie between 0 and {YEAR_DAYS // 2 - 1} days; got {days}.")
        limits = (("shots", self._most_shots, YEAR_DAYS - 1), ("test-query-size", self.test_query_size, LONGEST_QUERY))
        for name, value, most in limits:
            if value > most:
                raise SettingError(f"--{name} must be at most {most}, for a year has no more; got {value}.")
        if self.inputs != "paper" and self.handling == "released":
            words = "needs --handling correct: the released handling hides what is missing."
            raise SettingError(f"--inputs {self.inputs} {words}")
        if self.split == "file" and (self.test_years or self.val_years):
            raise SettingError("tests in other years need --split station: by file, a station may be in two parts.")

    @property
    def _most_shots(self) -> int:
        """Labelled days of the largest training task."""
        return self.most_shots or self.shots

    @property
    def knows_its_years(self) -> bool:
        """Whether a learner is told which day of the years it was trained on a day is."""
        return not (self.date_shift or self.date_mirror)

    def open(self, shelf: Shelf | None = None) -> Benchmark:
        """The stations' days, shared out to training, validation and test."""
        shelf = shelf or Shelf()
        stations, files = self.stations(shelf)
        days = {split: self._days(stations, files[split], shelf) for split in files}
        features = fit_features(days["train"], self.inputs, self.handling)
        sizes = Sizes(self._most_shots, self.query_size, self.min_shots, by_ratio=self.most_shots is not None)
        moves = Moves(self.date_shift, self.date_mirror, clock=self.inputs in UNDATED)
        train = Weather(days["train"], features, sizes, moves, training=True, anomaly=self.anomaly)
        held_out = Sizes(self.shots, self.test_query_size)
        test = Weather(days["test"], features, held_out)
        return Benchmark(
            settings=self,
            train=train,
            val=Weather(days["val"], features, held_out, Moves(self.val_shift, self.val_mirror)),
            test=test,
            families=BANDS,
            conditions=self._conditions(stations, files),
            showcases=lambda: tuple(_showcases(test, stations)),
            rows=Rows(self._most_told(), train.pooled, time_input=0),
            notes=self._notes(stations),
            besides=({"years": _years(stations, files["train"])},) if self.test_years else (),
            shelf=shelf,
        )

    def stations(self, shelf: Shelf | None = None) -> tuple[Stations, Files]:
        """All that was read, and which of its files each split uses; files left out are counted in `problems`."""
        path = data_folder(self.data, "gsod")
        also = tuple(sorted({*self.test_years, *self.val_years}))
        wanted = ("stations", path, self.years, also)
        stations, trained = (shelf or Shelf()).once(wanted, lambda: read_years(path, self.years, also))
        return share_out(self._sharing(trained, path), stations, path)

    def _sharing(self, trained: tuple[int, ...], path: Path) -> Sharing:
        fewest_train = max(self.min_days, self._most_shots + 1)
        fewest_held_out = max(self.min_days, self.shots + 1, self.test_query_size + USUAL_SHOTS)
        return Sharing(
            seed=self.split_seed,
            years={"train": trained, "val": self.val_years or trained, "test": self.test_years or trained},
            fewest={"train": fewest_train, "val": fewest_held_out, "test": fewest_held_out},
            list_path=None if self.split == "station" else find_list(self.file_list, path),
        )

    def _days(self, stations: Stations, chosen: Int[np.ndarray, " f"], shelf: Shelf) -> Days:
        """The days of some files on the device: one copy for all settings that use the same ones."""
        read = (self.years, self.test_years, self.val_years)
        return shelf.once(("days", self.data, read, chosen.tobytes()), lambda: days_of(stations, chosen))

    def _conditions(self, stations: Stations, files: Files) -> dict[str, Any]:
        """Whatever is shown of a day, the tasks are the same days."""
        named = bool(self.years or self.test_years)
        years = {"years": year_words(_years(stations, files["test"]))} if named else {}
        seed = {} if self.split_seed == AUTHORS_SEED else {"split_seed": self.split_seed}
        return {"split": self.split, **years, **seed, "shots": self.shots, "query": self.test_query_size}

    def _most_told(self) -> "Config":
        """The settings of baselines: the richest inputs, and in other years dates that move as a learner's do."""
        if self.handling == "released":
            return self
        inputs: Inputs = "rich-around" if self.inputs in AROUND else "rich"
        told = replace(self, inputs=inputs, min_shots=None, most_shots=None, anomaly=0.0)
        if not self.test_years or not self.knows_its_years:
            return told
        return replace(told, date_shift=OTHER_YEARS_SHIFT, val_shift=self.val_shift or OTHER_YEARS_SHIFT)

    def _notes(self, stations: Stations) -> tuple[str, ...]:
        left_out = tuple(f"left out: {note}" for note in in_words(stations.problems))
        return (*left_out, KNOWS_ITS_YEARS) if self.knows_its_years else left_out


def _years(stations: Stations, files: Int[np.ndarray, " f"]) -> tuple[int, ...]:
    return tuple(int(year) for year in np.unique(stations.year[files]))


def _showcases(test: Weather, stations: Stations) -> Iterator[Showcase]:
    """A year of one test station of each band, with as many days as any has."""
    count, band = np.asarray(test.days.count), np.asarray(test.days.band)
    for index, name in enumerate(BANDS):
        inside = np.flatnonzero(band == index)
        if not len(inside):
            continue
        longest = inside[count[inside] == count[inside].max()]
        places = [place_of(str(stations.station[int(test.days.file[i])]), 0) for i in longest]
        file = int(longest[int(np.argmin(places))])
        rows = int(test.days.first[file]) + jnp.arange(int(count[file]), dtype=jnp.int32)
        x, y = test.rows(rows, jnp.full(rows.shape, file, dtype=jnp.int32))
        chosen = jnp.sort(jr.permutation(jr.key(index), int(count[file]))[:SHOWCASE_SHOTS])
        station, day = str(stations.station[int(test.days.file[file])]), test.days.day[rows].astype(jnp.float32)
        yield Showcase(
            name=f"{name}-{station}",
            figure="years",
            labels={"band": name, "station": station},
            support=Examples.of(x[chosen], y[chosen]),
            x=x,
            truth=y,
            axis=day,
            support_axis=day[chosen],
        )
