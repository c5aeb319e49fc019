"""Settings with some of them changed by name, in whichever group they stand."""

import dataclasses
from typing import Any, TypeVar

Settings = TypeVar("Settings")


def changed(settings: Settings, **values: Any) -> Settings:
    """As the command line does it, where the groups of settings have no names."""
    mine: Any = settings
    own = {field.name: getattr(mine, field.name) for field in dataclasses.fields(mine)}
    groups = {name: group for name, group in own.items() if dataclasses.is_dataclass(group)}
    new = {name: value for name, value in values.items() if name in own and _is_own(own[name], value)}
    for name, group in groups.items():
        inside = {key: value for key, value in values.items() if key not in new and key in _names(group)}
        if inside:
            new[name] = changed(new.get(name, group), **inside)
    if unknown := set(values) - set(new) - {key for group in groups.values() for key in _names(group)}:
        raise TypeError(f"there is no setting {unknown}")
    return dataclasses.replace(mine, **new)


def _is_own(old: Any, new: Any) -> bool:
    return dataclasses.is_dataclass(old) == dataclasses.is_dataclass(new)


def _names(settings: Any) -> set[str]:
    names = {field.name for field in dataclasses.fields(settings)}
    inside = (getattr(settings, name) for name in names)
    return names.union(*(_names(group) for group in inside if dataclasses.is_dataclass(group)))
