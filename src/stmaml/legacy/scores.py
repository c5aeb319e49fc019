"""Scores and traces of version 0.1.0: their conditions stood in names, which are read here and nowhere else."""

import re
from collections.abc import Mapping
from typing import Any

from stmaml.conditions import Conditions

LISTS = {"completion": "families", "plain-multi": "datasets"}
"""Benchmarks whose test sets are named by their data first."""
RENAMED = {"split": "split_seed", "size": "image_size"}
SWEEPS = {
    "completion": {"figure": "pixels", "label": "observed pixels"},
    "table": {"figure": "shots", "label": "labelled rows"},
}
USUAL_CURVE = {"shots": 10, "noise": 0.3}
AMBIGUOUS_FAMILIES = ("sinusoid", "cubic")


def split_tables(scores: Mapping[str, dict[str, Any]], config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The summaries of a run, that of a table's test groups as one for each model; `config` is the run's."""
    split: dict[str, dict[str, Any]] = {}
    for name, summary in scores.items():
        old_table = "test_groups" in summary and "scores" in summary
        split |= _table_summaries(name, summary, config) if old_table else {name: summary}
    return split


def upgrade_summary(summary: dict[str, Any]) -> dict[str, Any]:
    """The summary with its conditions; as it came if it has them, has many, or lacks what they are read from."""
    if {"conditions", "scores"} & set(summary) or not {"task_set", "samples"} <= set(summary):
        return summary
    benchmark, *parts = summary["task_set"].split("/seed-")[0].split("/")
    conditions = Conditions(benchmark, _tasks(benchmark, parts), summary["samples"], summary.get("inner_steps"))
    sweep = {"sweep": SWEEPS[benchmark]} if benchmark in SWEEPS else {}
    return {**summary, "conditions": conditions.to_json(), **sweep}


def _tasks(benchmark: str, parts: list[str]) -> dict[str, Any]:
    """The settings of test tasks from the parts of their name."""
    data = {LISTS[benchmark]: parts[0].split("+")} if benchmark in LISTS else {}
    settings = [_setting(part) for part in parts[len(data) :]]
    return data | {name: value for setting in settings for name, value in setting.items()}


def _setting(part: str) -> dict[str, Any]:
    if match := re.fullmatch(r"range(.+)\.\.(.+)", part):
        return {"input_range": [float(match[1]), float(match[2])]}
    if match := re.fullmatch(r"by-(.+)", part):
        return {"split": match[1]}
    if match := re.fullmatch(r"([a-z_]+)(-?\d[\d.e+-]*)", part):
        return {RENAMED.get(match[1], match[1]): _number(match[2])}
    return {part: True}


def _number(digits: str) -> int | float:
    return int(digits) if digits.lstrip("-").isdecimal() else float(digits)


def _table_summaries(name: str, summary: dict[str, Any], config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A summary for each number of labelled rows and each of the models, from the one that held them all."""
    method, settings = config["method"]["name"], config["benchmark"]["settings"]
    table = next((re.split(r"[/\\]", file)[-1] for file in settings.get("files", ())), None)
    tasks = {"table": table, "target": settings.get("table", {}).get("target"), "groups": summary["test_groups"]}
    found: dict[str, dict[str, Any]] = {}
    for shots, models in summary["scores"].items():
        conditions = Conditions("table", {**tasks, "shots": int(shots)}, summary["samples"]).to_json()
        for model, metrics in models.items():
            found[f"{name}-shots{shots}-{model}"] = {
                **{"benchmark": "table", "seed": config["seed"], "tasks": summary["test_groups"]},
                **{"samples": summary["samples"], "digest": summary["digest"], "conditions": conditions},
                **{"metrics": metrics, "families": {}, "sweep": SWEEPS["table"], "arrays": False},
                **({} if model == method else {"row": model}),
                **({"note": summary["verdict"]} if shots == list(summary["scores"])[-1] else {}),
            }
    return found


def about_trace(name: str) -> dict[str, Any]:
    """What a trace of this name is for: the kind of figure and its labels; nothing for a name nobody draws."""
    if match := re.fullmatch(r"(.+)-shots(\d+)-noise([\d.]+)", name):
        conditions = {"shots": int(match[2]), "noise": float(match[3])}
        figure = "curves" if conditions == USUAL_CURVE else "ambiguity" if match[1] in AMBIGUOUS_FAMILIES else ""
        return {"figure": figure, "family": match[1], **conditions}
    if match := re.fullmatch(r"(.+)-pixels(\d+)", name):
        return {"figure": "completion", "family": match[1], "pixels": int(match[2])}
    if match := re.fullmatch(r"rules-(\d+)", name):
        return {"figure": "rules", "number": int(match[1])}
    if match := re.fullmatch(r"(tropics|temperate|polar|unknown)-(.+)", name):
        return {"figure": "years", "band": match[1], "station": match[2]}
    return {"figure": ""}
