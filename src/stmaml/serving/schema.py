"""What requests and answers look like: each form checks a value of JSON, and says the same as a JSON schema."""

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from stmaml.border.json_text import is_number
from stmaml.errors import StmamlError, closest

WAIT = 10  # seconds after which a program may have been compiled
LARGEST = 1e9  # as far as a coordinate or a target may lie from 0
Json = dict[str, Any]


class Refused(StmamlError):
    """A request that is answered with a sentence."""

    def __init__(self, message: str, status: int = 400, wait: int | None = None):
        super().__init__(message)
        self.status = status
        self.wait = wait
        """Seconds after which to try again, if that may help."""


class AbstractForm(abc.ABC):
    """One kind of value."""

    @abc.abstractmethod
    def check(self, value: Any, where: str) -> Any:
        """The value as the program wants it; Refused, with its place, if it is of another kind."""

    @abc.abstractmethod
    def schema(self) -> Json:
        """The same as a JSON schema."""


def _refuse(where: str, expected: str, value: Any) -> Refused:
    shown = repr(value)
    kinds = {dict: "an object", list: f"a list of {len(value) if type(value) is list else 0}", type(None): "null"}
    came = kinds.get(type(value), shown if len(shown) <= 40 else f"{shown[:37]}...")
    return Refused(f"'{where}' must be {expected}; got {came}.")


@dataclass(frozen=True)
class Number(AbstractForm):
    """A finite number."""

    words: str

    def check(self, value: Any, where: str) -> float:
        """The number."""
        if not is_number(value) or abs(value) > LARGEST:
            raise _refuse(where, f"a number between -{LARGEST:g} and {LARGEST:g}", value)
        return float(value)

    def schema(self) -> Json:
        """A number in its range."""
        return {"type": "number", "minimum": -LARGEST, "maximum": LARGEST, "description": self.words}


@dataclass(frozen=True)
class Whole(AbstractForm):
    """A whole number in a range."""

    words: str
    low: int
    high: int

    def check(self, value: Any, where: str) -> int:
        """The number."""
        if type(value) is not int or not self.low <= value <= self.high:
            raise _refuse(where, f"a whole number from {self.low} to {self.high}", value)
        return value

    def schema(self) -> Json:
        """An integer in its range."""
        return {"type": "integer", "minimum": self.low, "maximum": self.high, "description": self.words}


@dataclass(frozen=True)
class Among(AbstractForm):
    """One of some whole numbers."""

    words: str
    values: tuple[int, ...]

    def check(self, value: Any, where: str) -> int:
        """The number."""
        if type(value) is not int or value not in self.values:
            raise _refuse(where, f"one of {', '.join(map(str, self.values))}", value)
        return value

    def schema(self) -> Json:
        """An integer of a list."""
        return {"type": "integer", "enum": list(self.values), "description": self.words}


@dataclass(frozen=True)
class Text(AbstractForm):
    """A text, or one of some."""

    words: str
    among: tuple[str, ...] = ()

    def check(self, value: Any, where: str) -> str:
        """The text."""
        if type(value) is not str or (self.among and value not in self.among):
            raise _refuse(where, f"one of {', '.join(self.among)}" if self.among else "a text", value)
        return value

    def schema(self) -> Json:
        """A string."""
        return {"type": "string", "description": self.words, **({"enum": list(self.among)} if self.among else {})}


@dataclass(frozen=True)
class Vector(AbstractForm):
    """A list of finite numbers."""

    words: str
    most: int

    def check(self, value: Any, where: str) -> Float[np.ndarray, " n"]:
        """The numbers as an array."""
        if type(value) is not list or len(value) > self.most:
            raise _refuse(where, f"a list of at most {self.most:,} numbers", value)
        return _numbers(value, where)

    def schema(self) -> Json:
        """An array of numbers."""
        return {"type": "array", "items": {"type": "number"}, "maxItems": self.most, "description": self.words}


@dataclass(frozen=True)
class Matrix(AbstractForm):
    """A list of rows, each of so many finite numbers."""

    words: str
    width: int
    most: int

    def check(self, value: Any, where: str) -> Float[np.ndarray, "n w"]:
        """The rows as an array."""
        if type(value) is not list or len(value) > self.most:
            raise _refuse(where, f"a list of at most {self.most:,} rows", value)
        for i, row in enumerate(value):
            if type(row) is not list or len(row) != self.width:
                raise _refuse(f"{where}[{i}]", f"a list of {self.width} numbers", row)
        return _numbers([number for row in value for number in row], where).reshape(-1, self.width)

    def schema(self) -> Json:
        """An array of arrays of numbers."""
        row = {"type": "array", "items": {"type": "number"}, "minItems": self.width, "maxItems": self.width}
        return {"type": "array", "items": row, "maxItems": self.most, "description": self.words}


def _numbers(values: list[Any], where: str) -> Float[np.ndarray, " n"]:
    for value in values:
        if not is_number(value) or abs(value) > LARGEST:
            raise _refuse(where, f"made of numbers between -{LARGEST:g} and {LARGEST:g}", value)
    return np.array(values, dtype=np.float32)


@dataclass(frozen=True)
class Places(AbstractForm):
    """A list of whole numbers from 0."""

    words: str
    most: int

    def check(self, value: Any, where: str) -> list[int]:
        """The numbers."""
        if type(value) is not list or len(value) > self.most:
            raise _refuse(where, f"a list of at most {self.most:,} whole numbers", value)
        for i, one in enumerate(value):
            if type(one) is not int or one < 0:
                raise _refuse(f"{where}[{i}]", "a whole number from 0", one)
        return value

    def schema(self) -> Json:
        """An array of integers."""
        item = {"type": "integer", "minimum": 0}
        return {"type": "array", "items": item, "maxItems": self.most, "description": self.words}


@dataclass(frozen=True)
class Records(AbstractForm):
    """Rows of a table: an object for each, of known columns and plain cells."""

    words: str
    columns: tuple[str, ...]
    most: int
    cell: int = 1000
    """Most characters of a cell."""

    def check(self, value: Any, where: str) -> list[dict[str, Any]]:
        """The rows."""
        if type(value) is not list or len(value) > self.most:
            raise _refuse(where, f"a list of at most {self.most:,} rows", value)
        known = set(self.columns)
        for i, row in enumerate(value):
            self._check_row(row, known, f"{where}[{i}]")
        return value

    def _check_row(self, row: Any, known: set[str], where: str) -> None:
        if type(row) is not dict:
            raise _refuse(where, "an object with a value for each column", row)
        for name, cell in row.items():
            if name not in known:
                meant = closest(name, self.columns)
                hint = f"Did you mean '{meant[0]}'?" if meant else f"Columns: {', '.join(self.columns[:20])}."
                raise Refused(f"'{where}' has a column '{name[:80]}', which the learner does not know. {hint}")
            if type(cell) is str and len(cell) > self.cell:
                raise Refused(f"'{where}.{name}' has {len(cell):,} characters; expected at most {self.cell:,}.")
            if not (cell is None or type(cell) in (str, bool) or is_number(cell)):
                raise _refuse(f"{where}.{name}", "a number, a text, true, false or null", cell)

    def schema(self) -> Json:
        """An array of objects."""
        cell = {"type": ["number", "string", "boolean", "null"]}
        row = {"type": "object", "properties": dict.fromkeys(self.columns, cell), "additionalProperties": False}
        return {"type": "array", "items": row, "maxItems": self.most, "description": self.words}


@dataclass(frozen=True)
class Several(AbstractForm):
    """A list of values of one kind."""

    words: str
    each: AbstractForm
    most: int
    least: int = 1

    def check(self, value: Any, where: str) -> list[Any]:
        """Each of them checked."""
        if type(value) is not list or not self.least <= len(value) <= self.most:
            raise _refuse(where, f"a list of {self.least} to {self.most}", value)
        return [self.each.check(one, f"{where}[{i}]") for i, one in enumerate(value)]

    def schema(self) -> Json:
        """An array."""
        about = {"type": "array", "items": self.each.schema(), "description": self.words}
        return {**about, "minItems": self.least, "maxItems": self.most}


@dataclass(frozen=True)
class Form(AbstractForm):
    """An object of named values, some of which may be left out."""

    words: str
    fields: Mapping[str, AbstractForm]
    required: Sequence[str] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What stands for a value that is left out or null; None where nothing does."""
    rule: Callable[[Json, str], None] = lambda value, where: None
    """Refuses values that do not go together."""

    def check(self, value: Any, where: str) -> Json:
        """All fields by name."""
        if type(value) is not dict:
            raise _refuse(where, "an object", value)
        for name in value:
            if name not in self.fields:
                meant = closest(name, self.fields)
                hint = f"Did you mean '{meant[0]}'?" if meant else f"It may have: {', '.join(self.fields)}."
                raise Refused(f"'{where}' has no field '{name[:80]}'. {hint}")
        for name in self.required:
            if value.get(name) is None:
                raise Refused(f"'{where}' lacks '{name}': {self.fields[name].schema().get('description', name)}")
        given = {name: one for name, one in value.items() if one is not None}
        found = {name: self.fields[name].check(one, f"{where}.{name}") for name, one in given.items()}
        whole = {**dict.fromkeys(self.fields), **self.defaults, **found}
        self.rule(whole, where)
        return whole

    def schema(self) -> Json:
        """An object."""
        parts = {name: one.schema() for name, one in self.fields.items()}
        for name, default in self.defaults.items():
            parts[name] = {**parts[name], "default": default}
        about = {"type": "object", "properties": parts, "additionalProperties": False, "description": self.words}
        return {**about, "required": list(self.required)} if self.required else about

    def joined(self, other: "Form", words: str) -> "Form":
        """One form of the fields of both."""

        def rule(value: Json, where: str) -> None:
            self.rule(value, where)
            other.rule(value, where)

        fields, defaults = {**self.fields, **other.fields}, {**self.defaults, **other.defaults}
        return Form(words, fields, (*self.required, *other.required), defaults, rule)

    def only(self, *names: str) -> "Form":
        """A form of some of the fields."""
        fields = {name: self.fields[name] for name in names if name in self.fields}
        defaults = {name: self.defaults[name] for name in names if name in self.defaults}
        return Form(self.words, fields, tuple(n for n in self.required if n in names), defaults)

    def without(self, *names: str) -> "Form":
        """A form of the other fields."""
        return self.only(*(name for name in self.fields if name not in names))
