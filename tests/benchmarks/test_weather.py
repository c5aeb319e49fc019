"""Weather: what a printed row becomes, who is held out, and which days make a task."""

import dataclasses
import gzip
import math
import random
import runpy
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import PRNGKeyArray

from stmaml.benchmarks import BENCHMARKS, weather, weather_tasks
from stmaml.benchmarks.base import Benchmark
from stmaml.benchmarks.sources import check_batch, freeze
from stmaml.benchmarks.weather import Config
from stmaml.benchmarks.weather_inputs import (
    MEASURED,
    PAPER_INPUTS,
    RICH_INPUTS,
    Days,
    Features,
    Handling,
    Moved,
    flag_table,
)
from stmaml.benchmarks.weather_splits import place_of
from stmaml.benchmarks.weather_tasks import BANDS, Weather, bands, shuffled
from stmaml.data.stations import MISSING, NAMES, Stations
from stmaml.errors import SettingError, SourceError
from stmaml.tasks import TaskBatch
from tests.noaa_files import seasons, write_station, write_year

SMALL: dict[str, Any] = {"shots": 5, "query_size": 20, "test_query_size": 40}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """60 stations of 80 days in 2019, 40 of them also in 2020, a leap year; read once into a saved file's folder."""
    folder = tmp_path_factory.mktemp("gsod")
    write_year(folder, 60, num_days=80)
    write_year(folder, 40, year=2020, num_days=80)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STMAML_CACHE", str(folder / "cache"))
        from stmaml.data.noaa import read_stations

        read_stations(folder).save(folder / "stations.npz")
    return folder


def config(folder: Path, **settings) -> Config:
    return Config(data=str(folder / "stations.npz"), **{**SMALL, **settings})


def as_weather(source: object) -> Weather:
    assert isinstance(source, Weather)
    return source


@eqx.filter_jit
def compiled(source: Weather, num_tasks: int, key: PRNGKeyArray) -> TaskBatch:
    return source.sample(num_tasks, key=key)


def draw(source: object, num_tasks: int, seed: int = 0) -> TaskBatch:
    return compiled(as_weather(source), num_tasks, jr.key(seed))


# What a row becomes.


def table(elevation: float = 12.0, day: float = 0, flags: float = 0, last_day: float = 364, **readings: float) -> Days:
    """One row of one file; readings in their own units, the others missing."""
    whole = [round(readings[n] * (100 if n == "PRCP" else 10)) if n in readings else MISSING for n in NAMES]
    return Days(
        readings=jnp.array([whole], dtype=jnp.int16),
        day=jnp.array([day], dtype=jnp.int16),
        flags=jnp.array([flags], dtype=jnp.uint8),
        first=jnp.array([0], dtype=jnp.int32),
        count=jnp.array([1], dtype=jnp.int32),
        elevation=jnp.array([elevation], dtype=jnp.float32),
        last_day=jnp.array([last_day], dtype=jnp.float32),
        band=jnp.array([0], dtype=jnp.int32),
        file=jnp.array([0], dtype=jnp.int32),
    )


def inputs(days: Days, features: Features) -> dict[str, float]:
    zero = jnp.zeros(1, dtype=jnp.int32)
    return dict(zip(features.names, features(days, zero, zero)[0].tolist(), strict=True))


def paper(handling: Handling = "correct") -> Features:
    nothing = jnp.zeros(len(MEASURED) + 2)
    return Features("paper", handling, nothing, nothing, nothing, jnp.ones(6))


def rich(mean: float = 7.0, low: float = -1e9, high: float = 1e9) -> Features:
    mean_, low_, high_ = (jnp.full(len(MEASURED) + 2, value) for value in (mean, low, high))
    return Features("rich", "correct", mean_, low_, high_, jnp.ones(6))


EVERY = {
    "TEMP": 24.0,
    "SLP": 1025.1,
    "STP": 23.9,
    "VISIB": 21.2,
    "WDSP": 8.9,
    "MXSPD": 18.5,
    "GUST": 31.5,
    "PRCP": 0.07,
    "SNDP": 3.9,
}


def test_the_sixteen_inputs_in_the_authors_order_and_units():
    zero = jnp.zeros(1, dtype=jnp.int32)
    x = paper()(table(elevation=250.0, day=91, flags=0b011000, **EVERY), zero, zero)
    wanted = [91 / 364, 0.25, 1.0251, 1.0239, 21.2, 8.9, 18.5, 31.5, 0.07, 3.9, 0, 1, 1, 0, 0, 0]
    np.testing.assert_allclose(x, [wanted], rtol=1e-6)
    names = "DATE ELEVATION SLP STP VISIB WDSP MXSPD GUST PRCP SNDP FOG RAIN SNOW HAIL THUNDER TORNADO"
    assert " ".join(PAPER_INPUTS) == names


def test_the_released_handling_keeps_its_defects():
    days = table(elevation=250.0, day=91, flags=0b011000, last_day=365, **EVERY)
    released = inputs(days, paper("released"))
    assert released["STP"] == pytest.approx(0.0239)
    assert [released[n] for n in PAPER_INPUTS[10:]] == [1, 1, 0, 0, 0, 0]  # 11000 from the left
    assert released["DATE"] == pytest.approx(91 / 364)
    assert inputs(days, paper())["DATE"] == pytest.approx(91 / 365)


@pytest.mark.parametrize(
    ("printed", "mended"),
    [(0.0, 1.0), (15.4, 1.0154), (61.7, 1.0617), (523.4, 0.5234), (903.5, 0.9035), (999.8, 0.9998), (999.9, 0.9999)],
)
def test_station_pressures_get_their_leading_1_back(printed, mended):
    assert inputs(table(STP=printed), paper())["STP"] == pytest.approx(mended)
    released = inputs(table(STP=printed), paper("released"))["STP"]
    assert released == pytest.approx(0 if printed == 999.9 else printed / 1000)


def test_a_missing_pressure_is_not_mended():
    assert inputs(table(), paper())["STP"] == 0


@pytest.mark.parametrize("name", MEASURED)
@pytest.mark.parametrize("handling", ["correct", "released"])
def test_missing_values_are_0(name, handling):
    elevation = math.nan if name == "ELEVATION" else 12.0
    x = inputs(table(elevation, **{k: v for k, v in EVERY.items() if k != name}), paper(handling))
    assert x[name] == 0
    assert all(x[other] != 0 for other in MEASURED if other != name)


def test_a_true_sea_level_pressure_of_999_9_vanishes_only_as_released():
    assert inputs(table(SLP=999.9), paper())["SLP"] == pytest.approx(0.9999)
    assert inputs(table(SLP=999.9), paper("released"))["SLP"] == 0


@pytest.mark.parametrize(
    ("elevation", "correct", "released"),
    [(-999.9, 0, -0.9999), (-388.0, -0.388, -0.388), (999.9, 0.9999, 0), (0.0, 0, 0), (math.nan, 0, 0)],
)
def test_elevations(elevation, correct, released):
    assert inputs(table(elevation), paper())["ELEVATION"] == pytest.approx(correct)
    assert inputs(table(elevation), paper("released"))["ELEVATION"] == pytest.approx(released)


@pytest.mark.parametrize(
    ("text", "released"),
    [
        ("000000", [0, 0, 0, 0, 0, 0]),
        ("100000", [1, 0, 0, 0, 0, 0]),
        ("010000", [1, 0, 0, 0, 0, 0]),
        ("011000", [1, 1, 0, 0, 0, 0]),
        ("010010", [1, 0, 0, 1, 0, 0]),
        ("000001", [1, 0, 0, 0, 0, 0]),
        ("110011", [1, 1, 0, 0, 1, 1]),
    ],
)
def test_flags_both_ways(text, released):
    bits = int(text, 2)
    assert flag_table("correct")[bits].tolist() == [float(digit) for digit in text]
    assert flag_table("released")[bits].tolist() == released
    as_int = str(int(text))  # what pandas makes of it
    assert flag_table("released")[bits].tolist()[: len(as_int)] == [float(digit) for digit in as_int]


def test_the_date_runs_from_0_to_1_in_leap_years_too():
    for last_day in (364, 365):
        ends = [inputs(table(day=day, last_day=last_day), paper())["DATE"] for day in (0, last_day)]
        assert ends == [0, 1]


def test_rich_inputs_are_what_they_are_called():
    x = inputs(table(elevation=1000.0, day=73, flags=0b100001, **{**EVERY, "STP": 903.5, "SLP": 1020.0}), rich())
    assert list(x) == list(RICH_INPUTS)
    ratio = math.log(1020.0 / 903.5)
    angle = 2 * math.pi * 73 / 365
    wanted = {
        "ELEVATION": 1.0,
        "SLP": 1.02,
        "STP": 0.9035,
        "PRCP": math.log1p(0.7),
        "SNDP": math.log1p(3.9),
        "SIN1": math.sin(angle),
        "COS1": math.cos(angle),
        "SIN2": math.sin(2 * angle),
        "COS2": math.cos(2 * angle),
        "PRESSURE_RATIO": 10 * ratio,
        "BAROMETRIC": 0.0341632 * 1000 / ratio / 100,
        "FOG": 1.0,
        "TORNADO": 1.0,
    }
    for name, value in wanted.items():
        assert x[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name
    assert all(x[name] == 0 for name in RICH_INPUTS if name.startswith("NO_"))


def test_the_barometric_temperature_is_that_of_the_air_column():
    """An isothermal column of 280 K: p = p0 exp(-g h / (R T))."""
    here = 1013.0 * math.exp(-9.80665 * 0.0289644 / 8.31446 * 800 / 280)
    x = inputs(table(elevation=800.0, SLP=1013.0, STP=round(here, 1)), rich())
    assert 100 * x["BAROMETRIC"] == pytest.approx(280, abs=0.5)


@pytest.mark.parametrize("name", MEASURED)
def test_rich_inputs_mark_what_is_missing(name):
    elevation = math.nan if name == "ELEVATION" else 500.0
    readings = {**EVERY, "STP": 960.0, "SLP": 1020.0}
    x = inputs(table(elevation, **{k: v for k, v in readings.items() if k != name}), rich(mean=7.0))
    assert x[name] == 7
    barometric = name in ("ELEVATION", "SLP", "STP")
    marked = {n for n in RICH_INPUTS if n.startswith("NO_") and x[n] == 1}
    assert marked == {f"NO_{name}"} | ({"NO_BAROMETRIC"} if barometric else set())
    assert (x["BAROMETRIC"] == 7) == barometric
    assert (x["PRESSURE_RATIO"] == 7) == (name in ("SLP", "STP"))


def test_near_sea_level_two_pressures_tell_no_temperature():
    x = inputs(table(elevation=10.0, SLP=1013.0, STP=11.8), rich())
    assert x["NO_BAROMETRIC"] == 1
    assert x["PRESSURE_RATIO"] == pytest.approx(10 * math.log(1013 / 1011.8), rel=1e-4)


def test_rich_inputs_are_clipped():
    x = inputs(table(**EVERY), rich(low=2.0, high=10.0))
    assert (x["VISIB"], x["SLP"], x["WDSP"]) == (10, 2, pytest.approx(8.9))


def test_rich_inputs_are_fitted_to_training_days_alone(folder):
    settings = config(folder, inputs="rich")
    stations, files = settings.stations()
    values, present = stations.column("WDSP")
    row_file = np.repeat(np.arange(len(stations.count)), stations.count)
    known = values[np.isin(row_file, files["train"]) & present]
    low, high = np.quantile(known, (0.001, 0.999))
    benchmark = settings.open()
    features = as_weather(benchmark.train).features
    at = MEASURED.index("WDSP")
    assert float(features.low[at]) == pytest.approx(low, rel=1e-5)
    assert float(features.high[at]) == pytest.approx(high, rel=1e-5)
    assert float(features.mean[at]) == pytest.approx(np.clip(known, low, high).mean(), rel=1e-5)
    assert features.common.tolist() == [1, 1, 1, 0, 0, 0]  # no hail, thunder or tornado in these files
    for source in (benchmark.val, benchmark.test):
        assert as_weather(source).features is features


# Who is held out.


def split_stations(settings: Config) -> dict[str, set[str]]:
    stations, files = settings.stations()
    return {split: set(stations.station[index].tolist()) for split, index in files.items()}


def test_no_station_is_in_two_splits(folder):
    splits = split_stations(config(folder))
    assert all(splits.values())
    assert sum(map(len, splits.values())) == len(set().union(*splits.values())) == 60


def test_a_station_stays_in_its_split_when_others_go(folder, tmp_path):
    before = split_stations(config(folder))
    stations = Stations.load(folder / "stations.npz")
    kept = np.flatnonzero(stations.year == 2019)[::2]
    fewer = dataclasses.replace(
        stations,
        **{n: getattr(stations, n)[kept] for n in ("station", "year", "latitude", "longitude", "elevation", "name")},
        **{n: getattr(stations, n)[kept] for n in ("offset", "count")},
    )
    fewer.save(tmp_path / "stations.npz")
    settings = Config(data=str(tmp_path / "stations.npz"), **SMALL)
    after = split_stations(settings)
    gone = set(stations.station.tolist()) - set(fewer.station.tolist())
    assert after == {split: names - gone for split, names in before.items()}


def test_another_seed_gives_another_split_and_name(folder):
    settings, other = config(folder), config(folder, split_seed=1)
    assert split_stations(settings)["test"] != split_stations(other)["test"]
    assert other.open().conditions == {"split": "station", "split_seed": 1, "shots": 5, "query": 40}


def test_shares_of_the_station_split():
    places = np.array([place_of(f"{i:011d}", 402) for i in range(20_000)])
    assert 0 <= places.min() < 0.001 < 0.999 < places.max() < 1
    for level in (0.12, 0.22):
        assert np.mean(places < level) == pytest.approx(level, abs=5 * math.sqrt(level / 20_000))


def authors_list(folder: Path, tmp_path: Path, compress: bool) -> tuple[Path, list[str]]:
    """The files here hidden among others, as in the authors' list of 48,745."""
    stations = Stations.load(folder / "stations.npz")
    here = [f"{y}/{s}.csv" for y, s in zip(stations.year, stations.station, strict=True)][:-3]
    others = [f"1969/{i:011d}.csv" for i in range(9_000)]
    names = here + others
    random.Random(1).shuffle(names)
    path = tmp_path / ("authors_file_list.csv.gz" if compress else "authors_file_list.csv")
    text = "\n".join(names) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if compress else text.encode())
    return path, names


@pytest.mark.parametrize("compress", [True, False])
def test_the_authors_split_is_their_list_shuffled_and_cut(compress, folder, tmp_path):
    path, names = authors_list(folder, tmp_path, compress)
    settings = config(folder, split="file", file_list=str(path))
    stations, files = settings.stations()
    random.seed(402)
    random.shuffle(names)
    parts = {"val": names[:5000], "test": names[5000:6000], "train": names[6000:]}
    for split, index in files.items():
        found = {f"{stations.year[i]}/{stations.station[i]}.csv" for i in index}
        assert found
        assert found == {name for name in parts[split] if not name.startswith("1969")}
    assert sum(map(len, files.values())) == 97  # those that are not on the list are not used


def test_the_authors_list_is_looked_for_beside_the_data(folder, tmp_path):
    (tmp_path / "stations.npz").write_bytes((folder / "stations.npz").read_bytes())
    settings = Config(data=str(tmp_path / "stations.npz"), split="file", **SMALL)
    with pytest.raises(
        SourceError, match=r"needs the authors' list of files, but there is no authors_file_list.csv or"
    ):
        settings.open()
    with pytest.raises(SourceError, match=r"there is no nowhere.csv\."):
        dataclasses.replace(settings, file_list="nowhere.csv").open()
    path, _ = authors_list(folder, tmp_path, compress=True)
    assert settings.open().conditions["split"] == "file"
    path.write_bytes(b"hello")
    with pytest.raises(SourceError, match=r"authors_file_list.csv.gz cannot be read"):
        settings.stations()


def short_and_long(folder: Path) -> None:
    write_year(folder, 40, num_days=60)
    rng = np.random.default_rng(0)
    for number, num_days in ((900, 5), (901, 39), (902, 40)):
        write_station(folder / "2019", f"{number:06d}99999", seasons(50.0, 10.0, num_days, rng))


def test_files_with_too_few_days_are_left_out_and_counted(tmp_path, monkeypatch):
    monkeypatch.setenv("STMAML_CACHE", str(tmp_path / "cache"))
    short_and_long(tmp_path / "gsod")
    monkeypatch.setenv("STMAML_DATA", str(tmp_path))
    stations, files = Config(test_query_size=30).stations()
    used = set(stations.station[np.concatenate(list(files.values()))].tolist())
    assert {"00090099999", "00090199999"} & used == set()
    assert "00090299999" in used
    counted = {kind: problem for kind, problem in stations.problems.items() if "fewer than" in kind}
    assert sum(problem.count for problem in counted.values()) == 2
    assert {name for problem in counted.values() for name in problem.examples} == {
        "2019/00090099999.csv",
        "2019/00090199999.csv",
    }


def test_too_few_files_for_three_splits_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("STMAML_CACHE", str(tmp_path / "cache"))
    write_year(tmp_path / "x", 2, num_days=50)
    with pytest.raises(SourceError, match=r"too few files for a benchmark: \d train, \d val, \d test with enough days"):
        Config(data=str(tmp_path / "x"), test_query_size=20).open()
    with pytest.raises(SourceError, match=r"110 held out"):
        Config(data=str(tmp_path / "x")).open()


# Which days make a task.


@pytest.fixture(scope="module")
def benchmark(folder) -> Benchmark:
    return config(folder).open()


@pytest.fixture(scope="module")
def known(folder) -> dict[tuple, tuple[int, int]]:
    """File and day of every row, by its inputs and temperature; all rows of the files differ."""
    settings = config(folder)
    stations, files = settings.stations()
    found = {}
    for source in (settings.open().train, settings.open().val, settings.open().test):
        x, y, file = as_weather(source).pooled(10**9, 0)
        rows = [stations.offset[f] + i for f in dict.fromkeys(file.tolist()) for i in range(stations.count[f])]
        for inputs_, target, f, row in zip(x, y, file, rows, strict=True):
            found[(*inputs_.tolist(), float(target))] = (int(f), int(stations.day[row]))
    assert len(found) == sum(int(stations.count[index].sum()) for index in files.values())
    return found


def rows_of(examples, task: int) -> list[tuple]:
    real = np.asarray(examples.weight[task]) > 0
    x, y = np.asarray(examples.x[task])[real], np.asarray(examples.y[task])[real]
    return [(*a.tolist(), float(b[0])) for a, b in zip(x, y, strict=True)]


def test_tasks_fit_their_spec(benchmark):
    for source, size in ((benchmark.train, 20), (benchmark.val, 40), (benchmark.test, 40)):
        batch = draw(source, 6)
        check_batch(batch, source.spec)
        assert source.spec.x_shape == (16,)
        assert batch.tasks.support.x.shape == (6, 5, 16)
        assert batch.tasks.query.y.shape == (6, size, 1)
        assert (np.asarray(batch.tasks.query.weight) == 1).all()
    assert benchmark.conditions == {"split": "station", "shots": 5, "query": 40}
    assert benchmark.families == BANDS
    assert BENCHMARKS["weather"] is Config


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_a_task_is_distinct_days_of_one_file_of_its_split(split, folder, benchmark, known):
    stations, files = config(folder).stations()
    batch = draw(getattr(benchmark, split), 6, seed=3)
    for task in range(6):
        support = [known[row] for row in rows_of(batch.tasks.support, task)]
        query = [known[row] for row in rows_of(batch.tasks.query, task)]
        (file,) = {f for f, _ in support + query}
        assert file in files[split]
        assert len(set(support + query)) == len(support) + len(query) == 5 + (20 if split == "train" else 40)
        assert batch.family[task] == bands(stations.latitude[[file]])[0]


def test_targets_and_inputs_are_those_of_the_files(folder, benchmark):
    """Rows by their printed values, without the benchmark's own way to them."""
    stations, _ = config(folder).stations()
    temperature, wind = stations.column("TEMP")[0], stations.column("WDSP")[0]
    row_file = np.repeat(np.arange(len(stations.count)), stations.count)
    days_in_year = np.where(stations.year[row_file] == 2020, 366, 365)
    wanted = {
        (round(t, 1), round(w, 1), round(d, 4))
        for t, w, d in zip(
            temperature.tolist(), wind.tolist(), (stations.day / (days_in_year - 1)).tolist(), strict=True
        )
    }
    query = draw(benchmark.train, 50).tasks.query
    x, y = np.asarray(query.x).reshape(-1, 16), np.asarray(query.y).ravel()
    drawn = {
        (round(t, 1), round(w, 1), round(d, 4))
        for t, w, d in zip(y.tolist(), x[:, 5].tolist(), x[:, 0].tolist(), strict=True)
    }
    assert drawn <= wanted


def test_the_same_key_gives_the_same_tasks_and_another_key_others(benchmark):
    first, again, other = (draw(benchmark.train, 6, seed) for seed in (0, 0, 1))
    for a, b in zip(*map(jax.tree.leaves, (first, again)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert (first.tasks.query.y != other.tasks.query.y).mean() > 0.9


@pytest.mark.parametrize(("inputs_", "split"), [("rich", "train"), ("paper", "test")])
def test_double_precision_draws_the_same_tasks(inputs_, split, folder):
    source = getattr(config(folder, inputs=inputs_, min_shots=1).open(), split)
    frozen = freeze(source, 6, seed=5).batch
    for a, b in zip(*map(jax.tree.leaves, (draw(source, 6, seed=5), frozen)), strict=True):
        np.testing.assert_allclose(np.asarray(a), b, rtol=2e-6, atol=1e-6)


def test_sampling_works_under_vmap(benchmark):
    keys = jr.split(jr.key(0), 2)
    together = eqx.filter_jit(lambda source: jax.vmap(lambda key: source.sample(6, key=key))(keys))(benchmark.train)
    for i in range(2):
        for a, b in zip(*map(jax.tree.leaves, (together, compiled(benchmark.train, 6, keys[i]))), strict=True):
            np.testing.assert_allclose(a[i], b, rtol=1e-6)


def test_training_files_are_drawn_evenly(benchmark):
    train = as_weather(benchmark.train)
    num_files = train.num_files
    tagged = eqx.tree_at(lambda t: t.days.band, train, jnp.arange(num_files, dtype=jnp.int32))
    drawn = np.bincount(draw(tagged, 100 * num_files).family, minlength=num_files)
    assert (np.abs(drawn - 100) < 5 * 10).all()


def test_held_out_files_come_once_each_until_all_came(benchmark):
    test = as_weather(benchmark.test)
    num_files = test.num_files
    tagged = eqx.tree_at(lambda t: t.days.band, test, jnp.arange(num_files, dtype=jnp.int32))
    assert len(set(draw(tagged, num_files).family.tolist())) == num_files
    assert np.bincount(draw(tagged, 2 * num_files).family).tolist() == [2] * num_files
    assert draw(tagged, num_files, seed=1).family.tolist() != draw(tagged, num_files, seed=2).family.tolist()


def test_shuffled_days_are_a_fair_permutation():
    orders = np.asarray(jax.vmap(lambda key: shuffled(jnp.asarray(50), key=key))(jr.split(jr.key(0), 4000)))
    assert orders.shape == (4000, 366)
    assert (np.sort(orders[:, :50], axis=1) == np.arange(50)).all()
    assert (np.sort(orders, axis=1) == np.arange(366)).all()
    for place in (0, 25, 49):
        counts = np.bincount(orders[:, place], minlength=50)
        assert ((counts - 80) ** 2 / 80).sum() < 49 + 5 * math.sqrt(2 * 49)


def test_other_shots_meet_the_same_stations_and_query_days(folder):
    batches = {shots: draw(config(folder, shots=shots).open().test, 6) for shots in (2, 5, 40)}
    few, some, many = (batches[shots].tasks for shots in (2, 5, 40))
    np.testing.assert_array_equal(few.query.x, some.query.x)
    np.testing.assert_array_equal(few.query.x, many.query.x)  # 80 days are enough for 40 and 40
    np.testing.assert_array_equal(some.support.x[:, :2], few.support.x)
    np.testing.assert_array_equal(many.support.x[:, :5], some.support.x)


def test_a_query_that_does_not_fit_shrinks_by_weights_of_0(folder, known):
    settings = config(folder, shots=60)  # of 80 days
    query = draw(settings.open().test, 6).tasks.query
    assert (np.asarray(query.weight) == (np.arange(40) < 20)).all()
    assert (np.asarray(query.x)[:, 20:] == 0).all()
    assert (np.asarray(query.y)[:, 20:] == 0).all()
    whole = draw(config(folder, shots=5).open().test, 6).tasks.query
    np.testing.assert_array_equal(query.x[:, :20], whole.x[:, :20])
    assert all(row in known for row in rows_of(query, 0))
    train = draw(config(folder, shots=10, query_size=75).open().train, 6)
    assert (np.asarray(train.tasks.query.weight).sum(1) == 70).all()
    check_batch(train, settings.open().train.spec)


def test_training_draws_fewer_shots_if_asked(folder):
    built = config(folder, min_shots=2).open()
    support = draw(built.train, 400).tasks.support
    weight = np.asarray(support.weight)
    counts = np.bincount(weight.sum(1).astype(int), minlength=6)
    assert counts[:2].tolist() == [0, 0]
    assert (np.abs(counts[2:] - 100) < 50).all()
    assert (np.asarray(support.x)[weight == 0] == 0).all()
    assert (np.asarray(draw(built.test, 5).tasks.support.weight) == 1).all()


@pytest.mark.parametrize("inputs_", ["paper", "rich"])
def test_dates_of_a_training_task_move_together_and_nothing_else_does(inputs_, folder):
    plain = config(folder, inputs=inputs_).open()
    moving = config(folder, inputs=inputs_, date_shift=3).open()
    before, after = (draw(built.train, 200).tasks for built in (plain, moving))
    names = RICH_INPUTS if inputs_ == "rich" else PAPER_INPUTS
    dated = np.isin(names, ("DATE", "SIN1", "COS1", "SIN2", "COS2"))
    shifts = []
    for part in ("support", "query"):
        old, new = (np.asarray(getattr(tasks, part).x) for tasks in (before, after))
        np.testing.assert_array_equal(old[:, :, ~dated], new[:, :, ~dated])
        np.testing.assert_array_equal(getattr(before, part).y, getattr(after, part).y)
        days = np.round((new - old)[:, :, 0] * 364.5)  # right for years of 365 and of 366 days
        shifts.append(np.where(np.abs(days) > 300, np.nan, days))  # over the end of the year: the next test
    together = np.concatenate(shifts, axis=1)
    np.testing.assert_array_equal(np.nanmin(together, axis=1), np.nanmax(together, axis=1))
    assert set(np.nanmax(together, axis=1).tolist()) == {-3, -2, -1, 0, 1, 2, 3}
    for split in ("val", "test"):
        want, got = (draw(getattr(built, split), 5) for built in (plain, moving))
        np.testing.assert_array_equal(got.tasks.query.x, want.tasks.query.x)


@pytest.mark.parametrize("last_day", [364, 365])
def test_a_moved_date_runs_over_the_end_of_its_year(last_day):
    """The last day of a year and two more is its second day, and two before its first day the last but one."""
    zero = jnp.zeros(1, dtype=jnp.int32)
    for features in (paper(), rich()):
        for day, shift, lands in ((last_day, 2, 1), (0, -2, last_day - 1)):
            by = Moved(jnp.array(shift), jnp.array(False), jnp.array(0))
            moved = features(table(day=day, last_day=last_day), zero, zero, by)
            np.testing.assert_allclose(moved, features(table(day=lands, last_day=last_day), zero, zero), atol=1e-6)


def test_the_script_that_moves_dates_moves_nothing_else(folder):
    script = Path(__file__).parents[2] / "studies" / "shifted_dates.py"
    if not script.exists():
        pytest.skip("studies/ is not part of this copy of the sources")
    source = config(folder).open().val
    moved = draw(runpy.run_path(str(script), run_name="shifted")["shifted"](source, 2), 5).tasks
    for part in ("support", "query"):
        new, old = getattr(moved, part), getattr(draw(source, 5).tasks, part)
        np.testing.assert_array_equal(new.y, old.y)
        np.testing.assert_array_equal(new.x[:, :, 1:], old.x[:, :, 1:])
        days = np.round(np.asarray(new.x - old.x)[:, :, 0] * 364.5)
        assert np.isin(days, (2, -362, -363)).all()  # the last two over the end of the year
        assert (days == 2).mean() > 0.9


def test_bands_of_latitude():
    latitudes = np.array([0.0, -23.4, 23.5, -66.4, 66.5, -90.0, np.nan])
    assert [BANDS[i] for i in bands(latitudes)] == [
        *("tropics", "tropics", "temperate", "temperate", "polar", "polar", "unknown")
    ]


def test_pooled_rows_are_drawn_without_replacement(benchmark, folder):
    train = as_weather(benchmark.train)
    x, y, file = train.pooled(500, 0)
    assert (x.shape, y.shape, file.shape) == ((500, 16), (500,), (500,))
    assert len({(*a.tolist(), b) for a, b in zip(x, y.tolist(), strict=True)}) == 500
    stations, files = config(folder).stations()
    assert set(file.tolist()) <= set(files["train"].tolist())
    np.testing.assert_allclose(x[:, 1], stations.elevation[file] / 1000, rtol=1e-5)
    again, other = train.pooled(500, 0), train.pooled(500, 1)
    np.testing.assert_array_equal(x, again[0])
    assert (y != other[1]).any()
    all_x, all_y, _ = train.pooled(10**9, 0)
    assert len(all_x) == stations.count[files["train"]].sum()
    first, count = stations.offset.tolist(), stations.count.tolist()
    rows = np.concatenate([np.arange(first[f], first[f] + count[f]) for f in files["train"]])
    np.testing.assert_allclose(all_y, stations.column("TEMP")[0][rows], rtol=1e-6)


def test_pooled_rows_do_not_depend_on_chunks(benchmark, monkeypatch):
    whole = as_weather(benchmark.train).pooled(300, 0)
    monkeypatch.setattr(weather_tasks, "POOLED_ROWS", 150)
    for a, b in zip(whole, as_weather(benchmark.train).pooled(300, 0), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_showcases_are_years_of_test_stations(benchmark, folder):
    stations, files = config(folder).stations()
    shown = benchmark.showcases()
    present = {BANDS[i] for i in bands(stations.latitude[files["test"]])}
    assert {case.name.split("-")[0] for case in shown} == present
    for case in shown:
        assert case.support.x.shape == (10, 16)
        assert case.x.shape == (80, 16)
        assert (np.diff(case.axis) > 0).all()
        index = [i for i in files["test"] if stations.station[i] == case.name.split("-")[1]]
        rows = [slice(stations.offset[i], stations.offset[i] + stations.count[i]) for i in index]
        temperature = [stations.column("TEMP")[0][r] for r in rows]
        assert any(np.allclose(case.truth[:, 0], t, rtol=1e-6) for t in temperature)
        assert any(np.array_equal(case.axis, stations.day[r]) for r in rows)
        whole = {(*a.tolist(), float(b)) for a, b in zip(np.asarray(case.x), case.truth[:, 0], strict=True)}
        assert {
            (*a.tolist(), float(b)) for a, b in zip(np.asarray(case.support.x), case.support.y[:, 0], strict=True)
        } < (whole)


def test_a_benchmark_under_other_settings_shares_what_was_read(folder, monkeypatch):
    five = config(folder, shots=5).open()
    monkeypatch.setattr(weather, "read_years", None)  # files are not read again
    assert five.vary(five.settings) is five
    ten = five.vary(config(folder, shots=10))
    assert ten.conditions["shots"] == 10
    assert as_weather(five.test).days is as_weather(ten.test).days  # one copy in memory


def test_neither_place_nor_other_temperatures_are_inputs():
    for name in ("LATITUDE", "LONGITUDE", "TEMP", "DEWP", "MAX", "MIN"):
        assert name not in RICH_INPUTS


def test_seasons_can_be_learnt(folder):
    """A straight line through pooled days with the season's wave explains part of what the mean cannot."""
    built = config(folder, inputs="rich").open()
    x, y, _ = as_weather(built.train).pooled(10**9, 0)
    test_x, test_y, _ = as_weather(built.test).pooled(10**9, 0)
    weights, *_ = np.linalg.lstsq(np.c_[x, np.ones(len(x))], y)
    error = np.mean((np.c_[test_x, np.ones(len(test_x))] @ weights - test_y) ** 2)
    assert error < 0.8 * np.mean((test_y - y.mean()) ** 2)


# Settings that make no sense.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shots": 0}, "--shots must be at least 1; got 0"),
        ({"query_size": 0}, "--query-size must be at least 1"),
        ({"test_query_size": -1}, "--test-query-size must be at least 1"),
        ({"min_days": 0}, "--min-days must be at least 1"),
        ({"min_shots": 11}, r"--min-shots must lie between 0 and --shots \(10\); got 11"),
        ({"shots": 366}, "--shots must be at most 365"),
        ({"test_query_size": 357}, "--test-query-size must be at most 356"),
        ({"date_shift": -1}, "--date-shift must lie between 0 and 182 days; got -1"),
        ({"date_shift": 183}, "--date-shift must lie between 0 and 182 days; got 183"),
        ({"inputs": "rich", "handling": "released"}, "--inputs rich needs --handling correct"),
    ],
)
def test_settings_without_sense_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        Config(**settings)


def test_missing_data_are_asked_for(monkeypatch, tmp_path):
    monkeypatch.delenv("STMAML_DATA", raising=False)
    with pytest.raises(SourceError, match="--data"):
        Config().open()
    monkeypatch.setenv("STMAML_DATA", str(tmp_path))
    with pytest.raises(SourceError, match="gsod"):
        Config().open()
