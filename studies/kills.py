"""SIGKILL at random moments: does a run that is resumed end as one that nobody disturbed?

python studies/kills.py [--kills 200] [--subjects maml st-maml table] [--seed 0] [--json]
python studies/kills.py --again before.json   # those that a campaign had no time for

Subjects are every method on 2D regression, a method on each benchmark that reads files, one method fitted to a table,
a pool, and two rows of `stmaml reproduce`. Each is run in peace. Then it is run again and killed after a random time,
up to the length of the peaceful one, resumed and killed anew, and at last left to end. Weights, the last checkpoint,
the log (but for its times), the pool and its scores must be equal to the bit. Of three kills, one is timed from the
start of the process, which mostly imports, and two from the moment that it holds the lock of its run. All use one
compilation cache, so that a try takes seconds."""

import argparse
import json
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from shares import Share, add_flags, share_of
from subjects import ELSEWHERE, SIZES, Shell, fitting, pooling, reproducing, training, training_on, write_table

from stmaml.locks import NAME as LOCK
from stmaml.run_files import SEAL

TABLE, POOL, REPRODUCE = "table", "pool", "reproduce"
SUBJECTS = [*SIZES, *ELSEWHERE, TABLE, POOL, REPRODUCE]
KILLS_A_RUN = 6
AT_THE_END = 0.8  # of the peaceful length: later kills would mostly come too late
LONGEST = 300.0  # seconds that a process may take to its lock


@dataclass(frozen=True)
class Disturbed:
    """One run that was killed again and again."""

    subject: str
    kills: int
    """Those that found the process running."""
    after: tuple[float, ...]
    """Seconds from each start to its kill."""
    different: tuple[str, ...]
    """Files that differ from those of the peaceful run."""
    begun: int = 0
    """Kills of a process that held the lock of its run."""


@dataclass(frozen=True)
class Peace:
    """A run that nobody disturbed."""

    holds: dict[str, bytes]
    seconds: float
    """How long one takes that finds all its programs compiled."""
    locked: float
    """Of these, after it had its lock."""


def words_of(subject: str, run: Path, table: Path) -> tuple[list[object], list[object]]:
    """The command that begins, and the one that goes on."""
    if subject == TABLE:
        return [*fitting(table, run), "--force"], ["fit", "--resume", run, "--no-baselines"]
    if subject == POOL:
        return [*pooling(table, run), "--force"], ["fit", "--resume", run]
    if subject == REPRODUCE:
        return reproducing(run), reproducing(run)
    train = training_on(subject, table.parent, run) if subject in ELSEWHERE else training(subject, run)
    return [*train, "--force"], ["train", "--resume", run]


def contents(run: Path) -> dict[str, bytes]:
    """What must be equal: arrays, pools, scores, and the log without times."""
    kept = [path for path in sorted(run.rglob("*")) if path.suffix in (".npz", ".parquet")]
    kept += [path for path in (run / "pool.json",) if path.exists()]
    found = {str(path.relative_to(run)): path.read_bytes() for path in kept}
    steps = sorted(name for name in found if "checkpoints" in name)
    newest = {str(Path(name).parent): name for name in steps}  # how many older ones are left depends on the stops
    logs = {str(path.relative_to(run)): _log(path) for path in sorted(run.rglob("log.jsonl"))}
    logs |= {path.name: _result(path) for path in (run / "result.json",) if path.exists()}
    return {name: found[name] for name in found if name not in steps or name in newest.values()} | logs


def _log(path: Path) -> bytes:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return json.dumps([{name: value for name, value in line.items() if name != "seconds"} for line in lines]).encode()


def _result(path: Path) -> bytes:
    """The scores of a pool, without the seconds that its members took and the digest that is of these too."""
    content = json.loads(path.read_text())
    return json.dumps({name: value for name, value in content.items() if name not in ("seconds", SEAL)}).encode()


def peaceful(shell: Shell, subject: str, table: Path) -> Peace:
    """The second of two runs, which finds all its programs compiled."""
    run, seconds, locked = shell.folder / f"{subject}-peaceful", 0.0, 0.0
    words = words_of(subject, run, table)[0]
    for _ in range(2):
        began = time.monotonic()
        process = shell.start(*words, errors=shell.folder / "errors.txt")
        _wait_for_lock(process, run)
        locked = time.monotonic()
        shell.end(process, *words)
        seconds, locked = time.monotonic() - began, time.monotonic() - locked
    return Peace(contents(run), seconds, locked)


def disturb(shell: Shell, subject: str, table: Path, peace: Peace, kills: int, rng: random.Random) -> Disturbed:
    """Kills a run so many times and compares its end with that of the peaceful one."""
    run, after, begun = shell.folder / subject, [], 0
    begin, go_on = words_of(subject, run, table)
    while len(after) < kills:
        began = time.monotonic()
        process = shell.start(*(go_on if _resumable(run) else begin), errors=shell.folder / "errors.txt")
        if rng.random() < 2 / 3:
            _wait_for_lock(process, run)
            time.sleep(rng.uniform(0.0, AT_THE_END * peace.locked))
        else:
            time.sleep(rng.uniform(0.05, AT_THE_END * peace.seconds))
        holds = _holds_lock(process, run)
        process.kill()
        if process.wait() != -signal.SIGKILL:  # it had ended before
            break
        after.append(round(time.monotonic() - began, 3))
        begun += holds
    shell.run(*(go_on if _resumable(run) else begin))
    want, got = peace.holds, contents(run)
    different = sorted(name for name in want.keys() | got.keys() if want.get(name) != got.get(name))
    shutil.rmtree(run)
    return Disturbed(subject, len(after), tuple(after), tuple(different), begun)


def _wait_for_lock(process: subprocess.Popen[bytes], run: Path) -> None:
    """Until the process holds the lock of its run, or has ended."""
    until = time.monotonic() + LONGEST
    while process.poll() is None and not _holds_lock(process, run) and time.monotonic() < until:
        time.sleep(0.01)


def _holds_lock(process: subprocess.Popen[bytes], run: Path) -> bool:
    return any(_owner(path) == process.pid for path in run.rglob(LOCK))


def _owner(lock: Path) -> int | None:
    try:
        return json.loads(lock.read_text())["pid"]
    except (OSError, ValueError, KeyError):  # it is being written, or is gone
        return None


def _resumable(run: Path) -> bool:
    return (run / "config.json").exists()


def main() -> None:
    """Prints a table, or all runs as JSON; exits with 1 where one ended otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--subjects", nargs="+", choices=SUBJECTS, default=SUBJECTS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", type=Path, nargs="+", default=[], help="results of campaigns whose kills count")
    parser.add_argument("--json", action="store_true")
    add_flags(parser)
    flags = parser.parse_args()
    done = Counter[str]()
    for one in (one for path in flags.again for one in json.loads(path.read_text())["records"]):
        done[one["subject"]] += one["kills"]
    each = -(-flags.kills // len(flags.subjects))
    found = run_all({subject: each - done[subject] for subject in flags.subjects}, flags.seed, share_of(flags))
    if flags.json:
        print(json.dumps([asdict(one) for one in found], indent=1))
    else:
        print(table_of(found))
    raise SystemExit(any(one.different for one in found))


def run_all(kills: dict[str, int], seed: int, share: Share) -> list[Disturbed]:
    """So many kills of each subject that no other process has taken, until time is up."""
    folder, found = Path(tempfile.mkdtemp(prefix="stmaml-kills-")), []
    shell = Shell(folder, folder / "cache", {"STMAML_CACHE": str(folder / "decoded")})
    table = write_table(folder / "table.csv")
    try:
        for subject, count in kills.items():
            if count > 0 and not share.over and share.takes(subject):
                found += _disturbed(shell, subject, table, count, random.Random(f"{seed}-{subject}"), share)
    finally:
        shutil.rmtree(folder)
    return found


def _disturbed(
    shell: Shell, subject: str, table: Path, kills: int, rng: random.Random, share: Share
) -> list[Disturbed]:
    """A few kills a run, until all are spent or time is up."""
    found, peace, left = [], None, kills
    while left > 0 and len(found) < kills:  # as many runs are enough even if each ends before its second kill
        count = min(left, KILLS_A_RUN)
        try:
            peace = peace or peaceful(shell, subject, table)
            found.append(disturb(shell, subject, table, peace, count, rng))
        except SystemExit as error:  # a command failed that nobody disturbed
            found.append(Disturbed(subject, count, (), (str(error)[-800:],)))
        left -= found[-1].kills
        if share.tell(asdict(found[-1])):
            break
    return found


def table_of(found: Sequence[Disturbed]) -> str:
    """A row a subject."""
    rows = ["| subject | runs | kills | with its lock | runs that differ | in |", "|---|" + "--:|" * 4 + "---|"]
    for subject in dict.fromkeys(one.subject for one in found):
        mine = [one for one in found if one.subject == subject]
        bad = [one for one in mine if one.different]
        files = ", ".join(sorted({name for one in bad for name in one.different}))
        kills, begun = sum(one.kills for one in mine), sum(one.begun for one in mine)
        rows.append(f"| {subject} | {len(mine)} | {kills} | {begun} | {len(bad)} | {files} |")
    return "\n".join(rows)


if __name__ == "__main__":
    main()
