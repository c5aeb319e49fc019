"""What the small files of a run may hold: lines of its log, summaries of scores, what a trace is about.

Each check gives the content back, or a RunError. What is not there is not asked for: other versions wrote less.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from stmaml.border.typed import RESTORE, need
from stmaml.errors import RunError

Check = Callable[[Any, str], Any]
NUMBERS = (int, float)
ROUNDING = 1e-6  # of shares
SHOTS = re.compile(r"[0-9]{1,9}")
OLD_TABLE = ("samples", "digest", "verdict")  # what stands beside all scores of a table's run of 0.1.0


def check_entry(entry: Any) -> dict[str, Any]:
    """A line of the log: numbers by name, those of a validation in an object of their own, and a note in words."""
    for name, value in need(dict, entry, "a line of the log").items():
        ENTRY.get(name, _number)(value, name)
    need(int, entry.get("step", 0), "step")
    return entry


def check_summary(summary: dict[str, Any]) -> dict[str, Any]:
    """A summary of scores."""
    for name, value in summary.items():
        SUMMARY.get(name, _anything)(value, name)
    for name in OLD_TABLE if {"scores", "test_groups"} <= set(summary) else ():
        SUMMARY[name](summary.get(name), name)
    return summary


def check_about(about: Any) -> dict[str, Any]:
    """What a trace is for: the kind of figure, and words and numbers for its labels."""
    need(str, need(dict, about, "about").get("figure"), "figure")
    for name, value in about.items():
        need(int | float | str | bool, value, name)
    return about


def check_search(record: dict[str, Any]) -> dict[str, Any]:
    """What a search has tried, and what it chose."""
    need(str, record.get("row"), "row")
    for trial in need(tuple[dict[str, Any], ...], record.get("trials"), "trials"):
        for name, check in TRIAL.items():
            check(trial.get(name), f"trials.{name}")
    if "chosen" in record:
        need(dict, need(dict, record["chosen"], "chosen").get("settings"), "chosen.settings")
        _number(record["chosen"].get("score"), "chosen.score")
    return record


def check_pool_result(result: dict[str, Any]) -> dict[str, Any]:
    """What the scores of a pool say: all that is shown of it, for the same rows and members throughout."""
    kind = need(Literal["number", "class"], result.get("kind"), "kind")
    for name, check in POOL_RESULT.items():
        check(result.get(name, {} if name in ("worth", "seconds", "importance") else None), name)
    _alike(result["scores"], "scores", 2)
    _alike(result["weights"], "weights", 1)
    for each in result.get("importance", {}).values():
        if each["columns"].keys() != next(iter(result["importance"].values()))["columns"].keys():
            raise RunError(f"'importance' must be of the same columns throughout. {RESTORE}")
    for rows in result["scores"].values():
        for name, metrics in rows.items():
            need(dict, metrics.get("nll" if kind == "class" else "mse"), f"scores.{name}")
    for shots, row in result["calibration"].items():
        (_sets if kind == "class" else _intervals)(row, f"calibration.{shots}")
    if set(result["calibration"]) != set(result["scores"]):
        raise RunError(f"'calibration' must be of the same labelled rows as 'scores'. {RESTORE}")
    return result


def check_config(config: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run in rough outline; each part is checked by who reads it."""
    for name, value in config.items():
        CONFIG.get(name, _anything)(value, name)
    return config


def _anything(value: Any, name: str) -> None:
    del value, name


def _typed(kind: Any) -> Check:
    return lambda value, name: need(kind, value, name)


def _number(value: Any, name: str) -> None:
    """Any number: a score may be infinite, and not a number where a mean is of nothing."""
    if type(value) not in NUMBERS:
        need(float, value, name)


def _scores(value: Any, name: str) -> None:
    for metric, score in need(dict, value, name).items():
        _number(score, f"{name}.{metric}")


def _shares(value: Any, name: str) -> None:
    _scores(value, name)
    for member, share in value.items():
        if not -ROUNDING <= share <= 1 + ROUNDING:
            raise RunError(f"'{name}.{member}' must lie between 0 and 1; it is {share:.6g}. {RESTORE}")


def _metrics(value: Any, name: str) -> None:
    """Means and half-widths by the name of the metric, of which there is one or more."""
    if not need(dict, value, name):
        raise RunError(f"'{name}' must have a metric or more; it has none. {RESTORE}")
    for metric, summary in value.items():
        _scores(summary, f"{name}.{metric}")
        _number(summary.get("mean"), f"{name}.{metric}.mean")
        _number(summary.get("ci95"), f"{name}.{metric}.ci95")


def _of_each(check: Check) -> Check:
    def checked(value: Any, name: str) -> None:
        for key, one in need(dict, value, name).items():
            check(one, f"{name}.{key}")

    return checked


def _conditions(value: Any, name: str) -> None:
    need(str, need(dict, value, name).get("benchmark"), f"{name}.benchmark")
    need(int, value.get("samples"), f"{name}.samples")
    need(int | None, value.get("inner_steps"), f"{name}.inner_steps")
    for setting, stated in need(dict, value.get("tasks"), f"{name}.tasks").items():
        kind = int if setting in ("shots", "groups") else int | float | str | bool | tuple[Any, ...] | None
        need(kind, stated, f"{name}.tasks.{setting}")


def _extra(value: Any, name: str) -> None:
    for key, one in need(dict, value, name).items():
        need(dict, one, f"{name}.{key}")
        mean, half = (need(tuple[Any, ...], one.get(part), f"{name}.{key}.{part}") for part in ("mean", "ci95"))
        for value in (*mean, *half, *([None] if len(mean) != len(half) else [])):
            _number(value, f"{name}.{key}")


def _alike(value: dict[str, dict[str, Any]], name: str, deep: int) -> None:
    """The same keys in every entry, of which there is one or more."""
    entries = list(value.values())
    if not entries or not entries[0] or any(entry.keys() != entries[0].keys() for entry in entries):
        raise RunError(f"'{name}' must have the same entries throughout. {RESTORE}")
    for entry in entries if deep > 1 else ():
        _alike(entry, name, deep - 1)


def _summary(value: Any, name: str) -> None:
    _metrics({"": need(dict, value, name)}, name)


def _intervals(value: dict[str, Any], name: str) -> None:
    for level in ("50%", "80%", "90%"):
        parts = need(dict, value.get(level), f"{name}.{level}")
        for part in ("before", "after", "width"):
            _summary(parts.get(part), f"{name}.{level}.{part}")
    _summary(value.get("poorly"), f"{name}.poorly")


def _sets(value: dict[str, Any], name: str) -> None:
    for part in ("before", "after"):
        _number(value.get(part), f"{name}.{part}")
    sets = need(dict, value.get("sets"), f"{name}.sets")
    for level in ("80%", "90%"):
        parts = need(dict, sets.get(level), f"{name}.{level}")
        for part in ("holds", "size"):
            _summary(parts.get(part), f"{name}.{level}.{part}")
    _summary(value.get("poorly"), f"{name}.poorly")


def _importance(value: Any, name: str) -> None:
    need(dict, value, name)
    _number(value.get("error"), f"{name}.error")
    need(int, value.get("groups"), f"{name}.groups")
    _of_each(_summary)(value.get("columns"), f"{name}.columns")


def _for_shots(check: Check) -> Check:
    """By number of labelled rows."""

    def checked(value: Any, name: str) -> None:
        for shots, one in need(dict, value, name).items():
            need(int, int(shots) if SHOTS.fullmatch(shots) else shots, name)
            check(one, f"{name}.{shots[:20]}")

    return checked


def _notes(value: Any, name: str) -> None:
    if not all(need(tuple[str, ...], value, name)):
        raise RunError(f"'{name}' must be sentences. {RESTORE}")


def _floor(value: Any, name: str) -> None:
    _metrics(need(dict, value, name).get("metrics"), f"{name}.metrics")
    need(str, value.get("name", ""), f"{name}.name")


def _named(*texts: str) -> Check:
    def checked(value: Any, name: str) -> None:
        for text in texts:
            if text in need(dict, value, name):
                need(str, value[text], f"{name}.{text}")
        need(dict, value.get("settings", {}), f"{name}.settings")

    return checked


CONFIG: Mapping[str, Check] = {
    **dict.fromkeys(("created", "command", "device", "keys", "kind"), _typed(str)),
    **dict.fromkeys(("versions", "modelling", "training", "settings", "table"), _typed(dict)),
    "versions": _of_each(_typed(str)),
    "seed": _typed(int),
    "benchmark": _named("name"),
    "method": _named("name", "preset"),
    "scaling": _typed(dict | None),
    "schema": _typed(dict | None),
}
"""What is known of a run's settings, by its name among them."""
ENTRY: Mapping[str, Check] = {"validation": _scores, "note": _typed(str)}
"""What a line of the log holds beside numbers."""
SUMMARY: Mapping[str, Check] = {
    **dict.fromkeys(("benchmark", "method", "preset", "digest", "targets_digest", "task_set"), _typed(str)),
    **dict.fromkeys(("row", "note", "verdict", "norm"), _typed(str)),
    **dict.fromkeys(("seed", "tasks", "samples", "place", "test_groups"), _typed(int)),
    "inner_steps": _typed(int | None),
    "arrays": _typed(bool),
    **dict.fromkeys(("settings", "sweep", "calibration"), _typed(dict)),
    "conditions": _conditions,
    "metrics": _metrics,
    "families": _of_each(_metrics),
    "scores": _for_shots(_of_each(_metrics)),  # 0.1.0
    "floor": _floor,
    "extra": _extra,
}
"""What is known of a summary, by its name in it."""
POOL_RESULT: dict[str, Check] = {
    "target": _typed(str),
    "test_groups": _typed(int),
    "scores": _for_shots(_of_each(_metrics)),
    "calibration": _for_shots(_typed(dict)),
    "weights": _for_shots(_shares),
    "verdict": _typed(str),
    "worth": _for_shots(_of_each(_summary)),
    "notes": _notes,
    "seconds": _scores,
    "importance": _for_shots(_importance),
}
TRIAL: dict[str, Check] = {
    "settings": _typed(dict),
    "seed": _typed(int),
    "round": _typed(int),
    "score": _number,
    "test_steps": _typed(int | None),
}
