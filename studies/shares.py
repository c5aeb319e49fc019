"""Work of a study that several processes share: each does every so-manieth case, or what nobody else has taken yet, and
writes a line of JSON for each."""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
GRACE = 60.0  # seconds for the case under way when time is up


@dataclass(frozen=True)
class Share:
    """Which of all cases this process does, until when, and where it says how they ended."""

    place: int = 0
    of: int = 1
    until: float = float("inf")
    lines: Path | None = None

    @property
    def left(self) -> float:
        """Seconds until time is up."""
        return self.until - time.time()

    @property
    def over(self) -> bool:
        """Whether time is up."""
        return self.left < 0

    def tell(self, record: dict[str, Any]) -> bool:
        """Writes a line, and says whether time is up."""
        if self.lines is not None:
            with self.lines.open("a") as file:
                file.write(json.dumps(record) + "\n")
        return self.over

    def takes(self, name: str) -> bool:
        """Whether this process is the first to ask for the case of this name, which is then its own."""
        if self.lines is None:
            return True
        try:
            (self.lines.parent / f"{name.replace('/', '-')}.taken").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    @property
    def pair(self) -> tuple[int, int]:
        """Its number and how many there are."""
        return self.place, self.of


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags by which `campaign.py` tells a study its share."""
    parser.add_argument("--share", default="0/1", help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, default=float("inf"), help=argparse.SUPPRESS)
    parser.add_argument("--lines", type=Path, help=argparse.SUPPRESS)


def share_of(flags: argparse.Namespace) -> Share:
    """The share that the flags name."""
    place, of = map(int, flags.share.split("/"))
    return Share(place, of, flags.until, flags.lines)


@dataclass(frozen=True)
class Shared:
    """What all processes said, and those that did not end well."""

    records: list[dict[str, Any]]
    broken: list[dict[str, Any]]


def spread(words: Sequence[str], jobs: int, minutes: float) -> Shared:
    """Runs a study in so many processes, for so many minutes at most."""
    until = time.time() + 60 * minutes
    with tempfile.TemporaryDirectory(prefix="stmaml-campaign-") as folder:
        parts = [Path(folder) / f"{i}.jsonl" for i in range(jobs)]
        errors = [Path(folder) / f"{i}.txt" for i in range(jobs)]
        processes = []
        for i in range(jobs):
            share = ["--share", f"{i}/{jobs}", "--until", str(until), "--lines", str(parts[i])]
            with errors[i].open("wb") as err:
                command = [sys.executable, str(HERE / words[0]), *words[1:], *share]
                processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=err))
        codes = [_ended(process, until + GRACE) for process in processes]
        records = [json.loads(line) for part in parts if part.exists() for line in part.read_text().splitlines()]
        tails = [path.read_bytes()[-1500:].decode(errors="replace") for path in errors]
    said = [{"share": f"{i}/{jobs}", "exit": code, "said": tails[i]} for i, code in enumerate(codes)]
    broken = [one for one in said if one["exit"] not in (0, 1) or "Traceback" in str(one["said"])]
    return Shared(records, broken)


def _ended(process: subprocess.Popen[bytes], until: float) -> int | None:
    """The exit code; none for a process that had to be killed."""
    try:
        return process.wait(max(0.1, until - time.time()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None
