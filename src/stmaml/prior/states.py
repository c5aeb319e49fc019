"""Where training stands, in files: what a rest of `pieces.py` holds, none of it larger than the weights that ship."""

import json
from dataclasses import asdict
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from stmaml.border.arrays import pack_arrays
from stmaml.errors import RunError
from stmaml.prior.pieces import Plan, Rest
from stmaml.prior.steps import Memory, begin_steps
from stmaml.prior.training import State
from stmaml.prior.weights import load_weights, save_weights
from stmaml.run_files import read_arrays
from stmaml.runs import write_bytes

WEIGHTS, MEAN, MEMORY = "weights.npz", "mean.npz", "memory.npz"
ABOUT, MOMENTUM = "about", "momentum"
OTHERS = ("first", "second", "count")


def save_rest(rest: Rest, plan: Plan, folder: Path) -> None:
    """Writes weights, their running mean where it is another, and the optimizer's memory with step and plan."""
    folder.mkdir(parents=True, exist_ok=True)
    save_weights(eqx.combine(rest.state.weights, rest.static), folder / WEIGHTS)
    (folder / MEAN).unlink(missing_ok=True)
    if not _same(rest.state.weights, rest.state.mean):
        save_weights(rest.learner, folder / MEAN)
    memory = rest.state.memory
    about = np.frombuffer(json.dumps({"step": rest.step, "plan": asdict(plan)}).encode(), dtype=np.uint8)
    arrays = {
        f"{MOMENTUM}{size}": np.asarray(part.astype(jnp.bfloat16)).view(np.uint16)
        for size, part in memory.momentum.items()
    }
    write_bytes(folder / MEMORY, pack_arrays({ABOUT: about, **arrays, **_others(memory)}))


def load_rest(folder: Path) -> tuple[Rest, Plan]:
    """What `save_rest` wrote."""
    weights, static = eqx.partition(load_weights(folder / WEIGHTS), eqx.is_array)
    mean = eqx.filter(load_weights(folder / MEAN), eqx.is_array) if (folder / MEAN).exists() else weights
    arrays = dict(read_arrays(folder / MEMORY))
    about = json.loads(arrays.pop(ABOUT).tobytes())
    like = begin_steps(weights)
    wanted = {**{f"{MOMENTUM}{size}": part for size, part in like.momentum.items()}, **_others(like)}
    if {name: part.shape for name, part in wanted.items()} != {name: part.shape for name, part in arrays.items()}:
        raise RunError(f"{folder / MEMORY} is not of the training that left {folder / WEIGHTS}.")
    momentum = {size: _wide(arrays[f"{MOMENTUM}{size}"]) for size in like.momentum}
    memory = Memory(momentum, **{name: jnp.asarray(arrays[name]) for name in OTHERS})
    return Rest(about["step"], State(weights, mean, memory), static), Plan(**about["plan"])


def _others(memory: Memory) -> dict[str, np.ndarray]:
    """What is remembered of all weights but those of the layers."""
    return {name: np.asarray(getattr(memory, name)) for name in OTHERS}


def _wide(bits: np.ndarray) -> jax.Array:
    """The numbers of bfloat16 that these bits say, in single precision."""
    return jax.lax.bitcast_convert_type(jnp.asarray(bits), jnp.bfloat16).astype(jnp.float32)


def _same(one: object, other: object) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)
