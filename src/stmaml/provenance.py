"""Where a result comes from: when, by which command, with which versions, on which device."""

import contextlib
import importlib.metadata
import os
import platform
import shlex
import subprocess
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
        "hardware": _hardware(),
        "commit": _commit(),
    }


def _hardware() -> str:
    """The processor, how many cores it has, and the system."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
        return f"{name}, {os.cpu_count()} cores, {platform.system()}"
    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {platform.system()}"


def _commit() -> str:
    """The commit the package was run from, marked where files were changed since; empty where it is no checkout."""
    home = Path(__file__).parents[2]
    if not (home / ".git").exists():
        return ""
    command = ["git", "-C", str(home), "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    return ""


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
