"""Settings from JSON: every value is of the type its field has, or the file is refused."""

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from stmaml.errors import RunError

OTHER_VERSION = "Use the version that made the run, or train again."
RESTORE = "Restore it from a copy, or train again."
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
ACCEPTED: dict[Any, tuple[type, ...]] = {int: (int,), float: (int, float), bool: (bool,), str: (str,)}
LIST = 10_000  # entries of a list of settings
T = TypeVar("T")


def as_json(settings: Any) -> dict[str, Any]:
    """A settings dataclass as it looks after a journey through JSON."""
    return json.loads(json.dumps(dataclasses.asdict(settings)))


def from_dict(cls: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """A settings dataclass from the JSON it was written to; `where` in the file it stands."""
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(typing.cast(Any, cls))}
    need(dict, values, where or "settings")
    if unknown := sorted(set(values) - set(fields)):
        what = f"the run has a setting '{unknown[0][:80]}' that this version of stmaml does not know."
        raise RunError(f"{what} {OTHER_VERSION}")
    return cls(**{name: revive(hints[name], value, f"{where}{name}") for name, value in values.items()})


def need(kind: Any, value: Any, name: str) -> Any:
    """The value, which must be of this kind: a type, or what a field of a dataclass is annotated with."""
    return revive(kind, value, name)


def revive(hint: Any, value: Any, name: str) -> Any:
    """A value of JSON as a field wants it: dataclasses from objects, tuples from lists, floats from whole numbers."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _one_of(parts, value, name)
    if origin is typing.Literal:
        return value if type(value) is str and value in parts else _refuse(name, f"one of {_or(parts)}", value)
    if dataclasses.is_dataclass(hint):
        return from_dict(typing.cast(type, hint), _object(value, name), f"{name}.")
    if origin is tuple:
        return _tuple(parts, value, name)
    if hint is dict or origin is dict:
        return _object(value, name)
    return _plain(hint, value, name)


def _plain(hint: Any, value: Any, name: str) -> Any:
    if hint is type(None) and value is None:
        return None
    if type(value) not in ACCEPTED.get(hint, ()) or (type(value) is float and math.isnan(value)):
        return _refuse(name, WORDS.get(hint, str(hint)), value)
    return float(value) if hint is float else value


def _object(value: Any, name: str) -> dict[str, Any]:
    return value if type(value) is dict else _refuse(name, "an object", value)


def _one_of(parts: tuple[Any, ...], value: Any, name: str) -> Any:
    """The first kind that fits; with one beside null, its complaint is the clearest."""
    kinds = [part for part in parts if part is not type(None)]
    if value is None and len(kinds) < len(parts):
        return None
    for kind in kinds[:-1]:
        try:
            return revive(kind, value, name)
        except RunError:
            continue
    return revive(kinds[-1], value, name)


def _tuple(parts: tuple[Any, ...], value: Any, name: str) -> tuple[Any, ...]:
    if type(value) not in (list, tuple) or len(value) > LIST:
        return _refuse(name, f"a list of at most {LIST:,}", value)
    kinds = [parts[0]] * len(value) if parts[-1] is Ellipsis else list(parts)
    if len(kinds) != len(value):
        return _refuse(name, f"a list of {len(kinds)}", value)
    return tuple(revive(kind, item, f"{name}[{at}]") for at, (kind, item) in enumerate(zip(kinds, value, strict=True)))


def _or(names: tuple[Any, ...]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _refuse(name: str, expected: str, value: Any) -> Any:
    shown = json.dumps(value, default=str)
    shown = shown if len(shown) <= 40 else f"{shown[:37]}..."
    raise RunError(f"'{name}' must be {expected}; it is {shown}. {RESTORE}")
