"""How runs were made: command, seeds, steps, time, device, versions, digests of the test tasks."""

from collections.abc import Iterable, Mapping
from typing import Any

from stmaml.reports.content import Block, Code, Heading, Part, Table, Text, words
from stmaml.reports.sections import Section
from stmaml.reports.variants import Variant, is_baseline, settings_of
from stmaml.runs import Run


def runs_part(variants: Iterable[Variant], sections: Iterable[Section] = ()) -> Part:
    """How each variant was made, and which tasks it was tested on."""
    blocks: list[Block] = []
    for variant in variants:
        blocks.append(Heading(variant.label))
        by_command: dict[str, list[Run]] = {}
        for run in variant.runs:
            by_command.setdefault(settings_of(run).get("command", ""), []).append(run)
        for command, runs in by_command.items():
            blocks += [Code(command), Text(_made(runs)), *_origin(settings_of(runs[0]))]
    digests = [{"test tasks": words(one.title), "digest": words(one.digest)} for one in sections]
    if digests:
        blocks += [Text("Digests of the test tasks:"), Table(("test tasks", "digest"), tuple(digests), "Digests")]
    return Part("Runs", tuple(blocks), folded=True)


def _made(runs: list[Run]) -> str:
    config, log = settings_of(runs[0]), runs[0].log()
    versions = said_versions(config)
    if is_baseline(config):
        return f"Fitted by scikit-learn on the training rows. Made with {versions}."
    seeds = ", ".join(str(settings_of(run)["seed"]) for run in runs)
    steps = max((entry.get("step", 0) for entry in log), default=0)
    made = f"Seed{'s' * (len(runs) > 1)} {seeds}: {steps:,} of {config['training'].get('steps', 0):,} steps"
    took = f"in {duration(training_seconds(log))} on {config.get('device', 'an unknown device')}"
    size = f"; weights {runs[0].learner_path.stat().st_size / 1000:.0f} kB" if runs[0].learner_path.exists() else ""
    return f"{made} {took}{size}. Made with {versions}."


def said_versions(config: Mapping[str, Any]) -> str:
    """The versions of all packages in a line."""
    return ", ".join(f"{name} {version}" for name, version in config.get("versions", {}).items())


def _origin(config: Mapping[str, Any]) -> list[Block]:
    told = origin(config)
    return [Text(told)] if told else []


def origin(config: Mapping[str, Any]) -> str:
    """When, from which commit and on which machine; empty for a run that does not say."""
    known = {"": "created", "commit ": "commit", "on ": "hardware"}
    told = [f"{before}{config[name]}" for before, name in known.items() if config.get(name)]
    return f"Made {', '.join(told)}." if told else ""


def training_seconds(log: list[dict[str, Any]]) -> float:
    """Time spent in training; the clock starts again at each resume."""
    total = last = 0.0
    for entry in log:
        seconds = entry.get("seconds", last)
        total += seconds - last if seconds >= last else seconds
        last = seconds
    return total


def duration(seconds: float) -> str:
    """Seconds in words."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
