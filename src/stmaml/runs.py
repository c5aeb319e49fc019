"""The run folder: settings, log, checkpoints, weights and scores on disk, written so that a crash leaves them whole."""

import contextlib
import dataclasses
import io
import json
import os
import types
import typing
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from stmaml.errors import RunError
from stmaml.legacy.scores import about_trace, upgrade_summary
from stmaml.legacy.settings import plain_names, upgrade

FORMAT = 2
OLD_FORMAT = 1  # of 0.1.0
OTHER_VERSION = "Use the version that made the run, or train again."
KEPT_CHECKPOINTS = 2
AFTERCARE = ("calibration.json", "reference.npz")  # what a table's run has beside its weights
# What NumPy and zipfile raise over a file with a wrong byte: they may take it for another kind, packed or encrypted.
_DAMAGE = (OSError, ValueError, EOFError, KeyError, TypeError, RuntimeError, MemoryError)
_DAMAGE = (*_DAMAGE, zipfile.BadZipFile, zlib.error)
T = TypeVar("T")
Tree = TypeVar("Tree", bound=PyTree)


@dataclasses.dataclass(frozen=True)
class Trace:
    """What a learner believes of one task, to be drawn."""

    arrays: dict[str, np.ndarray]
    about: dict[str, Any]
    """The kind of `figure` it is for, and what that says of the task, by name."""


@dataclasses.dataclass(frozen=True)
class Run:
    """Names and opens the files of a run folder."""

    folder: Path

    @property
    def config_path(self) -> Path:
        """Settings, versions, seed."""
        return self.folder / "config.json"

    @property
    def log_path(self) -> Path:
        """One JSON object a line: losses and validation scores by step."""
        return self.folder / "log.jsonl"

    @property
    def learner_path(self) -> Path:
        """Weights of the learner with the best validation score."""
        return self.folder / "learner.npz"

    @property
    def scores_folder(self) -> Path:
        """One summary (.json) and one table of per-task scores (.npz) for each evaluation."""
        return self.folder / "scores"

    def check_free(self, command: str = "train") -> None:
        """Raises RunError if the folder already holds a run, which `command` could go on with."""
        if self.config_path.exists():
            go_on = f"Go on with 'stmaml {command} --resume {self.folder}', choose another --run"
            raise RunError(f"{self.folder} already holds a run. {go_on}, or replace it with --force.")

    def create(self, config: Mapping[str, Any], *, force: bool = False) -> None:
        """Makes the folder and writes its settings; an existing run is only replaced with `force`."""
        if not force:
            self.check_free()
        if self.folder.exists() and not self.folder.is_dir():
            raise RunError(f"{self.folder} is a file, not a folder. Choose another --run.")
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        self._clear()
        write_json(self.config_path, {"format": FORMAT, **config})

    def remove(self) -> None:
        """Deletes the run's files, its settings last."""
        self._clear()
        with writing(self.config_path):
            self.config_path.unlink(missing_ok=True)

    def _clear(self) -> None:
        """Deletes all that training and evaluation wrote."""
        with writing(self.folder):
            results = [*self.scores_folder.glob("*"), *self._curves(), *(self.folder / name for name in AFTERCARE)]
            for old in [self.learner_path, self.log_path, *self._checkpoints(), *results]:
                old.unlink(missing_ok=True)

    def config(self) -> dict[str, Any]:
        """The settings the run was made with."""
        if not self.folder.is_dir():
            raise RunError(f"there is no run folder {self.folder}. 'stmaml train' makes one; check the path.")
        if not self.config_path.exists():
            why = "so it is not a run folder or was never fully made. Train again."
            raise RunError(f"{self.folder} has no config.json, {why}")
        config = read_json(self.config_path)
        if (found := config.get("format")) not in (OLD_FORMAT, FORMAT):
            known = f"this version of stmaml reads formats {OLD_FORMAT} and {FORMAT}"
            raise RunError(f"{self.config_path} has format {found}; {known}. {OTHER_VERSION}")
        return upgrade(config) if found == OLD_FORMAT else config

    def append_log(self, entry: Mapping[str, Any]) -> None:
        """Adds a line to the log."""
        with writing(self.log_path), self.log_path.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def log(self) -> list[dict[str, Any]]:
        """The log's entries; a last line cut short by a crash is left out."""
        entries = []
        for line in self.log_path.read_text().splitlines() if self.log_path.exists() else ():
            with contextlib.suppress(json.JSONDecodeError):
                entries.append(json.loads(line))
        return entries

    def trim_log(self, step: int) -> None:
        """Drops log entries after `step`, which a resumed run will write again."""
        kept = [json.dumps(entry) for entry in self.log() if entry.get("step", 0) <= step]
        write_bytes(self.log_path, "".join(line + "\n" for line in kept).encode())

    def save_checkpoint(self, step: int, state: PyTree) -> None:
        """Writes the training state, then drops all but the newest checkpoints."""
        save_arrays(self._checkpoint_path(step), state)
        for old in self._checkpoints()[:-KEPT_CHECKPOINTS]:
            old.unlink(missing_ok=True)

    def checkpoint_steps(self) -> list[int]:
        """Steps of the checkpoints on disk, oldest first."""
        return [int(path.stem.removeprefix("step-")) for path in self._checkpoints()]

    def is_trained(self, steps: int) -> bool:
        """Whether training reached its last step."""
        return self.learner_path.exists() and steps in self.checkpoint_steps()

    def load_checkpoint(self, step: int, like: Tree) -> Tree:
        """The training state saved at `step`."""
        return load_arrays(self._checkpoint_path(step), like)

    def save_learner(self, learner: PyTree) -> None:
        """Writes the weights."""
        save_arrays(self.learner_path, learner)

    def load_learner(self, like: Tree) -> Tree:
        """Reads the weights into a learner of the same settings."""
        if not self.learner_path.exists():
            why = "its training has not reached a first validation"
            go_on = f"Continue it with 'stmaml train --resume {self.folder}'."
            raise RunError(f"{self.folder} has no learner.npz: {why}. {go_on}")
        return load_arrays(self.learner_path, like)

    def save_scores(self, name: str, summary: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Path:
        """Writes an evaluation under `name`."""
        write_bytes(self.scores_folder / f"{name}.npz", _npz_bytes(arrays))
        write_json(self.scores_folder / f"{name}.json", summary)
        return self.scores_folder / f"{name}.json"

    def save_arrays(self, name: Path, arrays: Mapping[str, np.ndarray]) -> None:
        """Writes named arrays to a file of the run."""
        write_bytes(self.folder / name, _npz_bytes(arrays))

    def curves(self) -> dict[str, Trace]:
        """What figures of single tasks need, by the task's name."""
        return {path.stem: _trace(path) for path in self._curves()}

    def scores(self) -> dict[str, dict[str, Any]]:
        """The summaries of all evaluations, by name."""
        paths = sorted(self.scores_folder.glob("*.json"))
        return {path.stem: upgrade_summary(read_json(path)) for path in paths}

    def score_arrays(self, name: str) -> dict[str, np.ndarray]:
        """The per-task arrays of an evaluation."""
        return read_npz(self.scores_folder / f"{name}.npz")

    def _curves(self) -> list[Path]:
        return sorted((self.folder / "curves").glob("*.npz"))

    def _checkpoint_path(self, step: int) -> Path:
        return self.folder / "checkpoints" / f"step-{step:09d}.npz"

    def _checkpoints(self) -> list[Path]:
        return sorted((self.folder / "checkpoints").glob("step-*.npz"))


def newest_common_checkpoint(runs: list[Run], likes: list[Tree]) -> tuple[int, list[Tree]] | None:
    """The newest step at which every run has a whole checkpoint, with their states; None if none was saved yet."""
    common = set.intersection(*(set(run.checkpoint_steps()) for run in runs))
    for step in sorted(common, reverse=True):
        try:
            return step, [run.load_checkpoint(step, like) for run, like in zip(runs, likes, strict=True)]
        except RunError:
            if step == min(common):
                raise
    return None


def find_runs(folder: Path) -> list[Run]:
    """The run in a folder, or the runs of several seeds below it."""
    return [Run(folder)] if Run(folder).config_path.exists() else _seed_runs(folder) or [Run(folder)]


def held_runs(folder: Path) -> list[Run]:
    """Every run a folder holds: its own, and those of seeds below it."""
    return [run for run in (Run(folder), *_seed_runs(folder)) if run.config_path.exists()]


def _seed_runs(folder: Path) -> list[Run]:
    found = {path.parent.name.removeprefix("seed-"): Run(path.parent) for path in folder.glob("seed-*/config.json")}
    return [found[seed] for seed in sorted((seed for seed in found if seed.isdecimal()), key=int)]


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns the system's refusal to write into a RunError with advice."""
    try:
        yield
    except OSError as error:
        advice = "Free some space or choose a folder you may write to, then try again."
        what = f"could not write {path}: {error.strerror or error}. What was saved before is whole."
        raise RunError(f"{what} {advice}") from error


def write_bytes(path: Path, content: bytes) -> None:
    """Replaces a file in one step: write beside it, flush to disk, rename. A crash leaves the old file or the new."""
    partial = path.with_name(path.name + ".partial")
    with writing(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            raise


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """A JSON file people can read."""
    write_bytes(path, (json.dumps(content, indent=2) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    try:
        content = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise RunError(f"{path} cannot be read ({error}). Restore it from a copy, or train again.") from error
    if not isinstance(content, dict):
        raise RunError(f"{path} holds {type(content).__name__}, not an object. Restore it from a copy, or train again.")
    return content


def save_arrays(path: Path, tree: PyTree) -> None:
    """Every array of a tree, by its path in the tree, as .npz: no pickle, and a checksum for each array."""
    write_bytes(path, _npz_bytes(_named(tree)))


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file that `save_arrays` wrote, by their paths."""
    return plain_names(read_npz(path))


def load_arrays(path: Path, like: Tree) -> Tree:
    """The arrays of a file in the shape of `like`."""
    stored = read_arrays(path)
    wanted = _named(like)
    no_fit = f"{path} does not fit these settings"
    if missing := sorted(set(wanted) ^ set(stored)):
        advice = "It was made with other settings or another version; train again."
        raise RunError(f"{no_fit}: {missing[0]} is in only one of them. {advice}")
    for name, array in wanted.items():
        here, there = (f"{each.dtype}{list(each.shape)}" for each in (array, stored[name]))
        if here != there:
            advice = "It was made with other settings; train again."
            raise RunError(f"{no_fit}: {name} is {there} there, {here} here. {advice}")
    arrays, rest = eqx.partition(like, eqx.is_array_like)
    filled = jax.tree.unflatten(jax.tree.structure(arrays), [jax.numpy.asarray(stored[name]) for name in wanted])
    return eqx.combine(filled, rest)


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """All arrays of an .npz file, checked against their checksums."""
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError as error:
        raise RunError(f"{path} is missing. Restore it from a copy, or train or evaluate again.") from error
    except _DAMAGE as error:
        advice = "Restore it from a copy, or resume or train again."
        raise RunError(f"{path} is damaged or cut short ({error}). {advice}") from error


def _trace(path: Path) -> Trace:
    arrays = read_npz(path)
    about = arrays.pop("about", None)
    return Trace(arrays, about_trace(path.stem) if about is None else json.loads(about.tobytes()))


def json_bytes(content: Mapping[str, Any]) -> np.ndarray:
    """JSON as an array, which has a place among others in a file."""
    return np.frombuffer(json.dumps(content).encode(), dtype=np.uint8)


def _npz_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _named(tree: PyTree) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_leaves_with_path(eqx.filter(tree, eqx.is_array_like))
    return {jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf) for path, leaf in leaves}


def as_json(settings: Any) -> dict[str, Any]:
    """A settings dataclass as it looks after a journey through JSON."""
    return json.loads(json.dumps(dataclasses.asdict(settings)))


def from_dict(cls: type[T], values: Mapping[str, Any]) -> T:
    """A settings dataclass from the JSON it was written to."""
    hints = typing.get_type_hints(cls)
    names = {field.name for field in dataclasses.fields(typing.cast(Any, cls))}
    if unknown := sorted(set(values) - names):
        what = f"the run has a setting '{unknown[0]}' that this version of stmaml does not know."
        raise RunError(f"{what} {OTHER_VERSION}")
    return cls(**{name: _revive(hints[name], value) for name, value in values.items()})


def _revive(hint: Any, value: Any) -> Any:
    """A JSON value as the type a field wants: dataclasses from objects, tuples from lists."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next((h for h in typing.get_args(hint) if h is not type(None)), hint)
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return from_dict(typing.cast(type, hint), value)
    if typing.get_origin(hint) is tuple and isinstance(value, list):
        return _as_tuple(value)
    return value


def _as_tuple(value: Any) -> Any:
    """A list as a tuple, and any list in it."""
    return tuple(_as_tuple(item) for item in value) if isinstance(value, list) else value
