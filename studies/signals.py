"""What Ctrl-C and SIGTERM do to each command at random moments: exit code, seconds to the end, what is said.

python studies/signals.py [--tries 100] [--commands list train ...] [--longest 3.0] [--json]

A try is as it should be where the command ended with 130 or 143 (or had ended by itself), said at most one line after
the signal, or two where the first says that it takes longer, and took no more than two seconds unless that line was
said. Half of all tries share a compilation cache, the others compile.

No package hears a signal before Python has started and run what the environment has it run at every start (`.pth`
files): the system or Python itself answers. Such tries are told by the process's own mask, in which SIGTERM is not yet
caught (Python never does), and counted apart: they must end at once, by the signal."""

import argparse
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from shares import Share, add_flags, share_of
from subjects import Shell, fitting, pooling, reproducing, training, write_table

PATIENCE = 300.0
COMMANDS = ("list", "train", "evaluate", "fit", "predict", "report", "pool", "ask", "update", "effects", "scores")
COMMANDS += ("pictures", "reproduce", "floor", "search", "data", "export", "serve", "prior")
"""What is disturbed; from `pool` to `pictures` it is fit, predict, update, effects, evaluate and report of a pool, and
`prior` is predict without a fit."""
EXTRAS = {"export": "onnx", "serve": "uvicorn"}
"""Packages without which a command does nothing."""


@dataclass(frozen=True)
class Try:
    """One command that was sent a signal."""

    command: str
    signal: int
    after: float
    """Seconds from its start to the signal."""
    code: int
    seconds: float
    """From the signal to its end."""
    lines: tuple[str, ...]
    """What it said after the signal."""
    heard: bool = True
    """Whether a line of the package had run when the signal came."""

    @property
    def fault(self) -> str:
        """What is wrong with how it ended; nothing if it is as it should be."""
        if not self.heard and self.code in (-self.signal, 1, 0):  # 1: Python could not end its own start
            return "late" if self.seconds > 2 else ""
        warned = any(line.startswith("stopping: ") for line in self.lines)
        if self.code not in (128 + self.signal, 0):
            return f"exit {self.code}"
        if any("Traceback" in line for line in self.lines):
            return "traceback"
        if self.code and len(self.lines) > 1 + warned:
            return f"{len(self.lines)} lines"
        return "late" if self.code and self.seconds > 2 and not warned else ""


def words_of(command: str, folder: Path) -> list[object]:
    """A command that runs in the folder; what it needs is there."""
    fitted, asked = folder / "fitted", ["--support", folder / "table.csv", "--query", folder / "table.csv"]
    named = ["--task", "shop", "--target", "y"]
    made: dict[str, Callable[[], list[object]]] = {
        "list": lambda: ["list"],
        "train": lambda: [*training("maml", folder / "again", steps=3000), "--force"],
        "evaluate": lambda: ["evaluate", folder / "trained", "--tasks", 500],
        "fit": lambda: [*fitting(folder / "table.csv", folder / "again", steps=300), "--force"],
        "predict": lambda: ["predict", fitted, *asked, "--out", folder / "out.csv"],
        "report": lambda: ["report", folder / "trained"],
        "pool": lambda: [*pooling(folder / "table.csv", folder / "again-pool"), "--force"],
        "ask": lambda: ["predict", folder / "pooled", *asked, "--out", folder / "out.csv"],
        "update": lambda: ["update", folder / "pooled", folder / "table.csv"],
        "effects": lambda: ["effects", folder / "pooled", "--out", folder / "effects.csv"],
        "scores": lambda: ["evaluate", folder / "pooled", "--data", folder / "table.csv"],
        "pictures": lambda: ["report", folder / "pooled"],
        "reproduce": lambda: reproducing(folder / "reproduced"),
        "floor": lambda: ["floor", "--tasks", 200, "--draws", 1_000_000],
        "search": lambda: ["search", "regression2d", "--method", "maml", "--out", folder / "searched"],
        "data": lambda: ["data", "check", "--data", folder],
        "export": lambda: ["export", fitted, "--out", folder / "graph.onnx"],
        "serve": lambda: ["serve", folder / "trained", "--port", 0],
        "prior": lambda: ["predict", "--train", folder / "table.csv", *named, *asked, "--out", folder / "out.csv"],
    }
    return made[command]()


def prepare(shell: Shell, commands: Sequence[str]) -> None:
    """Makes the runs that the commands work on."""
    write_table(shell.folder / "table.csv")
    if {"evaluate", "report", "serve"} & set(commands):
        shell.run(*training("maml", shell.folder / "trained"))
        shell.run("evaluate", shell.folder / "trained", "--tasks", 100)
    if {"predict", "export"} & set(commands):
        shell.run(*fitting(shell.folder / "table.csv", shell.folder / "fitted"))
    if {"ask", "update", "effects", "scores", "pictures"} & set(commands):
        shell.run(*pooling(shell.folder / "table.csv", shell.folder / "pooled"))


def disturb(shell: Shell, command: str, number: int, after: float) -> Try:
    """Sends the signal so many seconds after the command began."""
    errors = shell.folder / "errors.txt"
    process = shell.start(*words_of(command, shell.folder), errors=errors)
    try:
        time.sleep(after)
        with _held(process):  # else it could say something before the signal that seems to come after it
            said, heard = errors.stat().st_size, _catches(process.pid, signal.SIGTERM)
            process.send_signal(number)
        sent = time.monotonic()
        code = process.wait(PATIENCE)
    finally:
        process.kill()
    lines = errors.read_bytes()[said:].decode(errors="replace").splitlines()
    return Try(command, number, round(after, 3), code, round(time.monotonic() - sent, 3), tuple(lines), heard)


@contextmanager
def _held(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """A process stands still inside the block, if it has not ended."""
    os.kill(process.pid, signal.SIGSTOP)  # `send_signal` would reap one that has ended
    stat = Path(f"/proc/{process.pid}/stat")
    while stat.read_bytes().rpartition(b")")[2].split()[0] not in (b"T", b"Z"):
        time.sleep(0.001)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def _catches(process: int, number: int) -> bool:
    """Whether a process has a handler for the signal, as Linux tells."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    caught = next((line.split()[1] for line in lines if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def shell_in(folder: Path) -> Shell:
    """Where commands run, with the programs that they compile."""
    return Shell(folder, folder / "cache", {"STMAML_CACHE": str(folder / "limits")})


def tries(
    commands: Sequence[str], count: int, longest: float, seed: int, share: Share, prepared: Path | None
) -> list[Try]:
    """As many as asked for, the commands in turn."""
    folder, rng, made = Path(tempfile.mkdtemp(prefix="stmaml-signals-")), random.Random(f"{seed}-{share.place}"), []
    shell = shell_in(folder)
    try:
        if prepared is None:
            prepare(shell, commands)
        else:
            shutil.copytree(prepared, folder, dirs_exist_ok=True)
        for i in range(share.place, count, share.of):
            number = (signal.SIGINT, signal.SIGTERM)[i // len(commands) % 2]
            cold = replace(shell, cache=None) if rng.random() < 0.5 else shell
            after = rng.uniform(0.0, longest)
            made.append(disturb(cold, commands[i % len(commands)], number, after))
            if share.tell({**asdict(made[-1]), "fault": made[-1].fault}):
                break
    finally:
        shutil.rmtree(folder)
    return made


def table_of(made: Sequence[Try]) -> str:
    """A row a command."""
    rows = [
        "| command | tries | stopped | ended before | before our first line | median s | worst s | faults |",
        "|---|" + "--:|" * 7,
    ]
    for command in dict.fromkeys(one.command for one in made):
        mine = [one for one in made if one.command == command]
        times = sorted(one.seconds for one in mine)
        stopped, faults = sum(one.code != 0 for one in mine), sum(bool(one.fault) for one in mine)
        middle, worst = times[len(times) // 2], times[-1]
        early = sum(not one.heard for one in mine)
        cells = [command, len(mine), stopped, len(mine) - stopped, early, f"{middle:.2f}", f"{worst:.2f}", faults]
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(rows)


def main() -> None:
    """Prints a table, or all tries as JSON; exits with 1 where one is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=100)
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--longest", type=float, default=8.0, help="seconds to the latest signal")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--prepared", type=Path, help="folder of the runs that commands work on; made if not there")
    parser.add_argument("--json", action="store_true")
    add_flags(parser)
    flags = parser.parse_args()
    flags.commands = [one for one in flags.commands if one not in EXTRAS or importlib.util.find_spec(EXTRAS[one])]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored, by children as well
    if flags.prepared is not None and not flags.prepared.exists():
        flags.prepared.mkdir()
        prepare(shell_in(flags.prepared), flags.commands)
    made = tries(flags.commands, flags.tries, flags.longest, flags.seed, share_of(flags), flags.prepared)
    if flags.json:
        print(json.dumps([{**asdict(one), "fault": one.fault} for one in made], indent=1))
    else:
        print(table_of(made))
        for one in made:
            if one.fault:
                print(one.fault, one)
    raise SystemExit(any(one.fault for one in made))


if __name__ == "__main__":
    main()
