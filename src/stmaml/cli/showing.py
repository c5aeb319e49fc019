"""Where the commands print to."""

from rich.console import Console


def plain_console(*, stderr: bool = False) -> Console:
    """A console that prints every text as it stands: `speed [km/h]` from somebody's table is no style."""
    return Console(stderr=stderr, markup=False, emoji=False)
