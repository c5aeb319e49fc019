"""Where the commands print to."""

import math
import os
import sys
from typing import Any

from rich.console import Console

FILE_WIDTH = 240  # columns where the output is no terminal: a folded line or table is hard to search


def plain_console(*, stderr: bool = False) -> Console:
    """A console that prints every text as it stands: `speed [km/h]` from somebody's table is no style."""
    told = os.environ.get("COLUMNS", "").isdigit() or (sys.stderr if stderr else sys.stdout).isatty()
    return Console(stderr=stderr, markup=False, emoji=False, width=None if told else FILE_WIDTH)


def without_nan(content: Any) -> Any:
    """The same with null for numbers that JSON cannot hold, such as the interval of a single task."""
    if isinstance(content, dict):
        return {name: without_nan(value) for name, value in content.items()}
    return None if isinstance(content, float) and not math.isfinite(content) else content
