"""Flags to settings."""

import io
from collections.abc import Collection
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import field, make_dataclass
from itertools import pairwise
from typing import Annotated, Any, TypeVar

import tyro

from stmaml.errors import SettingError

T = TypeVar("T")
NAMING_PATHS = ("--data", "--out", "--resume", "--run")  # flags whose values may look like a benchmark's name


def parse(kind: type[T], arguments: list[str], prog: str, **changes: Any) -> T:
    """The settings that the flags name; a value that makes no sense is a SettingError, like everywhere else."""
    how: Any = {"args": arguments, "prog": prog, "config": (tyro.conf.OmitArgPrefixes,), **changes}
    try:
        # tyro draws a box around such a value even where it is told to print nothing
        with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
            return tyro.cli(kind, **how)
    except SystemExit as end:
        if (error := _cause(end)) is not None:
            raise error from None
    return tyro.cli(kind, **how)  # says what is wrong, or shows the help


def benchmark_first(arguments: list[str], known: Collection[str]) -> list[str]:
    """The arguments with the name of a benchmark before the flags, wherever it stood among them."""
    if arguments and arguments[0].startswith("-"):
        for i, (flag, word) in enumerate(pairwise(arguments), start=1):
            if word in known and flag not in NAMING_PATHS:
                return [word, *arguments[:i], *arguments[i + 1 :]]
    return arguments


def value_of(flag: str, arguments: list[str]) -> str | None:
    """What a flag is given, if it is there: for those on which it depends what other flags there are."""
    for word, following in pairwise([*arguments, ""]):
        if word == flag:
            if not following:
                raise SettingError(f"{flag} needs a value.")
            return following
        if word.startswith(f"{flag}="):
            return word.removeprefix(f"{flag}=")
    return None


def option(default: Any, text: str, kind: Any) -> tuple[Any, Any]:
    """The type and the default of a flag, for `flags_of`."""
    return Annotated[kind, tyro.conf.arg(help=text)], field(default=default)


def flags_of(**options: tuple[Any, Any]) -> type:
    """A dataclass of a benchmark's name and of these flags, some of which are groups of settings."""
    fields = {"benchmark": (tyro.conf.Positional[str], field()), **options}
    return make_dataclass("Flags", [(name, kind, spec) for name, (kind, spec) in fields.items()], frozen=True)


def _cause(error: BaseException | None) -> SettingError | None:
    """What a settings class raised before tyro caught it."""
    while error is not None and not isinstance(error, SettingError):
        error = error.__context__
    return error
