"""How much memory a meta-step may take, and the fastest way to take it that fits.

Two things save memory without changing results beyond rounding: tasks in turns instead of all at once (micro-batches,
whose gradients are summed), and inner steps that are computed again in the backward pass instead of being kept."""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from stmaml.errors import SettingError
from stmaml.limits import FREE_SHARE
from stmaml.methods.base import AbstractMetaLearner
from stmaml.methods.wrapper import inner_loop, with_inner
from stmaml.tasks import TaskSpec

UNITS = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


@dataclass(frozen=True)
class Plan:
    """How a meta-step is to be computed."""

    tasks: int
    """Tasks in the meta-step."""
    task_chunk: int
    """Tasks whose gradients are taken at once."""
    recompute: bool
    """Whether inner steps are computed again in the backward pass, though the settings do not ask for it."""
    needed: int
    """Bytes it takes, as the compiler counts them."""
    budget: int | None
    """Bytes there are; none if unknown."""

    @property
    def sentence(self) -> str:
        """What a user is told before training."""
        of = "" if self.budget is None else f" of {size_text(self.budget)}"
        how = "all tasks at once" if self.task_chunk == self.tasks else f"micro-batches of {self.task_chunk} tasks"
        if self.task_chunk == 1 and self.tasks > 1:
            how = "one task at a time"
        return f"needs about {size_text(self.needed)}{of}: {how}{', inner steps recomputed' if self.recompute else ''}"


def parse_size(text: str) -> int | None:
    """Bytes in a size such as 8GB; none for `auto`."""
    if text.strip().lower() == "auto":
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text.strip().lower())
    if match is None or match[2] not in UNITS or float(match[1]) == 0:
        raise SettingError(f"--memory must be 'auto' or a size such as 8GB or 500MB; got '{text}'.")
    return round(float(match[1]) * UNITS[match[2]])


def size_text(size: int) -> str:
    """A number of bytes as people read it."""
    unit, name = next(((10**n, name) for n, name in ((9, "GB"), (6, "MB")) if size >= 10**n), (10**3, "kB"))
    return f"{size / unit:.3g} {name}"


def budget_for(wanted: str) -> int | None:
    """Bytes that a step may take: what was asked for, but no more than is free; none if neither is known."""
    asked, free = parse_size(wanted), free_bytes()
    known = [size for size in (asked, None if free is None else round(FREE_SHARE * free)) if size is not None]
    return min(known, default=None)


def free_bytes() -> int | None:
    """Memory that the device has left; none where that cannot be told."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    return _free_host_bytes() if jax.default_backend() == "cpu" else None


def _free_host_bytes(meminfo: Path = Path("/proc/meminfo"), control_group: Path = Path("/sys/fs/cgroup")) -> int | None:
    """What the system says is available, or what is left of a container's share if that is less."""
    left = []
    if meminfo.exists() and (match := re.search(r"MemAvailable:\s+(\d+) kB", meminfo.read_text())):
        left.append(int(match[1]) * 1024)
    limit, used = control_group / "memory.max", control_group / "memory.current"
    if limit.exists() and used.exists() and (most := limit.read_text().strip()).isdigit():
        left.append(max(0, int(most) - int(used.read_text())))
    return min(left, default=None)


def usual_chunk(tasks: int, spec: TaskSpec) -> int:
    """Tasks at once where memory is no concern: all, but images on a CPU one by one, which is faster there too."""
    return 1 if spec.is_image and jax.default_backend() == "cpu" else tasks


def choose(
    measure: Callable[[int, bool], int], *, tasks: int, most_at_once: int, budget: int | None, can_recompute: bool
) -> Plan:
    """The fastest plan that fits, or SettingError if none does. `measure(task_chunk, recompute)` compiles, so it is
    asked rarely: what a step needs grows in proportion to the tasks at once, beside a part that is always there."""
    chunk = most_at_once
    needed = measure(chunk, False)
    while budget is not None and needed > budget and chunk > 1:
        chunk = largest_divisor(tasks, min(chunk - 1, chunk * budget // needed))
        needed = measure(chunk, False)
    if budget is None or needed <= budget:
        return Plan(tasks, chunk, False, needed, budget)
    if can_recompute:
        needed = measure(1, True)
    if needed > budget:
        raise SettingError(_advice(needed, budget, recomputed=can_recompute))
    wider = largest_divisor(tasks, min(most_at_once, budget // needed))
    if wider > 1 and (more := measure(wider, True)) <= budget:
        return Plan(tasks, wider, True, more, budget)
    return Plan(tasks, 1, True, needed, budget)


def _advice(needed: int, budget: int, *, recomputed: bool) -> str:
    how = "one task at a time with inner steps recomputed" if recomputed else "one task at a time"
    cure = "--order first (an approximation), " if recomputed else ""
    smaller = "fewer query examples, a smaller network or smaller inputs, fewer seeds at once, or give more --memory"
    return f"a step needs about {size_text(needed)} even {how}, and may take {size_text(budget)}. Try {cure}{smaller}."


def explained(error: Exception, at_once: int | None) -> Exception:
    """What to do where a device has run out of memory; any other error as it is."""
    if "RESOURCE_EXHAUSTED" not in str(error):
        return error
    what = f"the device ran out of memory with {at_once} tasks at once"
    cure = "a smaller --task-chunk, --remat, or --order first (an approximation)"
    return SettingError(f"{what}. Try --memory auto or a size below what is free, {cure}.")


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of `number` that is not above `limit`; 1 if there is none."""
    return max((d for d in range(1, min(number, limit) + 1) if number % d == 0), default=1)


def recomputing(learner: AbstractMetaLearner) -> AbstractMetaLearner | None:
    """The same learner with inner steps recomputed in the backward pass; none if it does so already or has none."""
    inner = inner_loop(learner)
    if inner is None or inner.remat or inner.inner_steps == 0:
        return None
    return with_inner(learner, lambda inner: replace(inner, remat=True))


def bytes_needed(run: Any, arguments: tuple[Any, ...]) -> int:
    """Memory that a compiled call takes. The program is kept: a later call with the same shapes compiles nothing."""
    try:
        stats = run.lower(*arguments).compile().compiled.memory_analysis()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" in str(error):  # the compiler tries kernels out
            return sys.maxsize
        raise
    return stats.temp_size_in_bytes + stats.argument_size_in_bytes + stats.output_size_in_bytes
