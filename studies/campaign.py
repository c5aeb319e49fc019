"""Attacks on many cores at once, each with a limit by the clock, and one file of JSON with counts and every fault.

python studies/campaign.py fuzz --count 10000 --jobs 14 --minutes 2 --out fuzz.json

Parts: fuzz, hostile, signals, kills, mutants. Each process does a share of the cases. A fault has what repeats it: the
seed and number of a case (`fuzz.py --cases N`), the seconds of a signal or kill, the line of a mutant. `--show FILE`
prints what such files hold as a table. Flags that are not known here go to the study."""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shares import spread

Record = dict[str, Any]
SHOWN = 8  # cases that took the most of processors


@dataclass(frozen=True)
class Part:
    """A study, how it counts, and what is a fault in it."""

    words: tuple[str, ...]
    flag: str
    count: int
    fault: Callable[[Record], object]
    kind: str
    """What records are counted by."""
    weight: str = ""
    """What a record counts for, where that is not 1."""
    whole: bool = False
    """Whether the file has all records, not the faults alone."""


PARTS = {
    "fuzz": Part(("fuzz.py",), "--cases", 10_000, lambda one: one["end"] not in ("refused", "loaded"), "kind"),
    "hostile": Part(
        ("fuzz.py", "--hostile"), "--cases", 500, lambda one: one["end"] not in ("refused", "loaded"), "kind"
    ),
    "signals": Part(("signals.py",), "--tries", 100, lambda one: one["fault"], "command", whole=True),
    "kills": Part(("kills.py",), "--kills", 200, lambda one: one["different"], "subject", "kills", whole=True),
    "mutants": Part(("mutants.py",), "--mutants", 330, lambda one: one["end"] == "survived", "module", whole=True),
}


def run(name: str, count: int, jobs: int, minutes: float, more: Sequence[str]) -> Record:
    """All shares of a part, joined."""
    part, began = PARTS[name], time.monotonic()
    found = spread([*part.words, part.flag, str(count), *more], jobs, minutes)
    done, ends = Counter[str](), Counter[str]()
    for one in found.records:
        weight = one[part.weight] if part.weight else 1
        done[one[part.kind]] += weight
        ends[f"{one[part.kind]}: {one.get('end', 'done')}"] += weight
    return {
        "part": name,
        "asked": count,
        "done": sum(done.values()),
        "jobs": jobs,
        "seconds": round(time.monotonic() - began, 1),
        "by_kind": dict(sorted(done.items())),
        "ends": dict(sorted(ends.items())),
        "faults": [one for one in found.records if part.fault(one)],
        "broken": found.broken,
        "slowest": max((one.get("seconds", 0) for one in found.records), default=0),
        "longest": sorted(found.records, key=lambda one: -one.get("processor", 0))[:SHOWN],
        **({"records": found.records} if part.whole else {}),
    }


def table_of(results: list[Record]) -> str:
    """A row a part."""
    rows = ["| attack | cases | kinds | s | processes that broke | faults |", "|---|--:|--:|--:|--:|--:|"]
    for one in results:
        cells = [one["part"], f"{one['done']:,}", len(one["by_kind"]), round(one["seconds"])]
        cells += [len(one["broken"]), len(one["faults"])]
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=list(PARTS))
    parser.add_argument("--count", type=int, help="cases; a default of the attack if not given")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--minutes", type=float, default=60.0, help="after which no case is begun")
    parser.add_argument("--out", type=Path, help="file for the result")
    parser.add_argument("--show", type=Path, nargs="+", default=[], help="results to print, instead")
    flags, more = parser.parse_known_args()
    if not flags.show and flags.part is None:
        parser.error("name a part, or results with --show")
    results = [json.loads(path.read_text()) for path in flags.show]
    if not flags.show:
        results = [run(flags.part, flags.count or PARTS[flags.part].count, flags.jobs, flags.minutes, more)]
    if flags.out is not None:
        flags.out.write_text(json.dumps(results[0], indent=1))
    print(table_of(results))
    return any(one["faults"] or one["broken"] for one in results)


if __name__ == "__main__":
    sys.exit(main())
