"""The rows of a table on equal terms: methods and ST-MAML's ablations, with what one search chose for each of them.

What was chosen is in `searched/BENCHMARK.json`, written by `stmaml search BENCHMARK --collect`. A row without an entry
there keeps its recipe."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any

from stmaml.errors import SettingError
from stmaml.methods.looks_up import LookUp
from stmaml.recipes.base import Experiment, with_changes

SEARCHED = "searched"  # the preset whose settings the search chose
ABLATIONS = {
    "st-maml-without-augmentation": {"method_settings.augment": False},
    "st-maml-without-tailoring": {"method_settings.tailor": False},
    "st-maml-deterministic": {"method_settings.stochastic": False},
}
LOOKING = "maml-attention"  # MAML whose inputs look the support up: what attention brings without a task variable
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{row: ("st-maml", changes) for row, changes in ABLATIONS.items()},
    LOOKING: ("maml", {"modelling.lookup": LookUp("attention")}),
}
"""Rows that are a method with some settings changed."""
EQUAL: dict[str, dict[str, Any]] = {"regression2d": {"benchmark_settings.query_size": 40}}
"""Settings of a benchmark that are the same for every row that was searched."""
Recipes = Mapping[tuple[str, str, str], Experiment]


def row_recipe(recipes: Recipes, benchmark: str, row: str) -> Experiment:
    """The settings that the search for a row starts from: its method's first preset, on equal terms."""
    method, changes = VARIANTS.get(row, (row, {}))
    first = next((e for (b, m, _), e in recipes.items() if (b, m) == (benchmark, method)), None)
    if first is None:
        known = [m for m in dict.fromkeys(m for b, m, _ in recipes if b == benchmark)]
        raise SettingError(f"{benchmark} has no row '{row}'; choose among: {', '.join([*known, *VARIANTS])}.")
    return with_changes(first, {**changes, **EQUAL.get(benchmark, {})})


@cache
def chosen(benchmark: str) -> dict[str, dict[str, Any]]:
    """What the search chose for each row of a benchmark's table, with where that comes from."""
    file = resources.files("stmaml.recipes").joinpath(SEARCHED, f"{benchmark}.json")
    return json.loads(file.read_text())["rows"] if file.is_file() else {}


def searched(recipes: Recipes, benchmark: str, row: str) -> Experiment | None:
    """The row's experiment with what the search chose; None where it chose nothing."""
    found = chosen(benchmark).get(row)
    if found is None:
        return None
    return replace(with_changes(row_recipe(recipes, benchmark, row), found["settings"]), preset=SEARCHED)


def searched_presets(recipes: Recipes, benchmarks: Iterable[str]) -> dict[tuple[str, str, str], Experiment]:
    """The preset `searched` of every method that has been searched for."""
    rows = [(b, row) for b in benchmarks for row in chosen(b) if row not in VARIANTS]
    found = {(b, row, SEARCHED): searched(recipes, b, row) for b, row in rows}
    return {key: experiment for key, experiment in found.items() if experiment is not None}
