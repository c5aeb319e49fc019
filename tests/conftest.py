"""Strict numerics and fixed keys."""

import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# What one test has compiled, others and the next run need not. The folder may be removed at any time.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(tempfile.gettempdir()) / f"stmaml-tests-{os.getuid()}"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "0")

import jax
import jax.random as jr
import pytest
from hypothesis import settings

from stmaml import cli
from stmaml.compiled import quick_compilation

# Tests compile much and run little: code that is made quickly serves them better than code that runs quickly.
os.environ.setdefault("XLA_FLAGS", quick_compilation())  # read when the first program is compiled
jax.config.update("jax_numpy_rank_promotion", "raise")
settings.register_profile("stmaml", deadline=None)  # a busy machine misses any
settings.load_profile("stmaml")


HERE = ("127.0.0.1", "::1", "localhost")
allowed = {"sockets": False}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Sockets are for tests that are marked for them; known before any fixture of theirs is made."""
    allowed["sockets"] = item.get_closest_marker("sockets") is not None


@pytest.fixture(autouse=True, scope="session")
def _no_network():
    """No test opens a socket, but for those marked `sockets`, within this machine."""
    usual = {name: getattr(socket.socket, name) for name in ("connect", "connect_ex", "bind")}
    look_up = socket.getaddrinfo

    def check(host: object, what: str) -> None:
        if not allowed["sockets"] or host not in HERE:
            raise AssertionError(f"a test tried to {what} {host}: tests need no network, and sockets want a marker")

    def checked(name: str):
        def call(self: socket.socket, address: Any) -> Any:
            if self.family != socket.AF_UNIX:
                check(address[0], name)
            return usual[name](self, address)

        return call

    def looked_up(host: Any, *rest: Any, **named: Any) -> Any:
        check(host, "look up")
        return look_up(host, *rest, **named)

    with pytest.MonkeyPatch.context() as patch:
        for name in usual:
            patch.setattr(socket.socket, name, checked(name))
        patch.setattr(socket, "getaddrinfo", looked_up)
        yield


@pytest.fixture(autouse=True)
def _usual_without_prior(monkeypatch):
    """Pools of tests are fitted without the prior over tables, which would be compiled for each size of table; its own
    tests ask for it."""
    monkeypatch.setattr("stmaml.pool.registry.FEW_GROUPS", 0)


@pytest.fixture
def key():
    """A fixed random key."""
    return jr.key(0)


@pytest.fixture
def stmaml(monkeypatch, capsys):
    """Runs the command in this process: its exit code, output and errors."""

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["stmaml", *map(str, words)])
        try:
            cli.main()
        except SystemExit as end:
            code = 0 if end.code is None else end.code
        else:
            code = 0
        out, err = capsys.readouterr()
        assert isinstance(code, int)
        assert "Traceback" not in err
        return code, out, err

    return run


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled_programs():
    """Each compiled program holds memory maps, of which a process has only so many: past the limit XLA crashes."""
    yield
    jax.clear_caches()
