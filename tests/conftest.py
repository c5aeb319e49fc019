"""Strict numerics and fixed keys."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Tests compile much and run little: code that is made quickly serves them better than code that runs quickly.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import jax
import jax.random as jr
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def key():
    """A fixed random key."""
    return jr.key(0)


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled_programs():
    """Each compiled program holds memory maps, of which a process has only so many: past the limit XLA crashes."""
    yield
    jax.clear_caches()
