"""Ctrl-C and SIGTERM. Nothing heavy is imported here: the command listens before it imports anything that is.

Signals are heard in a thread of their own, which goes on while the main one is inside a compiler. It ends the process
itself, without an exception (which XLA's callbacks do not survive) and without tearing the interpreter down under
threads that still compute. That is safe at any moment: files are written whole or not at all. Only steps that no
checkpoint holds yet are waited for; a second signal does not wait for them either."""

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TYPE_CHECKING = False  # as in typing, which takes long to import
if TYPE_CHECKING:
    from typing import NoReturn

STOPPING = (signal.SIGINT, signal.SIGTERM)
PATIENCE = 1.0  # seconds for what is being stopped to end by itself before somebody is told that it takes longer
_GLANCE = 0.05  # seconds between looks at whether it has
_CLEAN_LINE = "\r\x1b[2K\x1b[?25h"  # a live bar has hidden the cursor
_COMPILING = ("/jax/_src/compiler.py", "/jax/_src/interpreters/mlir.py", "/jax/_src/interpreters/partial_eval.py")


class StopRequest:
    """Remembers that the user or the system asked to stop; as an observer of training, what would be lost by it."""

    signal = 0

    def __init__(self, go_on: str = ""):
        """`go_on` is the command that goes on with what is stopped."""
        self._go_on = go_on
        self._saved = 0
        self.unsaved = False
        """Whether steps were taken that no checkpoint holds."""
        self._told, self._telling = False, threading.Lock()

    def requested(self) -> bool:
        """Whether a stop was asked for."""
        return self.signal != 0

    def say(self, write: "Callable[[str], object]") -> None:
        """Writes what is left once it is stopped, and how to go on; once, whoever comes first."""
        with self._telling:
            if not self._told:
                write(self._sentence())
                self._told = True

    def _sentence(self) -> str:
        where = f"stopped at step {self._saved}, state saved" if self._saved else "stopped"
        return f"{where}. Go on with: {self._go_on}" if self._go_on else f"{where}."

    def progress(self, step: int, logs: object) -> None:
        """Steps were taken."""
        self.unsaved = True

    def validated(self, step: int, scores: object, improved: object, state: object) -> None:
        """Nothing is lost or saved by it."""

    def checkpoint(self, step: int, state: object) -> None:
        """They were saved: observers that write come before this one."""
        self.unsaved, self._saved = False, step

    def rolled_back(self, step: int, to_step: int, seed_index: int, rate: float) -> None:
        """They were given up."""
        self.unsaved, self._saved = False, to_step

    def noted(self, step: int, seed_index: int, note: str) -> None:
        """Nothing is lost or saved by it."""


@contextmanager
def stop_requests(stop: StopRequest) -> Iterator[None]:
    """Inside the block, Ctrl-C and SIGTERM are requests to `stop`."""
    before = _listener.stop, {number: signal.getsignal(number) for number in STOPPING}
    _listener.stop = stop
    if not _listener.listens:  # called from a program with signals of its own: take turns
        for number in STOPPING:
            signal.signal(number, lambda number, frame: _request(stop, number))
    try:
        yield
    finally:
        _listener.stop = before[0]
        for number, handler in before[1].items():
            signal.signal(number, handler)


def is_stopping() -> bool:
    """Whether the command has heard a signal: from then on its one line is all that is said."""
    return _listener.heard


def leave_stopped(stop: StopRequest, *, quiet: bool = False) -> "NoReturn":
    """Ends a command in order that was asked to stop and has saved what it had; `quiet` where others say so."""
    if not quiet:
        stop.say(lambda line: print(line, file=sys.stderr, flush=True))
    sys.exit(128 + stop.signal)


def _leave(code: int) -> "NoReturn":
    """Ends the process at once, without the locks on run folders that it holds, if any."""
    try:
        release = getattr(sys.modules.get("stmaml.locks"), "release_held", None)  # it may be half imported
        if release is not None:
            release()
    finally:
        os._exit(code)


def end(code: int, line: str = "") -> "NoReturn":
    """Ends the process at once, with a last line; safe in any thread."""
    if line:
        _say(line)
    _leave(code)


def _request(stop: StopRequest, number: int) -> None:
    if stop.requested():
        _leave(128 + stop.signal)
    stop.signal = number


def listening(run: Callable[[], None]) -> "NoReturn":
    """Runs a command that hears signals, and ends the process with its exit code."""
    _listener.begin()
    code = _exit_code(run)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            code = code or 141
        except OSError as error:
            if not code:
                _say(f"stmaml: the output could not be written: {error.strerror}.")
            code = code or 2
    _listener.run_exit_functions()
    _leave(code)


def _exit_code(run: Callable[[], None]) -> int:
    """That of the command, by the rules of `sys.exit`."""
    try:
        run()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 141
    except OSError as error:  # such as a full disk behind the output
        where = f" ({error.filename})" if error.filename else ""
        _say(f"stmaml: the system refused: {error.strerror or error}{where}.")
        return 2
    except UnicodeEncodeError as error:
        letter = ascii(error.object[error.start])
        _say(f"stmaml: the output is to be in {error.encoding}, which has no {letter}. Set PYTHONIOENCODING=utf-8.")
        return 2
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1
    return 0


class _Listener:
    """The thread that hears signals."""

    def __init__(self):
        self.listens = self.heard = False
        self.stop: StopRequest | None = None

    def begin(self) -> None:
        """From now on signals are answered. One that was ignored from the start, as in the background, stays so."""
        heard, written = os.pipe()
        os.set_blocking(written, False)
        threading.Thread(target=self._answer, args=(heard,), daemon=True, name="signals").start()
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)
        for number in STOPPING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._note)
        self.listens = True

    def _note(self, number: int, frame: object) -> None:
        """In the main thread, before its next line; the other thread reads the signal's number."""
        self.heard = True

    def run_exit_functions(self) -> None:
        """What modules have left to do, such as removing temporary folders."""
        import atexit

        atexit._run_exitfuncs()

    def _answer(self, heard: int) -> None:
        number = os.read(heard, 1)[0]
        self.heard = True
        try:
            self._wait(heard, number)
            if self.stop is None:
                _say("stopped.")
            else:
                self.stop.say(_say)
        finally:
            _leave(128 + number)

    def _wait(self, heard: int, number: int) -> None:
        """Returns when nothing would be lost by leaving; leaves at once at a second signal."""
        began, told, stop = time.monotonic(), False, self.stop
        if stop is None or not stop.unsaved:
            return
        stop.signal = number
        while stop.unsaved:
            if not told and (compiling := _is_compiling(), time.monotonic() - began > PATIENCE) != (False, False):
                _say(_delay(compiling))
                told = True
            _leave_if_heard(heard, number, _GLANCE)
        _leave_if_heard(heard, number, PATIENCE)  # the main thread is about to end by itself


def _leave_if_heard(heard: int, number: int, seconds: float) -> None:
    if select.select([heard], [], [], seconds)[0]:
        _leave(128 + number)


def _delay(compiling: bool) -> str:
    what = "a program is being compiled, this may take a minute" if compiling else "the steps under way are finished"
    return f"stopping: {what}; press Ctrl-C again to leave at once"


def _is_compiling() -> bool:
    """Whether the main thread is at work on a program rather than running one."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_code.co_filename.endswith(_COMPILING):
            return True
        frame = frame.f_back
    return False


def _say(line: str) -> None:
    """Writes a line past all buffers, whose locks the main thread may hold."""
    clean = _CLEAN_LINE if os.isatty(2) else ""
    try:
        os.write(2, f"{clean}{line}\n".encode())
    except OSError:
        return  # nobody is left to read it


_listener = _Listener()
