"""A table that stays on disk: the same numbers and the same tasks as in memory, and sentences where files are odd."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.random as jr
import numpy as np
import polars as pl
import pytest

from stmaml.errors import SourceError
from stmaml.tables.asking import TableConfig
from stmaml.tables.benchmark import Config
from stmaml.tables.groups import Sizes
from stmaml.tables.ondisk import cache, files, opening, predicting, shards, spill, survey
from stmaml.tables.ondisk.files import is_large, open_files
from stmaml.tables.ondisk.spill import Spill
from stmaml.tables.parts import Reading
from tests.table_data import lines

TABLE = TableConfig("shop", "y", sizes=Sizes(shots=4, query_size=6, min_query=2))


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("STMAML_CACHE", str(tmp_path / "cache"))


def rich(num_groups: int = 40, rows: int = 12, seed: int = 0) -> pl.DataFrame:
    """Lines with a name, a flag, a date, a gap here and there, and rows in any order."""
    frame, random = lines(num_groups, rows, seed=seed), np.random.default_rng(seed)
    height = frame.height
    days = np.datetime64("2024-01-01") + random.integers(0, 300, height).astype("timedelta64[D]")
    frame = frame.with_columns(
        kind=pl.Series(random.choice(["a", "b", "c"], height)),
        open=pl.Series(random.random(height) < 0.5),
        day=pl.Series(days),
        gap=pl.Series(np.where(random.random(height) < 0.1, np.nan, random.normal(size=height))),
    )
    return frame.sample(fraction=1.0, shuffle=True, seed=seed)


def stored(folder: Path, frame: pl.DataFrame, parts: int = 3) -> Path:
    """The frame as a folder of Parquet files."""
    folder.mkdir(parents=True, exist_ok=True)
    size = -(-frame.height // parts)
    for number in range(parts):
        frame.slice(number * size, size).write_parquet(folder / f"part-{number}.parquet")
    return folder


def config_of(folder: Path, table: TableConfig = TABLE, *, on_disk: bool = True) -> Config:
    return Config(table, (str(folder),), on_disk=on_disk)


def small_batches(monkeypatch, rows: int = 100) -> None:
    monkeypatch.setattr(files, "ROWS_AT_ONCE", rows)
    monkeypatch.setattr(files.DiskTable, "batch_rows", property(lambda self: rows))
    monkeypatch.setattr(shards, "SHARD_BYTES", 2000)


def same_tasks(one: Any, other: Any, key: int) -> None:
    for a, b in zip(*(jax.tree.leaves(source.sample(16, key=jr.key(key))) for source in (one, other)), strict=True):
        np.testing.assert_allclose(np.asarray(a, float), np.asarray(b, float), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("order", [None, "day"])
def test_tasks_are_those_of_memory(tmp_path, monkeypatch, order):
    small_batches(monkeypatch)
    folder = stored(tmp_path / "table", rich())
    table = replace(TABLE, order=order)
    inside, outside = (config_of(folder, table, on_disk=on_disk).open() for on_disk in (False, True))
    if order is None:  # else rows are added up in another order
        assert outside.settings.schema == inside.settings.schema  # type: ignore[attr-defined]
    for part in ("train", "val", "test"):
        same_tasks(getattr(inside, part), getattr(outside, part), key=3)
    pooled = [benchmark.rows.pooled(10**6, 0) for benchmark in (inside, outside)]  # type: ignore[union-attr]
    for a, b in zip(*pooled, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_classes_and_groups_of_numbers(tmp_path, monkeypatch):
    small_batches(monkeypatch)
    frame = rich().with_columns(
        shop=pl.col("shop").str.extract(r"(\d+)").cast(pl.Float64),
        y=pl.when(pl.col("y") > 20).then(pl.lit("high")).otherwise(pl.lit("low")),
    )
    folder = stored(tmp_path / "table", frame)
    inside, outside = (config_of(folder, on_disk=on_disk).open() for on_disk in (False, True))
    same_tasks(inside.train, outside.train, key=1)


def test_a_sample_is_mended_by_what_all_rows_say(tmp_path, monkeypatch):
    """Exact means of a pool, and classes and gaps that no sampled row has."""
    small_batches(monkeypatch)
    monkeypatch.setattr(opening, "SAMPLED_ROWS", 120)
    frame = rich()
    folder = stored(tmp_path / "table", frame)
    disk = opening.look_at([folder], Reading(), TABLE)
    chosen = disk.sampled(disk.survey.names)
    assert chosen["shop"].n_unique() == 10
    schema = opening.schema_of_sample(disk, TABLE, chosen, train=None, notes=[])
    by_name = {column.name: column for column in schema.used}
    assert by_name["x"].mean == pytest.approx(frame["x"].mean())  # type: ignore[union-attr]
    assert by_name["x"].std == pytest.approx(frame["x"].std(ddof=0))  # type: ignore[union-attr]
    assert schema.target.mean == pytest.approx(frame["y"].mean())
    rare = disk.survey.names[-1]
    odd = frame.with_columns(
        x=pl.when(pl.col("shop") == rare).then(None).otherwise(pl.col("x")),
        y=pl.when(pl.col("shop") == rare).then(pl.lit("rare")).otherwise(pl.lit("usual") + pl.col("kind")),
    )
    disk = opening.look_at([stored(tmp_path / "odd", odd)], Reading(), TABLE)
    chosen = disk.sampled([name for name in disk.survey.names if name != rare])
    schema = opening.schema_of_sample(disk, TABLE, chosen, train=None, notes=[])
    assert "rare" in schema.target.classes
    assert {column.name for column in schema.used if column.has_missing} == {"x", "gap"}


def test_moments_are_those_of_all_rows(tmp_path, monkeypatch):
    small_batches(monkeypatch, 7)
    frame = rich().with_columns(x=pl.col("x") + 1e6)
    disk = opening.look_at([stored(tmp_path / "table", frame)], Reading(), TABLE)
    found = disk.survey.columns["x"]
    assert (found.count, found.low, found.high) == (frame.height, frame["x"].min(), frame["x"].max())
    assert found.mean == pytest.approx(frame["x"].mean(), rel=1e-12)
    assert found.std == pytest.approx(frame["x"].std(ddof=0), rel=1e-9)
    assert disk.survey.columns["gap"].missing == frame["gap"].is_nan().sum()
    counts = dict(frame.group_by("shop").len().iter_rows())
    assert disk.counts == counts


def test_csv_is_converted_once(tmp_path, monkeypatch):
    frame = rich()
    (tmp_path / "table").mkdir()
    frame.write_csv(tmp_path / "table" / "a.csv", separator=";")
    inside, outside = (config_of(tmp_path / "table", on_disk=on_disk).open() for on_disk in (False, True))
    same_tasks(inside.train, outside.train, key=1)
    monkeypatch.setattr(pl, "scan_csv", None)  # the second time nothing is read from it
    config_of(tmp_path / "table").open()


def test_a_second_start_reads_nothing(tmp_path, monkeypatch):
    folder = stored(tmp_path / "table", rich())
    first = config_of(folder).open()
    with monkeypatch.context() as patch:
        patch.setattr(survey._Counted, "add", None)
        patch.setattr(shards._Making, "make", None)
        second = Config(**vars(first.settings)).open()
        same_tasks(first.train, second.train, key=2)
    rich(seed=5).write_parquet(folder / "part-9.parquet")  # another table has another place
    third = config_of(folder).open()
    assert third.settings.digest != first.settings.digest  # type: ignore[attr-defined]


def test_half_written_shards_are_not_believed(tmp_path, monkeypatch):
    folder = stored(tmp_path / "table", rich())
    with monkeypatch.context() as patch:
        patch.setattr(shards._Making, "_gather", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            config_of(folder).open()
    (left,) = (tmp_path / "cache" / "tables").glob("*/shards-*")
    assert left.name.endswith(".partial")
    whole = config_of(folder).open()
    same_tasks(whole.train, config_of(folder, on_disk=False).open().train, key=4)
    assert not left.exists()


def test_spoilt_shards_are_made_again(tmp_path):
    folder = stored(tmp_path / "table", rich())
    first = config_of(folder).open()
    (rows,) = (tmp_path / "cache" / "tables").glob("*/shards-*/rows-0000.bin")
    for spoil in (rows, rows.with_name("shards.json"), rows.parents[1] / "survey.json"):
        spoil.write_bytes(spoil.read_bytes()[:-9])
        same_tasks(first.train, config_of(folder).open().train, key=1)


def test_tables_not_used_for_longest_make_room(tmp_path):
    root = tmp_path / "cache" / "tables"
    for name, when in (("old", 2), ("older", 1), ("new", 3)):
        cache.touch(root / name)
        (root / name / "rows.bin").write_bytes(bytes(1000))
        os.utime(root / name, (when, when))
    cache.make_room(root / "new", 500, most=2600)
    assert sorted(path.name for path in root.iterdir()) == ["new", "old"]
    cache.make_room(root / "new", 500, most=1000, read={root / "old"})
    assert sorted(path.name for path in root.iterdir()) == ["new", "old"]


def test_a_full_disk_is_a_sentence(tmp_path, monkeypatch):
    folder = stored(tmp_path / "table", rich())
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda path: _Usage)
    with pytest.raises(SourceError, match=r"take about .* and 0\.0 MB are free.*STMAML_CACHE"):
        config_of(folder).open()


class _Usage:
    free = 0


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda f: [p.unlink() for p in f.iterdir()], "has no CSV, Parquet"),
        (lambda f: (f / "part-1.parquet").write_bytes(b"no table"), "part-1.parquet is not a whole Parquet file"),
        (lambda f: lines(3, 4).drop("x").write_parquet(f / "part-1.parquet"), "other columns than the files before"),
        (
            lambda f: rich().with_columns(day=pl.col("open")).write_parquet(f / "part-1.parquet"),
            "different types in one column",
        ),
        (lambda f: [p.unlink() for p in f.iterdir()] and rich().clear().write_parquet(f / "a.parquet"), "no rows"),
        (
            lambda f: [rich().with_columns(shop=pl.lit(None, pl.String)).write_parquet(p) for p in sorted(f.iterdir())],
            "no row has both a 'shop' and a 'y'",
        ),
        (
            lambda f: rich().with_columns(x=pl.lit(float("inf"))).write_parquet(f / "part-1.parquet"),
            "'x' holds infinity",
        ),
        (lambda f: rich().write_ndjson(f / "more.jsonl"), "cannot be left on disk"),
    ],
)
def test_odd_files_are_a_sentence(tmp_path, spoil, said):
    folder = stored(tmp_path / "table", rich())
    spoil(folder)
    with pytest.raises(SourceError, match=said) as caught:
        config_of(folder).open()
    assert "\n" not in str(caught.value)


def test_rows_without_a_group_are_left_out_and_counted(tmp_path):
    frame = rich().with_columns(shop=pl.when(pl.int_range(pl.len()) < 5).then(None).otherwise(pl.col("shop")))
    folder = stored(tmp_path / "table", frame)
    inside, outside = (config_of(folder, on_disk=on_disk).open() for on_disk in (False, True))
    assert any(note.startswith("5 of 480 rows have no 'shop' or no 'y'") for note in outside.notes)
    same_tasks(inside.train, outside.train, key=0)


def test_size_decides(tmp_path, monkeypatch):
    folder = stored(tmp_path / "table", rich())
    assert not is_large([folder])
    monkeypatch.setattr(files, "LARGE_ROWS", 480)
    assert is_large([folder])
    rich().write_ndjson(folder / "more.jsonl")
    assert not is_large([folder])


def test_batches_keep_the_order(tmp_path, monkeypatch):
    small_batches(monkeypatch, 37)
    frame = rich()
    table = open_files([stored(tmp_path / "table", frame)], Reading())
    read = list(table.batches("reading"))
    assert pl.concat(part for _, part in read).equals(frame)
    assert [first for first, _ in read] == np.cumsum([0, *(part.height for _, part in read)])[:-1].tolist()


def test_notes_of_many_parts_are_one():
    said = shards.first_of_each(["a 1", "b", "a 2", "b"])
    assert said == ["a 1 (so in one of 2 parts of the table that say alike)", "b"]


@pytest.mark.parametrize("waiting", [0, 1 << 12, 1 << 30])
def test_buckets_give_back_what_they_got(tmp_path, monkeypatch, waiting):
    monkeypatch.setattr(spill, "WAITING_BYTES", waiting)
    frame = rich().with_columns(pl.col("kind").cast(pl.Categorical))
    bucket = np.arange(frame.height) % 7
    aside = Spill(tmp_path / "aside")
    for first in range(0, frame.height, 100):
        aside.add(frame.slice(first, 100), bucket[first : first + 100])
    plain = frame.with_columns(pl.col("kind").cast(pl.String))
    assert aside.rows[3] == (bucket == 3).sum()
    assert bool(aside.waiting) == (waiting > 0)
    assert aside.take(3).equals(plain.filter(pl.Series(bucket == 3)))  # type: ignore[union-attr]
    assert aside.take(3) is None
    assert aside.take_all([0, 1]).height == (bucket < 2).sum()  # type: ignore[union-attr]
    assert len(list((tmp_path / "aside").iterdir())) == 4


def test_distinct_numbers_are_those_of_all_parts(monkeypatch):
    monkeypatch.setattr(predicting, "FINE_ROWS", 40)
    parts = [np.random.default_rng(seed).integers(0, 300, 50).astype(np.uint64) for seed in range(20)]
    found = predicting.Distinct()
    for part in parts:
        found.add(part)
    np.testing.assert_array_equal(found.sorted(), np.unique(np.concatenate(parts)))
