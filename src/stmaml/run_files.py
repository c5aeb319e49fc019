"""How files of a run are read and written: JSON objects, and trees of arrays, none of which is believed unchecked."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from stmaml.border.arrays import DAMAGE, pack_arrays, unpack_arrays
from stmaml.border.files import read_file
from stmaml.border.json_text import MOST_BYTES, parse_json
from stmaml.border.writing import write_bytes, write_json
from stmaml.errors import RunError, forbidden
from stmaml.legacy.settings import plain_names

SEAL = "digest"
MEND = "Restore it from a copy, or resume or train again."
Tree = TypeVar("Tree", bound=PyTree)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    try:
        content = parse_json(read_file(path, MOST_BYTES))
    except PermissionError as error:
        raise RunError(forbidden(path)) from error
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read ({why(error)}). Restore it from a copy, or train again.") from error
    if not isinstance(content, dict):
        raise RunError(f"{path} holds {type(content).__name__}, not an object. Restore it from a copy, or train again.")
    return content


def check_own(settings: Path, written: Iterable[Path]) -> None:
    """Raises RunError where a new run would replace files that are not of a run: all that it may have written, in a
    folder without its settings, or settings of something else. Damaged ones may be replaced."""
    folder = settings.parent
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file, not a folder. Choose another --run.")
    written = list(written)
    for path in written:
        check_unlinked(path.parent, folder)
    others = [settings] if _is_of_others(settings) else []
    others += [] if settings.exists() else [path for path in written if path.exists()]
    if others:
        what = f"{folder} is no run, but has a file {others[0].relative_to(folder)}, which would be lost"
        raise RunError(f"{what}. Choose another --run, or move it.")


def check_unlinked(part: Path, folder: Path) -> None:
    """Raises RunError for a part of a run folder that is a link: what it leads to may be another run's."""
    if part != folder and part.is_symlink():
        raise RunError(f"{part} is a link; expected a folder, so that nothing is written elsewhere. Replace it by one.")


def _is_of_others(settings: Path) -> bool:
    try:
        found = set(read_json(settings)) if settings.exists() else {"benchmark"}
    except RunError:
        return False
    return not {"benchmark", "method"} & found and not {"format", "seed"} <= found


def why(error: BaseException) -> str:
    """The first line of an error, cut where it repeats what is in a file."""
    return str(error).partition("\n")[0][:200].rstrip(".") or type(error).__name__


def save_arrays(path: Path, tree: PyTree) -> None:
    """Every array of a tree, by its path in the tree, as .npz: no pickle, and a checksum for each array."""
    write_bytes(path, pack_arrays(_named(tree)))


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file that `save_arrays` wrote, by their paths."""
    return plain_names(read_npz(path))


def load_arrays(path: Path, like: Tree, *, infinite: bool = False) -> Tree:
    """The arrays of a file in the shape of `like`, whose arrays may be shapes alone; all finite unless `infinite`.

    Numbers kept in half precision are widened."""
    stored, wanted = _widened(read_arrays(path)), _named(like)
    no_fit = f"{path} does not fit these settings"
    if missing := sorted(set(wanted) ^ set(stored)):
        advice = "It was made with other settings or another version; train again."
        raise RunError(f"{no_fit}: {missing[0]} is in only one of them. {advice}")
    for name, array in wanted.items():
        here, there = (f"{each.dtype}{list(each.shape)}" for each in (array, stored[name]))
        if here != there:
            advice = "It was made with other settings; train again."
            raise RunError(f"{no_fit}: {name} is {there} there, {here} here. {advice}")
        _check_numbers(path, name, stored[name], infinite=infinite)
    arrays, rest = eqx.partition(like, _is_array)
    filled = jax.tree.unflatten(jax.tree.structure(arrays), [jax.numpy.asarray(stored[name]) for name in wanted])
    return eqx.combine(filled, rest)


def _widened(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: a.astype(np.float32) if a.dtype == np.float16 else a for name, a in arrays.items()}


def _check_numbers(path: Path, name: str, array: np.ndarray, *, infinite: bool) -> None:
    """Refuses weights with which no prediction is a number."""
    if array.dtype.kind == "f" and (np.isnan(array).any() if infinite else not np.isfinite(array).all()):
        bad = "not a number" if np.isnan(array).any() else "infinite"
        raise RunError(f"{path} is damaged: {name} holds a value that is {bad}. {MEND}")


def write_sealed(path: Path, content: Mapping[str, Any]) -> None:
    """A JSON object with a digest, so that one which somebody changed is not taken for whole."""
    write_json(path, sealed(content))


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with its digest."""
    return {**content, SEAL: _digest(content)}


def read_sealed(path: Path) -> dict[str, Any]:
    """A JSON object that `write_sealed` wrote."""
    content = read_json(path)
    if content.pop(SEAL, None) != _digest(content):
        raise RunError(f"{path} is not as it was written: its digest is another. Restore it from a copy, or fit again.")
    return content


def _digest(content: Mapping[str, Any]) -> str:
    plain = json.loads(json.dumps(content))  # keys are text, and tuples lists, as they will be read
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def read_npz(path: Path, *, sealed: bool = False) -> dict[str, np.ndarray]:
    """All arrays of an .npz file, checked against their checksums and their digest, which a `sealed` one must have."""
    try:
        return unpack_arrays(path, sealed=sealed)
    except FileNotFoundError as error:
        raise RunError(f"{path} is missing. Restore it from a copy, or train or evaluate again.") from error
    except PermissionError as error:
        raise RunError(forbidden(path)) from error
    except DAMAGE as error:
        raise RunError(f"{path} is damaged or cut short ({why(error)}). {MEND}") from error


def json_bytes(content: Mapping[str, Any]) -> np.ndarray:
    """JSON as an array, which has a place among others in a file."""
    return np.frombuffer(json.dumps(content).encode(), dtype=np.uint8)


def _named(tree: PyTree) -> dict[str, Any]:
    """Each array by its path in the tree; a shape stays one."""
    leaves = jax.tree_util.tree_leaves_with_path(eqx.filter(tree, _is_array))
    named = {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}
    return {name: leaf if _is_shape(leaf) else np.asarray(leaf) for name, leaf in named.items()}


def _is_shape(leaf: Any) -> bool:
    return isinstance(leaf, jax.ShapeDtypeStruct)


def _is_array(leaf: Any) -> bool:
    return eqx.is_array_like(leaf) or _is_shape(leaf)
