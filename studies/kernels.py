"""Where a compiled call spends its time on a GPU: the profiler's kernels, summed by name."""

import re
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from rich.table import Table


@dataclass(frozen=True)
class Kernel:
    """All launches of kernels that share a name, numbers in it left out."""

    name: str
    launches: int
    seconds: float
    share: float
    """Of the time from the first launch to the end of the last."""


def profile(call: Callable[[], Any]) -> list[Kernel]:
    """The kernels of one call, the longest first, and last the time in which none ran; empty without a GPU."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            call()
        files = sorted(Path(folder).rglob("*.xplane.pb"))
        data = jax.profiler.ProfileData.from_file(str(files[-1]))
        events = [
            (re.sub(r"[._]?\d+", "", event.name), event.start_ns, event.duration_ns)
            for plane in data.planes
            if plane.name.startswith("/device:GPU")
            for line in plane.lines
            if line.name.startswith("Stream")
            for event in line.events
        ]
    if not events:
        return []
    span = max(start + length for _, start, length in events) - min(start for _, start, _ in events)
    return _summed(events, span)


def _summed(events: list[tuple[str, float, float]], span: float) -> list[Kernel]:
    lengths: dict[str, list[float]] = defaultdict(list)
    for name, _, length in events:
        lengths[name].append(length)
    kernels = [Kernel(name, len(each), sum(each) / 1e9, sum(each) / span) for name, each in lengths.items()]
    idle = span - sum(length for _, _, length in events)
    return [*sorted(kernels, key=lambda kernel: -kernel.seconds), Kernel("(none)", 0, idle / 1e9, idle / span)]


def kernels_table(title: str, kernels: list[Kernel], *, most: int = 25) -> Table:
    """The longest of them, and the idle time."""
    table = Table(title=title)
    for column in ("kernel", "launches", "ms", "share"):
        table.add_column(column, justify="left" if column == "kernel" else "right")
    for kernel in (*kernels[:-1][:most], *kernels[-1:]):
        table.add_row(kernel.name, str(kernel.launches), f"{1e3 * kernel.seconds:.3g}", f"{100 * kernel.share:.1f} %")
    return table
