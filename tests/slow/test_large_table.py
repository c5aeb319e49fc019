"""A million rows on disk, in processes of their own: bounded memory, and all rows predicted in their order."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

STUDY = Path(__file__).parents[2] / "studies" / "large_table.py"
MOST_MB = 1500


def run(*words: object, cache: Path) -> list[dict[str, float]]:
    """What a command of the study says of its stages."""
    command = [sys.executable, str(STUDY), *map(str, words)]
    environment = {**os.environ, "STMAML_CACHE": str(cache)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stderr.splitlines() if line.startswith('{"stage"')]


@pytest.mark.slow
def test_a_million_rows(tmp_path):
    cache = tmp_path / "cache"
    run("write", tmp_path / "table", "--rows", 1_000_000, "--groups", 10_000, cache=cache)
    words = ("--task", "shop", "--target", "y", "--on-disk", "--members", "mean", "mixed")
    stages = run("stages", "fit", tmp_path / "table", *words, "--run", tmp_path / "run", cache=cache)
    assert {"counting rows and groups", "writing rows to shards", "sorting shards by group"} <= {
        str(stage["stage"]) for stage in stages
    }
    assert stages[-1]["peak_MB"] < MOST_MB
    out, table = tmp_path / "out.parquet", pl.read_parquet(tmp_path / "table")
    words = ("--query", tmp_path / "table", "--support", tmp_path / "table", "--out", out)
    stages = run("stages", "predict", tmp_path / "run", *words, cache=cache)
    assert stages[-1]["peak_MB"] < MOST_MB
    found = pl.read_parquet(out)
    assert found.drop("y").select(table.drop("y").columns).equals(table.drop("y"))
    assert float(np.square(found["prediction"] - found["y"]).mean()) < 1.4  # slopes of groups and noise leave 1.25
