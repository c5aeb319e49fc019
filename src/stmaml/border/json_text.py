"""JSON from outside: bounded in size, depth and digits, so that parsing it ends, and ends in a value or a sentence."""

import json
import math
import re
from typing import Any

MOST_BYTES = 64 << 20
DEPTH = 60  # brackets within brackets; what this program writes has less than ten
DIGITS = 400  # of one number; the longest float has some 330, and Python refuses to read more than 4,300
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_LONG = re.compile(rb"[0-9]{%d}" % DIGITS)
LARGEST = 2**63


def parse_json(text: bytes) -> Any:
    """The value, or a ValueError that says what is wrong with the text."""
    if len(text) > MOST_BYTES:
        raise ValueError(f"{len(text):,} bytes; expected at most {MOST_BYTES:,}")
    bare = _STRINGS.sub(b"", text)
    if _LONG.search(bare):
        raise ValueError(f"a number of {DIGITS} digits or more")
    if _depth(bare) > DEPTH:
        raise ValueError(f"more than {DEPTH} brackets within each other")
    return json.loads(text.decode("utf-8"), parse_int=_whole)


def _depth(bare: bytes) -> int:
    """How deep brackets go, were all closed in order."""
    depth = deepest = 0
    for bracket in re.findall(rb"[\[\]{}]", bare):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _whole(digits: str) -> int:
    number = int(digits)
    if not -LARGEST <= number < LARGEST:
        raise ValueError(f"the number {digits[:20]}..., which is beyond 64 bits")
    return number


def is_number(value: Any) -> bool:
    """Whether a value of JSON is a number, and finite: true and false are none."""
    return type(value) in (int, float) and math.isfinite(value)
