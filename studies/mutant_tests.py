"""Where mutants are tested: a session of tests from which each mutant has a fork of its own.

Tests are imported once. A survey runs a module's own tests, unharmed, and keeps for each how long it takes and which
lines of the module it reaches. Then a fork for each mutant puts the error into the imported module (mutant_patch.py)
and runs the tests that reach its line, then the others, until one fails. Errors outside functions need a process of
their own, with a copy of the package. Processes that share the mutants share the surveys as well: each makes some, and
all read them."""

import hashlib
import json
import os
import pickle
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from mutant_patch import exchange, replacements
from shares import Share

HERE = Path(__file__).resolve().parent
HOME = HERE.parent
MODULES = {
    "inner": ("inner.py", ("test_inner.py",)),
    "likelihoods": ("likelihoods.py", ("test_likelihoods.py",)),
    "normal": ("outcomes/normal.py", ("test_outcomes.py",)),
    "student": ("outcomes/student.py", ("test_outcomes.py",)),
    "mixture": ("outcomes/mixture.py", ("test_outcomes.py",)),
    "discrete": ("outcomes/discrete.py", ("test_outcomes.py", "test_prediction.py")),
    "metrics": ("metrics.py", ("test_metrics.py", "tables/test_coverage.py")),
    "comparison": ("comparison.py", ("test_comparison.py",)),
    "coverage": ("tables/coverage.py", ("tables/test_coverage.py",)),
    "calibration": ("tables/calibration.py", ("tables/test_calibration.py",)),
    "st_maml": ("methods/st_maml.py", ("methods/test_st_maml.py", "methods/test_st_maml_images.py")),
}
"""The file of each module and the files of its tests."""
LONGEST_FIRST = ("st_maml", "calibration", "likelihoods")
FAILED, PATIENCE = 1, 30.0  # seconds for the tests under way when time is up
LONGEST = 600.0  # of a survey
OPTIONS = [
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
    *("-o", "addopts=--jaxtyping-packages=stmaml,beartype.beartype -m 'not slow'"),
    *("-x", "-q", "-s", "-p", "no:cacheprovider", "--hypothesis-seed=0"),
]
Survey = dict[str, dict[str, Any]]  # of each test its seconds and lines


class _Forked(BaseException):
    """Leads out of the parent's work, in a child that has tests to run."""


class Bench:
    """A session of the tests of some modules, in which one mutant after the other is tested."""

    def __init__(self, modules: Sequence[str], share: Share):
        self.modules = sorted(modules, key=lambda module: module not in LONGEST_FIRST)
        self.share, self.writes = share, 0
        self.surveys = Path(tempfile.gettempdir()) / f"stmaml-surveys-{os.getuid()}-{_digest()}"
        self.known: dict[str, Survey] = {}
        self.broken: dict[str, str] = {}
        """Modules whose tests fail without any mutant, and what they said."""

    def run(self, work: Callable[[], None]) -> None:
        """Collects the tests, makes surveys, and does `work`, which may ask for tests."""
        self.folder, self.work, parent = Path(tempfile.mkdtemp(prefix="stmaml-mutants-")), work, os.getpid()
        self.surveys.mkdir(exist_ok=True)
        (self.folder / "programs").mkdir()
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(self.folder / "programs")
        code = FAILED
        try:
            code = _session(HOME / "src", self.modules, self)
        finally:
            if os.getpid() != parent:
                os._exit(code)  # whatever came up, the rest is the parent's
            shutil.rmtree(self.folder)

    def pytest_configure(self) -> None:
        """Examples that fail are not made smaller."""
        _quick_examples()

    def pytest_runtestloop(self, session: Any) -> bool | None:
        """In the parent all of the work; in a child nothing, so that its tests are run."""
        self.session = session
        _check_no_device()
        try:
            for module in self.modules[self.share.place :: self.share.of]:
                self._survey(module)
            self.work()
        except _Forked:
            return None
        return True

    def ready(self) -> set[str]:
        """The modules whose survey is there; the programs that it compiled are taken along."""
        for module in self.modules:
            path = self.surveys / f"{module}.json"
            if module not in self.known and path.exists():
                self.known[module] = json.loads(path.read_text())
                if not self.known[module]:
                    self.broken[module] = path.with_suffix(".txt").read_text()[-1500:]
                    continue
                shutil.copytree(path.with_suffix(".programs"), self.folder / "programs", dirs_exist_ok=True)
        return set(self.known)  # those that are broken too, so that nobody waits for them

    def _survey(self, module: str) -> None:
        path, programs = self.surveys / f"{module}.json", self.surveys / f"{module}.programs"
        if path.exists():
            return
        seen, words = self.folder / "survey.json", self.surveys / f"{module}.txt"
        surveyor = _Surveyor(str(_source(module)), seen)

        def prepare() -> None:
            self.session.config.pluginmanager.register(surveyor)

        code, _ = self._waited(self._forked(module, prepare, words), LONGEST)
        if (code is None and self.share.over) or (code is not None and code < 0):
            return  # somebody ended it: that says nothing of the tests
        if code != 0:
            seen.write_text("{}")
        shutil.copytree(self.folder / "programs", programs, dirs_exist_ok=True)
        seen.rename(path)

    def tested(self, module: str, source: str, line: int, limit: float) -> tuple[str, float]:
        """How the module's tests end with this source in its place, whose error is in that line."""
        order, new = _Order(self.known[module], line), replacements(_source(module), source)
        most = min(limit, 3 * sum(one["seconds"] for one in self.known[module].values()) + 20)

        def prepare() -> None:
            exchange(_source(module), new or {})
            order.sort(self.session.items)

        child = self._forked(module, prepare) if new is not None else self._spawned(module, source, order)
        code, seconds = self._waited(child, most)
        if new is None:
            shutil.copyfile(_source(module), self.folder / "stmaml" / MODULES[module][0])
        return {0: "survived", None: "late"}.get(code, "killed"), round(seconds, 1)

    def _forked(self, module: str, prepare: Callable[[], None], words: Path = Path(os.devnull)) -> int:
        """The number of a child that runs the module's tests in what is imported here."""
        with warnings.catch_warnings(action="ignore"):  # no device was started, so there are no threads of JAX
            child = os.fork()
        if child:
            return child
        _alone(words)
        files = [str(HOME / "tests" / name) for name in MODULES[module][1]]
        self.session.items[:] = [item for item in self.session.items if str(item.path) in files]
        prepare()
        raise _Forked

    def _spawned(self, module: str, source: str, order: "_Order") -> int:
        """The number of a new process that runs the tests on a copy of the package."""
        if not (self.folder / "stmaml").exists():
            unwanted = shutil.ignore_patterns("__pycache__")
            shutil.copytree(HOME / "src" / "stmaml", self.folder / "stmaml", ignore=unwanted)
        path = self.folder / "stmaml" / MODULES[module][0]
        self.writes += 1
        path.write_text(source)
        os.utime(path, (self.writes, self.writes))  # compiled code is known by its source's time: no other has this one
        job = self.folder / "job.pickle"
        job.write_bytes(pickle.dumps((self.folder, module, order)))
        code = "import pickle, sys; from mutant_tests import run_copy; "
        code += "run_copy(*pickle.loads(open(sys.argv[1], 'rb').read()))"
        here = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
        return os.spawnve(os.P_NOWAIT, sys.executable, [sys.executable, "-c", code, str(job)], here)

    def _waited(self, child: int, limit: float) -> tuple[int | None, float]:
        """The child's exit code and its seconds; no code if it had to be ended."""
        began, end = time.monotonic(), time.monotonic() + min(limit, self.share.left + PATIENCE)
        wall = time.time()
        while time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status), time.monotonic() - began
            time.sleep(0.02)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        for program in (self.folder / "programs").iterdir():
            if program.stat().st_mtime >= wall:
                program.unlink()  # it may be half written
        return None, time.monotonic() - began


class _Surveyor:
    """Notes which lines of a file each test reaches."""

    def __init__(self, path: str, out: Path):
        self.path, self.out, self.found, self.lines = path, out, {}, set()

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename != self.path:
            return None
        self.lines.add(frame.f_lineno)
        return self._trace

    def pytest_runtest_setup(self, item: Any) -> None:
        self.lines, self.began = set(), time.monotonic()
        sys.settrace(self._trace)

    def pytest_runtest_teardown(self, item: Any) -> None:
        sys.settrace(None)
        self.found[item.nodeid] = {"seconds": time.monotonic() - self.began, "lines": sorted(self.lines)}

    def pytest_sessionfinish(self) -> None:
        self.out.write_text(json.dumps(self.found))


class _Order:
    """Tests that reach a line come first, quick ones before slow ones."""

    def __init__(self, survey: Survey, line: int):
        self.survey, self.line = survey, line

    def pytest_configure(self) -> None:
        _quick_examples()

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        self.sort(items)

    def sort(self, items: list[Any]) -> None:
        items.sort(key=lambda item: self._place(item.nodeid))

    def _place(self, name: str) -> tuple[bool, float]:
        known = self.survey.get(name, {"seconds": 0.0, "lines": []})
        return self.line not in known["lines"], known["seconds"]


def run_copy(folder: Path, module: str, order: _Order) -> None:
    """Runs a module's tests on the package in a folder, in a process of its own; never returns."""
    _alone(Path(os.devnull))
    os._exit(_session(folder, [module], order))


def _session(package: Path, modules: Sequence[str], plugin: object) -> int:
    sys.path.insert(0, str(package))
    os.chdir(HOME)
    import pytest

    files = dict.fromkeys(str(HOME / "tests" / name) for module in modules for name in MODULES[module][1])
    return int(pytest.main([*OPTIONS, *files], plugins=[plugin]))


def _check_no_device() -> None:
    """Forks of a process in which JAX has started a device hang."""
    from jax._src import xla_bridge

    if xla_bridge.backends_are_initialized():
        raise RuntimeError("a test file makes an array of JAX when it is imported; have it do so in a function.")


def _quick_examples() -> None:
    from hypothesis import Phase, settings

    settings.register_profile("mutants", deadline=None, phases=(Phase.explicit, Phase.generate))
    settings.load_profile("mutants")


def _alone(words: Path) -> None:
    """What this process says goes to a file."""
    with words.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.setpgid(0, 0)


def _source(module: str) -> Path:
    return HOME / "src" / "stmaml" / MODULES[module][0]


def _digest() -> str:
    """Of the package and the tests: a survey is of both."""
    whole = hashlib.sha256()
    for folder in ("src", "tests"):
        for path in sorted((HOME / folder).rglob("*.py")):
            whole.update(path.read_bytes())
    return whole.hexdigest()[:12]
