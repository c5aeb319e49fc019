"""Contenders that take turns, so that a neighbour on the machine slows all alike, and what is measured of them: a ratio
is the median over the rounds of the ratio within a round."""

import datetime
import importlib.util
import itertools
import os
import platform
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from stmaml.benchmarks.sources import TaskSource
from stmaml.methods.base import AbstractMetaLearner
from stmaml.tasks import TaskBatch
from stmaml.training import TrainConfig, initial_state, run_steps

CHUNK = 64
"""Meta-steps in one compiled call, and ready-made batches."""
GATE = "STMAML_BENCH_GATE"
"""Names a file in the environment: what is compiled waits for it before it is timed, and makes another, NAME.ready. So
sections can be compiled at once and timed one after the other."""
COMPARED_STEP = 20
"""Losses are compared before the first step and after this many."""


@dataclass
class Contender:
    """One way to train, warmed up and then timed in turns with others."""

    name: str
    advance: Callable[[], np.ndarray]
    """Takes the steps of one call and gives their losses."""
    comparable: bool = True
    """Whether its losses must be those of the reference."""
    parameters: int = 0
    first_call_s: float = 0.0
    compile_s: float = 0.0
    steps_per_call: int = 0
    losses: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    """Steps a second, one figure a round."""
    processor: list[float] = field(default_factory=list)
    """Seconds of processors for a step, likewise: what a busy machine leaves as it is."""

    def warm_up(self, compared: int = COMPARED_STEP) -> None:
        """The first calls: compiles, and keeps the losses to be compared, up to those after so many steps."""
        start = time.perf_counter()
        losses = self.advance()
        self.first_call_s = time.perf_counter() - start
        self.steps_per_call = len(losses)
        self.losses += losses.tolist()
        while len(self.losses) <= compared:
            self.losses += self.advance().tolist()
        start = time.perf_counter()
        self.advance()
        self.compile_s = max(0.0, self.first_call_s - (time.perf_counter() - start))

    def time(self, seconds: float) -> None:
        """One round: as many calls as fit in `seconds`, at least one."""
        calls, start, used = 0, time.perf_counter(), time.process_time()
        while calls == 0 or time.perf_counter() - start < seconds:
            self.advance()
            calls += 1
        self.rates.append(calls * self.steps_per_call / (time.perf_counter() - start))
        self.processor.append((time.process_time() - used) / (calls * self.steps_per_call))


@dataclass(frozen=True)
class Row:
    """What was measured of one contender."""

    name: str
    steps_per_s: float
    slowest: float
    fastest: float
    ms_per_step: float
    ratio: float
    """Its speed over the reference's."""
    compile_s: float
    parameters: int
    processor_ms: float
    """Of processors for a step."""


def warm_up_together(contenders: list[Contender], at_once: int) -> None:
    """All first calls, some at once: compilers use one core each. How long each took is then not known."""
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(Contender.warm_up, contenders))
    for contender in contenders:
        contender.compile_s = contender.compile_s if at_once == 1 else float("nan")


def measure(contenders: list[Contender], reference: str, *, seconds: float, repeats: int) -> list[Row]:
    """Rounds in which every contender has its turn."""
    wait_at_gate()
    for _ in range(repeats):
        for contender in contenders:
            contender.time(seconds)
    base = next(contender for contender in contenders if contender.name == reference)
    return [_row(contender, base) for contender in contenders]


def wait_at_gate() -> None:
    if gate := os.environ.get(GATE):
        Path(f"{gate}.ready").touch()
        while not Path(gate).exists():
            time.sleep(0.1)


def _row(contender: Contender, base: Contender) -> Row:
    rates = contender.rates
    median = statistics.median(rates)
    return Row(
        name=contender.name,
        steps_per_s=median,
        slowest=min(rates),
        fastest=max(rates),
        ms_per_step=1e3 / median,
        ratio=statistics.median(own / other for own, other in zip(rates, base.rates, strict=True)),
        compile_s=contender.compile_s,
        parameters=contender.parameters,
        processor_ms=1e3 * statistics.median(contender.processor),
    )


def assert_same_losses(contenders: list[Contender]) -> None:
    """The first loss, and the one after some steps, agree to four digits; matrix units of a GPU round to fewer."""
    tolerance = 1e-4 if jax.default_backend() == "cpu" else 1e-2
    same = [contender for contender in contenders if contender.comparable]
    for step in (0, COMPARED_STEP):
        for contender in same[1:]:
            np.testing.assert_allclose(
                contender.losses[step],
                same[0].losses[step],
                rtol=tolerance,
                err_msg=f"loss of '{contender.name}' and '{same[0].name}' after {step} steps",
            )


def library(name: str, learner: AbstractMetaLearner, source: TaskSource | TaskBatch, config: TrainConfig) -> Contender:
    """The compiled chunk of the training loop, with the losses brought to the host as the loop does."""
    state, key, chunks = initial_state(learner, config), jr.key(1), itertools.count(step=CHUNK)

    def advance() -> np.ndarray:
        nonlocal state
        state, (losses, _, _) = run_steps(state, source, key, next(chunks) + jnp.arange(CHUNK), config)
        return np.asarray(losses)

    comparable = isinstance(source, TaskBatch)
    return Contender(name, advance, comparable=comparable, parameters=count_parameters(learner))


def count_parameters(learner: AbstractMetaLearner) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(learner, eqx.is_inexact_array)))


def environment() -> dict[str, Any]:
    """What a figure depends on."""
    torch_there = importlib.util.find_spec("torch")
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": jax.devices()[0].device_kind,
        "backend": jax.default_backend(),
        "cpu": platform.processor() or platform.machine(),
        "threads": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "torch": importlib.import_module("torch").__version__ if torch_there else None,
    }
