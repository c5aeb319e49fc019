"""What a report is about: the runs it was given, sorted into variants, which differ in more than their seed."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stmaml.errors import RunError, SettingError
from stmaml.recipes import recipe
from stmaml.recipes.rows import SEARCHED
from stmaml.runs import Run, as_json, find_runs, read_npz

UNTOLD = {"val_every", "val_tasks", "val_samples", "checkpoint_every", "steps_per_call", "on_divergence", "remat"}
UNTOLD |= {"data", "file_list", "images_on"}
"""Settings that say how training is watched or stored or where files lie, not what is learnt: they make no variant."""
BASELINE = "baseline"  # the preset of runs that scikit-learn fitted: they have neither settings, log nor weights
PLAIN = ("paper", "default", SEARCHED, BASELINE)  # presets that go without saying
IN_CONFIG = ("seed", "benchmark", "method", "modelling", "training")


@dataclass(frozen=True)
class Variant:
    """Runs that differ in their seed alone."""

    label: str
    runs: tuple[Run, ...]
    config: dict[str, Any]
    """Settings of the first run."""


def collect_variants(folders: Iterable[Path]) -> list[Variant]:
    """The runs in these folders, grouped by their settings, in the order given."""
    distinct = {folder.resolve(): folder for folder in folders}.values()
    runs = [(folder, run, settings_of(run)) for folder in distinct for run in find_runs(folder)]
    several = len({config["benchmark"]["name"] for _, _, config in runs}) > 1
    groups: dict[str, dict[Path, list[Run]]] = {}
    for folder, run, config in runs:
        label = describe(config) + (f" on {config['benchmark']['name']}" if several else "")
        groups.setdefault(label, {}).setdefault(folder, []).append(run)
    return [variant for label, found in groups.items() for variant in _split(label, found)]


def _split(label: str, found: dict[Path, list[Run]]) -> list[Variant]:
    """One variant; or one for each folder where two hold the same seed, or settings that no label tells apart."""
    runs = [run for group in found.values() for run in group]
    configs = [settings_of(run) for run in runs]
    if len({_place(config) for config in configs}) == len(runs) and len({_made_with(c) for c in configs}) == 1:
        return [Variant(label, tuple(runs), settings_of(runs[0]))]
    plain = len({folder.name for folder in found}) == len(found)
    named = {f"{label} [{folder.name if plain else folder}]": group for folder, group in found.items()}
    return [Variant(name, tuple(group), settings_of(group[0])) for name, group in named.items()]


def _place(config: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells the runs of a variant apart: the seed; also the shots for a baseline, which is fitted to each anew."""
    return config["seed"], config["benchmark"]["settings"].get("shots") if is_baseline(config) else None


def _made_with(config: Mapping[str, Any]) -> str:
    """All settings that make a variant: a method without a recipe tells none of them in its label."""
    flat = [] if is_baseline(config) else [flatten(part) for part in _parts(config)]
    told = [{name: value for name, value in part.items() if name not in UNTOLD} for part in flat]
    return json.dumps(told, sort_keys=True)


def _parts(config: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    return config["method"]["settings"], config["benchmark"]["settings"], config["modelling"], config["training"]


def describe(config: Mapping[str, Any]) -> str:
    """The method, with its preset and the settings that differ from its recipe."""
    preset = config["method"]["preset"]
    notes = [] if preset in PLAIN else [preset]
    notes += [f"{name}={_short(value)}" for name, value in changes(config).items()]
    return config["method"]["name"] + (f" ({', '.join(notes)})" if notes else "")


def changes(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run that differ from the recipe it started from."""
    method = config["method"]
    try:
        usual = recipe(config["benchmark"]["name"], method["name"], method["preset"])
    except SettingError:
        return {}
    known = (usual.method_settings, usual.benchmark_settings, usual.modelling, usual.training)
    changed: dict[str, Any] = {}
    for before, used in zip((flatten(as_json(part)) for part in known), _parts(config), strict=True):
        changed |= {name: v for name, v in flatten(used).items() if name not in before or before[name] != v}
    return {name: value for name, value in changed.items() if name not in UNTOLD}


def is_baseline(config: Mapping[str, Any]) -> bool:
    """Whether scikit-learn fitted a run."""
    return config["method"]["preset"] == BASELINE


def count_parameters(run: Run) -> int | None:
    """How many numbers a run has trained; None where it has no weights."""
    if not run.learner_path.exists():
        return None
    arrays = read_npz(run.learner_path).values()
    return sum(array.size for array in arrays if np.issubdtype(array.dtype, np.floating))


def flatten(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings within settings, as one level of names."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= flatten(value) if isinstance(value, dict) else {name: value}
    return flat


def _short(value: Any) -> str:
    if isinstance(value, list):
        return "x".join(_short(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def settings_of(run: Run) -> dict[str, Any]:
    """The settings of a run, with all that a report needs of them."""
    config = run.config()
    require(run.config_path, config, IN_CONFIG)
    require(run.config_path, config["benchmark"], ("name", "settings"))
    require(run.config_path, config["method"], ("name", "preset", "settings"))
    return config


def require(path: Path, content: Any, names: tuple[str, ...]) -> None:
    """Raises RunError if what a file holds lacks one of the names."""
    missing = [name for name in names if not isinstance(content, dict) or name not in content]
    if missing:
        raise RunError(f"{path} lacks '{missing[0]}'. Restore it from a copy, or train or evaluate again.")
