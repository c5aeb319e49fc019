"""The program of a training step on images that JAX makes for a GPU, without dead code, as a digest: whether figures
that were measured on one still hold for today's code. Needs no GPU.

    python studies/gpu_program.py [--out FILE]

Run it at both commits with the same JAX. Equal digests are equal programs, kernels included."""

import argparse
import hashlib
import re
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from ahead import as_on_gpu
from jax.interpreters import partial_eval
from picture_tasks import CONV_SIZES, INNER_LR, Pictures

from stmaml.inner import InnerLoop
from stmaml.methods import maml
from stmaml.nets.conv import Conv
from stmaml.training import TrainConfig, initial_state, run_steps

TASKS = 64


def program() -> str:
    """As text; for a GPU that has the kernels, whatever device is here."""
    size = CONV_SIZES["full"]
    source = Pictures.of(size, key=jr.key(0))
    conv = Conv(channels=size.channels, conv_blocks=size.blocks, precision="bfloat16")
    inner = InnerLoop(inner_lr=INNER_LR, inner_steps=size.inner_steps, inner_clamp=None)
    learner = maml.Config(conv=conv, inner=inner).build(source.spec, key=jr.key(0))
    config = TrainConfig(tasks_per_batch=TASKS, task_chunk=TASKS)
    state = initial_state(learner, config)
    with as_on_gpu():
        made = eqx.filter_make_jaxpr(run_steps)(state, source, jr.key(1), jnp.arange(1), config)[0].jaxpr
    alive, _ = partial_eval.dce_jaxpr(made, [True] * len(made.outvars))
    return re.sub(r"0x[0-9a-f]+|[^ ]*/(src|studies)/", "", str(alive))


def main() -> None:
    parser = argparse.ArgumentParser(description="The program of a GPU, as a digest.")
    parser.add_argument("--out", type=Path, help="file for the program itself")
    options = parser.parse_args()
    text = program()
    if options.out:
        options.out.write_text(text)
    print(f"{hashlib.sha256(text.encode()).hexdigest()[:16]}, {len(text):,} characters, JAX {jax.__version__}")


if __name__ == "__main__":
    main()
