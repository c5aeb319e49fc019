"""Errors meant for the person at the keyboard: one sentence that says what was expected, what came, what to do."""

import difflib
import math
import re
from collections.abc import Callable, Iterable

LONG = re.compile(r"\S{1000,}")  # what a damaged file may hold: nobody reads it all, and it hides the sentence


class StmamlError(Exception):
    """Anything a user can mend. The command line prints it without a traceback and exits with code 2."""

    def __str__(self) -> str:
        return LONG.sub(lambda word: f"{word[0][:60]}...", super().__str__())


class SettingError(StmamlError, ValueError):
    """A setting with a value that makes no sense."""


class SourceError(StmamlError, ValueError):
    """A task source that gave something no learner can use."""


class RunError(StmamlError):
    """A run folder that cannot be read or written."""


def forbidden(what: object) -> str:
    """What to say of a file or folder that the system does not let be read."""
    return f"{what} may not be read: permission denied. Change its permissions, or have its owner change them."


def at_least(least: int | float, **settings: int | float | None) -> None:
    """Refuses settings below `least`, and those that are no finite number; None is a setting left alone."""
    _refuse_unless(lambda value: value >= least, f"at least {least:g}", settings)


def above(bound: int | float, **settings: int | float | None) -> None:
    """Refuses settings that are not above `bound`, and those that are no finite number; None is one left alone."""
    _refuse_unless(lambda value: value > bound, f"above {bound:g}", settings)


def need_widths(**settings: tuple[int, ...]) -> None:
    """Refuses networks that have no layer, or one without a single number."""
    for name, widths in settings.items():
        if not widths or min(widths) < 1:
            given = " ".join(map(str, widths)) or "none"
            raise SettingError(f"{_flag(name)} needs one width or more, each at least 1; got {given}.")


def _refuse_unless(fits: Callable[[int | float], bool], expected: str, settings: dict[str, int | float | None]) -> None:
    for name, value in settings.items():
        if value is not None and not math.isfinite(value):
            raise SettingError(f"{_flag(name)} must be a finite number; got {value}.")
        if value is not None and not fits(value):
            raise SettingError(f"{_flag(name)} must be {expected}; got {value}.")


def _flag(name: str) -> str:
    """The setting as the command line spells it."""
    return f"--{name.replace('_', '-')}"


def closest(name: str, known: Iterable[str]) -> list[str]:
    """The one known name that another may have been meant for, if any: case, blanks and bars count least."""
    bare, plain = _plain(name), {other: _plain(other) for other in known}
    alike = difflib.get_close_matches(bare, set(plain.values()), n=1, cutoff=0.75)
    near = [bare, *alike, *(other for other in plain.values() if _one_slip(bare, other))]
    return [other for one in near for other in plain if plain[other] == one][:1]


def _plain(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum()) or name


def _one_slip(a: str, b: str) -> bool:
    """Whether a letter of a word is wrong, lacking or one too many, or two have changed places."""
    if min(len(a), len(b)) < 3:
        return False
    i = next((i for i, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b)))
    swapped = a[i : i + 2] == b[i : i + 2][::-1] and a[i + 2 :] == b[i + 2 :]
    return swapped or b[i + 1 :] in (a[i + 1 :], a[i:]) or a[i + 1 :] == b[i:]
