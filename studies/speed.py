"""How fast training is: MAML beside plain JAX and torch, and every method beside MAML.

python studies/speed.py [--workloads mlp methods conv completion] [--methods maml st-maml] [--size full|tiny]
                           [--tasks 32] [--only WORD] [--seconds 3] [--repeats 5] [--profile] [--json FILE]

Workload `mlp`: second-order MAML on a 2-40-40-1 network with biases, 25 tasks of 10 support and 30 query points, inner
SGD, outer Adam, squared error. All contenders but the one that samples its own tasks start from the same weights and
see the same batches, and their losses must agree. Workload `methods`: every method on regression2d with its recipe.

Workload `conv`: second-order MAML with four blocks of 32 channels on 84x84 images, 5-way 5-shot, 15 queries a class, 5
inner steps. Workload `completion`: ST-MAML as the paper has it on 28x28 images, 40 pixels observed and 784 asked, 3
second-order steps. Both on random images and through the training loop's own compiled step; how far they are from what
the device could do follows from the compiler's count of operations and bytes, and `--profile` lists the kernels that a
GPU's time goes to. `--size tiny` tries them out in seconds.

Contenders take turns (A B C A B C ...), so that a neighbour on the machine slows all alike; a ratio is the median over
the rounds of the ratio within a round. Torch is timed if it is installed, with `mlp` on one thread, and so is
learn2learn with `conv`.
"""

import argparse
import datetime
import importlib.util
import itertools
import json
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import libraries
import numpy as np
import optax
from kernels import Kernel, kernels_table, profile
from rich.console import Console
from rich.table import Table

from stmaml.benchmarks import completion, regression2d
from stmaml.benchmarks.sources import TaskSource
from stmaml.experiments import fresh, scaling_for
from stmaml.inner import InnerLoop
from stmaml.methods import METHODS, maml
from stmaml.methods.base import AbstractMetaLearner
from stmaml.nets.conv import Conv
from stmaml.recipes import presets, recipe
from stmaml.tasks import Examples, Task, TaskBatch, TaskSpec
from stmaml.training import TrainConfig, initial_state, run_steps
from stmaml.training.memory import usual_chunk

WIDTHS = (2, 40, 40, 1)
TASKS, SHOTS, QUERIES = 25, 10, 30
INNER_LR, OUTER_LR = 0.01, 1e-3
INNER_STEPS = (5, 1)
CHUNK = 64
"""Meta-steps in one compiled call, and ready-made batches."""
COMPARED_STEP = 20
"""Losses are compared before the first step and after this many."""
REFERENCE = f"plain JAX, {CHUNK} steps a call"

LIMITS = {"NVIDIA H200": {"bfloat16": 989e12, "float32": 494e12, "bytes": 4.8e12}}
"""Dense operations and bytes a second by device; float32 products are TF32's there, XLA's default."""

Weights = list[tuple[Any, Any]]
Sets = tuple[Any, Any, Any, Any]
"""Support inputs and targets, query inputs and targets."""


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

    def warm_up(self) -> None:
        """The first calls: compiles, and keeps the losses to be compared."""
        start = time.perf_counter()
        losses = self.advance()
        self.first_call_s = time.perf_counter() - start
        self.steps_per_call = len(losses)
        self.losses += losses.tolist()
        while len(self.losses) <= COMPARED_STEP:
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


def measure(contenders: list[Contender], reference: str, *, seconds: float, repeats: int) -> list[Row]:
    """Rounds in which every contender has its turn."""
    for _ in range(repeats):
        for contender in contenders:
            contender.time(seconds)
    base = next(contender for contender in contenders if contender.name == reference)
    return [_row(contender, base) for contender in contenders]


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


# The library


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


def own_sampling(inner_steps: int) -> Contender:
    """MAML as a user trains it: its own settings, tasks drawn inside the compiled call."""
    source = regression2d.Config(shots=SHOTS, query_size=QUERIES).open().train
    settings = maml.Config(inner=InnerLoop(inner_steps=inner_steps))
    return library("stmaml, tasks sampled", settings.build(source.spec, key=jr.key(0)), source, TrainConfig())


def ready_batches(inner_steps: int, weights: Weights, batches: Sets) -> Contender:
    """MAML on given batches, with nothing that would change its losses: no clamp, no schedule, a distant norm bound."""
    inner = InnerLoop(inner_lr=INNER_LR, inner_steps=inner_steps, inner_clamp=None)
    learner = maml.Config(inner=inner).build(TaskSpec(x_shape=(2,), y_size=1), key=jr.key(0))
    given = [jnp.asarray(array) for pair in weights for array in pair]
    learner = eqx.tree_at(
        lambda m: [a for la in (*m.theta.body, m.theta.head) for a in (la.weight, la.bias)], learner, given
    )
    config = TrainConfig(outer_lr=OUTER_LR, schedule="constant", clip_norm=1e9)
    return library("stmaml, ready batches", learner, as_task_batch(batches), config)


def as_task_batch(batches: Sets) -> TaskBatch:
    xs, ys, xq, yq = (jnp.asarray(array) for array in batches)
    support, query = Examples(xs, ys, jnp.ones(xs.shape[:-1])), Examples(xq, yq, jnp.ones(xq.shape[:-1]))
    return TaskBatch(Task(support, query), jnp.zeros(xs.shape[:2], dtype=int))


# Plain JAX


def forward(weights: Weights, x: jax.Array) -> jax.Array:
    for weight, bias in weights[:-1]:
        x = jax.nn.relu(x @ weight + bias)
    weight, bias = weights[-1]
    return x @ weight + bias


def squared_error(weights: Weights, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((forward(weights, x) - y) ** 2)


def batch_loss(weights: Weights, batch: Sets, inner_steps: int) -> jax.Array:
    """MAML's loss in as few lines as JAX allows."""

    def task_loss(xs: jax.Array, ys: jax.Array, xq: jax.Array, yq: jax.Array) -> jax.Array:
        tuned = weights
        for _ in range(inner_steps):
            grads = jax.grad(squared_error)(tuned, xs, ys)
            tuned = jax.tree.map(lambda w, g: w - INNER_LR * g, tuned, grads)
        return squared_error(tuned, xq, yq)

    return jax.vmap(task_loss)(*batch).mean()


def plain_step(carry: tuple[Weights, Any], batch: Sets, inner_steps: int) -> tuple[tuple[Weights, Any], jax.Array]:
    weights, opt_state = carry
    loss, grads = jax.value_and_grad(batch_loss)(weights, batch, inner_steps)
    updates, opt_state = optax.adam(OUTER_LR).update(grads, opt_state)
    return (optax.apply_updates(weights, updates), opt_state), loss


def plain_jax(inner_steps: int, weights: Weights, batches: Sets) -> Iterator[Contender]:
    """One compiled step a call, and a scan over many."""
    weights, batches = jax.tree.map(jnp.asarray, (weights, batches))
    step = partial(plain_step, inner_steps=inner_steps)
    start = (weights, optax.adam(OUTER_LR).init(weights))
    singles = itertools.cycle([tuple(array[i] for array in batches) for i in range(CHUNK)])
    one = jax.jit(step)
    many = jax.jit(partial(jax.lax.scan, step))
    for name, call, inputs in (
        ("plain JAX, 1 step a call", one, singles),
        (REFERENCE, many, itertools.repeat(batches)),
    ):
        yield Contender(name, _carrying(call, start, inputs))


def _carrying(call: Callable, carry: Any, inputs: Iterator[Sets]) -> Callable[[], np.ndarray]:
    def advance() -> np.ndarray:
        nonlocal carry
        carry, losses = call(carry, next(inputs))
        return np.atleast_1d(losses)

    return advance


# Torch


def torch_contenders(inner_steps: int, weights: Weights, batches: Sets) -> Iterator[Contender]:
    """A loop over tasks, which is what torch libraries do inside, and a vectorising map over them."""
    import torch

    torch.set_num_threads(1)
    use_gpu = jax.default_backend() != "cpu" and torch.cuda.is_available()
    put = partial(torch.tensor, device="cuda" if use_gpu else "cpu")
    singles = [tuple(put(array[i]) for array in batches) for i in range(CHUNK)]
    for name, loss in (
        ("torch, loop over tasks", _torch_loop(inner_steps)),
        ("torch.func, vmap over tasks", _torch_vmap(inner_steps)),
    ):
        start = [put(array).requires_grad_() for pair in weights for array in pair]
        yield Contender(name, _torch_training(start, itertools.cycle(singles), loss))


def _torch_training(weights: list, batches: Iterator, batch_loss: Callable) -> Callable[[], np.ndarray]:
    import torch

    optimizer = torch.optim.Adam(weights, lr=OUTER_LR)

    def advance() -> np.ndarray:
        optimizer.zero_grad()
        loss = batch_loss(weights, next(batches))
        loss.backward()
        optimizer.step()
        return np.array([loss.item()])

    return advance


def _torch_error(weights: list, x: Any, y: Any) -> Any:
    w1, b1, w2, b2, w3, b3 = weights
    return ((((x @ w1 + b1).relu() @ w2 + b2).relu() @ w3 + b3 - y) ** 2).mean()


def _torch_loop(inner_steps: int) -> Callable:
    import torch

    def task_loss(weights: list, xs: Any, ys: Any, xq: Any, yq: Any) -> Any:
        for _ in range(inner_steps):
            grads = torch.autograd.grad(_torch_error(weights, xs, ys), weights, create_graph=True)
            weights = [w - INNER_LR * g for w, g in zip(weights, grads, strict=True)]
        return _torch_error(weights, xq, yq)

    return lambda weights, batch: torch.stack([task_loss(weights, *task) for task in zip(*batch, strict=True)]).mean()


def _torch_vmap(inner_steps: int) -> Callable:
    import torch

    def task_loss(weights: list, xs: Any, ys: Any, xq: Any, yq: Any) -> Any:
        for _ in range(inner_steps):
            grads = torch.func.grad(_torch_error)(weights, xs, ys)
            weights = [w - INNER_LR * g for w, g in zip(weights, grads, strict=True)]
        return _torch_error(weights, xq, yq)

    return lambda weights, batch: torch.func.vmap(partial(task_loss, weights))(*batch).mean()


# The workloads


def draw_workload(*, key: jax.Array) -> tuple[Weights, Sets]:
    """Weights of He's variance, and sinusoids mild enough for an inner loop without a clamp."""
    weight_key, x_key, task_key = jr.split(key, 3)
    sizes = list(itertools.pairwise(WIDTHS))
    weights = [
        (np.asarray((2 / i) ** 0.5 * jr.normal(k, (i, o))), np.zeros(o, np.float32))
        for (i, o), k in zip(sizes, jr.split(weight_key, len(sizes)), strict=True)
    ]
    x = jr.uniform(x_key, (CHUNK, TASKS, SHOTS + QUERIES, 2), minval=-2.0, maxval=2.0)
    height, phase = jr.uniform(task_key, (2, CHUNK, TASKS, 1), minval=0.2, maxval=2.0)
    y = (height * jnp.sin(x[..., 0] + phase))[..., None]
    parts = (x[:, :, :SHOTS], y[:, :, :SHOTS], x[:, :, SHOTS:], y[:, :, SHOTS:])
    return weights, tuple(np.asarray(part) for part in parts)


def mlp_contenders(inner_steps: int) -> list[Contender]:
    weights, batches = draw_workload(key=jr.key(0))
    given = (inner_steps, weights, batches)
    contenders = [*plain_jax(*given), ready_batches(*given), own_sampling(inner_steps)]
    if importlib.util.find_spec("torch"):
        contenders += torch_contenders(*given)
    makers = libraries.mlp_makers(*given, inner_lr=INNER_LR, outer_lr=OUTER_LR)
    return contenders + [Contender(name, make()) for name, make in makers]


def run_mlp(inner_steps: int, *, seconds: float, repeats: int) -> list[Row]:
    """MAML beside plain JAX and torch."""
    contenders = mlp_contenders(inner_steps)
    for contender in contenders:
        contender.warm_up()
    assert_same_losses(contenders)
    return measure(contenders, REFERENCE, seconds=seconds, repeats=repeats)


def method_contender(name: str) -> Contender:
    """A method on regression2d as its recipe has it, or else with its defaults."""
    if presets("regression2d", name):
        experiment = recipe("regression2d", name, presets("regression2d", name)[0])
        benchmark = experiment.benchmark_settings.open()
        learner = fresh(experiment, benchmark.train.spec, scaling_for(experiment, benchmark))
        return library(name, learner, benchmark.train, replace(experiment.training, tasks_per_batch=TASKS))
    source = regression2d.Config().open().train
    learner = METHODS[name]().build(source.spec, key=jr.key(0))
    return library(name, learner, source, TrainConfig(tasks_per_batch=TASKS))


def run_methods(names: list[str], *, seconds: float, repeats: int) -> list[Row]:
    """Every method beside MAML."""
    contenders = [method_contender(name) for name in dict.fromkeys(["maml", *names])]
    for contender in contenders:
        contender.warm_up()
    return measure(contenders, "maml", seconds=seconds, repeats=repeats)


# Images: workloads that are large enough to ask how far they are from the device's limit


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
    share = count_share(state, source, config, precision)

    def advance() -> np.ndarray:
        nonlocal state
        state, (losses, _, _) = run_steps(state, source, key, next(chunks) + jnp.arange(steps), config)
        return np.asarray(losses)

    contender = Contender(name, advance, comparable=False, parameters=count_parameters(learner))
    return ImageContender(contender, share)


def count_share(state: Any, source: TaskSource, config: TrainConfig, precision: str) -> Share:
    """Counted on a program of one step: the compiler counts the body of a loop once, however often it runs."""
    lowered = run_steps.lower(state, source, jr.key(1), jnp.arange(1), config)
    compiled = lowered.compile().compiled
    cost, memory = compiled.cost_analysis(), compiled.memory_analysis()
    parts = config.tasks_per_batch // (config.task_chunk or config.tasks_per_batch)
    looped = parts if parts > 1 else 1
    return Share(
        operations=(lowered.lowered.cost_analysis() or cost).get("flops", 0.0) * looped,
        moved=cost.get("bytes accessed", 0.0) * looped,
        memory=memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes,
        precision=precision,
    )


@dataclass(frozen=True)
class ConvSize:
    """The sizes of the `conv` workload."""

    image: int = 84
    channels: int = 32
    blocks: int = 4
    ways: int = 5
    shots: int = 5
    queries: int = 15
    inner_steps: int = 5
    album: int = 500


CONV_SIZES = {
    "full": ConvSize(),
    "tiny": ConvSize(image=8, channels=4, blocks=2, ways=2, shots=1, queries=2, inner_steps=1, album=20),
}


class Pictures(eqx.Module):
    """Tasks of random images that lie on the device as bytes; the label of an image is a matter of its place."""

    album: jax.Array
    size: ConvSize = eqx.field(static=True)

    @staticmethod
    def of(size: ConvSize, *, key: jax.Array) -> "Pictures":
        shape = (size.album, size.image, size.image, 3)
        return Pictures(jr.randint(key, shape, 0, 256).astype(jnp.uint8), size)

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec(self.album.shape[1:], self.size.ways, target="class")

    def sample(self, num_tasks: int, *, key: jax.Array) -> TaskBatch:
        size = self.size
        support, query = size.ways * size.shots, size.ways * size.queries
        chosen = jr.randint(key, (num_tasks, support + query), 0, size.album)
        x, y = self.album[chosen].astype(float) / 255, jnp.tile(jnp.arange(support + query) % size.ways, (num_tasks, 1))
        return TaskBatch.of(x[:, :support], y[:, :support], x[:, support:], y[:, support:])


def conv_contenders(size: ConvSize, tasks: int, only: str) -> list[ImageContender]:
    """MAML on images in both precisions, inner steps kept or recomputed, tasks at once as is usual on the device; and
    other libraries that are installed. Those whose name does not have `only` in it are left out."""
    makers: dict[str, Callable[[], ImageContender]] = {}
    for precision in ("float32",) if jax.default_backend() == "cpu" else ("bfloat16", "float32"):
        for remat in (False, True):
            name = f"stmaml, {precision}{', inner steps recomputed' if remat else ''}"
            makers[name] = partial(conv_contender, name, size, tasks, precision, remat)
    if importlib.util.find_spec("torch"):
        makers["torch, loop over tasks"] = lambda: ImageContender(torch_conv(size, tasks))
        if importlib.util.find_spec("learn2learn"):
            makers["learn2learn"] = lambda: ImageContender(learn2learn_conv(size, tasks))
    return [make() for name, make in makers.items() if only in name]


def conv_contender(name: str, size: ConvSize, tasks: int, precision: str, remat: bool) -> ImageContender:
    source = Pictures.of(size, key=jr.key(0))
    config = TrainConfig(tasks_per_batch=tasks, task_chunk=usual_chunk(tasks, source.spec))
    inner = InnerLoop(inner_lr=INNER_LR, inner_steps=size.inner_steps, inner_clamp=None, remat=remat)
    conv = Conv(channels=size.channels, conv_blocks=size.blocks, precision=precision)  # pyright: ignore[reportArgumentType]
    learner = maml.Config(conv=conv, inner=inner).build(source.spec, key=jr.key(0))
    each = image_contender(name, learner, source, config, steps=1, precision=precision)
    if remat and each.share:  # a loop over inner steps, whose body the compiler counts once
        each.share = replace(each.share, operations=float("nan"), moved=float("nan"))
    return each


def measure_images(
    contenders: list[ImageContender], tasks: int, *, seconds: float, repeats: int
) -> list[dict[str, Any]]:
    """Tasks a second of each in turns, compile time, memory, and the share of the device's limits."""
    for each in contenders:
        start = time.perf_counter()
        losses = each.contender.advance()
        each.contender.first_call_s = time.perf_counter() - start
        each.contender.steps_per_call = len(losses)
        each.contender.compile_s = each.contender.first_call_s
        if not np.isfinite(losses).all():
            raise FloatingPointError(f"the loss of '{each.contender.name}' is not finite")
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
        "s_per_step": 1 / row.steps_per_s,
        "first_call_s": row.compile_s,
        "parameters": row.parameters,
    }
    return found if share is None else {**found, "memory_gb": share.memory / 1e9, **share.at(row.steps_per_s)}


def torch_conv(size: ConvSize, tasks: int) -> Contender:
    """The same network and inner loop in plain torch, one task after the other, gradients summed."""
    import torch
    from torch.nn import functional

    device = "cuda" if jax.default_backend() != "cpu" and torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    channels = [3, *[size.channels] * size.blocks]
    features = size.channels * (size.image >> size.blocks) ** 2
    weights = []
    for i, o in itertools.pairwise(channels):
        weights += [(2 / (9 * i)) ** 0.5 * torch.randn(o, i, 3, 3), torch.ones(o), torch.zeros(o)]
    weights += [torch.randn(size.ways, features) / features**0.5, torch.zeros(size.ways)]
    weights = [weight.to(device).requires_grad_() for weight in weights]
    support, query = size.ways * size.shots, size.ways * size.queries
    x = torch.rand(tasks, support + query, 3, size.image, size.image, device=device)
    y = torch.arange(support + query, device=device) % size.ways
    optimizer = torch.optim.Adam(weights, lr=OUTER_LR)

    def loss_of(weights: list, x: Any, y: Any) -> Any:
        for b in range(size.blocks):
            weight, scale, shift = weights[3 * b : 3 * b + 3]
            x = functional.batch_norm(functional.conv2d(x, weight, padding=1), None, None, scale, shift, training=True)
            x = functional.max_pool2d(functional.relu(x), 2)
        return functional.cross_entropy(functional.linear(x.flatten(1), *weights[-2:]), y)

    def advance() -> np.ndarray:
        optimizer.zero_grad()
        total = 0.0
        for task in x:
            tuned = weights
            for _ in range(size.inner_steps):
                grads = torch.autograd.grad(loss_of(tuned, task[:support], y[:support]), tuned, create_graph=True)
                tuned = [w - INNER_LR * g for w, g in zip(tuned, grads, strict=True)]
            loss = loss_of(tuned, task[support:], y[support:]) / tasks
            loss.backward()
            total += loss.item()
        optimizer.step()
        return np.array([total])

    return Contender("torch, loop over tasks", advance, comparable=False)


def learn2learn_conv(size: ConvSize, tasks: int) -> Contender:
    """The same network and inner loop by learn2learn's MAML."""
    import torch
    from learn2learn.algorithms.maml import MAML
    from torch import nn
    from torch.nn import functional

    device = "cuda" if jax.default_backend() != "cpu" and torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for i, o in itertools.pairwise([3, *[size.channels] * size.blocks]):
        layers += [nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(), nn.MaxPool2d(2)]
    features = size.channels * (size.image >> size.blocks) ** 2
    maml = MAML(nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, size.ways)).to(device), lr=INNER_LR)
    support, query = size.ways * size.shots, size.ways * size.queries
    x = torch.rand(tasks, support + query, 3, size.image, size.image, device=device)
    y = torch.arange(support + query, device=device) % size.ways
    optimizer = torch.optim.Adam(maml.parameters(), lr=OUTER_LR)

    def advance() -> np.ndarray:
        optimizer.zero_grad()
        total = 0.0
        for task in x:
            learner = maml.clone()
            for _ in range(size.inner_steps):
                learner.adapt(functional.cross_entropy(learner(task[:support]), y[:support]))
            loss = functional.cross_entropy(learner(task[support:]), y[support:]) / tasks
            loss.backward()
            total += loss.item()
        optimizer.step()
        return np.array([total])

    return Contender("learn2learn", advance, comparable=False)


def completion_contender(tiny: bool, tasks: int) -> ImageContender:
    """ST-MAML with the paper's recipe on random images, tasks drawn in the step as in training."""
    experiment = recipe("completion", "st-maml")
    side, count = (4, 10) if tiny else (28, 20_000)
    pixels = jr.randint(jr.key(0), (3 * count, side * side), 0, 256).astype(jnp.uint8)
    settings = completion.Config(shots=5) if tiny else completion.Config()  # all pixels asked, unlike the recipe
    source = completion.Completion(completion.GreyAlbum(pixels, (count,) * 3, (side, side)), settings, training=True)
    learner = experiment.method_settings.build(source.spec, key=jr.key(0))
    config = replace(experiment.training, tasks_per_batch=tasks)
    return image_contender("st-maml, paper", learner, source, config, steps=2 if tiny else CHUNK, precision="float32")


# The report


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


def mlp_table(inner_steps: int, rows: list[Row]) -> Table:
    plural = "s" if inner_steps > 1 else ""
    table = Table(title=f"MAML 2-40-40-1, {TASKS} tasks, {inner_steps} inner step{plural}, second order")
    for column in ("", "steps/s", "slowest-fastest", "speed / plain JAX", "compile s"):
        table.add_column(column, justify="right" if column else "left")
    for row in rows:
        spread = f"{row.slowest:.4g}-{row.fastest:.4g}"
        table.add_row(row.name, f"{row.steps_per_s:.4g}", spread, f"{row.ratio:.3f}", f"{row.compile_s:.1f}")
    return table


def methods_table(rows: list[Row]) -> Table:
    table = Table(title=f"Methods on regression2d, {TASKS} tasks sampled in the compiled call")
    for column in ("", "steps/s", "slowest-fastest", "ms/step", "time / MAML's", "parameters", "compile s"):
        table.add_column(column, justify="right" if column else "left")
    for row in rows:
        spread = f"{row.slowest:.4g}-{row.fastest:.4g}"
        cells = (f"{row.steps_per_s:.4g}", spread, f"{row.ms_per_step:.3g}", f"{1 / row.ratio:.2f}")
        table.add_row(row.name, *cells, str(row.parameters), f"{row.compile_s:.1f}")
    return table


def images_table(title: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=title)
    columns = ("", "tasks/s", "slowest-fastest", "first call s", "memory GB", "TFLOP/s", "of limit", "TB/s", "of limit")
    for column in columns:
        table.add_column(column, justify="right" if column else "left")
    for row in rows:
        figures = [
            row.get(name) for name in ("memory_gb", "tflop_per_s", "operations_share", "tb_per_s", "bytes_share")
        ]
        spread = f"{row['slowest']:.4g}-{row['fastest']:.4g}"
        cells = ["-" if value is None or value != value else f"{value:.3g}" for value in figures]
        table.add_row(row["name"], f"{row['tasks_per_s']:.4g}", spread, f"{row['first_call_s']:.1f}", *cells)
    return table


def show_kernels(each: ImageContender, console: Console) -> list[dict[str, Any]]:
    """Prints where the time of one call goes, and gives the same for a file."""
    kernels: list[Kernel] = profile(each.contender.advance)
    if not kernels:
        console.print("no GPU, so no kernels to list")
        return []
    console.print(kernels_table(f"Kernels of '{each.contender.name}', one call", kernels))
    return [asdict(kernel) for kernel in kernels]


WORKLOADS = ("mlp", "methods", "conv", "completion")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Training speed of stmaml, beside plain JAX and torch.")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=["mlp", "methods"])
    parser.add_argument("--methods", nargs="+", choices=sorted(METHODS), default=sorted(METHODS))
    parser.add_argument("--size", choices=sorted(CONV_SIZES), default="full", help="of the image workloads")
    parser.add_argument("--tasks", type=int, help="in a step of an image workload")
    parser.add_argument("--only", default="", help="contenders of workload `conv` whose name has this in it")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one turn of one contender")
    parser.add_argument("--repeats", type=int, default=5, help="rounds")
    parser.add_argument("--profile", action="store_true", help="list the kernels of an image workload on a GPU")
    parser.add_argument("--json", type=Path, help="file for the figures")
    return parser.parse_args()


def main() -> None:
    arguments, console = parse(), Console()
    timing = {"seconds": arguments.seconds, "repeats": arguments.repeats}
    report: dict[str, Any] = {"environment": environment(), **timing}
    console.print(", ".join(f"{name} {value}" for name, value in report["environment"].items() if value))
    if "mlp" in arguments.workloads:
        for inner_steps in INNER_STEPS:
            rows = run_mlp(inner_steps, **timing)
            report[f"mlp, {inner_steps} inner"] = [asdict(row) for row in rows]
            console.print(mlp_table(inner_steps, rows))
    if "methods" in arguments.workloads:
        rows = run_methods(arguments.methods, **timing)
        report["methods"] = [asdict(row) for row in rows]
        console.print(methods_table(rows))
    if "conv" in arguments.workloads:
        tasks = arguments.tasks or (4 if jax.default_backend() == "cpu" else 32)
        contenders = conv_contenders(CONV_SIZES[arguments.size], tasks, arguments.only)
        report["conv"] = measure_images(contenders, tasks, **timing)
        console.print(images_table(f"MAML on images, {tasks} tasks, {arguments.size} size", report["conv"]))
        if arguments.profile:
            report["conv kernels"] = show_kernels(contenders[0], console)
    if "completion" in arguments.workloads:
        tiny = arguments.size == "tiny"
        tasks = arguments.tasks or (2 if tiny else recipe("completion", "st-maml").training.tasks_per_batch)
        contender = completion_contender(tiny, tasks)
        report["completion"] = measure_images([contender], tasks, **timing)
        console.print(images_table(f"Image completion, {tasks} tasks, {arguments.size} size", report["completion"]))
        if arguments.profile:
            report["completion kernels"] = show_kernels(contender, console)
    report["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    console.print(f"most memory this process held: {report['peak_gb']:.2f} GB")
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
