"""Arrays from a file as a dataclass wants them: each of the kind and shape that its field names, with numbers in it."""

import dataclasses
import math
import typing
from typing import Any, TypeVar

import numpy as np
from jaxtyping import jaxtyped

from stmaml.errors import RunError

T = TypeVar("T")


def check_arrays(thing: T, *, infinite: tuple[str, ...] = ()) -> T:
    """The dataclass itself, whose arrays are as its fields say, sizes of one name alike; all numbers are finite but for
    those of the fields `infinite`."""
    hints = typing.get_type_hints(type(thing))
    with jaxtyped("context"):
        for field in dataclasses.fields(typing.cast(Any, thing)):
            value = getattr(thing, field.name)
            if isinstance(value, np.ndarray) and not isinstance(value, hints[field.name]):
                shape = f"{value.dtype}{list(value.shape)}"
                raise RunError(f"'{field.name}' is {shape}, which does not fit what stands beside it.")
            if field.name not in infinite and not _finite(value):
                raise RunError(f"'{field.name}' holds a value that is not a number, or infinite.")
    return thing


def _finite(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind != "f" or bool(np.isfinite(value).all())
    return not isinstance(value, float) or math.isfinite(value)
