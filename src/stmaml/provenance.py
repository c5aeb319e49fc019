"""Where a result comes from: when, by which command, with which versions, on which device."""

import importlib.metadata
import platform
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax

PACKAGES = ("stmaml", "jax", "equinox", "optax", "numpyro", "numpy", "polars", "scikit-learn")


def provenance() -> dict[str, Any]:
    """What a run folder says of its origin."""
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": _command(),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "device": jax.devices()[0].device_kind,
    }


def _command() -> str:
    """What the user typed, without the folders programs lie in."""
    program = Path(sys.argv[0])
    head = ["stmaml"] if program.stem in ("stmaml", "__main__") else ["python", program.name]
    return shlex.join([*head, *sys.argv[1:]])


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
