"""What test tasks a score is of, as data: scores under equal conditions may be compared."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

SHORT = {"input_range": "range"}  # names that people read in another form
LONGEST = 120  # characters of a slug; longer ones are cut and told apart by a checksum


@dataclass(frozen=True)
class Conditions:
    """The benchmark, the settings that change its test tasks, and how a learner answers them."""

    benchmark: str
    tasks: Mapping[str, Any] = field(hash=False)
    """Numbers, strings and lists of them, by name, in the order people read them. What is off or None is left out."""
    samples: int = 1
    """Predictors sampled for each task."""
    inner_steps: int | None = None
    """Gradient steps on the support, if not as in training."""

    def __post_init__(self):
        stated = {name: value for name, value in self.tasks.items() if value is not None and value is not False}
        plain = json.loads(json.dumps(stated))  # tuples as lists: equal to what is read from a file
        object.__setattr__(self, "tasks", plain)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Conditions":
        """The conditions that `to_json` wrote."""
        return cls(content["benchmark"], content["tasks"], content["samples"], content.get("inner_steps"))

    def to_json(self) -> dict[str, Any]:
        """As a summary of scores holds them."""
        return asdict(self)

    def without(self, *names: str) -> "Conditions":
        """The same but for these settings of the tasks."""
        return replace(self, tasks={name: value for name, value in self.tasks.items() if name not in names})

    def words(self) -> str:
        """A title: `regression2d: range 0..5, noise 0.3, shots 10, query 40, 20 samples a task`."""
        samples = f"{self.samples} sample{'s' * (self.samples > 1)} a task"
        inner = [] if self.inner_steps is None else [f"inner steps {self.inner_steps}"]
        return f"{self.benchmark}: {', '.join([*self._parts(' '), samples, *inner])}"

    def slug(self) -> str:
        """A part of a file name, different for different conditions."""
        inner = "" if self.inner_steps is None else f"inner{self.inner_steps}"
        return shortened(slugify("-".join([self.benchmark, *self._parts(""), f"samples{self.samples}", inner])))

    def path(self) -> str:
        """The tasks alone, as `regression2d/range0..5/noise0.3/shots10`."""
        return "/".join([self.benchmark, *self._parts("")])

    def differences(self, other: "Conditions") -> str:
        """In words what differs here from `other`: `shots 5 instead of 10`; empty for equal conditions."""
        here, there = self._told(), other._told()
        names = [name for name in dict.fromkeys([*here, *there]) if here.get(name) != there.get(name)]
        return ", ".join(f"{name} {here.get(name, 'none')} instead of {there.get(name, 'none')}" for name in names)

    def _told(self) -> dict[str, str]:
        tasks = {SHORT.get(name, name).replace("_", " "): _said(value) for name, value in self.tasks.items()}
        steps = "as trained" if self.inner_steps is None else str(self.inner_steps)
        return {"benchmark": self.benchmark, **tasks, "samples": str(self.samples), "inner steps": steps}

    def _parts(self, between: str) -> list[str]:
        """Each setting of the tasks with its value; a switch by its name alone."""
        named = {SHORT.get(name, name).replace("_", " "): value for name, value in self.tasks.items()}
        return [name if value is True else f"{name}{between}{_said(value)}" for name, value in named.items()]


def slugify(text: str) -> str:
    """Lower-case words with dashes between."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def shortened(slug: str) -> str:
    """A slug that file systems take, however long it was."""
    checksum = hashlib.sha256(slug.encode()).hexdigest()[:8]
    return slug if len(slug) <= LONGEST else f"{slug[:LONGEST]}-{checksum}"


def _said(value: Any) -> str:
    """A value as people write it: `0..5` for a pair of numbers, `a+b` for names."""
    if value is True:
        return "on"
    if isinstance(value, list):
        pair = len(value) == 2 and not any(isinstance(item, str) for item in value)
        return (".." if pair else "+").join(_said(item) for item in value)
    return f"{value:g}" if isinstance(value, int | float) else str(value)
