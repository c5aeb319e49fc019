"""Weather of several years: who is held out in all of them, and dates that move."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stmaml.benchmarks.base import Benchmark
from stmaml.benchmarks.weather import KNOWS_ITS_YEARS, Config
from stmaml.benchmarks.weather_inputs import AROUND_INPUTS, CLOCK, MEASURED, MIDWINTER, SEASON_INPUTS, Moved
from stmaml.benchmarks.weather_tasks import Course, Moves, Sizes, Weather
from stmaml.data.noaa import read_stations
from stmaml.data.stations import MISSING, NAMES, Stations, joined
from stmaml.data.years import read_years, source_of
from stmaml.errors import SettingError, SourceError
from stmaml.experiments import EvaluateConfig
from stmaml.recipes import recipe
from tests.noaa_files import pack, write_year

SMALL: dict[str, Any] = {"shots": 5, "query_size": 20, "test_query_size": 40}


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """gsod/2019.tar.xz of 60 stations, and gsod-2022/2022.tar.xz of 40, of which 30 were there in 2019."""
    root = tmp_path_factory.mktemp("data")
    for year, first, number in ((2019, 1, 60), (2022, 31, 40)):
        files = write_year(root / "loose", number, year=year, first=first, num_days=60)
        place = root / ("gsod" if year == 2019 else f"gsod-{year}")
        place.mkdir()
        pack(place / f"{year}.tar.xz", files)
    return root


@pytest.fixture(autouse=True)
def _cache(root, monkeypatch):
    monkeypatch.setenv("STMAML_CACHE", str(root / "cache"))
    monkeypatch.delenv("STMAML_DATA", raising=False)


def config(root: Path, **settings) -> Config:
    return Config(data=str(root / "gsod"), **{**SMALL, **settings})


def names(settings: Config) -> dict[str, set[tuple[int, str]]]:
    """Year and station of each file, by split."""
    stations, files = settings.stations()
    return {split: {(int(stations.year[i]), str(stations.station[i])) for i in files[split]} for split in files}


def test_a_station_is_in_one_part_in_all_years(root):
    own, other = names(config(root, years=(2019, 2022))), names(config(root, years=(2019,), test_years=(2022,)))
    stations = {split: {station for _, station in found} for split, found in own.items()}
    assert not stations["train"] & (stations["val"] | stations["test"])
    assert not stations["val"] & stations["test"]
    assert {year for found in own.values() for year, _ in found} == {2019, 2022}
    assert {year for year, _ in other["train"] | other["val"]} == {2019}
    assert {year for year, _ in other["test"]} == {2022}
    assert not {station for _, station in other["test"]} & {station for _, station in other["train"]}
    assert other["train"] == {file for file in own["train"] if file[0] == 2019}
    assert other["test"] == {file for file in own["test"] if file[0] == 2022}


def test_one_year_named_is_that_year_read_alone(root):
    """The same days, whether the year is named, the only one, or one of several in a saved file."""
    alone, named = config(root).open(), config(root, years=(2019,)).open()
    saved = root / "both.npz"
    read_years(root / "gsod", (2019, 2022))[0].save(saved, packed=True)
    picked = Config(data=str(saved), years=(2019,), **SMALL).open()
    for other in (named, picked):
        assert other.val_set(6).digest == alone.val_set(6).digest
        assert other.test_set(6).digest == alone.test_set(6).digest
    assert "years" not in alone.conditions
    assert named.conditions["years"] == "2019"


def test_a_test_in_another_year_leaves_training_as_it_was(root):
    """Inputs are scaled by what was known in training, whatever is tested on."""
    here = config(root, years=(2019,), inputs="rich").open()
    there = here.vary(config(root, years=(2019,), test_years=(2022,), inputs="rich"))
    assert there.val_set(6).digest == here.val_set(6).digest
    assert there.test_set(6).targets_digest != here.test_set(6).targets_digest
    np.testing.assert_array_equal(as_weather(there.test).features.mean, as_weather(here.train).features.mean)
    assert (there.conditions["years"], there.besides) == ("2022", ({"years": (2019,)},))
    assert here.besides == ()


def as_weather(source: object) -> Weather:
    assert isinstance(source, Weather)
    return source


def test_evaluation_in_other_years_changes_tests_and_nothing_trained(root):
    experiment = recipe("weather", "st-maml", "years")
    trained = experiment.benchmark_settings
    tested = EvaluateConfig(years=(2022,), val_shift=3).of(experiment)
    assert isinstance(tested, Config)
    assert isinstance(trained, Config)
    assert (tested.test_years, tested.val_years, tested.val_shift) == ((2022,), (2022,), 3)
    assert (tested.years, tested.date_shift, tested.min_shots) == (trained.years, trained.date_shift, None)
    with pytest.raises(SettingError, match="regression2d has no --years to change at test time"):
        EvaluateConfig(years=(2022,)).of(recipe("regression2d", "maml"))


def test_a_year_is_found_in_its_own_folder(root, tmp_path, monkeypatch):
    beside = root / "gsod-2022" / "2022.tar.xz"
    for path in (root / "gsod", root / "gsod" / "2019.tar.xz"):
        assert source_of(path, 2022) == beside
        assert source_of(path, 2019) == root / "gsod" / "2019.tar.xz"
    assert source_of(root / "loose", 2022) == root / "loose" / "2022"
    assert source_of(tmp_path, 2022) is None
    monkeypatch.setenv("STMAML_DATA", str(root))
    assert source_of(tmp_path, 2022) == beside
    with pytest.raises(SourceError, match=r"has no station of 1999. Put NOAA's 1999.tar.gz .*gsod-1999"):
        read_years(root / "gsod", (2019, 1999))


def test_joined_years_keep_each_file_its_days(root):
    parts = [read_stations(root / "gsod"), read_stations(root / "gsod-2022")]
    whole = joined([parts[1], parts[0]])
    assert (np.diff(whole.year) >= 0).all()
    assert len(whole.station) == 100
    for part in parts:
        again = whole.of_years([int(part.year[0])])
        np.testing.assert_array_equal(again.station, part.station)
        for i in (0, len(part.station) - 1):
            np.testing.assert_array_equal(days(again, i), days(part, i))


def days(stations: Stations, file: int) -> np.ndarray:
    rows = slice(stations.offset[file], stations.offset[file] + stations.count[file])
    return np.c_[stations.day[rows], stations.readings[rows]]


# Dates that move.


def test_a_mirrored_year_keeps_its_seasons():
    """What is so far from midwinter stays as far from it, on the other side."""
    day = jnp.arange(365.0)
    moved = Moved(jnp.array(0), jnp.array(True), jnp.array(0))(day, jnp.full(365, 364.0))
    season = np.cos(2 * np.pi * (np.asarray(moved) - MIDWINTER) / 365)
    np.testing.assert_allclose(season, np.cos(2 * np.pi * (np.arange(365) - MIDWINTER) / 365), atol=1e-5)
    assert sorted(np.asarray(moved).tolist()) == day.tolist()
    assert (moved[10], moved[37], moved[38]) == (27, 0, 364)


def test_moves_are_within_their_bounds_and_half_are_mirrored():
    moved = Moves(3, mirror=True, clock=True).draw((4000,), key=jr.key(0))
    assert moved is not None
    assert set(np.asarray(moved.days).tolist()) == set(range(-3, 4))
    assert np.mean(moved.mirrored) == pytest.approx(0.5, abs=0.04)
    assert (int(moved.clock.min()), int(moved.clock.max())) == (0, 364)
    assert Moves().draw((), key=jr.key(0)) is None


def test_hands_of_the_clock_tell_how_far_apart_days_are_and_not_which_they_are(root):
    source = as_weather(config(root, inputs="seasons").open().train)
    rows, files = jnp.arange(20, dtype=jnp.int32), jnp.zeros(20, dtype=jnp.int32)
    hands = [name in SEASON_INPUTS[-2 * len(CLOCK) :] for name in SEASON_INPUTS]
    seen = []
    for begin in (0, 100):
        moved = Moved(jnp.array(0), jnp.array(False), jnp.array(begin))
        seen.append(np.asarray(source.features(source.days, rows, files, moved))[:, hands])
    apart = np.asarray(source.days.day[:20], dtype=float)[:, None] - np.asarray(source.days.day[:20])[None, :]
    wanted = sum(np.cos(2 * np.pi * turns * apart / 365) for turns in CLOCK)
    for one in seen:
        np.testing.assert_allclose(one @ one.T, wanted, atol=1e-3)
    assert np.abs(seen[0] - seen[1]).max() > 0.5
    assert "DATE" not in SEASON_INPUTS


def test_neighbouring_days_are_told_by_what_changes(root):
    """Wind of 0.1 knots as printed: each day's less its neighbours', looked up by hand; nothing beyond a gap or the
    end of a file, nothing of the next station."""
    stations, chosen = config(root, inputs="seasons-around").stations()
    source = as_weather(config(root, inputs="seasons-around").open().train)
    column = {name: i for i, name in enumerate(source.features.names)}
    file = 1
    first, count = int(source.days.first[file]), int(source.days.count[file])
    rows = jnp.arange(first, first + count, dtype=jnp.int32)
    seen = np.asarray(source.features(source.days, rows, jnp.full(count, file, dtype=jnp.int32)))
    printed = {int(day): values for day, *values in days(stations, int(chosen["train"][file]))}
    low, high = (np.asarray(a)[MEASURED.index("WDSP")] for a in (source.features.low, source.features.high))

    def wind(day: int) -> float | None:
        value = printed[day][NAMES.index("WDSP")] if day in printed else MISSING
        return None if value == MISSING else float(np.clip(value / 10, low, high))

    for step, name in ((-1, "BEFORE"), (1, "AFTER")):
        pairs = [(wind(day), wind(day + step)) for day in printed]
        wanted = [0.0 if one is None or other is None else other - one for one, other in pairs]
        np.testing.assert_allclose(seen[:, column[f"WDSP_{name}"]], wanted, atol=1e-5)
        there = [day + step in printed for day in printed]
        np.testing.assert_array_equal(seen[:, column[f"IS_{name}"]], there)
        assert np.abs(wanted).max() > 0.1
        assert not all(there)


def test_a_year_that_runs_backwards_changes_before_and_after(root):
    source = as_weather(config(root, inputs="rich-around").open().train)
    rows, files = jnp.arange(20, dtype=jnp.int32), jnp.zeros(20, dtype=jnp.int32)
    on, back = (
        np.asarray(source.features(source.days, rows, files, Moved(jnp.array(0), jnp.array(turned), jnp.array(0))))
        for turned in (False, True)
    )
    half = len(AROUND_INPUTS) // 2 - 1
    for part, size in ((slice(-2 * half - 2, -2), half), (slice(-2, None), 1)):
        np.testing.assert_array_equal(on[:, part], np.roll(back[:, part], size, axis=1))
    assert not np.array_equal(on[:, -2 * half - 2 : -2], back[:, -2 * half - 2 : -2])
    assert source.features.names[0] == "DATE"


def test_another_year_is_a_smooth_course_added_to_training_temperatures_alone(root):
    plain, moved = (config(root, inputs="seasons", anomaly=size).open() for size in (0.0, 2.0))
    key = jr.key(3)
    before, after = (as_weather(one.train).sample(50, key=key).tasks for one in (plain, moved))
    np.testing.assert_array_equal(before.query.x, after.query.x)
    added = np.asarray(after.query.y - before.query.y)[np.asarray(before.query.weight) > 0]
    assert np.std(added) == pytest.approx(2.0, rel=0.25)
    for part in ("val", "test"):
        one, other = (getattr(benchmark, part).sample(5, key=key).tasks.query.y for benchmark in (plain, moved))
        np.testing.assert_array_equal(one, other)


def test_a_course_has_its_spread_and_changes_little_from_day_to_day():
    day = jnp.arange(365.0)
    courses = np.stack([np.asarray(Course.draw(2.0, key=jr.key(i))(day)) for i in range(200)])
    assert courses.std() == pytest.approx(2.0, rel=0.03)
    assert abs(courses.mean()) < 0.1
    turns = np.random.default_rng(0).uniform(6, 36, 10_000)
    wanted = np.cos(2 * np.pi * turns / 365).mean()  # of waves, the correlation of neighbouring days
    assert np.mean(courses[:, 1:] * courses[:, :-1]) / 4 == pytest.approx(wanted, abs=0.03)


def test_validation_dates_move_if_asked_and_test_dates_never(root):
    plain, moving = config(root).open(), config(root, val_shift=5, val_mirror=True).open()
    before, after = (np.asarray(built.val_set(30).batch.tasks.query.x) for built in (plain, moving))
    np.testing.assert_array_equal(before[:, :, 1:], after[:, :, 1:])
    assert (before[:, :, 0] != after[:, :, 0]).any(1).mean() > 0.8
    assert moving.test_set(6).digest == plain.test_set(6).digest


def test_baselines_of_a_test_in_other_years_have_moved_dates_too(root):
    here, there = config(root).open(), config(root, test_years=(2022,)).open()
    assert rows_settings(here).date_shift == 0
    assert (rows_settings(there).date_shift, rows_settings(there).val_shift) == (20, 20)
    plain = as_weather(here.vary(rows_settings(here)).train).pooled(10**6, 0)
    moved = as_weather(there.vary(rows_settings(there)).train).pooled(10**6, 0)
    np.testing.assert_array_equal(plain[1], moved[1])
    shift = np.round((moved[0] - plain[0])[:, 0] * 364)
    for file in np.unique(plain[2])[:5]:  # all days of a file alike, but for those that run over the year's end
        own = np.unique(shift[plain[2] == file] % 365)
        assert len(own) <= 2
        assert min(own.max(), 365 - own.min()) <= 21


def rows_settings(benchmark: Benchmark) -> Config:
    assert benchmark.rows is not None
    assert isinstance(benchmark.rows.settings, Config)
    return benchmark.rows.settings


def test_numbers_of_labelled_days_are_drawn_by_their_ratio():
    sizes = Sizes(40, 30, min_shots=2, by_ratio=True)
    weights = jax.vmap(lambda key: sizes.weights(key=key))(jr.split(jr.key(0), 1500))
    counts = np.asarray(weights).sum(1)
    assert (counts.min(), counts.max()) == (2, 40)
    for low, high in ((2, 4), (10, 20)):
        share = np.log((high + 1) / low) / np.log(41 / 2)
        assert np.mean((counts >= low) & (counts <= high)) == pytest.approx(share, abs=0.05)


def test_a_learner_that_may_know_its_years_is_warned_of(root):
    assert KNOWS_ITS_YEARS in config(root).open().notes
    assert KNOWS_ITS_YEARS not in config(root, date_shift=7).open().notes


def test_by_file_no_other_year_is_tested(root):
    with pytest.raises(SettingError, match="tests in other years need --split station"):
        config(root, split="file", test_years=(2022,))
