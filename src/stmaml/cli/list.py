"""`stmaml list`."""

import json
from dataclasses import dataclass

from stmaml.benchmarks import BENCHMARKS
from stmaml.cli.parsing import parse
from stmaml.data.catalogue import COLLECTIONS
from stmaml.methods import METHODS
from stmaml.recipes import presets
from stmaml.shipped import pretrained_card, pretrained_names

PHRASES = {
    "anp": "neural process with attention",
    "arml": "MAML steered by a graph of tasks and knowledge",
    "bmaml": "MAML with particles: several beliefs side by side",
    "cnp": "reads the labelled set into one vector, no gradient",
    "hsml": "MAML steered by clusters of tasks",
    "maml": "a start from which few gradient steps suffice",
    "meta-sgd": "MAML that learns its step sizes too",
    "mmaml": "MAML modulated by what kind of task it is",
    "np": "a CNP with a random code of the task",
    "platipus": "MAML from a distribution over starts",
    "protonet": "each class by the mean of its examples",
    "tnp": "a transformer that reads labelled and asked examples",
    "st-maml": "MAML from a random code of each task: the paper's",
}
TASKS = {
    "regression2d": "curves and surfaces of six kinds",
    "completion": "pictures from a few pixels",
    "weather": "temperatures of a station from a few days",
    "plain-multi": "five classes of pictures from a few of each",
    "celeba": "rules about faces that few pictures leave open",
}


@dataclass(frozen=True)
class List:
    """Show which methods have settings for which benchmarks, what data these need, and learners that ship."""

    card: str | None = None
    """Print what is to be known of this shipped learner instead."""
    json: bool = False
    """Print one JSON object instead of tables."""


def main(arguments: list[str]) -> None:
    """Prints what there is."""
    flags = parse(List, arguments, "stmaml list")
    if flags.card is not None:
        print(pretrained_card(flags.card))
        return
    found = {b: {m: presets(b, m) for m in METHODS if presets(b, m)} for b in BENCHMARKS}
    if flags.json:
        content = {
            "methods": list(METHODS),
            "benchmarks": list(BENCHMARKS),
            "presets": found,
            "pretrained": pretrained_names(),
        }
        data = {benchmark: data_of(benchmark) for benchmark in BENCHMARKS}
        print(json.dumps({**content, "about": {**PHRASES, **TASKS}, "data": data}, indent=2))
        return
    print("\n".join([*_matrix(), "", *_benchmarks(), "", *_beyond(found), "", *_shipped()]))


def _matrix() -> list[str]:
    """Methods by benchmarks; a number says how many presets there are."""
    heads = " ".join(str(number) for number, _ in enumerate(BENCHMARKS, start=1))
    lines = [f"{'method':10} {heads}  what it is"]
    for method in METHODS:
        counts = " ".join(str(len(presets(benchmark, method)) or "-") for benchmark in BENCHMARKS)
        lines.append(f"{method:10} {counts}  {PHRASES[method]}")
    return lines


def _benchmarks() -> list[str]:
    lines = ["benchmark (its column), and the data it needs"]
    for number, benchmark in enumerate(BENCHMARKS, start=1):
        lines += [f"{number} {benchmark:13} {TASKS[benchmark]}", f"{'':15} data: {', '.join(data_of(benchmark))}"]
    return [*lines, "'stmaml data check' says which are there, 'stmaml data fetch NAME' gets them."]


def data_of(benchmark: str) -> list[str]:
    """The data sets that a benchmark reads, by the names under which they are fetched."""
    wanted = [name for name, one in COLLECTIONS.items() if one.benchmark == benchmark]
    return wanted or ["none: its tasks are made as they are needed"]


def _beyond(found: dict[str, dict[str, list[str]]]) -> list[str]:
    """Presets of those that have several."""
    lines = ["presets, where there are others than 'paper'"]
    for benchmark, methods in found.items():
        several = {method: names for method, names in methods.items() if names != ["paper"]}
        lines += [f"  {benchmark:13} {method:8} {', '.join(names)}" for method, names in several.items()]
    return lines


def _shipped() -> list[str]:
    return ["trained learners ('stmaml list --card NAME')", f"  {', '.join(pretrained_names())}"]
