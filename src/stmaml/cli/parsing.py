"""Flags to settings."""

import io
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, TypeVar

import tyro

from stmaml.errors import SettingError

T = TypeVar("T")


def parse(kind: type[T], arguments: list[str], prog: str, **changes: Any) -> T:
    """The settings that the flags name; a value that makes no sense is a SettingError, like everywhere else."""
    try:
        # tyro draws a box around such a value even where it is told to print nothing
        with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
            return tyro.cli(kind, args=arguments, prog=prog, **changes)
    except SystemExit as end:
        if (error := _cause(end)) is not None:
            raise error from None
    return tyro.cli(kind, args=arguments, prog=prog, **changes)  # says what is wrong, or shows the help


def _cause(error: BaseException | None) -> SettingError | None:
    """What a settings class raised before tyro caught it."""
    while error is not None and not isinstance(error, SettingError):
        error = error.__context__
    return error
