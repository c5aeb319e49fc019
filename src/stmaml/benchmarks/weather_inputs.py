"""What a method sees of a day of weather: the paper's sixteen inputs, or richer ones, with or without the date, with or
without what changed since the day before and until the day after."""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt8

from stmaml.data.stations import COLUMNS, FLAGS, MISSING, NAMES, STP_GAP
from stmaml.limits import STATISTICS_ROWS

Handling = Literal["correct", "released"]
Inputs = Literal["paper", "rich", "rich-around", "seasons", "seasons-around"]

MEASURED = ("ELEVATION", *NAMES[1:])  # the inputs that can be missing
DERIVED = ("PRESSURE_RATIO", "BAROMETRIC")
HARMONICS = ("SIN1", "COS1", "SIN2", "COS2")
PAPER_INPUTS = ("DATE", *MEASURED, *FLAGS)  # the sixteen inputs, in the order of the authors' code
RICH_INPUTS = (*PAPER_INPUTS, *HARMONICS, *DERIVED, *(f"NO_{name}" for name in (*MEASURED, "BAROMETRIC")))
CLOCK = (4, 8, 16, 32, 64)  # hands of a clock that counts days: turns of each in a year
CLOCK_DAYS = 365
SEASON_INPUTS = (*RICH_INPUTS[1:], *(f"{wave}_CLOCK{turns}" for wave in ("SIN", "COS") for turns in CLOCK))
CHANGES = tuple(f"{name}_{day}" for day in ("BEFORE", "AFTER") for name in (*MEASURED[1:], *DERIVED))
AROUND_INPUTS = (*CHANGES, "IS_BEFORE", "IS_AFTER")
INPUT_NAMES = {"paper": PAPER_INPUTS, "rich": RICH_INPUTS, "seasons": SEASON_INPUTS}
INPUT_NAMES |= {f"{inputs}-around": (*INPUT_NAMES[inputs], *AROUND_INPUTS) for inputs in ("rich", "seasons")}
UNDATED = ("seasons", "seasons-around")  # inputs that tell no date
AROUND = ("rich-around", "seasons-around")
MIDWINTER = 18.5
"""The coldest time of northern years and the warmest of southern ones, in days from 1 January: the middle half of the
stations north of 25 degrees have it within four days, in 2019 as in 2022."""

ELEVATION_UNKNOWN = -999.0  # NOAA prints -999.9; no land lies below -430 m
RELEASED_LAST_DAY = 364.0
# Hypsometric equation: T = g h / (R ln(p0 / p)), with g / R in kelvin per metre. Below 50 m the ratio of the pressures
# drowns in their rounding.
KELVIN_PER_METRE = 0.0341632
BAROMETRIC_FROM = 50.0
BAROMETRIC_RANGE = (200.0, 340.0)


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
    file: Int[Array, " files"]  # where a file is in `Stations`


class Moved(eqx.Module):
    """By how much the dates of rows are moved: of all alike, or of each."""

    days: Int[Array, " #n"] | Int[Array, ""]
    mirrored: Bool[Array, " #n"] | Bool[Array, ""]  # whether the year first runs backwards, about midwinter
    clock: Int[Array, " #n"] | Int[Array, ""]  # where the count of days begins

    def __call__(self, day: Float[Array, " n"], last_day: Float[Array, " n"]) -> Float[Array, " n"]:
        """The days of the year that those days become."""
        day = jnp.where(self.mirrored, 2 * MIDWINTER - day, day)
        return jnp.mod(day + self.days, last_day + 1)


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
    alone, 010000, becomes fog."""
    texts = [f"{bits:06b}" for bits in range(2 ** len(FLAGS))]
    if handling == "released":
        texts = [text.lstrip("0").ljust(len(FLAGS), "0") for text in texts]
    return np.array([[float(digit) for digit in text] for text in texts], dtype=np.float32)


class Features(eqx.Module):
    """Turns rows as printed into inputs."""

    inputs: Inputs = eqx.field(static=True)
    handling: Handling = eqx.field(static=True)
    mean: Float[Array, " g"]  # of what is there in training; stands for what is missing
    low: Float[Array, " g"]
    high: Float[Array, " g"]  # all but one in a thousand of the training values lie above, and below
    common: Float[Array, " f"]
    """1 for flags seen on at least one of a thousand training days, else 0: rarer ones would be wild outliers."""

    @property
    def names(self) -> tuple[str, ...]:
        """What the inputs are."""
        return INPUT_NAMES[self.inputs]

    def __call__(
        self, days: Days, rows: Int[Array, " n"], files: Int[Array, " n"], moved: Moved | None = None
    ) -> Float[Array, "n dx"]:
        """The inputs of some rows of `days`, of which the files are known; their dates moved if asked for."""
        day = days.day[rows].astype(jnp.float32)
        hands = () if self.inputs not in UNDATED else (_hands(day if moved is None else day + moved.clock),)
        if moved is not None:
            day = moved(day, days.last_day[files])
        last_day = days.last_day[files] if self.handling == "correct" else jnp.full_like(day, RELEASED_LAST_DAY)
        date = (day / last_day)[:, None]
        flags = jnp.asarray(flag_table(self.handling))[days.flags[rows].astype(jnp.int32)]
        readings, elevation = days.readings[rows], days.elevation[files]
        if self.inputs == "paper":
            return jnp.concatenate([date, measured(readings, elevation, self.handling)[0], flags], axis=1)
        values, present = self._gauged(readings, elevation)
        values = jnp.where(present, values, self.mean[None, :])
        angle = 2 * jnp.pi * day / (last_day + 1)
        waves = jnp.stack([jnp.sin(angle), jnp.cos(angle), jnp.sin(2 * angle), jnp.cos(2 * angle)], axis=1)
        flags = flags * self.common[None, :]
        own = len(MEASURED)
        lacking = jnp.delete(~present, own, axis=1).astype(jnp.float32)  # the ratio is there if both pressures are
        dated = () if self.inputs in UNDATED else (date,)
        beside = () if self.inputs not in AROUND else self._changes(days, rows, files, moved)
        parts = [*dated, values[:, :own], flags, waves, values[:, own:], lacking, *hands, *beside]
        return jnp.concatenate(parts, axis=1)

    def _gauged(
        self, readings: Int[Array, "n columns"], elevation: Float[Array, " n"]
    ) -> tuple[Float[Array, "n g"], Bool[Array, "n g"]]:
        """`gauged`, within the range of the training values."""
        values, present = gauged(readings, elevation)
        return jnp.clip(values, self.low[None, :], self.high[None, :]), present

    def _changes(
        self, days: Days, rows: Int[Array, " n"], files: Int[Array, " n"], moved: Moved | None
    ) -> tuple[Float[Array, "n c"], ...]:
        """How the readings of the day before and of the day after differ, 0 where either was not made; and which of the
        two days the file has. Where a year runs backwards they change places."""
        values, present = self._gauged(days.readings[rows], days.elevation[files])
        first, last = days.first[files], days.first[files] + days.count[files] - 1
        changes, there = [], []
        for step in (-1, 1):
            other = jnp.clip(rows + step, first, last)
            near = days.day[other] == days.day[rows] + step
            beside, also = self._gauged(days.readings[other], days.elevation[files])
            changes.append(jnp.where(present & also & near[:, None], beside - values, 0.0)[:, 1:])  # but for elevation
            there.append(near[:, None].astype(jnp.float32))
        if moved is None:
            return *changes, *there
        turned = jnp.broadcast_to(moved.mirrored, rows.shape)[:, None]
        pairs = ((one, other) for one, other in (changes, changes[::-1], there, there[::-1]))
        return tuple(jnp.where(jnp.broadcast_to(turned, one.shape), other, one) for one, other in pairs)


def _hands(day: Float[Array, " n"]) -> Float[Array, "n h"]:
    """A count of days as hands of a clock: of two days, their products tell how far apart these are, and no more."""
    angle = 2 * jnp.pi / CLOCK_DAYS * day[:, None] * jnp.asarray(CLOCK, dtype=jnp.float32)[None, :]
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=1)


def gauged(
    readings: Int[Array, "n columns"], elevation: Float[Array, " n"]
) -> tuple[Float[Array, "n g"], Bool[Array, "n g"]]:
    """The columns of `MEASURED` and `DERIVED` for rich inputs, and which are there.

    Rain and snow are on a logarithmic scale. The logarithm of the ratio of pressure at sea level to pressure at the
    station, and the temperature (in units of 100 K) that the air between them must then have, are the two derived."""
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


def fit_features(train: Days, inputs: Inputs, handling: Handling) -> Features:
    """The features fitted to training rows; those of the paper need no fit."""
    size = len(MEASURED) + len(DERIVED)
    mean, low, high = np.zeros((3, size), dtype=np.float32)
    common = np.ones(len(FLAGS), dtype=np.float32)
    if inputs != "paper":
        total = train.day.shape[0]
        # On the CPU, whatever else there is: a GPU's logarithms differ in the last digit, and with them the test tasks.
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
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
