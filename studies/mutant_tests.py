"""Where mutants are tested: a copy of the package, and what its tests touch.

A survey runs a module's own tests once, unharmed, and keeps for each how long it takes and which lines of the module
it reaches. Processes that share the mutants share the surveys as well: each makes some, and all read them."""

import hashlib
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

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
HEAVY = ("jax", "jax.numpy", "equinox", "optax", "numpyro", "scipy.stats", "sklearn.metrics", "hypothesis", "polars")
Survey = dict[str, dict[str, Any]]  # of each test its seconds and lines


class Bench:
    """A copy of the package with its own compiled programs, in which one mutant after the other is tested."""

    def __init__(self, modules: Sequence[str], share: Share, *, spawn: bool = False):
        """With `spawn` each mutant has a process of its own that imports everything anew: slower, and for machines on
        which a fork of a process with JAX hangs."""
        self.modules = sorted(modules, key=lambda module: module not in LONGEST_FIRST)
        self.share, self.spawn = share, spawn
        self.surveys = Path(tempfile.gettempdir()) / f"stmaml-surveys-{os.getuid()}-{_digest()}"
        self.known: dict[str, Survey] = {}
        self.broken: dict[str, str] = {}
        """Modules whose tests fail without any mutant, and what they said."""

    def __enter__(self) -> "Bench":
        self.folder = Path(tempfile.mkdtemp(prefix="stmaml-mutants-"))
        self.surveys.mkdir(exist_ok=True)
        shutil.copytree(HOME / "src" / "stmaml", self.folder / "stmaml", ignore=shutil.ignore_patterns("__pycache__"))
        (self.folder / "programs").mkdir()
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(self.folder / "programs")
        for name in () if self.spawn else ("pytest", *HEAVY):  # without starting a device
            __import__(name)
        for module in self.modules[self.share.place :: self.share.of]:
            self._survey(module)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder)

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
        code, _ = self._forked(
            module, _Surveyor(str(self.folder / "stmaml" / MODULES[module][0]), seen), LONGEST, words
        )
        if code != 0:
            seen.write_text("{}")
        shutil.copytree(self.folder / "programs", programs, dirs_exist_ok=True)
        seen.rename(path)

    def tested(self, module: str, source: str, line: int, limit: float) -> tuple[str, float]:
        """How the module's tests end with this source in its place, whose error is in that line."""
        path, survey = self.folder / "stmaml" / MODULES[module][0], self.known[module]
        own, whole = path.read_text(), sum(one["seconds"] for one in survey.values())
        path.write_text(source)
        try:
            code, seconds = self._forked(module, _Order(survey, line), min(limit, 3 * whole + 20))
        finally:
            path.write_text(own)
        return {0: "survived", None: "late"}.get(code, "killed"), round(seconds, 1)

    def _forked(
        self, module: str, plugin: object, limit: float, words: Path = Path(os.devnull)
    ) -> tuple[int | None, float]:
        began = time.monotonic()
        child = self._spawned(module, plugin, words) if self.spawn else os.fork()
        if child == 0:
            try:
                _run_tests(self.folder, module, plugin, words)
            finally:
                os._exit(FAILED)  # whatever came up, the rest is the parent's
        return _wait(child, min(limit, self.share.left + PATIENCE)), time.monotonic() - began

    def _spawned(self, module: str, plugin: object, words: Path) -> int:
        """The number of a process that runs the tests."""
        job = self.folder / "job.pickle"
        job.write_bytes(pickle.dumps((self.folder, module, plugin, words)))
        code = "import pickle, sys; from mutant_tests import _run_tests; "
        code += "_run_tests(*pickle.loads(open(sys.argv[1], 'rb').read()))"
        here = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
        return subprocess.Popen([sys.executable, "-c", code, str(job)], env=here, cwd=HOME).pid


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
    """Tests that reach a line come first, quick ones before slow ones; examples that fail are not made smaller."""

    def __init__(self, survey: Survey, line: int):
        self.survey, self.line = survey, line

    def pytest_configure(self) -> None:
        from hypothesis import Phase, settings

        settings.register_profile("mutants", deadline=None, phases=(Phase.explicit, Phase.generate))
        settings.load_profile("mutants")

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items.sort(key=lambda item: self._place(item.nodeid))

    def _place(self, name: str) -> tuple[bool, float]:
        known = self.survey.get(name, {"seconds": 0.0, "lines": []})
        return self.line not in known["lines"], known["seconds"]


def _run_tests(folder: Path, module: str, plugin: object, words: Path) -> None:
    """In the child: never returns."""
    with words.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.setpgid(0, 0)
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(folder))
    os.chdir(HOME)
    import pytest

    files = [str(HOME / "tests" / name) for name in MODULES[module][1]]
    imported = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # before pytest could look at it
    options = [*imported, "-o", "addopts=--jaxtyping-packages=stmaml,beartype.beartype -m 'not slow'"]
    words = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", *options, *files]
    os._exit(int(pytest.main(words, plugins=[plugin])))


def _wait(child: int, limit: float) -> int | None:
    """The child's exit code; none if it had to be ended."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _digest() -> str:
    """Of the package and the tests: a survey is of both."""
    whole = hashlib.sha256()
    for folder in ("src", "tests"):
        for path in sorted((HOME / folder).rglob("*.py")):
            whole.update(path.read_bytes())
    return whole.hexdigest()[:12]
