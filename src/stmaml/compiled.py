"""Compiled programs, kept from one command to the next."""

import contextlib
import ctypes
import gc
import glob
import os
import re
import warnings
from pathlib import Path
from typing import Any

import jax

from stmaml.data.folders import cache_folder

MOST_BYTES = 10**9
UNREADABLE = re.compile(r"Error reading persistent compilation cache entry for '([^']+)'")


def remember_programs(folder: Path | None = None) -> None:
    """Has JAX keep what it compiles in a folder of the user, and look there first: all of it, since what takes little
    time to compile takes less to read, and there is much of it.

    A folder that JAX was told of before stays. Where none can be written, all is compiled each time."""
    if jax.config.values["jax_compilation_cache_dir"]:
        return
    folder = (cache_folder() if folder is None else folder) / "programs" / f"jax-{jax.__version__}"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        return
    keep_below(folder, MOST_BYTES)
    _mend_damage(folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    jax.config.update("jax_compilation_cache_dir", str(folder))


def quick_compilation(version: tuple[int, ...] = jax.__version_info__) -> str:
    """XLA's flags where much is compiled and little computed: not for pictures, whose convolutions would take minutes.
    XLA ends the process at a flag that it does not know: the second went with JAX 0.11."""
    flags = "--xla_backend_optimization_level=0"
    return f"{flags} --xla_cpu_use_fusion_emitters=false" if version < (0, 11) else flags


def run_in_one_thread() -> None:
    """Has the programs of this process run in one thread on a CPU, unless the user said how many: threads that wait for
    each other on small arrays cost several times their work. XLA reads it once, when the first array is made."""
    os.environ.setdefault("NPROC", "1")


def free_programs() -> None:
    """Gives back the memory of all programs that were compiled so far; what is run again is read or compiled again.
    For commands: in another's process their programs would go too."""
    jax.clear_caches()
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # the C library keeps what was freed, unless it is told
        ctypes.CDLL(None).malloc_trim(0)


def keep_below(folder: Path, most: int) -> None:
    """Removes the files of a folder that were not used for longest, where it holds more bytes than that, until it holds
    half as many. Other processes may do the same at the same time.

    JAX itself can bound its folder only where the package filelock is installed."""
    files = sorted(found for path in folder.iterdir() if (found := _used(path)))
    held = sum(size for _, size, _ in files)
    goal = most // 2 if held > most else held
    for _, size, path in files:
        if held <= goal:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        held -= size


def _used(path: Path) -> tuple[float, int, Path] | None:
    """When a file was last written or read, as far as the system keeps count; none where it is gone."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return max(stat.st_mtime, stat.st_atime), stat.st_size, path


def _mend_damage(folder: Path) -> None:
    """Has programs that cannot be read removed instead of warned of, so that they are compiled and kept anew: a process
    that was killed while it wrote has left half of one, and JAX would leave it there."""
    show = warnings.showwarning

    def mend(message: Warning | str, *rest: Any, **named: Any) -> None:
        found = UNREADABLE.match(str(message))
        if found is None:
            return show(message, *rest, **named)
        for path in folder.glob(f"{glob.escape(found[1])}-*"):
            path.unlink(missing_ok=True)

    warnings.showwarning = mend
