"""Ctrl-C and SIGTERM: real processes, what they say and how they end."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stmaml.cli.stopping import StopRequest, stop_requests

SCRIPT = Path(__file__).parents[1] / "studies" / "signals.py"
BEGIN = """
import atexit, sys, time
from stmaml.cli.stopping import StopRequest, listening, stop_requests

hold = {}
exec(compile("def compiling(): import time; time.sleep(60)", "/x/jax/_src/compiler.py", "exec"), hold)

def ready():
    print("ready", flush=True)

def run():
    stop = StopRequest("stmaml train --resume there")
    atexit.register(print, "left in order")
    with stop_requests(stop):
        """


@pytest.fixture(autouse=True)
def _heard():
    """In the background of a shell Ctrl-C is ignored, by all that is started there too."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def started(*lines: str) -> subprocess.Popen:
    """A process that runs these lines as a command, once it is ready to be disturbed."""
    script = BEGIN + "\n        ".join(lines) + "\nlistening(run)\n"
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    if "ready()" in script.split("with stop_requests")[1]:
        assert process.stdout.readline() == "ready\n"
    return process


def ended(process: subprocess.Popen) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=20)
    return process.returncode, out, err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_where_nothing_is_lost_the_first_signal_ends_it_with_one_line(number, code):
    process = started("stop.progress(20, {})", "stop.checkpoint(20, None)", "ready()", "time.sleep(60)")
    process.send_signal(number)
    sent = time.monotonic()
    assert ended(process) == (code, "", "stopped at step 20, state saved. Go on with: stmaml train --resume there\n")
    assert time.monotonic() - sent < 2


def test_steps_that_are_not_saved_are_waited_for():
    lines = ["stop.progress(20, {})", "ready()", "while not stop.requested(): time.sleep(0.01)"]
    process = started(*lines, "time.sleep(0.2)", "stop.checkpoint(40, None)", "stop.say(print)", "sys.exit(7)")
    process.send_signal(signal.SIGINT)
    words = "stopped at step 40, state saved. Go on with: stmaml train --resume there\nleft in order\n"
    assert ended(process) == (7, words, "")


def test_what_is_told_of_the_last_steps_does_not_come_before_the_one_line():
    """Two lines of progress once did: that training goes on, and that it has ended."""
    process = started(
        "from stmaml.cli.progress import showing",
        "from stmaml.cli.showing import plain_console",
        "from stmaml.cli.stopping import leave_stopped",
        "from stmaml.progress import remark, tell",
        "console = plain_console(stderr=True)",
        "with showing(console, 'compiling'):",
        "    tell('training', 10, 60, tasks=4)",
        "    stop.progress(20, {})",
        "    ready()",
        "    while not stop.requested(): time.sleep(0.01)",
        "    tell('training', 60, 60, tasks=4)",
        "    remark('weights of step 20 of 60 kept')",
        "    stop.checkpoint(60, None)",
        "console.print('scoring')",
        "leave_stopped(stop)",
    )
    process.send_signal(signal.SIGINT)
    told = "stopped at step 60, state saved. Go on with: stmaml train --resume there\n"
    assert ended(process) == (130, "left in order\n", f"training\n{told}")


@pytest.mark.parametrize("locks", ["", "release_held = lambda: 1 / 0"])
def test_whatever_fails_on_the_way_out_it_ends(locks):
    """The module of locks is half imported, or cannot let go: the thread that hears signals once died of the first."""
    process = started(
        "import types",
        "locks = types.ModuleType('stmaml.locks')",
        f"exec({locks!r}, locks.__dict__)",
        "sys.modules['stmaml.locks'] = locks",
        "ready()",
        "time.sleep(60)",
    )
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (143, "", "stopped. Go on with: stmaml train --resume there\n")


def test_two_who_would_say_that_it_is_stopped_say_it_once():
    stop, said = StopRequest(), []
    stop.say(said.append)
    stop.say(said.append)
    assert said == ["stopped."]


def test_saved_steps_are_not_followed_by_more_work():
    """As after the last step: nobody asks again whether to stop."""
    process = started(
        "stop.progress(20, {})", "ready()", "time.sleep(0.3)", "stop.checkpoint(20, None)", "time.sleep(60)"
    )
    process.send_signal(signal.SIGTERM)
    code, _, err = ended(process)
    assert (code, err) == (143, "stopped at step 20, state saved. Go on with: stmaml train --resume there\n")


def test_a_compile_is_told_at_once_and_a_second_signal_does_not_wait_for_it():
    process = started("stop.progress(20, {})", "ready()", "hold['compiling']()")
    assert process.stderr is not None
    process.send_signal(signal.SIGTERM)
    sent = time.monotonic()
    words = "stopping: a program is being compiled, this may take a minute; press Ctrl-C again to leave at once\n"
    assert process.stderr.readline() == words
    assert time.monotonic() - sent < 0.9
    process.send_signal(signal.SIGINT)
    assert ended(process) == (143, "", "")
    assert time.monotonic() - sent < 2


def test_long_steps_are_told_after_a_while():
    process = started("stop.progress(20, {})", "ready()", "time.sleep(60)")
    assert process.stderr is not None
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline().startswith("stopping: the steps under way are finished; press Ctrl-C again")
    process.send_signal(signal.SIGINT)
    assert ended(process)[0] == 130


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [("pass", 0, ""), ("sys.exit(3)", 3, ""), ("sys.exit('words')", 1, "words\n"), ("1 / 0", 1, "ZeroDivisionError")],
)
def test_a_command_that_is_left_alone_ends_by_the_rules_of_python(line, code, said):
    got, out, err = ended(started(line))
    assert (got, out) == (code, "left in order\n")
    assert said in err


def test_a_signal_that_was_ignored_from_the_start_stays_so():
    """As in the background of a script."""
    ignoring = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + BEGIN + "ready(); time.sleep(0.3)\n"
    words = [sys.executable, "-c", ignoring + "listening(run)"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert ended(process) == (0, "left in order\n", "")


def test_a_program_that_calls_a_command_keeps_its_own_signals():
    stop, before = StopRequest(), signal.getsignal(signal.SIGINT)
    with stop_requests(stop):
        signal.raise_signal(signal.SIGINT)
        assert stop.requested()
    assert signal.getsignal(signal.SIGINT) is before


IMPORTING = """
import sys, time
import stmaml.__main__

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "stmaml.cli":
            print("ready", flush=True)
            time.sleep(60)

sys.meta_path.insert(0, Slow())
stmaml.__main__.main()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_line_of_the_command_listens_before_any_other_import(number, code):
    process = subprocess.Popen(
        [sys.executable, "-c", IMPORTING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert ended(process) == (code, "", "stopped.\n")


def disturbed(*flags: object) -> list[dict]:
    words = [sys.executable, SCRIPT, "--json", *map(str, flags)]
    return json.loads(subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False).stdout)


def test_commands_that_are_still_importing_end_at_once():
    tries = disturbed("--tries", 6, "--commands", "list", "train", "--longest", 0.8)
    assert len(tries) == 6
    assert [one for one in tries if one["fault"]] == []
    assert all(one["seconds"] < 2 for one in tries)


@pytest.mark.slow
def test_every_command_ends_as_it_should_at_random_moments():
    tries = disturbed("--tries", 100)
    assert len(tries) == 100
    assert [one for one in tries if one["fault"]] == []
