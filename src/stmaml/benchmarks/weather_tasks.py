"""Tasks from days of weather: drawn afresh, on the device, with dates moved where a learner must not know them."""

import calendar
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stmaml.benchmarks.sources import shot_weights
from stmaml.benchmarks.weather_inputs import CLOCK_DAYS, Days, Features, Moved
from stmaml.data.stations import COLUMNS, Stations
from stmaml.limits import POOLED_ROWS
from stmaml.tasks import Examples, Task, TaskBatch, TaskSpec

BANDS = ("tropics", "temperate", "polar", "unknown")  # families of stations, by latitude
YEAR_DAYS = 366  # the longest
COURSE_WAVES = 8


def days_of(stations: Stations, chosen: Int[np.ndarray, " f"]) -> Days:
    """The days of some files, on the device."""
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


@dataclass(frozen=True)
class Moves:
    """How the dates of a task are moved, all together: so that seasons can be learnt, and single days cannot."""

    days: int = 0
    """Most days to either side."""
    mirror: bool = False
    """Half of the tasks run backwards, about the coldest and the warmest time of the year."""
    clock: bool = False
    """The count of days begins anywhere, whatever the season."""

    def draw(self, shape: tuple[int, ...], *, key: PRNGKeyArray) -> Moved | None:
        """Moves of single tasks; None where nothing ever moves."""
        if self == Moves():
            return None
        most, (mirror_key, clock_key) = self.days, jr.split(jr.fold_in(key, 1))
        days = jr.randint(key, shape, -most, most + 1, dtype=jnp.int32)
        turned = jr.randint(mirror_key, shape, 0, 1 + self.mirror, dtype=jnp.int32) == 1
        clock = jr.randint(clock_key, shape, 0, CLOCK_DAYS if self.clock else 1, dtype=jnp.int32)
        return Moved(days, turned, clock)


@dataclass(frozen=True)
class Sizes:
    """How many days a task has, and which."""

    shots: int
    query: int
    min_shots: int | None = None
    """Draw the number of labelled days from this to `shots`; always `shots` if not given."""
    by_ratio: bool = False
    """Draw it so that 2 to 4 come as often as 10 to 20, rather than every number as often."""

    def weights(self, *, key: PRNGKeyArray) -> Float[Array, " n"]:
        """Weights of a support set's rows."""
        if self.min_shots is None or not self.by_ratio:
            return shot_weights(self.shots, self.min_shots, key=key, dtype=jnp.int32)
        low, high = np.log([max(self.min_shots, 1), self.shots + 1]).astype(np.float32)
        drawn = jnp.exp(jr.uniform(key, (), dtype=jnp.float32, minval=low, maxval=high))
        return (jnp.arange(self.shots) < jnp.clip(jnp.floor(drawn), self.min_shots, self.shots)).astype(float)


class Course(eqx.Module):
    """A random course of the year, smooth over weeks: how another year might differ."""

    turns: Float[Array, " k"]
    phase: Float[Array, " k"]
    spread: float = eqx.field(static=True)

    @classmethod
    def draw(cls, spread: float, *, key: PRNGKeyArray) -> "Course":
        """Waves of 10 to 60 days that add up to a standard deviation of `spread`."""
        turns_key, phase_key = jr.split(key)
        turns = jr.uniform(turns_key, (COURSE_WAVES,), dtype=jnp.float32, minval=6.0, maxval=36.0)
        return Course(turns, jr.uniform(phase_key, (COURSE_WAVES,), dtype=jnp.float32, maxval=2 * np.pi), spread)

    def __call__(self, day: Float[Array, " n"]) -> Float[Array, " n"]:
        """Degrees to be added on each day of a year."""
        angle = 2 * jnp.pi / CLOCK_DAYS * day[:, None] * self.turns[None, :] + self.phase[None, :]
        return self.spread * (2 / COURSE_WAVES) ** 0.5 * jnp.cos(angle).sum(1)


class Weather(eqx.Module):
    """Tasks from the files of one split: days drawn afresh, on the device, inside the training step."""

    days: Days
    features: Features
    sizes: Sizes = eqx.field(static=True)
    moves: Moves = eqx.field(static=True, default=Moves())
    training: bool = eqx.field(static=True, default=False)
    anomaly: float = eqx.field(static=True, default=0.0)  # spread of the course that is added to each task

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
        shots, size = self.sizes.shots, self.sizes.query
        count = self.days.count[file]
        order, moved = shuffled(count, key=day_key), self.moves.draw((), key=jr.fold_in(key, 2))
        weights = self.sizes.weights(key=shots_key)
        course = Course.draw(self.anomaly, key=jr.fold_in(key, 3)) if self.anomaly else None
        support = self._examples(file, order[count - 1 - jnp.arange(shots)], weights, moved, course)
        real = jnp.arange(size) < count - shots
        chosen = order[jnp.minimum(jnp.arange(size), count - 1)]
        return Task(support, self._examples(file, chosen, real.astype(float), moved, course))

    def _examples(
        self,
        file: Int[Array, ""],
        chosen: Int[Array, " n"],
        weight: Float[Array, " n"],
        moved: Moved | None,
        course: Course | None,
    ) -> Examples:
        rows = self.days.first[file] + chosen.astype(jnp.int32)
        x, y = self.rows(rows, jnp.full(rows.shape, file), moved)
        if course is not None:
            y = y + course(self.days.day[rows].astype(jnp.float32))[:, None]
        real = weight[:, None] > 0
        return Examples(jnp.where(real, x, 0), jnp.where(real, y, 0), weight)

    def rows(
        self, rows: Int[Array, " n"], files: Int[Array, " n"], moved: Moved | None = None
    ) -> tuple[Float[Array, "n dx"], Float[Array, "n 1"]]:
        """Inputs and temperatures of some rows, of which the files are known."""
        y = self.days.readings[rows, 0].astype(jnp.float32) / COLUMNS[0].scale
        return self.features(self.days, rows, files, moved), y[:, None]

    def pooled(
        self, max_rows: int, seed: int
    ) -> tuple[Float[np.ndarray, "n dx"], Float[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """Inputs, temperatures and file (its index in `Stations`) of days drawn from all files without replacement.

        Where dates move in training, those of each file move here, all together."""
        total = self.days.day.shape[0]
        rows = np.arange(total, dtype=np.int32)
        if max_rows < total:
            rows = np.sort(np.asarray(jr.permutation(jr.key(seed), total)[:max_rows]).astype(np.int32))
        files = (np.searchsorted(np.asarray(self.days.first), rows, side="right") - 1).astype(np.int32)
        moved = self.moves.draw((self.num_files,), key=jr.fold_in(jr.key(seed), 2))
        x = np.empty((len(rows), len(self.features.names)), dtype=np.float32)
        y = np.empty(len(rows), dtype=np.float32)
        for start in range(0, len(rows), POOLED_ROWS):
            part = slice(start, start + POOLED_ROWS)
            own = None if moved is None else jax.tree.map(lambda leaf: leaf[files[part]], moved)  # noqa: B023
            chunk_x, chunk_y = self.rows(jnp.asarray(rows[part]), jnp.asarray(files[part]), own)
            x[part], y[part] = chunk_x, chunk_y[:, 0]
        return x, y, np.asarray(self.days.file)[files]


def shuffled(count: Int[Array, ""], *, key: PRNGKeyArray) -> Int[Array, " d"]:
    """The numbers from 0 to `count` - 1 in random order, then those up to the longest year."""
    index = jnp.arange(YEAR_DAYS, dtype=jnp.uint32)
    lots = jr.bits(key, (YEAR_DAYS,), dtype=jnp.uint32) >> 1
    # A lot's lowest 9 bits hold its index: sorting one array of numbers takes a quarter of an argsort's time.
    lots = (lots & ~jnp.uint32(511)) | index
    return (jnp.sort(jnp.where(index < count, lots, lots | jnp.uint32(1 << 31))) & 511).astype(jnp.int32)
