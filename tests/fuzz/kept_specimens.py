"""What is kept beside runs: tables that stay on disk and what was made of them, searches, lists, digests."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stmaml.benchmarks.weather_splits import _by_file
from stmaml.data.fetching import record, recorded
from stmaml.data.stations import NAMES, Stations
from stmaml.search.halving import FILE, collect
from stmaml.tables.benchmark import TableConfig
from stmaml.tables.ondisk.files import open_files
from stmaml.tables.ondisk.opening import OnDisk, look_at
from stmaml.tables.parts import Reading
from stmaml.tables.schema import infer_schema
from tests.fuzz.kinds import CELLS, JSON, Kind

TABLES: dict[Path, Path] = {}
"""The table that a file was made of."""
STATIONS = Stations(
    station=np.array(["a", "b", "c"]),
    year=np.full(3, 2019, np.int16),
    latitude=np.zeros(3),
    longitude=np.zeros(3),
    elevation=np.zeros(3),
    name=np.array(["a", "b", "c"]),
    offset=np.arange(3),
    count=np.ones(3, int),
    day=np.zeros(3, np.int16),
    readings=np.zeros((3, len(NAMES)), np.int16),
    flags=np.zeros(3, np.uint8),
)


def _frame() -> pl.DataFrame:
    rng = np.random.default_rng(0)
    return pl.DataFrame({"shop": [f"shop {i // 6}" for i in range(60)], "x": rng.normal(size=60), "y": np.arange(60.0)})


def _table(folder: Path) -> Path:
    _frame().write_parquet(folder / "rows.parquet")
    return folder / "rows.parquet"


def _read_batches(path: Path) -> None:
    table = open_files([path], Reading())
    assert sum(frame.height for _, frame in table.batches("reading")) == table.height


def _look(path: Path) -> OnDisk:
    return look_at([path], Reading(), TableConfig("shop", "y"))


def _rows_of(path: Path) -> None:
    """What was kept of a table is as it would be made anew, or is made anew."""
    disk, frame = _look(path), _frame()
    assert (disk.survey.height, disk.survey.rows, len(disk.survey.names)) == (60, 60, 10)
    schema = infer_schema(frame, "shop", "y", train=np.ones(60, bool), notes=[])
    starts, counts = (shards := disk.shards(schema, [])).places(disk.survey.names)
    assert counts.tolist() == [6] * 10
    wanted = np.sort(schema.target.values(frame, schema.missing))
    assert np.array_equal(np.sort(shards.at(np.arange(60))[1]), wanted)
    assert set(starts) == set(range(0, 60, 6))


def _kept(name: str) -> Any:
    def make(folder: Path) -> Path:
        path = _table(folder)
        _rows_of(path)
        kept = next(_look(path).folder.rglob(name))
        TABLES[kept] = path
        return kept

    return make


def _load_kept(path: Path) -> None:
    _rows_of(TABLES[path])


def _search(folder: Path) -> Path:
    trial = {"settings": {"method_settings.inner.rate": 0.1}, "seed": 0, "round": 0, "score": 1.0, "test_steps": 5}
    chosen = {"settings": trial["settings"], "score": 1.0}
    (folder / "maml").mkdir()
    (folder / "maml" / FILE).write_text(json.dumps({"row": "maml", "trials": [trial, trial], "chosen": chosen}))
    return folder / "maml" / FILE


def _list(folder: Path) -> Path:
    (folder / "list.txt").write_text("\n".join(f"2019/{name}.csv" for name in "cab"))
    return folder / "list.txt"


def _digest(folder: Path) -> Path:
    (folder / "a.bin").write_bytes(b"1")
    record(folder / "a.bin")
    return folder / "a.bin.sha256"


KINDS: tuple[Kind, ...] = (
    Kind("Parquet left on disk", _table, _read_batches),
    Kind("survey.json", _kept("survey.json"), _load_kept, JSON, dear=True),
    Kind("groups of a survey", _kept("groups.parquet"), _load_kept, dear=True),
    Kind("shards.json", _kept("shards.json"), _load_kept, JSON, dear=True),
    Kind("search.json", _search, lambda path: collect(path.parents[1]), JSON),
    Kind("list of files", _list, lambda path: _by_file(STATIONS, path, 0), CELLS),
    Kind("digest beside a file", _digest, lambda path: recorded(path.with_suffix("")), CELLS),
)
"""Files that are kept beside runs."""
