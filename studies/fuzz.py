"""Spoils every kind of file that is read, and counts how its reader answers: `make fuzz`, or

    python studies/fuzz.py --cases 10000 [--seed 0] [--hostile] [--only NAME ...] [--json]

A case is one file spoilt in one way; the same seed gives the same cases. A reader may load it or refuse it in a
sentence, within ten seconds and two gigabytes, and writes nothing beside its cache. Exit code 1 if one did otherwise.
"""

import argparse
import faulthandler
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shares import add_flags, share_of
from tests.fuzz.harness import attack, fuzz, table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=1000, help="files to spoil")
    parser.add_argument("--seed", type=int, default=0, help="which files these are")
    parser.add_argument("--only", nargs="*", default=(), help="kinds of file")
    parser.add_argument("--json", action="store_true", help="counts and bad cases as JSON, instead of a table")
    parser.add_argument("--hostile", action="store_true", help="archives and pictures made to harm, instead")
    add_flags(parser)
    flags = parser.parse_args()
    faulthandler.enable()  # a crash names the reader
    began, share = time.monotonic(), share_of(flags)
    search = attack if flags.hostile else fuzz
    tell = lambda case: share.tell(asdict(case))  # noqa: E731
    found = search(flags.cases, seed=flags.seed, only=tuple(flags.only), share=share.pair, told=tell)
    bad = {name: [asdict(case) for case in one.bad] for name, one in found.items() if one.bad}
    if flags.json:
        about = {"cases": flags.cases, "seed": flags.seed, "seconds": round(time.monotonic() - began, 1)}
        ends = {name: dict(one.ends) for name, one in found.items()}
        print(json.dumps({**about, "ends": ends, "bad": bad, "table": table(found)}, indent=1))
    else:
        print(table(found))
        for name, some in bad.items():
            for one in some[:5]:
                print(f"\n{name} {one['name']}: {one['end']} after {one['how']}\n{one['why']}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
