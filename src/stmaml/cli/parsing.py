"""Flags to settings."""

import io
import re
from collections.abc import Collection
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import field, fields, make_dataclass
from itertools import pairwise
from typing import Annotated, Any, TypeVar

import tyro

from stmaml.errors import SettingError, closest

T = TypeVar("T")
SYNONYMS = {
    **dict.fromkeys(("--group", "--groups", "--by", "--group-by", "--subject"), "--task"),
    **dict.fromkeys(("--label", "--labels", "--y", "--outcome", "--response", "--predict"), "--target"),
    **dict.fromkeys(("--x", "--inputs", "--columns", "--predictors"), "--features"),
    **dict.fromkeys(("--exclude", "--ignore", "--without"), "--drop"),
    **dict.fromkeys(("--sep", "--separator"), "--delimiter"),
    **dict.fromkeys(("--na", "--na-values", "--null"), "--missing"),
    **dict.fromkeys(("--category", "--categories", "--factor"), "--categorical"),
    **dict.fromkeys(("--output", "-o", "--to"), "--out"),
    **dict.fromkeys(("--test", "--ask", "--new"), "--query"),
    **dict.fromkeys(("--train", "--labelled", "--known"), "--support"),
}
NAMING_PATHS = ("--data", "--out", "--resume", "--run")  # flags whose values may look like a benchmark's name


def parse(kind: type[T], arguments: list[str], prog: str, **changes: Any) -> T:
    """The settings that the flags name; a value that makes no sense is a SettingError, like everywhere else."""
    how: Any = {"args": arguments, "prog": prog, "config": (tyro.conf.OmitArgPrefixes,), **changes}
    try:
        # tyro draws a box around such a value even where it is told to print nothing
        with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
            return tyro.cli(kind, **how)
    except SystemExit as end:
        if (error := _cause(end)) is not None:
            raise error from None
        if end.code:
            raise SettingError(
                complaint(arguments, _shown(kind, how, arguments), _shown(kind, how, ["--help"]))
            ) from None
    return tyro.cli(kind, **how)  # shows the help


def _shown(kind: type, how: dict[str, Any], arguments: list[str]) -> str:
    """What tyro prints for these arguments, without the lines of its boxes."""
    with redirect_stderr(io.StringIO()) as err, redirect_stdout(io.StringIO()) as out, suppress(SystemExit):
        tyro.cli(kind, **{**how, "args": arguments})
    return re.sub("[│╭╮╰╯─]+|-{3,}", "", out.getvalue() + err.getvalue())


def complaint(arguments: list[str], said: str, about: str) -> str:
    """One sentence on what is wrong with the arguments, from what tyro says of them and from its help."""
    known = re.findall(r"^ {0,2}(--[\w-]+)", about, re.MULTILINE) + re.findall(r", (--[\w-]+)", about)
    for word in arguments:
        flag = word.split("=")[0]
        if re.match("-+[A-Za-z]", flag) and flag.replace("_", "-") not in known:
            return f"there is no flag {flag}. {_meant(flag, known)}"
    text = " ".join(said.split())
    if found := re.search(r"Missing value for argument '(\S+)'", text):
        return f"{found[1]} needs a value."
    if found := re.search(r"Error parsing (\S+): (.*?)(?: Argument helptext| For full helptext|$)", text):
        return _value_complaint(found[1], found[2])
    if found := re.search(r"invalid choice (\S+) for argument '(\S+)'. Expected one of \((.*?)\)", text):
        return f"{found[2]} must be one of {found[3].replace(chr(39), '')}; got {found[1]}."
    if found := re.search(r"Unrecognized options: (\S+)", text):
        return f"'{found[1].rstrip(',')}' belongs to no flag. See --help."
    if needed := re.findall(r"^ *(--[\w-]+|[A-Z]+) .*$", said.partition("Missing from")[2], re.MULTILINE):
        return f"{' and '.join(dict.fromkeys(needed))} must be given. See --help."
    return re.sub(r" *(Perhaps you meant|For full helptext).*", "", text).rstrip(".") + ". See --help."


def _value_complaint(flag: str, why: str) -> str:
    wanted = {"invalid literal for int": "a whole number", "could not convert string to float": "a number"}
    for words, kind in wanted.items():
        if words in why:
            return f"{flag} must be {kind}; got {why.rpartition(': ')[2].strip()}."
    why = re.sub(r"Could not find valid parse for arguments: \[(.*)\]", r"cannot be read from \1", why)
    return f"{flag}: {why.strip().rstrip('.')}."


def _meant(flag: str, known: Collection[str]) -> str:
    """What a flag may have been meant for."""
    alike = [other for other in (SYNONYMS.get(flag), *closest(flag, known)) if other in known]
    return f"Did you mean {alike[0]}?" if alike else "See --help."


def benchmark_first(arguments: list[str], known: Collection[str]) -> list[str]:
    """The arguments with the name of a benchmark before the flags, wherever it stood among them."""
    if arguments and arguments[0].startswith("-"):
        for i, (flag, word) in enumerate(pairwise(arguments), start=1):
            if word in known and flag not in NAMING_PATHS:
                return [word, *arguments[:i], *arguments[i + 1 :]]
    return arguments


def value_of(flag: str, arguments: list[str]) -> str | None:
    """What a flag is given, if it is there: for those on which it depends what other flags there are."""
    for word, following in pairwise([*arguments, ""]):
        if word == flag:
            if not following:
                raise SettingError(f"{flag} needs a value.")
            return following
        if word.startswith(f"{flag}="):
            return word.removeprefix(f"{flag}=")
    return None


def option(default: Any, text: str, kind: Any) -> tuple[Any, Any]:
    """The type and the default of a flag, for `flags_of`."""
    return Annotated[kind, tyro.conf.arg(help=text)], field(default=default)


def flags_of(**options: tuple[Any, Any]) -> type:
    """A dataclass of a benchmark's name and of these flags, some of which are groups of settings."""
    parts = {"benchmark": (tyro.conf.Positional[str], field()), **options}
    return make_dataclass("Flags", [(name, kind, spec) for name, (kind, spec) in parts.items()], frozen=True)


def named(task: Any, arguments: list[str]) -> dict[str, Any]:
    """The benchmark's settings that the command names; those of the others differ from row to row."""
    words = {word.split("=", 1)[0] for word in arguments if word.startswith("--")}
    names = [field.name for field in fields(task)]
    flags = {name: {f"--{name.replace('_', '-')}", f"--no-{name.replace('_', '-')}", f"--{name}"} for name in names}
    return {name: getattr(task, name) for name in names if flags[name] & words}


def _cause(error: BaseException | None) -> SettingError | None:
    """What a settings class raised before tyro caught it."""
    while error is not None and not isinstance(error, SettingError):
        error = error.__context__
    return error
