"""The figures of docs/performance.md, and the page itself.

    python studies/bench.py [--part cpu|gpu] [--out FILE] [--sections training ...] [--seconds 2] [--repeats 5] [--tiny]
    python studies/bench.py --page [cpu.json gpu.json]

`make bench` runs the part of the device at hand and writes the page, with the parts that are kept in docs/bench/ of
others. Sections: `training` is second-order MAML on a 2-40-40-1 network beside other libraries; `images` is the same
with four convolutional blocks; `recipes` has ST-MAML's own settings and every method's; `use` is what a trained learner
costs; `adapting` is a new task, beside other libraries; `growth` is how the cost of a step grows; `caches` is what
fewer tasks in a step change about that; `memory` is what a process holds at most; `start` is how long commands take to
begin; `tables` has `fit` and `predict` beside what else one would take. Contenders take turns; one that is not
installed is named and left out. All libraries have as many threads as there are cores, but for torch on the small
network, which is faster with one. What is measured is written as it comes, so that a run that is cut off keeps it.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
from adapting import run_adapting
from bench_commands import TABLE_SIZES, run_memory, run_start, run_tables
from bench_learners import run_caches, run_growth, run_recipes, run_use
from kernels import profile
from libraries import installed
from picture_tasks import CONV_SIZES
from pictures import conv_makers, measure_images
from small_network import run_small_network
from timing import environment

KEPT = Path(__file__).parent.parent / "docs" / "bench"
PAGE = KEPT.parent / "performance.md"
OTHERS = ("torch", "torchopt", "learn2learn", "jax_meta", "lightgbm", "gpboost", "statsmodels")
SECTIONS = {
    "cpu": ("training", "images", "recipes", "use", "adapting", "growth", "caches", "memory", "start", "tables"),
    "gpu": ("images", "training", "use", "adapting", "recipes", "growth"),
}
LARGE_BATCH, BATCH, SMALL_BATCH = 64, 32, 4
"""Tasks in a step of images: on a GPU, two sizes, and on a CPU."""

Found = Iterator[Any]
"""What a section has so far, more each time."""


def run_training(options: argparse.Namespace) -> Found:
    timing = {"seconds": options.seconds, "repeats": options.repeats}
    at_once = 1 if options.part == "cpu" else options.at_once
    rows = run_small_network(1 if options.tiny else 5, **timing, without=options.without, at_once=at_once)
    yield [asdict(row) for row in rows]


def run_images(options: argparse.Namespace) -> Found:
    """Tasks a second of the convolutional network; on a GPU with its kernels, and in larger steps."""
    timing = {"seconds": options.seconds, "repeats": min(options.repeats, 5)}
    size, found = CONV_SIZES["tiny" if options.tiny else "full"], dict[str, Any]()
    if jax.default_backend() == "cpu":
        makers = conv_makers(size, SMALL_BATCH, ("float32",))
        yield {str(SMALL_BATCH): measure_images([make() for make in makers.values()], SMALL_BATCH, **timing)}
        return
    if LARGE_BATCH in options.batches:
        own = conv_makers(size, LARGE_BATCH, ("bfloat16",))["stmaml, bfloat16"]()
        found[str(LARGE_BATCH)] = measure_images([own], LARGE_BATCH, **timing)
        yield found
        found["kernels"] = [asdict(kernel) for kernel in profile(own.contender.advance)]
        yield found
        del own  # its memory
    if BATCH in options.batches:
        makers = conv_makers(size, BATCH, ("bfloat16", "float32"))
        chosen = [make() for name, make in makers.items() if not any(word in name for word in options.without)]
        yield found | {str(BATCH): measure_images(chosen, BATCH, **timing)}


RUNS: dict[str, Callable[[argparse.Namespace], Found]] = {
    "training": run_training,
    "images": run_images,
    "recipes": run_recipes,
    "use": run_use,
    "adapting": run_adapting,
    "growth": run_growth,
    "caches": run_caches,
    "memory": run_memory,
    "start": run_start,
    "tables": run_tables,
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The figures of docs/performance.md.")
    parser.add_argument("--part", choices=sorted(SECTIONS), default="cpu" if jax.default_backend() == "cpu" else "gpu")
    parser.add_argument("--sections", nargs="+", choices=sorted(RUNS), help="all of the part if not given")
    parser.add_argument("--out", type=Path, help="file for the figures; one of docs/bench/ if not given")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one turn of one contender")
    parser.add_argument("--repeats", type=int, default=5, help="rounds")
    parser.add_argument("--rows", type=int, nargs="+", default=TABLE_SIZES, help="of the tables")
    parser.add_argument("--without", nargs="*", default=[], help="leave out contenders with such a word in their name")
    parser.add_argument("--at-once", type=int, default=len(os.sched_getaffinity(0)), help="programs compiled at once")
    parser.add_argument("--batches", type=int, nargs="+", default=[LARGE_BATCH, BATCH], help="of images on a GPU")
    parser.add_argument("--remark", default="", help="a sentence for the page, on what else the machine did")
    parser.add_argument("--tiny", action="store_true", help="try all of it out in small sizes; figures mean nothing")
    parser.add_argument("--page", type=Path, nargs="*", help="write the page from these files, or those kept")
    return parser.parse_args()


def main() -> None:
    options = parse()
    if options.page is not None:
        from bench_page import write_page  # matplotlib comes with it

        write_page(options.page or sorted(KEPT.glob("*.json")), PAGE)
        return
    left_out = [name for name in OTHERS if not installed(name)]
    print(f"not installed, so left out: {', '.join(left_out) or 'nothing'}", flush=True)
    out = options.out or KEPT / f"{options.part}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    kept = json.loads(out.read_text()) if out.exists() else {}
    for name in options.sections or SECTIONS[options.part]:
        start, load = time.perf_counter(), os.getloadavg()[0]
        for found in RUNS[name](options):
            seconds = time.perf_counter() - start
            about = {"command": _command(options, name), "left_out": left_out, "without": options.without}
            about |= environment() | {"load": load, "took_s": seconds}
            about |= {"remark": options.remark} if options.remark else {}
            kept |= {"part": options.part, name: {"about": about, "found": found}}
            out.write_text(json.dumps(kept, indent=1) + "\n")
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)


def _command(options: argparse.Namespace, section: str) -> str:
    words = f"python studies/bench.py --part {options.part} --sections {section}"
    return f"{words} --seconds {options.seconds:g} --repeats {options.repeats}{' --tiny' if options.tiny else ''}"


if __name__ == "__main__":
    main()
