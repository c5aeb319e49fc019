"""Workloads on images, large enough to ask how far they are from the device's limit: second-order MAML with four
blocks of 32 channels on 84x84 images, 5-way 5-shot, 15 queries a class, 5 inner steps; and image completion, ST-MAML as
the paper has it on 28x28 images, 40 pixels observed and 784 asked, 3 second-order steps. Both on random images and by
the training loop's own compiled step."""

import itertools
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from libraries import installed
from library_pictures import learn2learn_conv, torch_conv
from picture_tasks import INNER_LR, ConvSize, Pictures
from timing import CHUNK, Contender, Row, count_parameters, measure

from stmaml.benchmarks import completion
from stmaml.benchmarks.grey_albums import GreyAlbum
from stmaml.benchmarks.sources import TaskSource
from stmaml.inner import InnerLoop
from stmaml.methods import maml
from stmaml.methods.base import AbstractMetaLearner
from stmaml.nets.conv import Conv
from stmaml.recipes import recipe
from stmaml.training import TrainConfig, initial_state, run_steps
from stmaml.training.memory import usual_chunk

LIMITS = {"NVIDIA H200": {"bfloat16": 989e12, "float32": 494e12, "bytes": 4.8e12}}
"""Dense operations and bytes a second by device; float32 products are TF32's there, XLA's default."""


@dataclass(frozen=True)
class Share:
    """What one step of a workload asks of the device, and what part of its limits that is."""

    operations: float
    """Floating-point operations of a step, as written, before the compiler changes them."""
    moved: float
    """Bytes that the compiled step reads and writes."""
    memory: float
    """Bytes it holds at once, arguments with it."""
    precision: str

    def at(self, steps_per_s: float) -> dict[str, float]:
        """Rates at this speed, with their share of the device's limits where those are known."""
        limits = LIMITS.get(jax.devices()[0].device_kind, {})
        rates = {"tflop_per_s": self.operations * steps_per_s / 1e12, "tb_per_s": self.moved * steps_per_s / 1e12}
        if limits:
            rates["operations_share"] = self.operations * steps_per_s / limits[self.precision]
            rates["bytes_share"] = self.moved * steps_per_s / limits["bytes"]
        return rates


@dataclass
class ImageContender:
    """A contender with what a step asks of the device; unknown for other libraries."""

    contender: Contender
    share: Share | None = None


def image_contender(
    name: str, learner: AbstractMetaLearner, source: TaskSource, config: TrainConfig, *, steps: int, precision: str
) -> ImageContender:
    """The training loop's compiled call of `steps` steps."""
    state, key, chunks = initial_state(learner, config), jr.key(1), itertools.count(step=steps)
    start = time.perf_counter()
    lowered = run_steps.lower(state, source, key, jnp.arange(steps), config)
    compiled = lowered.compile()
    taken = time.perf_counter() - start
    if steps > 1:  # the compiler counts the body of a loop once, however often it runs
        lowered = run_steps.lower(state, source, key, jnp.arange(1), config)
    share = count_share(lowered, compiled if steps == 1 else lowered.compile(), config, precision)

    def advance() -> np.ndarray:
        nonlocal state
        state, (losses, _, _) = compiled(state, source, key, next(chunks) + jnp.arange(steps), config)
        return np.asarray(losses)

    contender = Contender(name, advance, comparable=False, parameters=count_parameters(learner), compile_s=taken)
    return ImageContender(contender, share)


def count_share(lowered: Any, compiled: Any, config: TrainConfig, precision: str) -> Share:
    """Of a program of one step."""
    cost, memory = compiled.compiled.cost_analysis(), compiled.compiled.memory_analysis()
    parts = config.tasks_per_batch // (config.task_chunk or config.tasks_per_batch)
    return Share(
        operations=(lowered.lowered.cost_analysis() or cost).get("flops", 0.0) * parts,
        moved=cost.get("bytes accessed", 0.0) * parts,
        memory=memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes,
        precision=precision,
    )


def conv_makers(size: ConvSize, tasks: int, precisions: Collection[str]) -> dict[str, Callable[[], ImageContender]]:
    """MAML on images, and other libraries that are installed."""
    makers: dict[str, Callable[[], ImageContender]] = {}
    for precision in precisions:
        name = f"stmaml, {precision}"
        makers[name] = partial(conv_contender, name, size, tasks, precision)
    others = {"torch, loop over tasks": ("torch", torch_conv), "learn2learn": ("learn2learn", learn2learn_conv)}
    for name, (package, make) in others.items():
        if installed(package) and installed("torch"):
            makers[name] = partial(_other, name, make, size, tasks)
    return makers


def _other(name: str, make: Callable[..., Any], size: ConvSize, tasks: int) -> ImageContender:
    return ImageContender(Contender(name, make(size, tasks), comparable=False))


def conv_contender(name: str, size: ConvSize, tasks: int, precision: str) -> ImageContender:
    source = Pictures.of(size, key=jr.key(0))
    config = TrainConfig(tasks_per_batch=tasks, task_chunk=usual_chunk(tasks, source.spec))
    inner = InnerLoop(inner_lr=INNER_LR, inner_steps=size.inner_steps, inner_clamp=None)
    conv = Conv(channels=size.channels, conv_blocks=size.blocks, precision=precision)  # pyright: ignore[reportArgumentType]
    learner = maml.Config(conv=conv, inner=inner).build(source.spec, key=jr.key(0))
    return image_contender(name, learner, source, config, steps=1, precision=precision)


def measure_images(
    contenders: list[ImageContender], tasks: int, *, seconds: float, repeats: int
) -> list[dict[str, Any]]:
    """Tasks a second of each in turns, compile time, memory, and the share of the device's limits."""
    for each in contenders:
        start = time.perf_counter()
        losses = each.contender.advance()
        each.contender.compile_s += time.perf_counter() - start
        each.contender.steps_per_call = len(losses)
        if not np.isfinite(losses).all():
            raise FloatingPointError(f"the loss of '{each.contender.name}' is not finite")
        each.contender.advance()
    rows = measure(
        [each.contender for each in contenders], contenders[0].contender.name, seconds=seconds, repeats=repeats
    )
    return [_image_row(row, each.share, tasks) for row, each in zip(rows, contenders, strict=True)]


def _image_row(row: Row, share: Share | None, tasks: int) -> dict[str, Any]:
    found = {
        "name": row.name,
        "tasks_per_s": row.steps_per_s * tasks,
        "slowest": row.slowest * tasks,
        "fastest": row.fastest * tasks,
        "ratio": row.ratio,
        "processor_s": row.processor_ms / 1e3 / tasks,
        "s_per_step": 1 / row.steps_per_s,
        "first_call_s": row.compile_s,
        "parameters": row.parameters,
    }
    return found if share is None else {**found, "memory_gb": share.memory / 1e9, **share.at(row.steps_per_s)}


def completion_contender(tiny: bool, tasks: int) -> ImageContender:
    """ST-MAML with the paper's recipe on random images, tasks drawn in the step as in training."""
    experiment = recipe("completion", "st-maml")
    side, count = (4, 10) if tiny else (28, 20_000)
    pixels = jr.randint(jr.key(0), (3 * count, side * side), 0, 256).astype(jnp.uint8)
    settings = completion.Config(shots=5) if tiny else completion.Config()  # all pixels asked, unlike the recipe
    source = completion.Completion(GreyAlbum(pixels, (count,) * 3, (side, side)), settings, training=True)
    learner = experiment.method_settings.build(source.spec, key=jr.key(0))
    config = replace(experiment.training, tasks_per_batch=tasks)
    return image_contender("st-maml, paper", learner, source, config, steps=2 if tiny else CHUNK, precision="float32")
