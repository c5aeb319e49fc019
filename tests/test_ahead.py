"""Programs of studies that are kept in files: read where they are found, compiled where not."""

import importlib
import os
from pathlib import Path
from types import ModuleType

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stmaml.nets import convolution

STUDIES = Path(__file__).parents[1] / "studies"


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    if not STUDIES.exists():
        pytest.skip("studies/ is not part of this copy of the sources")
    monkeypatch.syspath_prepend(str(STUDIES))
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))  # the module sets its own
    return importlib.import_module("ahead")


def any_power() -> float:
    """Another one each time: what a CPU has from the cache of compiled programs cannot be written again."""
    return float(np.random.default_rng().uniform(1, 3))


class Scaled(eqx.Module):
    """Arrays with a setting beside them."""

    scale: jnp.ndarray
    power: float = eqx.field(static=True)


def noisy(scaled: Scaled, x, key):
    return {"y": scaled.scale * x**scaled.power, "noise": jr.normal(key, (2,))}


def test_a_kept_program_gives_what_the_function_gives(ahead, tmp_path, key):
    args = (Scaled(jnp.array(2.0), any_power()), jnp.arange(3.0), key)
    first = ahead.Programs(tmp_path)("noisy", noisy, *args)
    again = ahead.Programs(tmp_path)
    again.compiles = False
    found = again("noisy", noisy, *args)
    want = noisy(*args)
    for name in want:
        np.testing.assert_allclose(first[name], want[name], rtol=1e-6)
        np.testing.assert_allclose(found[name], want[name], rtol=1e-6)


def test_a_file_that_cannot_be_read_is_compiled_anew(ahead, tmp_path, key):
    args = (Scaled(jnp.array(2.0), any_power()), jnp.arange(3.0), key)
    ahead.Programs(tmp_path)("noisy", noisy, *args)
    (path,) = tmp_path.iterdir()
    path.write_bytes(b"no program")
    broken = ahead.Programs(tmp_path)
    broken.compiles = False
    with pytest.raises(SystemExit, match="compiled ahead"):
        broken("noisy", noisy, *args)
    assert ahead.Programs(tmp_path)("noisy", noisy, *args)["y"][1] == 2.0


def test_what_is_traced_for_an_absent_gpu_is_its_own_form(ahead):
    usual = jax.default_backend()
    x, weight = jnp.zeros((2, 4, 4, 3)), jnp.zeros((3, 3, 3, 5))
    with ahead.as_on_gpu():
        assert "pallas_call" in str(jax.make_jaxpr(convolution.conv3x3)(x, weight))
    assert jax.default_backend() == usual
    assert "pallas_call" not in str(jax.make_jaxpr(convolution.conv3x3)(x, weight))
