"""`stmaml list`."""

import json
from dataclasses import dataclass

from rich.table import Table

from stmaml.benchmarks import BENCHMARKS
from stmaml.cli.parsing import parse
from stmaml.cli.showing import plain_console
from stmaml.methods import METHODS
from stmaml.recipes import presets
from stmaml.shipped import pretrained_card, pretrained_names


@dataclass(frozen=True)
class List:
    """Show methods, benchmarks, presets, and the trained learners that ship with the package."""

    card: str | None = None
    """Print what is to be known of this shipped learner instead."""
    json: bool = False
    """Print one JSON object instead of a table."""


def main(arguments: list[str]) -> None:
    """Prints what there is."""
    flags = parse(List, arguments, "stmaml list")
    if flags.card is not None:
        print(pretrained_card(flags.card))
        return
    found = {b: {m: presets(b, m) for m in METHODS if presets(b, m)} for b in BENCHMARKS}
    if flags.json:
        print(
            json.dumps(
                {
                    "methods": list(METHODS),
                    "benchmarks": list(BENCHMARKS),
                    "presets": found,
                    "pretrained": pretrained_names(),
                },
                indent=2,
            )
        )
        return
    for benchmark, methods in found.items():
        table = Table("method", "presets", title=f"benchmark {benchmark}", title_justify="left")
        for method, names in methods.items():
            table.add_row(method, ", ".join(names))
        plain_console().print(table)
    print(f"trained learners, by stmaml.load_pretrained(NAME) and --card NAME: {', '.join(pretrained_names())}")
