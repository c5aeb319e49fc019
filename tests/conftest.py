"""Strict numerics and fixed keys."""

import os
import socket
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Tests compile much and run little: code that is made quickly serves them better than code that runs quickly.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false")
# What one test has compiled, others and the next run need not. The folder may be removed at any time.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(tempfile.gettempdir()) / f"stmaml-tests-{os.getuid()}"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "0")

import jax
import jax.random as jr
import pytest
from hypothesis import settings

from stmaml import cli

jax.config.update("jax_numpy_rank_promotion", "raise")
settings.register_profile("stmaml", deadline=None)  # a busy machine misses any
settings.load_profile("stmaml")


@pytest.fixture(autouse=True, scope="session")
def _no_network():
    """No test reaches for another machine; sockets inside this one are left alone."""
    connect = socket.socket.connect

    def refuse(self: socket.socket, address: object) -> None:
        if self.family != socket.AF_UNIX:
            raise AssertionError(f"a test tried to connect to {address}: tests need no network")
        connect(self, address)  # pyright: ignore[reportArgumentType]

    def unknown(host: object, *rest: object, **named: object) -> None:
        raise AssertionError(f"a test tried to look up {host}: tests need no network")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        patch.setattr(socket.socket, "connect_ex", refuse)
        patch.setattr(socket, "getaddrinfo", unknown)
        yield


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
