"""Weights of the learner in a file."""

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.random as jr
import numpy as np

from stmaml.border.arrays import pack_arrays
from stmaml.border.files import read_file
from stmaml.border.json_text import parse_json
from stmaml.border.typed import from_dict
from stmaml.errors import RunError
from stmaml.prior.learner import Learner, Sizes
from stmaml.run_files import read_arrays, read_json, why
from stmaml.runs import as_json, write_bytes

SETTINGS = "sizes"
WEIGHTS, ABOUT = "weights.npz", "prior.json"
MOST_BYTES = 64 << 20
LARGEST = 4096  # width or depth
REINSTALL = "Install stmaml again."


def save_weights(learner: Learner, path: Path) -> None:
    """Writes sizes and weights, the latter in half precision."""
    write_bytes(path, pack_arrays(arrays_of(learner)))


def load_weights(path: Path) -> Learner:
    """The learner of a file that `save_weights` wrote, in single precision."""
    return learner_of(read_arrays(path), path)


def arrays_of(learner: Learner) -> dict[str, np.ndarray]:
    """Sizes and weights by name, the latter in half precision."""
    about = np.frombuffer(json.dumps(as_json(learner.sizes)).encode(), dtype=np.uint8)
    return {SETTINGS: about, **{name: np.asarray(leaf).astype(np.float16) for name, leaf in _named(learner).items()}}


def learner_of(found: Mapping[str, np.ndarray], source: object) -> Learner:
    """The learner that `arrays_of` made these of, in single precision."""
    arrays = dict(found)
    like = _like(arrays.pop(SETTINGS, np.zeros(0)), source)
    named = _named(like)
    if not all(array.dtype.kind == "f" and np.isfinite(array).all() for array in arrays.values()):
        raise RunError(f"{source} holds weights that are no finite numbers. {REINSTALL}")
    if {name: leaf.shape for name, leaf in named.items()} != {name: array.shape for name, array in arrays.items()}:
        raise RunError(f"{source} does not hold the weights that its sizes ask for. {REINSTALL}")
    shapes, rest = eqx.partition(like, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
    wide = jax.device_put([arrays[name].astype(np.float32) for name in named])  # jnp.asarray compiles for each shape
    return eqx.combine(jax.tree.unflatten(jax.tree.structure(shapes), wide), rest)


def _like(about: np.ndarray, source: object) -> Learner:
    """A learner of shapes alone, of the sizes that a file states."""
    try:
        sizes = from_dict(Sizes, parse_json(about.tobytes()))
        if not all(0 < size <= LARGEST for size in as_json(sizes).values()):
            raise ValueError(f"sizes must be from 1 to {LARGEST:,}")
        return eqx.filter_eval_shape(lambda: Learner(sizes, key=jr.key(0)))
    except (ValueError, TypeError, ZeroDivisionError, RunError) as error:
        raise RunError(f"{source} does not say how large its learner is ({why(error)}). {REINSTALL}") from error


def shipped_folder() -> Path:
    """Where the weights that ship with the package lie, with their card."""
    return Path(str(resources.files("stmaml").joinpath("pretrained", "tables")))


@lru_cache(maxsize=1)
def shipped_learner() -> Learner:
    """The learner that ships with the package, whose weights must be those it was shipped with."""
    folder = shipped_folder()
    if digest_of(folder / WEIGHTS) != read_json(folder / ABOUT).get("sha256"):
        raise RunError(f"{folder / WEIGHTS} is not the file that was shipped: its digest differs. {REINSTALL}")
    return load_weights(folder / WEIGHTS)


def digest_of(path: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(read_file(path, MOST_BYTES)).hexdigest()


def _named(learner: Learner) -> dict[str, Any]:
    arrays = eqx.filter(learner, lambda leaf: isinstance(leaf, jax.Array | jax.ShapeDtypeStruct))
    leaves = jax.tree_util.tree_leaves_with_path(arrays)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}
