"""The files of an export: the graph, what its reader must know, and the reader itself."""

import json
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from stmaml.errors import SettingError
from stmaml.exporting.builder import model_of
from stmaml.exporting.convert import NOISE_INPUT, converted
from stmaml.exporting.noise import drawn
from stmaml.exporting.programs import Exportable
from stmaml.runs import write_bytes

READER = "read_export.py"
FORMAT = 1
READ_BYTES = 10_000  # at the beginning of a file, to know it by


@dataclass(frozen=True)
class Written:
    """An export on disk."""

    graph: Path
    size: int
    noise: int
    difference: float | None
    """The largest between graph and package on made-up rows, relative to the largest number said where that exceeds 1;
    None if not tried."""


def write_export(what: Exportable, out: Path, method: str) -> Written:
    """Writes graph, description and reader, and compares the graph with the package where onnxruntime is there."""
    if out.suffix != ".onnx":
        raise SettingError(f"--out must end in .onnx; got {out}.")
    about_path, reader = out.with_suffix(".json"), files("stmaml.exporting").joinpath("reader.py").read_bytes()
    _refuse_others(about_path, b'"made_by": "stmaml ')
    _refuse_others(out.with_name(READER), reader[:40])
    graph, noise = converted(what.program, what.examples, what.noise)
    made = f"stmaml {version('stmaml')}"
    about = {"format": FORMAT, "made_by": made, "method": method, "noise": noise, **what.about, "notes": what.notes}
    content = model_of(graph, {"made_by": made, "method": method}).SerializeToString()
    write_bytes(out, content)
    write_bytes(about_path, json.dumps(about, indent=1).encode())
    write_bytes(out.with_name(READER), reader)
    return Written(out, len(content), noise, compared(what, content))


def _refuse_others(path: Path, words: bytes) -> None:
    """Raises SettingError for a file that is there and was not written by an export, which has these words."""
    if not path.exists():
        return
    start = b""
    if path.is_file():
        with path.open("rb") as file:
            start = file.read(READ_BYTES)
    if words not in start:
        raise SettingError(f"{path} is there and was not written by an export; it would be lost. Choose another --out.")


def compared(what: Exportable, graph: bytes, *, seed: int = 0) -> float | None:
    """The largest difference between what a graph and the package say of made-up rows; None without onnxruntime."""
    try:
        import onnxruntime
    except ModuleNotFoundError:
        return None
    key, given = jr.key(seed), made_up(what, seed=seed)
    feed = {name: np.asarray(value) for name, value in given.items()}
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    inputs = {each.name for each in session.get_inputs()}
    if NOISE_INPUT in inputs:
        feed[NOISE_INPUT] = drawn(what.program, what.examples, key)
    names = [each.name for each in session.get_outputs()]
    found = dict(zip(names, session.run(None, {n: v for n, v in feed.items() if n in inputs}), strict=True))
    expected = jax.jit(lambda given: what.program(key=key, **given))(given)  # noqa: TID251  to compare with
    each = [np.abs(np.asarray(expected[name], float) - np.asarray(found[name], float)).max() for name in names]
    # A spread of numbers near 300 that is 0 for one is 1e-5 for the other: rounding goes by the numbers themselves.
    return float(max(each) / max(1.0, *(np.abs(np.asarray(value, float)).max() for value in expected.values())))


def made_up(what: Exportable, *, seed: int = 0) -> dict[str, Array]:
    """Rows of the right shapes, some of the labelled ones padding: inputs from 0 to 1, targets where theirs lie."""
    keys = dict(zip(what.examples, jr.split(jr.key(seed + 1), len(what.examples)), strict=True))
    given = {name: jr.uniform(keys[name], like.shape) for name, like in what.examples.items()}
    if "support_y" not in given:
        return given
    rows = given["support_weight"].shape[0]
    weight = (jnp.arange(rows) < (rows + 1) // 2).astype(jnp.float32)
    given |= {"support_weight": weight, "support_y": _targets(what, given["support_y"])}
    return given | ({"query_weight": jnp.ones_like(given["query_weight"])} if "query_weight" in given else {})


def _targets(what: Exportable, unit: Array) -> Array:
    if what.about["target"] == "class":
        return (unit * what.about["y_size"]).astype(jnp.int32)
    target = what.about.get("schema", {}).get("target", {"mean": 0.0, "std": 1.0})
    return target["mean"] + target["std"] * (2 * unit - 1)
