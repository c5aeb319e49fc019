"""The command `stmaml`. This file imports nothing heavy, so that help answers at once."""

import gc
import importlib
import os
import sys
from collections.abc import Collection

TYPE_CHECKING = False  # as in typing, which takes long to import
if TYPE_CHECKING:
    from typing import NoReturn

COMMANDS = {
    "list": "show methods, benchmarks and presets",
    "train": "meta-train a method on a benchmark",
    "evaluate": "score a run on frozen test tasks",
    "fit": "learn across the groups of a table of your own",
    "predict": "predict new groups of that table from a few labelled rows",
    "effects": "how the groups of that table differ, and what its columns do",
    "update": "add labelled rows to what a fitted table knows",
    "export": "write a learner as a graph that runs without JAX",
    "serve": "learners on a page and behind a JSON interface, on this machine",
    "report": "tables and figures of one or more runs",
    "reproduce": "train and score every method of a table of the paper",
    "search": "choose the settings of a table's rows on equal terms",
    "data": "check or fetch the data of the benchmarks",
    "floor": "compute the Bayes limit of a synthetic benchmark",
}
NEW_OBJECTS = 50_000  # before garbage among them is looked for
COMPILING = ("train", "evaluate", "fit", "predict", "export", "serve", "reproduce", "search")
HELP = """usage: stmaml COMMAND ...

Few-shot learning on heterogeneous, ambiguous tasks.

commands:
{commands}

'stmaml COMMAND --help' tells more about each.

  stmaml train regression2d --method st-maml --steps 5000 --run runs/first
  stmaml evaluate runs/first
  stmaml report runs/first

  stmaml fit shops.csv --task shop --target sales --run runs/shops
  stmaml predict runs/shops --support new.csv --query ask.csv

  stmaml serve
"""


def main() -> None:
    """Runs the command named by the first argument."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(HELP.format(commands="\n".join(f"  {name:10} {text}" for name, text in COMMANDS.items())))
        return
    if arguments[0] == "--version":
        from importlib.metadata import version

        print(version("stmaml"))
        return
    check_name("command", arguments[0], COMMANDS)
    _run(arguments[0], arguments[1:])


def _run(command: str, arguments: list[str]) -> None:
    # Read when JAX is imported: else its compiler writes banners about itself between the lines of a command.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from stmaml.errors import StmamlError

    module = importlib.import_module(f"stmaml.cli.{command}")
    _collect_garbage()
    try:
        if command in COMPILING:
            importlib.import_module("stmaml.compiled").remember_programs()
        module.main(arguments)
    except StmamlError as error:
        fail(str(error))
    except KeyboardInterrupt:
        print("stopped.", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(141)


def _collect_garbage() -> None:
    """Lets Python look for garbage again where `stmaml.__main__` has held it back, less often than usual: tracing makes
    much that lives shortly. What was imported stays, and is not looked through any more."""
    if not gc.isenabled():
        gc.freeze()
        gc.set_threshold(NEW_OBJECTS, 20, 20)
        gc.enable()


def fail(message: str, code: int = 2) -> "NoReturn":
    """Says what is wrong and exits."""
    print(f"stmaml: {message}", file=sys.stderr)
    sys.exit(code)


def check_name(kind: str, name: str, known: Collection[str]) -> None:
    """Exits where there is nothing of this name, and says what it may have been meant for."""
    if name not in known:
        fail(f"there is no {kind} '{name}'. {nearest(name, known)}")


def nearest(name: str, known: Collection[str]) -> str:
    """The known names most like a misspelt one, as a sentence."""
    import difflib

    close = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    return f"Did you mean {' or '.join(close)}?" if close else f"Choose one of: {', '.join(known)}."
