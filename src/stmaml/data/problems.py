"""What was wrong in the files somebody brought: counted by kind, the first few named."""

from collections import defaultdict
from dataclasses import dataclass

MAX_EXAMPLES = 5


@dataclass(frozen=True)
class Problem:
    """Something wrong in the files: how often, and the first few places."""

    count: int
    examples: tuple[str, ...]


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
        for kind, problem in other.summary().items():
            self._counts[kind] += problem.count
            room = MAX_EXAMPLES - len(self._examples[kind])
            self._examples[kind].extend(problem.examples[:room])

    def summary(self) -> dict[str, Problem]:
        """Each kind's count and first examples."""
        return {kind: Problem(count, tuple(self._examples[kind])) for kind, count in sorted(self._counts.items())}
