"""Bayes limits that were computed before: those shipped with the package, and those of this user."""

import json
import os
from importlib import resources
from pathlib import Path
from typing import Any

from stmaml.errors import RunError

Floor = dict[str, Any]
"""Metrics (`mean`, `ci95`) under `metrics`, the number of tasks and draws, and the same by family."""


def floor_key(test_name: str) -> str:
    """The part of a test set's name that the limit depends on: not how many query points there are."""
    return test_name.rsplit("/query", 1)[0]


def find_floor(test_name: str) -> Floor | None:
    """The limit for test tasks of this name, if it was computed before."""
    shipped = json.loads(resources.files("stmaml.benchmarks").joinpath("floors.json").read_text())
    return {**shipped, **_own()}.get(floor_key(test_name))


def remember_floor(test_name: str, floor: Floor) -> Path:
    """Keeps a limit for this user's later reports."""
    path = _own_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**_own(), floor_key(test_name): floor}, indent=1) + "\n")
    except OSError as error:
        raise RunError(
            f"the limit was computed but could not be kept in {path}: {error.strerror or error}. Set XDG_CACHE_HOME to "
            "a folder you may write to."
        ) from error
    return path


def _own() -> dict[str, Floor]:
    try:
        return json.loads(_own_path().read_text())
    except (OSError, json.JSONDecodeError):
        return {}  # a cache: what cannot be read is computed again


def _own_path() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "stmaml" / "floors.json"
