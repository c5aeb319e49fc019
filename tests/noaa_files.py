"""Station files as NOAA prints them, defects included, for tests."""

import datetime
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

# fmt: off
HEADER = (
    "STATION", "DATE", "LATITUDE", "LONGITUDE", "ELEVATION", "NAME", "TEMP", "TEMP_ATTRIBUTES", "DEWP",
    "DEWP_ATTRIBUTES", "SLP", "SLP_ATTRIBUTES", "STP", "STP_ATTRIBUTES", "VISIB", "VISIB_ATTRIBUTES", "WDSP",
    "WDSP_ATTRIBUTES", "MXSPD", "GUST", "MAX", "MAX_ATTRIBUTES", "MIN", "MIN_ATTRIBUTES", "PRCP",
    "PRCP_ATTRIBUTES", "SNDP", "FRSHTT",
)
# fmt: on
MISSING = {"TEMP": 9999.9, "DEWP": 9999.9, "SLP": 9999.9, "STP": 999.9, "MAX": 9999.9, "MIN": 9999.9, "PRCP": 99.99}
FORMATS = {"TEMP": "6.1f", "DEWP": "6.1f", "SLP": "6.1f", "STP": "05.1f", "MAX": "6.1f", "MIN": "6.1f", "PRCP": "5.2f"}
PRINTED = ("TEMP", "DEWP", "SLP", "STP", "VISIB", "WDSP", "MXSPD", "GUST", "MAX", "MIN", "PRCP", "SNDP")
Value = float | str | None
Day = Mapping[str, Value]
"""A row: "day" (0 is 1 January) or "DATE", and columns by name. A number is printed as NOAA does (station pressures
from 1000 on without their leading 1), None as the code for missing, text as it is."""


def print_value(column: str, value: Value) -> str:
    """One field as NOAA prints it."""
    if isinstance(value, str):
        return value
    if value is None:
        value = MISSING.get(column, 999.9)
    elif column == "STP" and value >= 1000:
        value -= 1000
    return format(value, FORMATS.get(column, "5.1f"))


def row(station: str, day: Day, *, year: int, place: tuple[str, str, str], name: str, header: Sequence[str]) -> str:
    """One line of a file, without its end."""
    date = datetime.date(year, 1, 1) + datetime.timedelta(days=int(day.get("day") or 0))
    texts: dict[str, str] = {"STATION": station, "DATE": date.isoformat(), "NAME": name}
    texts |= dict(zip(("LATITUDE", "LONGITUDE", "ELEVATION"), place, strict=True))
    texts |= {"FRSHTT": "000000", "PRCP_ATTRIBUTES": "G", "MAX_ATTRIBUTES": "*", "MIN_ATTRIBUTES": " "}
    for column in PRINTED:
        texts[column] = print_value(column, day.get(column))
        texts.setdefault(f"{column}_ATTRIBUTES", " 0" if day.get(column) is None else "24")
    texts |= {column: str(value) for column, value in day.items() if column in HEADER and column not in PRINTED}
    return ",".join(f'"{texts[column]}"' for column in header)


def station_text(
    station: str,
    days: Sequence[Day],
    *,
    year: int = 2019,
    place: tuple[str, str, str] = ("52.1", "4.3", "12.0"),
    name: str = "SOMEWHERE, NL",
    header: Sequence[str] = HEADER,
) -> str:
    """A whole file; `place` is latitude, longitude and elevation as text, each may be empty."""
    lines = [",".join(f'"{column}"' for column in header)]
    lines += [row(station, day, year=year, place=place, name=name, header=header) for day in days]
    return "\n".join(lines) + "\n"


def write_station(path: Path, station: str, days: Sequence[Day], **how) -> Path:
    """Writes <path>/<station>.csv (see `station_text`)."""
    path.mkdir(parents=True, exist_ok=True)
    file = path / f"{station}.csv"
    file.write_text(station_text(station, days, **how))
    return file


def seasons(latitude: float, elevation: float, num_days: int, rng: np.random.Generator) -> list[Day]:
    """Days with a believable yearly course of temperature, and weather that goes with it."""
    chosen = np.sort(rng.permutation(365)[:num_days])
    swing = 0.6 * abs(latitude) * (-1 if latitude < 0 else 1)
    mean = 82 - 0.9 * abs(latitude) - 0.0117 * elevation
    temperature = mean - swing * np.cos(2 * np.pi * (chosen - 20) / 365) + rng.normal(0, 4, num_days)
    sea = rng.normal(1014, 8, num_days)
    kelvin = (temperature - 32) / 1.8 + 273.15
    here = sea * np.exp(-0.0341632 * elevation / kelvin)
    days: list[Day] = []
    for i in range(num_days):
        rain = rng.random() < 0.3
        cold = temperature[i] < 32
        days.append(
            {
                "day": float(chosen[i]),
                "TEMP": float(temperature[i]),
                "DEWP": float(temperature[i] - 8),
                "MAX": float(temperature[i] + 9),
                "MIN": float(temperature[i] - 9),
                "SLP": None if rng.random() < 0.1 else float(sea[i]),
                "STP": None if rng.random() < 0.1 else float(here[i]),
                "VISIB": None if rng.random() < 0.2 else float(rng.uniform(1, 20)),
                "WDSP": float(rng.gamma(2, 4)),
                "MXSPD": float(rng.gamma(3, 5)),
                "GUST": None if rng.random() < 0.7 else float(rng.gamma(4, 7)),
                "PRCP": float(rng.exponential(0.3)) if rain else 0.0,
                "SNDP": float(rng.exponential(8)) if cold and rng.random() < 0.5 else None,
                "FRSHTT": f"{int(rng.random() < 0.1)}{int(rain and not cold)}{int(rain and cold)}000",
            }
        )
    return days


def write_year(
    folder: Path, num_stations: int, *, year: int = 2019, num_days: int = 200, first: int = 1, seed: int = 0
) -> list[Path]:
    """Writes <folder>/<year>/<station>.csv for stations numbered from `first`, with seasons to be learnt."""
    files = []
    for number in range(first, first + num_stations):
        rng = np.random.default_rng((seed, year, number))
        latitude, elevation = rng.uniform(-60, 75), float(rng.gamma(1.0, 300.0))
        days = seasons(latitude, round(elevation, 1), num_days, rng)
        place = (f"{latitude:.4f}", f"{rng.uniform(-180, 180):.4f}", f"{elevation:.1f}")
        name = f"TOWN {number}, XX"
        files.append(write_station(folder / str(year), f"{number:06d}99999", days, year=year, place=place, name=name))
    return files


def pack(archive: Path, files: Sequence[Path]) -> Path:
    """A yearly archive (.tar.gz or .tar.xz) of files, as NOAA packs them: without folders."""
    mode = "w:xz" if archive.suffix == ".xz" else "w:gz"
    with tarfile.open(archive, mode) as tar:
        for file in files:
            tar.add(file, arcname=file.name)
    return archive
