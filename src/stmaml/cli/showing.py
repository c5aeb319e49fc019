"""Where the commands print to."""

import os
import sys

from rich.console import Console

FILE_WIDTH = 240
"""Columns where the output is no terminal: in a file or a pipe, a folded line or table is hard to search."""


def plain_console(*, stderr: bool = False) -> Console:
    """A console that prints every text as it stands: `speed [km/h]` from somebody's table is no style."""
    told = os.environ.get("COLUMNS", "").isdigit() or (sys.stderr if stderr else sys.stdout).isatty()
    return Console(stderr=stderr, markup=False, emoji=False, width=None if told else FILE_WIDTH)
