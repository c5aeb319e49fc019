"""What was wrong in the files somebody brought: counted by kind, the first few named."""

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from stmaml.border.arrays import DAMAGE
from stmaml.border.json_text import parse_json

MAX_EXAMPLES = 5
BROKEN_SAVE = (*DAMAGE, AttributeError)
"""What damaged files raise that were saved by NumPy, and what is in them."""


@dataclass(frozen=True)
class Problem:
    """Something wrong in the files: how often, and the first few places."""

    count: int
    examples: tuple[str, ...]


def to_text(problems: dict[str, Problem]) -> str:
    """The problems as JSON, to be saved."""
    return json.dumps({kind: (problem.count, problem.examples) for kind, problem in problems.items()})


def from_text(text: str) -> dict[str, Problem]:
    """The problems back from `to_text`."""
    found = {kind: Problem(int(count), tuple(map(str, seen))) for kind, (count, seen) in _items(text)}
    if not all(problem.examples for problem in found.values()):
        raise ValueError("problems without an example")
    return found


def _items(text: str) -> list[tuple[str, Any]]:
    return list(parse_json(text.encode()).items())


def in_words(problems: dict[str, Problem]) -> list[str]:
    """A line for each kind."""
    return [f"{kind}: {problem.count:,}, such as {problem.examples[0]}" for kind, problem in problems.items()]


class Problems:
    """Counts of what was wrong, by kind."""

    def __init__(self):
        self._counts: dict[str, int] = defaultdict(int)
        self._examples: dict[str, list[str]] = defaultdict(list)

    def add(self, kind: str, example: str, count: int = 1) -> None:
        """Counts `count` more of a kind, seen at `example`."""
        self._counts[kind] += count
        if len(self._examples[kind]) < MAX_EXAMPLES:
            self._examples[kind].append(example)

    def update(self, other: "Problems") -> None:
        """Adds all that `other` counted."""
        self.add_all(other.summary())

    def add_all(self, summary: dict[str, Problem]) -> None:
        """Adds all of a summary."""
        for kind, problem in summary.items():
            self._counts[kind] += problem.count
            self._examples[kind] = [*self._examples[kind], *problem.examples][:MAX_EXAMPLES]

    def summary(self) -> dict[str, Problem]:
        """Each kind's count and first examples."""
        return {kind: Problem(count, tuple(self._examples[kind])) for kind, count in sorted(self._counts.items())}
