"""NOAA's archive of a year of weather stations as one plain table, as a user would clean it before `stmaml fit`.

    python examples/gsod_table.py 2019.tar.xz stations.parquet
    stmaml fit stations.parquet --task STATION --target TEMP --preset large --query-size 100 --min-query 100

Where the archive comes from is in docs/weather.md. Nothing here is code of the weather benchmark: codes for missing
values become empty cells, the six weather signs six columns, dates dates. What gives the temperature away (dew point,
highest and lowest temperature) and where a station lies, apart from its elevation, is left out, as in the benchmark.
Two columns are computed: the ratio of the two pressures, and the temperature that the air between sea level and the
station must have for it.
"""

import io
import sys
import tarfile
from pathlib import Path

import polars as pl

MISSING = {
    "TEMP": 9999.9,
    "SLP": 9999.9,
    "STP": 999.9,
    "VISIB": 999.9,
    "WDSP": 999.9,
    "MXSPD": 999.9,
    "GUST": 999.9,
    "PRCP": 99.99,
    "SNDP": 999.9,
    "ELEVATION": -999.9,
}
SIGNS = ("FOG", "RAIN", "SNOW", "HAIL", "THUNDER", "TORNADO")
FILES_AT_ONCE = 200


def read(archive):
    """The rows of all stations, cleaned, a few hundred files at a time: unpacked, the archive has 700 MB."""
    with tarfile.open(archive) as packed:
        tables, done = [], []
        for member in packed:
            file = packed.extractfile(member)
            if file is None or not member.name.endswith(".csv"):
                continue
            tables.append(pl.read_csv(io.BytesIO(file.read()), infer_schema=False, columns=[*COLUMNS]))
            if len(tables) == FILES_AT_ONCE:
                done.append(clean(pl.concat(tables)))
                tables = []
                print(f"{FILES_AT_ONCE * len(done)} stations read", end="\r", file=sys.stderr)
        if tables:
            done.append(clean(pl.concat(tables)))
    return pl.concat(done)


COLUMNS = ("STATION", "DATE", "FRSHTT", *MISSING)


def clean(rows):
    """Numbers as numbers, empty where nothing was measured."""
    numbers = [pl.col(name).str.strip_chars().cast(pl.Float32, strict=False) for name in MISSING]
    rows = rows.with_columns(*numbers, pl.col("DATE").str.to_date(strict=False))
    known = [
        pl.when((pl.col(name) - code).abs() > 0.001).then(pl.col(name)).alias(name) for name, code in MISSING.items()
    ]
    signs = [(pl.col("FRSHTT").str.slice(i, 1) == "1").alias(sign) for i, sign in enumerate(SIGNS)]
    rows = rows.with_columns(*known, *signs).drop("FRSHTT").drop_nulls(["DATE", "TEMP"])
    # NOAA drops the leading 1 of a station pressure of 1000 mbar and more.
    rows = rows.with_columns(pl.when(pl.col("STP") < 200).then(pl.col("STP") + 1000).otherwise("STP").alias("STP"))
    return rows.with_columns(**air_between())


def air_between():
    """The pressures' ratio and the temperature, in degrees Fahrenheit, that it implies (hypsometric equation)."""
    ratio = (pl.col("SLP").cast(pl.Float64) / pl.col("STP")).log()
    height = pl.col("ELEVATION").cast(pl.Float64)
    fahrenheit = 0.0341632 * height / ratio * 1.8 - 459.67
    # Lower stations tell nothing: their two pressures differ by less than they are rounded to.
    sound = (height >= 50) & (ratio > 0) & fahrenheit.is_between(-100, 152)
    return {
        "PRESSURE_RATIO": (1e4 * ratio).round(0).cast(pl.Float32),
        "AIR_TEMP": pl.when(sound).then(fahrenheit.round(0)).cast(pl.Float32),
    }


def main(archive, out):
    """Writes the table and says what it holds."""
    rows = read(archive)
    year = rows["DATE"].dt.year().mode()[0]
    rows = rows.filter(pl.col("DATE").dt.year() == year).sort("STATION", "DATE")  # some files end in next year's first
    rows.write_parquet(out, compression="zstd", compression_level=22)
    size = Path(out).stat().st_size / 1e6
    print(f"{rows.height:,} days of {rows['STATION'].n_unique():,} stations in {year}: {out}, {size:.1f} MB")


if __name__ == "__main__":
    main(*sys.argv[1:3])
