"""What a kind of file is to the fuzzer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzz.mutations import (
    Mutation,
    forge_arrays,
    forge_json,
    spoil_about,
    spoil_arrays,
    spoil_bytes,
    spoil_cells,
    spoil_json,
)

JSON, NPZ, CELLS = (spoil_bytes, spoil_json, spoil_json), (spoil_bytes, spoil_arrays), (spoil_bytes, spoil_cells)
FORGED_JSON, FORGED_NPZ = (*JSON, forge_json, forge_json), (*NPZ, forge_arrays, forge_arrays)
NPZ_ABOUT = (*NPZ, spoil_about, spoil_about)


@dataclass(frozen=True)
class Kind:
    """A kind of file."""

    name: str
    make: Callable[[Path], Path]
    """Writes a whole one, with all it needs beside it, into a folder, and gives its path."""
    load: Callable[[Path], Any]
    mutations: Sequence[Mutation] = (spoil_bytes,)
    dear: bool = False
    """Takes more than some hundredths of a second."""
