"""Every file of a pool's run, and the commands that read it: predict, update, effects, evaluate, report, resume."""

import contextlib
import io
import json
import math
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import polars as pl

from stmaml.cli import effects, evaluate, predict, update
from stmaml.pool.fitting import fit_pool
from stmaml.pool.opening import open_pool_table
from stmaml.pool.store import PoolRun, PoolSettings
from stmaml.prior.learner import Learner, Sizes
from stmaml.prior.weights import load_weights, save_weights
from stmaml.reports.pools import write_pool_report
from stmaml.runs import Run
from stmaml.tables.benchmark import Config, TableConfig
from stmaml.tables.reading import read_table
from tests.fuzz.kinds import FORGED_JSON, FORGED_NPZ, JSON, Kind

NUMBERS, CLASSES, SHIPPED = ("mean", "mixed", "boosting"), ("shares", "mixed-logistic"), ("mean", "prior")


def _rows(classes: bool) -> pl.DataFrame:
    rng = np.random.default_rng(0)
    level, x = rng.normal(size=(12, 1)), rng.uniform(-2, 2, size=(12, 8))
    y = 20 + 3 * level + x + 0.3 * rng.normal(size=(12, 8))
    shop = np.repeat([f"shop {i}" for i in range(12)], 8)
    target = np.where(y.ravel() > 20, "dear", "cheap") if classes else y.ravel()
    return pl.DataFrame({"shop": shop, "x": x.ravel(), "y": target})


@cache
def _fitted(members: tuple[str, ...]) -> Path:
    """A pool that is fitted once, with the rows it was fitted to beside it; a process keeps it till its end."""
    folder = Path(tempfile.mkdtemp(prefix="stmaml-pool-"))
    classes = members == CLASSES
    _rows(classes).write_csv(folder / "rows.csv")
    _rows(classes).drop("y").head(20).write_csv(folder / "ask.csv")
    config = Config(TableConfig("shop", "y"), (str(folder / "rows.csv"),))
    table = open_pool_table(read_table([folder / "rows.csv"]), config, shots=3)
    settings = PoolSettings(members, 3)
    store = PoolRun(Run(folder / "run"))
    store.create(table.config, settings, 0)
    fit_pool(table, settings, store=store)
    return folder


def _file(name: str, *, members: tuple[str, ...] = NUMBERS, finished: bool = True) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        shutil.copytree(_fitted(members), folder, dirs_exist_ok=True)
        if not finished:
            (folder / "run" / "pool.json").unlink()
        return folder / "run" / name

    return make


def _said(main: Callable[[list[str]], None], *words: object) -> str:
    """What a command prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        main([str(word) for word in words])
    return out.getvalue()


def _home(path: Path) -> Path:
    """The folder that the run lies in."""
    return next(parent for parent in path.parents if (parent / "ask.csv").exists())


def _ask(path: Path) -> None:
    """Predictions are numbers in the right order; labelled rows are added, and taken back."""
    home = _home(path)
    run, known = home / "run", home / "run" / "known.parquet"
    kept = known.read_bytes()
    rows = [json.loads(line) for line in _said(predict.main, run, "--query", home / "ask.csv", "--json").splitlines()]
    assert len(rows) == 20, f"{len(rows)} predictions of 20 rows"
    for row in rows:
        numbers = [row[name] for name in ("q05", "q50", "q95", "p_cheap", "p_dear") if name in row]
        assert all(type(number) is float and math.isfinite(number) for number in numbers), "predictions are no numbers"
        assert "q05" not in row or row["q05"] <= row["q50"] <= row["q95"], "quantiles in the wrong order"
    try:
        assert json.loads(_said(update.main, run, home / "rows.csv", "--json"))["rows"] >= 20
    finally:
        known.write_bytes(kept)


def _tell(path: Path) -> None:
    """Effects and scores are told to programs and to people."""
    run = _home(path) / "run"
    _said(effects.main, run)
    _said(effects.main, run, "--json")


def _score(path: Path) -> None:
    run = _home(path) / "run"
    _said(evaluate.main, run)
    json.loads(_said(evaluate.main, run, "--json"))
    with tempfile.TemporaryDirectory() as out:
        write_pool_report(Run(run), Path(out))


def _scored(path: Path) -> None:
    for one in PoolRun(Run(_home(path) / "run")).scored():
        assert all(len(values) == len(one.groups) for each in one.rows.values() for values in each.values())


def _resume(path: Path) -> None:
    """What members said of held-out groups is used by a fit that goes on."""
    run = PoolRun(Run(_home(path) / "run"))
    for name in NUMBERS:
        for forecast in run.said(name, 4) or ():
            assert np.isfinite(forecast.mean).all(), "a forecast that is no number"
        run.member(name)


def _weights(folder: Path) -> Path:
    save_weights(Learner(Sizes(16, 1, 16, 1), key=jr.key(0)), folder / "weights.npz")
    return folder / "weights.npz"


def _load_weights(path: Path) -> None:
    arrays = eqx.filter(load_weights(path), eqx.is_array)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(arrays)), "weights that are no numbers"


KINDS: tuple[Kind, ...] = (
    Kind("config.json (pool)", _file("config.json"), _ask, JSON, dear=True),
    Kind("pool.json", _file("pool.json"), _ask, FORGED_JSON, dear=True),
    Kind("pool.json (classes)", _file("pool.json", members=CLASSES), _ask, FORGED_JSON, dear=True),
    Kind("member of a pool", _file("members/mixed.npz"), _ask, FORGED_NPZ, dear=True),
    Kind("boosted member", _file("members/boosting.npz"), _ask, FORGED_NPZ, dear=True),
    Kind("member (classes)", _file("members/mixed-logistic.npz", members=CLASSES), _ask, FORGED_NPZ, dear=True),
    Kind("member that ships", _file("members/prior.npz", members=SHIPPED), _ask, FORGED_NPZ, dear=True),
    Kind("weights that ship", _weights, _load_weights, FORGED_NPZ, dear=True),
    Kind("known rows", _file("known.parquet"), _ask, dear=True),
    Kind("effects", _file("effects.npz"), _tell, FORGED_NPZ),
    Kind("result.json", _file("result.json"), _score, FORGED_JSON),
    Kind("scores of groups", _file("scored.npz"), _scored, FORGED_NPZ),
    Kind("held-out forecasts", _file("held-out/mixed.npz", finished=False), _resume, FORGED_NPZ),
)
"""Every file of a pool."""
