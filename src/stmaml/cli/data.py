"""`stmaml data`."""

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import tyro

from stmaml.cli import fail
from stmaml.cli.parsing import parse
from stmaml.cli.progress import showing
from stmaml.cli.showing import plain_console
from stmaml.data.catalogue import COLLECTIONS, collection
from stmaml.data.checking import Finding, check_all
from stmaml.data.fetching import fetch
from stmaml.data.folders import data_root
from stmaml.errors import SettingError, SourceError

USAGE = """usage: stmaml data check [--data DIR] [--quick] [--json]
       stmaml data fetch NAME [--data DIR] [--yes]
       stmaml data pack --years YEAR ... --out FILE.npz [--data DIR]

check   what of the benchmarks' data is there, complete and intact
fetch   a data set from its source: {names}, or another year as gsod-1999
pack    years of weather as one small file, for another machine

The data folder is that of STMAML_DATA unless --data names one.
"""


@dataclass(frozen=True)
class Check:
    """Say what of the benchmarks' data is there, complete and intact."""

    data: Path | None = None
    """Folder of all data; that of STMAML_DATA if not given."""
    quick: bool = False
    """Do not read the files, only look whether they are there."""
    json: bool = False
    """Print one JSON object instead of lines."""


@dataclass(frozen=True)
class Fetch:
    """Fetch a data set from its source. Licences are yours to keep."""

    name: tyro.conf.Positional[str]
    """Name of the data set, such as mnist or gsod-2019."""
    data: Path | None = None
    """Folder of all data; that of STMAML_DATA if not given."""
    yes: bool = False
    """Do not ask whether the licence suits you."""


@dataclass(frozen=True)
class Pack:
    """Write years of weather as one small file, which `--data` takes and no other package is needed for."""

    out: Path
    """The file, ending in .npz."""
    years: tuple[int, ...] = field(default=())
    """Years, such as 2019 2022; all there are if not given."""
    data: Path | None = None
    """Folder of NOAA's files; gsod in the folder of STMAML_DATA if not given."""


def main(arguments: list[str]) -> None:
    """Checks, fetches or packs."""
    command = arguments[0] if arguments else ""
    if command not in COMMANDS:
        asked = command in ("-h", "--help")
        print(USAGE.format(names=", ".join(COLLECTIONS)), file=sys.stdout if asked else sys.stderr)
        sys.exit(0 if asked else 2)
    kind, run = COMMANDS[command]
    run(parse(kind, arguments[1:], f"stmaml data {command}"))


def _check(flags: Check) -> None:
    root = data_root(flags.data)
    with showing(plain_console(stderr=True)):
        found = check_all(root, deep=not flags.quick)
    if flags.json:
        content = {name: [asdict(one) for one in each] for name, each in found.items()}
        print(json.dumps({"folder": str(root), "data": content}, indent=2))
    else:
        _show(root, found)
    if any(one.state == "damaged" for each in found.values() for one in each):
        sys.exit(1)


def _show(root: Path, found: dict[str, list[Finding]]) -> None:
    print(f"data folder {root}")
    for name, each in found.items():
        print(f"\n{name} ({COLLECTIONS[name].benchmark})")
        for one in each:
            print(f"  {one.state:8} {one.name}: {one.words}")


def _fetch(flags: Fetch) -> None:
    wanted, root = collection(flags.name), data_root(flags.data, needed=False)
    if not wanted.files:
        raise SourceError(f"{flags.name} cannot be fetched from here: {wanted.by_hand}. {wanted.licence}")
    print(f"{flags.name}: {wanted.licence}")
    for origin in wanted.files:
        print(f"  {origin.url} -> {root / origin.path}" + ("" if origin.digest else " (no published checksum)"))
    _agree(flags.yes)
    with showing(plain_console(stderr=True)):
        for origin in wanted.files:
            if (root / origin.path).exists():
                print(f"  {origin.path} is there already")
            else:
                print(f"  {origin.path} sha256 {fetch(origin, root)}")


def _agree(yes: bool) -> None:
    """Goes on where people agree; where nobody can be asked, only if they have said so before."""
    if yes:
        return
    if not sys.stdin.isatty():
        fail("say --yes if the licence above suits you.")
    if input("Fetch under these terms? [y/N] ").strip().lower() not in ("y", "yes"):
        fail("nothing was fetched.", code=1)


def _pack(flags: Pack) -> None:
    from stmaml.data.folders import data_folder
    from stmaml.data.years import read_years  # station files are parsed with polars

    if flags.out.suffix != ".npz":
        raise SettingError(f"--out must end in .npz; got {flags.out}.")
    path = data_folder(None if flags.data is None else str(flags.data), "gsod")
    with showing(plain_console(stderr=True), "reading"):
        stations, _ = read_years(path, flags.years)
    stations.save(flags.out, packed=True)
    print(f"wrote {flags.out}: {len(stations.station):,} station years, {flags.out.stat().st_size:,} bytes")


COMMANDS: dict[str, tuple[Any, Any]] = {"check": (Check, _check), "fetch": (Fetch, _fetch), "pack": (Pack, _pack)}
