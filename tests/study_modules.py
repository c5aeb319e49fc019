"""Scripts of studies/ as modules, for tests of them at toy size."""

import importlib
import os
from pathlib import Path
from types import ModuleType

import pytest

STUDIES = Path(__file__).parents[1] / "studies"


def opened(name: str, patch: pytest.MonkeyPatch, cache: Path) -> ModuleType:
    """The script, which can import its neighbours; skips where there are no studies."""
    if not STUDIES.exists():
        pytest.skip("studies/ is not part of this copy of the sources")
    patch.syspath_prepend(str(STUDIES))
    patch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))  # `ahead` sets its own
    patch.setenv("STMAML_CACHE", str(cache))
    return importlib.import_module(name)
