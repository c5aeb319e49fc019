"""Where data lie and where what was read from them is kept."""

import os
from pathlib import Path

from stmaml.errors import SourceError


def data_folder(given: str | None, name: str) -> Path:
    """The folder or file a benchmark reads: as given, or `name` below the folder in STMAML_DATA."""
    if given is not None:
        path = Path(given).expanduser()
        if not path.exists():
            raise SourceError(f"--data {given} does not exist. Name the folder (or archive) that holds the data.")
        return path
    root = os.environ.get("STMAML_DATA")
    if not root:
        raise SourceError(
            f"this benchmark reads files: name their folder with --data, or set STMAML_DATA to a folder with '{name}'."
        )
    path = Path(root).expanduser() / name
    if not path.exists():
        raise SourceError(f"STMAML_DATA is {root}, but there is no '{name}' in it. Put the data there, or use --data.")
    return path


def data_root(given: Path | None, *, needed: bool = True) -> Path:
    """The folder of all data: as given, or that of STMAML_DATA; it must exist if `needed`."""
    named = given or os.environ.get("STMAML_DATA")
    if not named:
        raise SourceError("no data folder is known: name one with --data, or set STMAML_DATA.")
    path = Path(named).expanduser()
    if needed and not path.is_dir():
        raise SourceError(f"there is no data folder {path}. Make it, or name another with --data or STMAML_DATA.")
    return path


def cache_folder() -> Path:
    """Where what took long to read or to compute is kept: STMAML_CACHE, or stmaml in the user's cache folder."""
    given, usual = os.environ.get("STMAML_CACHE"), os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return (Path(given) if given else Path(usual) / "stmaml").expanduser()
