"""The commands on tables that stay on disk: the same answers as in memory, in bounded pieces."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from stmaml.cli import predict_large
from stmaml.pool import meta_wide
from stmaml.pool.store import PoolRun
from stmaml.runs import Run
from stmaml.tables.ondisk import files, opening, predicting
from stmaml.tables.scoring import saved_result
from tests.table_data import lines
from tests.tables.test_ondisk import small_batches, stored

MEMBERS = ("--task", "shop", "--target", "y", "--members", "mean", "mixed")


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("STMAML_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def pieces(monkeypatch):
    """Every table is large, and is taken in small pieces."""
    small_batches(monkeypatch, 50)
    monkeypatch.setattr(predict_large, "WRITTEN_ROWS", 1)
    monkeypatch.setattr(predicting, "BUCKET_ROWS", 60)
    monkeypatch.setattr(predicting, "FINE_ROWS", 20)
    monkeypatch.setattr(predicting, "BLOCK_ROWS", 70)


def asked(folder: Path) -> tuple[Path, Path]:
    """Labelled rows and rows to predict of new groups, in any order."""
    frame = lines(30, 12, seed=9, prefix="new").with_columns(note=pl.lit("a remark of some length ") + pl.col("shop"))
    frame = frame.sample(fraction=1.0, shuffle=True, seed=1)
    first = pl.int_range(pl.len()).over("shop") < 4
    others = lines(20, 12, seed=11, prefix="not asked")
    pl.concat([frame.filter(first).drop("note"), others]).write_parquet(folder / "known.parquet")
    query = frame.filter(~first).drop("y")
    return folder / "known.parquet", stored(folder / "ask", query, parts=2)


def test_a_pool_on_disk_is_that_of_memory(stmaml, tmp_path, monkeypatch):
    table = stored(tmp_path / "table", lines(40, 12))
    known, query = asked(tmp_path)
    found = {}
    for name, words in {"memory": (), "disk": ("--on-disk",)}.items():
        code, _, err = stmaml("fit", table, *MEMBERS, "--run", tmp_path / name, *words)
        assert code == 0, err
        out = tmp_path / f"{name}.parquet"
        assert stmaml("predict", tmp_path / name, "--support", known, "--query", query, "--out", out)[0] == 0
        found[name] = pl.read_parquet(out)
    assert found["disk"].equals(found["memory"])


@pytest.mark.usefixtures("pieces")
def test_answers_in_pieces_are_those_of_memory(stmaml, tmp_path, monkeypatch):
    table = stored(tmp_path / "table", lines(40, 12))
    known, query = asked(tmp_path)
    assert stmaml("fit", table, *MEMBERS, "--run", tmp_path / "run")[0] == 0
    for words in (("--support", known), ()):
        out = [tmp_path / f"{name}.parquet" for name in ("pieces", "memory")]
        code, said, err = stmaml("predict", tmp_path / "run", *words, "--query", query, "--out", out[0], "--json")
        assert code == 0, err
        assert json.loads(said)["rows"] == 240
        with monkeypatch.context() as patch:
            patch.setattr(predict_large, "WRITTEN_ROWS", 10**9)
            assert stmaml("predict", tmp_path / "run", *words, "--query", query, "--out", out[1])[0] == 0
        pieces, memory = (pl.read_parquet(path) for path in out)
        assert pieces.columns == memory.columns
        assert (
            pieces.drop("prediction", "std", "novelty")
            .select(pl.exclude(pl.Float64))
            .equals(memory.drop("prediction", "std", "novelty").select(pl.exclude(pl.Float64)))
        )
        for name in ("x", "prediction", "std", "q05", "q95", "task_std"):
            np.testing.assert_allclose(pieces[name].to_numpy(), memory[name].to_numpy(), rtol=1e-9, err_msg=name)
    assert not list((tmp_path / "cache" / "tables").glob("predict-*"))
    assert not list(tmp_path.glob(".*partial"))


@pytest.mark.usefixtures("pieces")
def test_what_large_answers_refuse(stmaml, tmp_path, monkeypatch):
    table = stored(tmp_path / "table", lines(40, 12))
    known, query = asked(tmp_path)
    assert stmaml("fit", table, *MEMBERS[:4], "--members", "mean", "--run", tmp_path / "run")[0] == 0
    monkeypatch.setattr(predict_large, "LARGE_ROWS", 10)
    code, _, err = stmaml("predict", tmp_path / "run", "--query", query)
    assert (code, err.count("\n")) == (2, 1)
    assert "Add --out FILE.parquet" in err
    monkeypatch.setattr(predicting, "check_space", lambda folder, needed: (_ for _ in ()).throw(OSError(28, "full")))
    out = tmp_path / "out.parquet"
    out.write_bytes(b"old")
    with pytest.raises(OSError, match="full"):
        stmaml("predict", tmp_path / "run", "--query", query, "--support", known, "--out", out)
    assert out.read_bytes() == b"old"


@pytest.mark.slow
def test_the_meta_learned_member_draws_from_all_shards(stmaml, tmp_path, monkeypatch):
    """A pool whose sample is a quarter of the groups."""
    small_batches(monkeypatch)
    monkeypatch.setattr(opening, "SAMPLED_ROWS", 240)
    drawn, inner = [], meta_wide.Wide.tasks

    def seen(self, parts, draw, steps, num_tasks):
        drawn.append((self, parts))
        return inner(self, parts, draw, steps, num_tasks)

    monkeypatch.setattr(meta_wide.Wide, "tasks", seen)
    table = stored(tmp_path / "table", lines(80, 12))
    words = ("--task", "shop", "--target", "y", "--members", "mean", "maml", "--minutes", "0.5", "--on-disk")
    code, _, err = stmaml("fit", table, *words, "--run", tmp_path / "run")
    assert code == 0, err
    assert "these are some of 960 rows in 80 groups" in " ".join(err.split())
    wide, parts = drawn[0]
    assert sorted(wide.sampled[wide.sampled >= 0].tolist()) == list(range(20))
    assert len(parts) == 6
    assert PoolRun(Run(tmp_path / "run")).known().height == 240
    assert stmaml("fit", "--resume", tmp_path / "run")[0] == 0


@pytest.mark.slow
def test_one_method_on_disk_scores_as_in_memory(stmaml, tmp_path):
    table = stored(tmp_path / "table", lines(40, 20))
    words = ("--task", "shop", "--target", "y", "--method", "cnp", "--steps", "3", "--no-baselines")
    for name, more in {"memory": (), "disk": ("--on-disk",)}.items():
        code, _, err = stmaml("fit", table, *words, "--run", tmp_path / name, *more)
        assert code == 0, err
    scores = [saved_result(Run(tmp_path / name)) for name in ("memory", "disk")]
    for shots, rows in scores[0]["scores"].items():  # type: ignore[index]
        other = scores[1]["scores"][shots]  # type: ignore[index]
        assert other["cnp"]["mse"]["mean"] == pytest.approx(rows["cnp"]["mse"]["mean"], rel=1e-4)
    assert stmaml("fit", "--resume", tmp_path / "disk")[0] == 0


def test_held_out_groups_teach_nobody(tmp_path, monkeypatch):
    from stmaml.pool.base import Draw
    from stmaml.pool.on_disk import open_pool_on_disk
    from stmaml.tables.asking import TableConfig
    from stmaml.tables.benchmark import Config

    monkeypatch.setattr(opening, "SAMPLED_ROWS", 240)
    monkeypatch.setattr(files, "LARGE_ROWS", 1)
    folder = stored(tmp_path / "table", lines(80, 12))
    table = open_pool_on_disk(Config(TableConfig("shop", "y"), (str(folder),)))
    wide = table.wide
    assert wide is not None
    parts = [np.arange(10), np.arange(10, 20), np.arange(20)]
    x, y, drawn = wide.tasks(parts, Draw(3, max_query=4), range(50), 8)
    assert (drawn.support.shape, drawn.query.shape) == ((50, 3, 8, 3), (50, 3, 8, 4))
    everything = wide.shards.at(np.arange(wide.count.sum()))[0]
    place = {row.tobytes(): number for number, row in enumerate(everything)}
    order = np.argsort(wide.start)
    for number, part in enumerate(parts):
        rows = np.concatenate([drawn.support[:, number].ravel(), drawn.query[:, number].ravel()])
        at = np.array([place[x[row].tobytes()] for row in np.unique(rows)])
        group = order[np.searchsorted(wide.start[order], at, side="right") - 1]
        mine = {int(one) for one in wide.sampled[group]}
        assert mine == {-1, *part.tolist()}
    scaled = table.rows.y
    assert np.isclose(y.std(), scaled.std(), rtol=0.2)
