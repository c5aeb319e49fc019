"""`stmaml list`."""

import json
from dataclasses import dataclass

from rich.table import Table

from stmaml.benchmarks import BENCHMARKS
from stmaml.cli.parsing import parse
from stmaml.cli.showing import plain_console
from stmaml.methods import METHODS
from stmaml.recipes import presets


@dataclass(frozen=True)
class List:
    """Show methods, benchmarks and presets."""

    json: bool = False
    """Print one JSON object instead of a table."""


def main(arguments: list[str]) -> None:
    """Prints what there is."""
    flags = parse(List, arguments, "stmaml list")
    found = {b: {m: presets(b, m) for m in METHODS if presets(b, m)} for b in BENCHMARKS}
    if flags.json:
        print(json.dumps({"methods": list(METHODS), "benchmarks": list(BENCHMARKS), "presets": found}, indent=2))
        return
    for benchmark, methods in found.items():
        table = Table("method", "presets", title=f"benchmark {benchmark}", title_justify="left")
        for method, names in methods.items():
            table.add_row(method, ", ".join(names))
        plain_console().print(table)
