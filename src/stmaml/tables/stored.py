"""What a column that was read from a file must be, so that its cells become numbers."""

import math
from typing import Any

from stmaml.errors import RunError

RESTORE = "Restore the file from a copy, or fit again."


def check_scale(column: dict[str, Any], name: str) -> None:
    """Raises RunError for numbers of a column, by what they are called, that no column has."""
    numbers = {key: value for key, value in column.items() if type(value) in (int, float)}
    if odd := [key for key, value in numbers.items() if not math.isfinite(value)]:
        raise RunError(f"column '{name}' has the {odd[0]} {numbers[odd[0]]}, which is not finite. {RESTORE}")
    if numbers.get("std", 1.0) <= 0:
        raise RunError(f"column '{name}' must have a std above 0; it has {numbers['std']}. {RESTORE}")
    if numbers.get("low", 0.0) > numbers.get("high", math.inf):
        raise RunError(f"column '{name}' reaches from {numbers['low']} down to {numbers['high']}. {RESTORE}")
