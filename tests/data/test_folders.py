"""Where data lie and where what was read is kept."""

from pathlib import Path

import pytest

from stmaml.benchmarks.floors import BAYES_LIMIT, find_floor, remember_floor
from stmaml.conditions import Conditions
from stmaml.data.folders import cache_folder, data_folder
from stmaml.errors import SourceError

HOME = {"HOME": "/home/ada"}


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({}, "/home/ada/.cache/stmaml"),
        ({"XDG_CACHE_HOME": "", "STMAML_CACHE": ""}, "/home/ada/.cache/stmaml"),
        ({"XDG_CACHE_HOME": "/cache"}, "/cache/stmaml"),
        ({"XDG_CACHE_HOME": "/cache", "STMAML_CACHE": "~/own"}, "/home/ada/own"),
    ],
)
def test_the_cache_is_where_the_user_says_and_never_the_working_folder(variables, folder, monkeypatch):
    for name in ("XDG_CACHE_HOME", "STMAML_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (HOME | variables).items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(folder)


def test_limits_are_kept_in_the_same_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("STMAML_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    floor = {"metrics": {"mse": {"mean": 1.0}}}
    assert remember_floor(Conditions("a test", {"query": 5}), floor) == tmp_path / "own" / "floors.json"
    assert find_floor(Conditions("a test", {"query": 9})) == {"name": BAYES_LIMIT, **floor}


def test_an_empty_data_folder_is_none(monkeypatch):
    monkeypatch.setenv("STMAML_DATA", "")
    with pytest.raises(SourceError, match="name their folder with --data"):
        data_folder(None, "weather")
