"""Where the commands print to."""

import math
import os
import sys
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from stmaml.cli.stopping import is_stopping

FILE_WIDTH = 240  # columns where the output is no terminal: a folded line or table is hard to search

PEOPLE_WIDTH = 100


def plain_console(*, stderr: bool = False) -> Console:
    """A console that prints every text as it stands: `speed [km/h]` from somebody's table is no style."""
    told = os.environ.get("COLUMNS", "").isdigit() or (sys.stderr if stderr else sys.stdout).isatty()
    kind = _Remarks if stderr else Console
    return kind(stderr=stderr, markup=False, emoji=False, width=None if told else FILE_WIDTH)


class _Remarks(Console):
    """For what a command says beside its output: nothing more once it is being stopped."""

    def print(self, *objects: Any, **how: Any) -> None:
        """Prints, unless a signal was heard."""
        if not is_stopping():
            super().print(*objects, **how)


def people_console() -> Console:
    """A console for what people read, at most 100 columns wide unless the terminal or COLUMNS says otherwise."""
    told = os.environ.get("COLUMNS", "").isdigit() or sys.stdout.isatty()
    return Console(markup=False, emoji=False, highlight=False, width=None if told else PEOPLE_WIDTH)


def table_of(first: str, *numbers: str) -> Table:
    """An empty table of words in the first column and numbers in the others."""
    table = Table(first, box=SIMPLE, padding=(0, 1))
    for head in numbers:
        table.add_column(head, justify="right")
    return table


def without_nan(content: Any) -> Any:
    """The same with null for numbers that JSON cannot hold, such as the interval of a single task."""
    if isinstance(content, dict):
        return {name: without_nan(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [without_nan(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
