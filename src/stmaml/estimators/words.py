"""Errors in the words of an estimator, where the command line's speak of flags."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from stmaml.errors import SettingError, SourceError

PARAMETERS = {"task": "groups", "target": "y", "features": "X"}
"""What the command line's flags are called here, where it is not the same name."""


@contextmanager
def in_own_words(target: str) -> Iterator[None]:
    """Errors that name parameters where those of the command line name flags, and y where they name its column."""
    try:
        yield
    except (SettingError, SourceError) as error:
        text = re.sub(f"(the target|column) '{re.escape(target)}'", "y", str(error))
        text = re.sub(r"--([a-z-]*[a-z])", lambda flag: PARAMETERS.get(flag[1], flag[1].replace("-", "_")), text)
        raise type(error)(text) from error
