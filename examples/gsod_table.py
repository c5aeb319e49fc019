"""NOAA's archive of a year of weather stations as one plain table, as a user would clean it before `stmaml fit`.

    python examples/gsod_table.py 2019.tar.xz stations.parquet
    stmaml fit stations.parquet --task STATION --target TEMP --method st-maml --preset large --query-size 100 \
        --min-query 100 --run runs/stations
    python examples/gsod_table.py stations.parquet figures --figures-of runs/stations

The last command draws what the run says about some of its test stations, and how far its intervals hold.

Where the archive comes from is in docs/weather.md. Nothing here is code of the weather benchmark: codes for missing
values become empty cells, the six weather signs six columns, dates dates. What gives the temperature away (dew point,
highest and lowest temperature) and where a station lies, apart from its elevation, is left out, as in the benchmark.
Two columns are computed: the ratio of the two pressures, and the temperature that the air between sea level and the
station must have for it.
"""

import io
import sys
import tarfile
from argparse import ArgumentParser
from pathlib import Path

import polars as pl
from matplotlib.figure import Figure  # noqa: TID251

from stmaml.runs import Run
from stmaml.tables.groups import split_groups
from stmaml.tables.model import load_model, load_table
from stmaml.tables.scoring import saved_result

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


def make_table(archive, out):
    """Writes the table and says what it holds."""
    rows = read(archive)
    year = rows["DATE"].dt.year().mode()[0]
    rows = rows.filter(pl.col("DATE").dt.year() == year).sort("STATION", "DATE")  # some files end in next year's first
    rows.write_parquet(out, compression="zstd", compression_level=22)
    size = Path(out).stat().st_size / 1e6
    print(f"{rows.height:,} days of {rows['STATION'].n_unique():,} stations in {year}: {out}, {size:.1f} MB")


def draw(table, folder, run):
    """Writes both figures of a run of `stmaml fit`."""
    run, folder = Run(Path(run)), Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    stations_figure(load_model(run.folder), held_out_stations(table, run)).savefig(folder / "stations.png", dpi=150)
    coverage_figure(saved_result(run)["calibration"]).savefig(folder / "stations-coverage.png", dpi=150)
    print(f"drew {folder / 'stations.png'} and {folder / 'stations-coverage.png'}")


SHOWN, LABELLED, MOST_OF_A_YEAR = 3, 10, 330


def held_out_stations(table, run):
    """The first few of the run's test stations that report on most days: by rank, not by how well they do."""
    rows = pl.scan_parquet(table)
    count = rows.group_by("STATION").len().collect()
    days = count["len"].cast(pl.Int64).to_numpy()
    sizes = load_table(run).benchmark_settings.table.sizes.of(days)
    split = split_groups(count["STATION"].to_list(), days, sizes)
    full = set(count.filter(pl.col("len") >= MOST_OF_A_YEAR)["STATION"])
    chosen = [name for name in split.test if name in full][:SHOWN]
    return rows.filter(pl.col("STATION").is_in(chosen)).collect().partition_by("STATION")


def stations_figure(model, stations):
    """A year at each station: ten labelled days, what is predicted for the others, and what was measured."""
    figure = Figure(figsize=(9.5, 2.2 * len(stations) + 0.6), layout="constrained")
    axes = figure.subplots(len(stations), 1, sharex=True, squeeze=False)[:, 0]
    for number, (ax, days) in enumerate(zip(axes, stations, strict=True)):
        known = days.sample(LABELLED, seed=number)
        asked = days.join(known, on="DATE", how="anti").sort("DATE")
        found = model.predict(asked.drop("TEMP"), known, levels=(0.05, 0.5, 0.95)).frame
        inside = asked["TEMP"].is_between(found["q05"], found["q95"]).mean()
        ax.fill_between(
            found["DATE"], found["q05"], found["q95"], color="#E69F00", alpha=0.3, lw=0, label="90 % interval"
        )
        ax.plot(found["DATE"], found["q50"], color="#D55E00", lw=1.2, label="predicted median")
        ax.plot(asked["DATE"], asked["TEMP"], ".", color="#0072B2", ms=3, label="measured, not shown to the model")
        ax.plot(known["DATE"], known["TEMP"], "o", color="black", ms=5, label="labelled days")
        ax.set_title(f"station {days['STATION'][0]}: {inside:.0%} of the other days in the interval", fontsize=10)
        ax.set_ylabel("°F")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def coverage_figure(calibration):
    """The share of test days in intervals against the number of labelled days, before and after recalibration."""
    shots = list(calibration)
    figure = Figure(figsize=(6.5, 4), layout="constrained")
    ax = figure.subplots()
    for level, colour in zip(("50%", "80%", "90%"), ("#0072B2", "#D55E00", "#009E73"), strict=True):
        nominal = float(level.rstrip("%"))
        ax.axhspan(nominal - 3, nominal + 3, color=colour, alpha=0.12, lw=0)
        for part, line in (("before", "o:"), ("after", "o-")):
            share = [100 * calibration[count][level][part]["mean"] for count in shots]
            fill = colour if part == "after" else "white"
            ax.plot(shots, share, line, color=colour, mfc=fill, label=f"{nominal:.0f} %, {part}")
    ax.set(xlabel="labelled days", ylabel="% of test days in the interval")
    ax.set_title("Before and after recalibration; bands: nominal ± 3 points", fontsize=10)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure


def main(arguments=None):
    """Makes the table, or draws a run."""
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", help="NOAA's archive; with --figures-of, the table made from it")
    parser.add_argument("out", help="Parquet file for the table; with --figures-of, a folder")
    parser.add_argument("--figures-of", metavar="RUN", help="draw this run of 'stmaml fit' instead")
    flags = parser.parse_args(arguments)
    if flags.figures_of is None:
        make_table(flags.source, flags.out)
    else:
        draw(flags.source, flags.out, flags.figures_of)


if __name__ == "__main__":
    main()
