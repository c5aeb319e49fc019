"""Tasks that a page begins with: from the benchmark's files, or from a file beside the weights where there are none."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from stmaml.benchmarks.base import Showcase
from stmaml.errors import RunError
from stmaml.runs import read_npz, save_arrays
from stmaml.serving.schema import Json

FILE = "examples.npz"


@dataclass(frozen=True)
class Example:
    """Where a task is asked, what is true there, and which of it is labelled at first."""

    name: str
    x: Float[np.ndarray, "n dx"]
    axis: Float[np.ndarray, " n"]
    """Where on the page's horizontal axis each input stands."""
    truth: Float[np.ndarray, " n"]
    labelled: tuple[int, ...]
    """Rows of `x`."""

    def to_json(self) -> Json:
        """What the page needs: the inputs stay here, under the example's name."""
        return {"name": self.name, "axis": _plain(self.axis), "truth": _plain(self.truth), "rows": list(self.labelled)}


def _plain(values: Float[np.ndarray, " n"]) -> list[float]:
    return np.round(values.astype(float), 4).tolist()


def example_of(showcase: Showcase) -> Example:
    """A task that figures show, as one to play with."""
    x = np.asarray(showcase.x, dtype=np.float32)
    real = np.asarray(showcase.support.weight) > 0
    seen = np.asarray(showcase.support.x, dtype=np.float32)[real]
    same = (x[None] == seen[:, None]).all(-1)
    rows = tuple(int(row.argmax()) for row in same if row.any())
    axis, truth = np.asarray(showcase.axis, dtype=float), np.asarray(showcase.truth, dtype=float)[:, 0]
    return Example(showcase.name, x, axis, truth, rows)


def save_examples(folder: Path, examples: Sequence[Example]) -> None:
    """Keeps tasks beside the weights of a run, for those who do not have its benchmark's files."""
    arrays = {"names": np.array([one.name for one in examples])}
    for i, one in enumerate(examples):
        arrays |= {f"{i}.x": one.x, f"{i}.axis": one.axis, f"{i}.truth": one.truth}
        arrays[f"{i}.labelled"] = np.array(one.labelled, dtype=np.int64)
    save_arrays(folder / FILE, arrays)


def load_examples(folder: Path, width: int) -> list[Example]:
    """Those that `save_examples` kept, with `width` numbers in each input; none where there is no such file."""
    if not (folder / FILE).is_file():
        return []
    arrays = read_npz(folder / FILE)
    try:
        found = [_restored(arrays, i, str(name)) for i, name in enumerate(arrays["names"])]
    except (KeyError, ValueError) as error:
        raise RunError(f"{folder / FILE} holds no examples ({error}). Restore or remove it.") from error
    if any(one.x.ndim != 2 or one.x.shape[1] != width or len(one.x) != len(one.truth) for one in found):
        raise RunError(f"{folder / FILE} has inputs of another size than the learner's {width}. Remove it.")
    return found


def _restored(arrays: dict[str, np.ndarray], i: int, name: str) -> Example:
    labelled = tuple(int(row) for row in arrays[f"{i}.labelled"] if 0 <= row < len(arrays[f"{i}.x"]))
    return Example(name, arrays[f"{i}.x"], arrays[f"{i}.axis"], arrays[f"{i}.truth"], labelled)
