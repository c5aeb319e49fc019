"""An error put into a module that is imported already: the code of its functions is exchanged where they lie.

Whoever holds a function of the module, under whatever decorators, then calls the one with the error. That works for
errors inside functions; what runs when a module is imported (constants, defaults, fields) has run by then."""

import ast
import gc
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType


def module_at(path: Path) -> ModuleType:
    """The imported module that this file is the source of."""
    return next(one for one in list(sys.modules.values()) if getattr(one, "__file__", None) == str(path))


def replacements(path: Path, source: str) -> dict[str, list[CodeType]] | None:
    """The code of all functions of a module with this source, by name; None where the source differs outside them."""
    own = ast.unparse(ast.parse(path.read_text()))  # so that lines and comments are no difference
    before, after = compiled(path, own), compiled(path, source)
    return by_name(after) if _at_import(before) == _at_import(after) else None


def compiled(path: Path, source: str) -> CodeType:
    """Source as the module's own loader compiles it, with checks of types where tests have them."""
    loader = module_at(path).__spec__.loader  # type: ignore[union-attr]
    return loader.source_to_code(source.encode(), str(path))  # type: ignore[union-attr]


def by_name(code: CodeType) -> dict[str, list[CodeType]]:
    """All code in this one by its qualified name; of the same name, in the order of their lines."""
    found = defaultdict(list)
    for one in sorted(_inside(code), key=lambda one: one.co_firstlineno):
        found[one.co_qualname].append(one)
    return found


def exchange(path: Path, new: dict[str, list[CodeType]]) -> None:
    """Gives every function of the module its new code."""
    old = defaultdict(list)
    for one in gc.get_objects():
        if isinstance(one, FunctionType) and one.__code__.co_filename == str(path):
            old[one.__code__.co_qualname].append(one)
    for name, functions in old.items():
        lines = sorted({one.__code__.co_firstlineno for one in functions})
        if len(lines) == len(new[name]):  # others are made in functions, whose code brings theirs
            for one in functions:
                one.__code__ = new[name][lines.index(one.__code__.co_firstlineno)]


def _inside(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _inside(one)


def _at_import(code: CodeType) -> tuple[object, ...]:
    """What runs at import: the module's code and that of its classes, without the functions that they make."""
    plain = tuple(repr(one) for one in code.co_consts if not isinstance(one, CodeType))
    classes = [one for one in code.co_consts if isinstance(one, CodeType) and not one.co_flags & 0x1]  # optimised: def
    return code.co_code, code.co_names, plain, tuple(_at_import(one) for one in classes)
