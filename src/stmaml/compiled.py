"""Compiled programs, kept from one command to the next."""

import contextlib
import os
from pathlib import Path

import jax

from stmaml.data.folders import cache_folder

WORTH_KEEPING = 0.2  # seconds of compiling
MOST_BYTES = 10**9


def remember_programs(folder: Path | None = None) -> None:
    """Has JAX keep what takes long to compile in a folder of the user, and look there first.

    A folder that JAX was told of before stays. Where none can be written, all is compiled each time."""
    if jax.config.values["jax_compilation_cache_dir"]:
        return
    folder = (cache_folder() if folder is None else folder) / "programs" / f"jax-{jax.__version__}"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            keep_below(folder, MOST_BYTES)
            jax.config.update("jax_persistent_cache_min_compile_time_secs", WORTH_KEEPING)
            jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
            jax.config.update("jax_compilation_cache_dir", str(folder))


def keep_below(folder: Path, most: int) -> None:
    """Removes the oldest files of a folder that holds more bytes than that, until it holds half as many.

    JAX itself can bound its folder only where the package filelock is installed."""
    files = sorted(((path.stat().st_mtime, path.stat().st_size, path) for path in folder.iterdir()), reverse=True)
    held = sum(size for _, size, _ in files)
    goal = most // 2 if held > most else held
    while held > goal:
        _, size, path = files.pop()
        path.unlink(missing_ok=True)
        held -= size
