"""Days of many weather stations, and the file they are kept in."""

import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
from jaxtyping import Bool, Float, Float32, Int, Int16, Shaped, UInt8

from stmaml.border.arrays import unpack_arrays
from stmaml.data.problems import BROKEN_SAVE, Problem, Problems, from_text, to_text
from stmaml.errors import SourceError

VERSION = 1  # of the saved form; files of another version are read anew
MISSING = np.iinfo(np.int16).min  # stands for a reading that was not made
FLAGS = ("FOG", "RAIN", "SNOW", "HAIL", "THUNDER", "TORNADO")  # what the digits of FRSHTT stand for, from the left
STP_GAP = (200.0, 400.0)
"""Millibars no station prints: GSOD drops the leading 1 of pressures from 1000 on (printed 0 to 80 or so), while the
highest stations on earth measure 500."""


@dataclass(frozen=True)
class Column:
    """A measured column: how it is printed and what can be true."""

    name: str
    missing: tuple[float, ...]  # what is printed where nothing was measured
    low: float
    high: float  # nothing on earth lies outside
    decimals: int = 1

    @property
    def scale(self) -> int:
        """Whole numbers in one unit: 10 for tenths."""
        return 10**self.decimals


COLUMNS = (
    Column("TEMP", (9999.9,), -150.0, 150.0),  # degrees Fahrenheit
    Column("SLP", (9999.9,), 800.0, 1100.0),  # millibars
    Column("STP", (999.9, 9999.9), 0.0, 1100.0),
    Column("VISIB", (999.9,), 0.0, 200.0),  # miles
    Column("WDSP", (999.9,), 0.0, 250.0),  # knots
    Column("MXSPD", (999.9,), 0.0, 250.0),
    Column("GUST", (999.9,), 0.0, 300.0),
    Column("PRCP", (99.99,), 0.0, 99.0, decimals=2),  # inches
    Column("SNDP", (999.9,), 0.0, 500.0),
)
NAMES = tuple(column.name for column in COLUMNS)


@dataclass(frozen=True)
class Stations:
    """Days of many stations. A file is a year of one station; files are in order of year and station."""

    station: Shaped[np.ndarray, " files"]  # eleven characters each
    year: Int16[np.ndarray, " files"]
    latitude: Float[np.ndarray, " files"]  # degrees north; NaN if not known
    longitude: Float[np.ndarray, " files"]  # degrees east; NaN if not known
    elevation: Float[np.ndarray, " files"]  # metres as printed, so -999.9 where NOAA does not know it; NaN if empty
    name: Shaped[np.ndarray, " files"]
    offset: Int[np.ndarray, " files"]  # a file's first row
    count: Int[np.ndarray, " files"]  # a file's number of rows: days with a temperature, in order, each once
    day: Int16[np.ndarray, " rows"]  # day of the year; 0 is 1 January
    readings: Int16[np.ndarray, "rows columns"]
    """The columns of `COLUMNS` in tenths (PRCP in hundredths), as printed; `MISSING` if not measured."""
    flags: UInt8[np.ndarray, " rows"]  # FRSHTT read as a binary number: the first digit, fog, is worth 32
    problems: dict[str, Problem] = field(default_factory=dict)  # what was wrong in the files, by kind

    def column(self, name: str) -> tuple[Float32[np.ndarray, " rows"], Bool[np.ndarray, " rows"]]:
        """A measured column in its own unit, 0 where missing, and which rows have it."""
        index = NAMES.index(name)
        present = self.readings[:, index] != MISSING
        values = np.where(present, self.readings[:, index], 0).astype(np.float32) / np.float32(COLUMNS[index].scale)
        return values, present

    def of_years(self, years: Sequence[int]) -> "Stations":
        """The files of these years alone; rows of others stay, and belong to no file."""
        kept = np.flatnonzero(np.isin(self.year, years))
        return self if len(kept) == len(self.year) else self._picked(kept)

    def _picked(self, files: Int[np.ndarray, " f"]) -> "Stations":
        return replace(self, **{name: getattr(self, name)[files] for name in PER_FILE})

    def save(self, path: Path, *, packed: bool = False) -> None:
        """Writes all to a NumPy archive; a reader never sees half of one. `packed` takes a quarter of the space, and
        minutes: for a machine that the files of NOAA are too large for."""
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "problems"}
        arrays |= {"version": np.array(VERSION), "problems": np.array(to_text(self.problems))}
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            with part.open("wb") as file:
                _pack(file, arrays) if packed else np.savez(file, **arrays)
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)

    @staticmethod
    def load(path: Path) -> "Stations":
        """What `save` wrote."""
        try:
            saved = unpack_arrays(path)
            version = int(saved["version"])
            if version == VERSION:
                _check_saved(saved)
                arrays = {f.name: saved[f.name] for f in fields(Stations) if f.name != "problems"}
                return Stations(**arrays, problems=from_text(str(saved["problems"])))
        except BROKEN_SAVE as fault:
            raise SourceError(
                f"{path} is no complete file of saved stations ({str(fault)[:200]}). Make it again from NOAA's files."
            ) from None
        raise SourceError(
            f"{path} holds stations saved in version {version}; expected {VERSION}. Make it again from NOAA's files."
        )


def _pack(file: BinaryIO, arrays: dict[str, np.ndarray]) -> None:
    """Writes arrays as NumPy does, each packed, tables column by column: alike numbers stand together."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array, order="F"), allow_pickle=False)


def joined(parts: Sequence[Stations]) -> Stations:
    """All files of several sets of stations as one set."""
    if len(parts) == 1:
        return parts[0]
    rows = np.cumsum([0, *(len(part.day) for part in parts[:-1])])
    moved = [replace(part, offset=part.offset + first) for part, first in zip(parts, rows, strict=True)]
    arrays = {name: np.concatenate([getattr(part, name) for part in moved]) for name in (*PER_FILE, *PER_ROW)}
    problems = Problems()
    for part in parts:
        problems.add_all(part.problems)
    whole = Stations(**arrays, problems=problems.summary())
    return whole._picked(np.lexsort((whole.station, whole.year)))


PER_ROW = {"day": "i2", "readings": "i2", "flags": "u1"}
PER_FILE = {"station": "U", "year": "i2", "latitude": "f", "longitude": "f", "elevation": "f", "name": "U"}
PER_FILE |= {"offset": "i", "count": "i"}
"""What is saved of each day and of each file, with its type in NumPy's letters."""


def _check_saved(saved: dict[str, np.ndarray]) -> None:
    """Raises ValueError or KeyError for arrays that are not of one set of stations."""
    files, rows = saved["station"].shape, saved["day"].shape
    shapes = {**dict.fromkeys(PER_FILE, files), **dict.fromkeys(PER_ROW, rows), "readings": (*rows, len(COLUMNS))}
    for name, kind in (PER_FILE | PER_ROW).items():
        array = saved[name]
        if array.shape != shapes[name] or not array.dtype.str[1:].startswith(kind) or len(files) != 1:
            raise ValueError(f"{name} is {array.dtype} of shape {array.shape}")
    first, count = saved["offset"], saved["count"]
    if (first < 0).any() or (count < 0).any() or (count > len(saved["day"]) - first).any():
        raise ValueError("files with days beyond the last")
