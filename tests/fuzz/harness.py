"""Runs spoilt files past their readers, each within limits, and counts how that ended."""

import contextlib
import os
import resource
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from stmaml.errors import StmamlError
from tests.fuzz.hostile import ATTACKS
from tests.fuzz.kinds import Kind
from tests.fuzz.mutations import Mutation
from tests.fuzz.specimens import KINDS

SECONDS = 10  # of processors, all threads together: how busy the machine is must not matter
PATIENCE = 60  # seconds by the clock, for a reader that waits for something and computes nothing
MEMORY = 2 << 30
GOOD = ("refused", "loaded")
ENDS = (*GOOD, "traceback", "silent nonsense", "too slow", "too large", "wrote elsewhere")


class TooSlow(BaseException):
    """A reader did not answer in time; no `except Exception` catches this."""


@dataclass(frozen=True)
class Case:
    """How one file was answered."""

    kind: str
    name: str
    """Of the seed and the number that make it again."""
    end: str
    how: str
    """The mutation, or the name of the hostile file."""
    why: str
    processor: float = 0.0
    """Seconds of processors that its reader took."""
    seconds: float = 0.0
    """The same by the clock."""


@dataclass
class Found:
    """How the cases of a kind ended, and those that ended badly."""

    ends: Counter[str] = field(default_factory=Counter)
    bad: list[Case] = field(default_factory=list)

    def add(self, case: Case) -> None:
        """Counts a case."""
        self.ends[case.end] += 1
        if case.end not in GOOD:
            self.bad.append(case)


Load = Callable[[Path], object]
Tell = Callable[[Case], bool | None]


def fuzz(
    cases: int,
    *,
    seed: int = 0,
    only: tuple[str, ...] = (),
    cheap: bool = False,
    share: tuple[int, int] = (0, 1),
    told: Tell = lambda case: None,
) -> dict[str, Found]:
    """So many cases, shared out among the kinds of file; the same seed gives the same cases. Of several shares, the one
    of this number does every so-manieth. `told` hears of each case, and ends it all by being true."""
    kinds = [kind for kind in KINDS if (not only or kind.name in only) and not (cheap and kind.dear)]
    found = {kind.name: Found() for kind in kinds}
    with tempfile.TemporaryDirectory() as root, _own_cache(Path(root)):
        made = {kind.name: kind.make(_folder(Path(root) / "kinds" / kind.name)) for kind in kinds}
        originals = {name: path.read_bytes() for name, path in made.items()}
        for kind in kinds:
            kind.load(made[kind.name])  # what was not spoilt must load
        for number in range(share[0], cases, share[1]):
            kind = kinds[number % len(kinds)]
            case = _case(kind, made[kind.name], originals[kind.name], f"{seed}-{number}", Path(root))
            found[kind.name].add(case)
            if told(case):
                break
    return found


def again(kind: str, name: str) -> Case:
    """The case of this name once more."""
    one = next(known for known in KINDS if known.name == kind)
    with tempfile.TemporaryDirectory() as root, _own_cache(Path(root)):
        path = one.make(_folder(Path(root) / "kinds" / one.name))
        return _case(one, path, path.read_bytes(), name, Path(root))


def attack(
    cases: int,
    *,
    seed: int = 0,
    only: tuple[str, ...] = (),
    share: tuple[int, int] = (0, 1),
    told: Tell = lambda case: None,
) -> dict[str, Found]:
    """So many hostile archives and pictures, each in a folder of its own; flags as for `fuzz`."""
    attacks = [one for one in ATTACKS if not only or one.name in only]
    found = {one.name: Found() for one in attacks}
    for number in range(share[0], cases, share[1]):
        one, name = attacks[number % len(attacks)], f"{seed}-{number}"
        with tempfile.TemporaryDirectory() as root, _own_cache(Path(root)):
            path = one.make(_folder(Path(root) / "kinds"), Random(f"{one.name}-{name}"))
            ended = _watched(one.load, path, Path(root))
        case = Case(one.name, name, ended.end, path.name, ended.why, ended.processor, ended.seconds)
        found[one.name].add(case)
        if told(case):
            break
    return found


def _folder(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


@contextlib.contextmanager
def _own_cache(root: Path) -> Iterator[None]:
    """A cache and a working folder of its own."""
    before, here = os.environ.get("STMAML_CACHE"), Path.cwd()
    os.environ["STMAML_CACHE"] = str(root / "cache")
    os.chdir(_folder(root / "here"))
    try:
        yield
    finally:
        os.chdir(here)
        os.environ.pop("STMAML_CACHE")
        if before is not None:
            os.environ["STMAML_CACHE"] = before


def _case(kind: Kind, path: Path, original: bytes, name: str, root: Path) -> Case:
    rng = Random(f"{kind.name}-{name}")
    mutation: Mutation = rng.choice(kind.mutations)
    spoilt = mutation(original, rng)
    path.write_bytes(spoilt)
    try:
        ended = _watched(kind.load, path, root)
    finally:
        path.write_bytes(original)
    return Case(kind.name, name, ended.end, mutation.__qualname__, ended.why, ended.processor, ended.seconds)


@dataclass(frozen=True)
class _Ended:
    end: str
    why: str
    processor: float
    seconds: float


def _watched(load: Load, path: Path, root: Path) -> _Ended:
    """How loading ends, unless it wrote beside its cache, which is worse."""
    before, began, busy = _listing(root), time.monotonic(), time.process_time()
    end, why = _outcome(load, path)
    processor, seconds = round(time.process_time() - busy, 2), round(time.monotonic() - began, 2)
    if end in GOOD and _listing(root) != before:
        end, why = "wrote elsewhere", str(sorted(_listing(root) ^ before)[:3])
    return _Ended(end, why, processor, seconds)


def _listing(root: Path) -> set[str]:
    return {str(path) for part in ("kinds", "here") for path in (root / part).rglob("*")}


def _outcome(load: Load, path: Path) -> tuple[str, str]:
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        with _limited():
            load(path)
        end, why = "loaded", ""
    except StmamlError as error:
        end, why = ("refused", "") if _is_sentence(str(error)) else ("silent nonsense", f"no sentence: {error}")
    except TooSlow:
        end, why = "too slow", ""
    except AssertionError as error:
        end, why = "silent nonsense", str(error)[:300]
    except BaseException as error:  # a panic of polars is no Exception
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        end, why = "traceback", "".join(traceback.format_exception(error, limit=-4))[-900:]
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - largest)
    return ("too large", f"{grown:,} bytes") if grown > MEMORY else (end, why)


def _is_sentence(text: str) -> bool:
    return bool(text) and "Traceback" not in text and len(text) < 3000


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """At most so many seconds of processors, and by the clock."""

    def stop(number: int, frame: object) -> None:
        raise TooSlow

    limits = ((signal.SIGPROF, signal.ITIMER_PROF, SECONDS), (signal.SIGALRM, signal.ITIMER_REAL, PATIENCE))
    usual = [signal.signal(number, stop) for number, _, _ in limits]
    try:
        for _, timer, most in limits:
            signal.setitimer(timer, most)
        yield
    finally:
        for (number, timer, _), before in zip(limits, usual, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, before)


def table(found: dict[str, Found]) -> str:
    """The counts as Markdown, a row a kind of file."""
    columns = ("cases", *ENDS)
    rows = ["| file | " + " | ".join(columns) + " |", "|---|" + "--:|" * len(columns)]
    total: Counter[str] = Counter()
    for name, one in found.items():
        total += one.ends
        rows.append(_row(name, one.ends))
    return "\n".join([*rows, _row("all", total)])


def _row(name: str, ends: Counter[str]) -> str:
    counts = [sum(ends.values()), *(ends[end] for end in ENDS)]
    return f"| {name} | " + " | ".join(f"{count:,}" for count in counts) + " |"
