"""Bayes limits that were computed before: those shipped with the package, and those of this user."""

import json
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from stmaml.border.files import read_file
from stmaml.border.json_text import is_number, parse_json
from stmaml.conditions import Conditions
from stmaml.data.folders import cache_folder
from stmaml.errors import RunError

Floor = dict[str, Any]
"""Metrics (`mean`, `ci95`) under `metrics`, the number of tasks and draws, and the same by family."""
BAYES_LIMIT = "Bayes limit"
UNTOLD_LIMIT = "Bayes limit, noise not told"
FIRST = ("input_range", "noise", "shots")  # settings that stand first in a limit's name, in this order


def floor_key(conditions: Conditions) -> str:
    """What the limit depends on, as a name: not how many query points there are."""
    tasks = conditions.without("query", "balanced").tasks
    first = {name: tasks[name] for name in FIRST if name in tasks}
    return replace(conditions, tasks={**first, **tasks}).path()


def find_floor(conditions: Conditions) -> Floor | None:
    """The limit under these conditions, if it was computed before."""
    shipped = json.loads(resources.files("stmaml.benchmarks").joinpath("floors.json").read_text())
    found = {**shipped, **_own()}.get(floor_key(conditions))
    name = UNTOLD_LIMIT if "noise_range" in conditions.tasks else BAYES_LIMIT
    return None if found is None else {"name": name, **found}


def remember_floor(conditions: Conditions, floor: Floor) -> Path:
    """Keeps a limit for this user's later reports."""
    path = _own_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**_own(), floor_key(conditions): floor}, indent=1) + "\n")
    except OSError as error:
        raise RunError(
            f"the limit was computed but could not be kept in {path}: {error.strerror or error}. Set STMAML_CACHE to "
            "a folder you may write to."
        ) from error
    return path


def _own() -> dict[str, Floor]:
    try:
        found = parse_json(read_file(_own_path()))
        return {name: _whole(floor) for name, floor in found.items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return {}  # a cache: what cannot be read is computed again


def _whole(floor: Floor) -> Floor:
    """The limit as it came; ValueError, KeyError or the like if a mean is no number."""
    families = floor.get("families", {}).values()
    metrics = [metric for some in (floor["metrics"], *map(_metrics, families)) for metric in some.values()]
    if not all(is_number(part) for metric in metrics for part in (metric["mean"], *metric.values())):
        raise ValueError("a limit that is no number")
    return floor


def _metrics(family: dict[str, Any]) -> dict[str, Any]:
    """The summaries of a family, which may stand alone."""
    return family.get("metrics", family)


def _own_path() -> Path:
    return cache_folder() / "floors.json"
