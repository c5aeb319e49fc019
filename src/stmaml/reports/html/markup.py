"""Tags and text of a page. All that comes from outside passes through `escaped`."""

from html import escape
from typing import TypeAlias

Markup: TypeAlias = str
"""Text that may hold tags: made by the functions here alone."""
Value: TypeAlias = str | int | float | bool | None


def escaped(text: object) -> Markup:
    """Text that shows as it is, whatever it holds; characters that no page may hold are shown as boxes."""
    return escape("".join(one if one.isprintable() or one in "\n\t" else "\ufffd" for one in str(text)), quote=True)


def tag(name: str, *content: Markup, **attributes: Value) -> Markup:
    """An element. An attribute that is None or False is left out; `_` in its name stands for `-`."""
    head = f"{name}{''.join(_attribute(key, value) for key, value in attributes.items())}"
    return f"<{head}>{''.join(content)}</{name}>"


def empty(name: str, **attributes: Value) -> Markup:
    """An element without content."""
    return f"<{name}{''.join(_attribute(key, value) for key, value in attributes.items())}/>"


def _attribute(name: str, value: Value) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    return f' {name}="{escaped(_written(value))}"'


def _written(value: Value) -> str:
    if value is True:
        return ""
    return f"{round(value, 1) + 0.0:g}" if isinstance(value, float) else str(value)
