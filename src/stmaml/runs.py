"""The run folder: settings, log, checkpoints, weights and scores on disk, written so that a crash leaves them whole."""

import contextlib
import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import PyTree

from stmaml.border.arrays import pack_arrays
from stmaml.border.files import read_file
from stmaml.border.json_text import parse_json
from stmaml.border.run_content import check_about, check_config, check_entry, check_summary
from stmaml.border.typed import OTHER_VERSION, as_json, from_dict
from stmaml.border.writing import sweep_partials, sync, write_bytes, write_json, writing
from stmaml.errors import RunError, SourceError
from stmaml.legacy.scores import about_trace, upgrade_summary
from stmaml.legacy.settings import upgrade
from stmaml.progress import remark
from stmaml.run_files import (
    check_own,
    check_unlinked,
    json_bytes,
    load_arrays,
    read_arrays,
    read_json,
    read_npz,
    save_arrays,
    why,
)

__all__ = [
    "Run",
    "Trace",
    "as_json",
    "find_runs",
    "from_dict",
    "held_runs",
    "json_bytes",
    "load_arrays",
    "newest_common_checkpoint",
    "read_arrays",
    "read_json",
    "read_npz",
    "save_arrays",
    "write_bytes",
    "write_json",
    "writing",
]

FORMAT = 2
OLD_FORMAT = 1  # of 0.1.0
KEPT_CHECKPOINTS = 2
CHECKPOINT = re.compile(r"step-[0-9]{9,12}\.npz")
LOG_BYTES = 1 << 30
AFTERCARE = ("calibration.json", "reference.npz")  # what a table's run has beside its weights
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
        check_own(self.config_path, self._written())
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
            for old in self._written():
                old.unlink(missing_ok=True)

    def _written(self) -> list[Path]:
        """All that training and evaluation write, but for the settings."""
        scores = [path for kind in ("json", "npz") for path in self.scores_folder.glob(f"*.{kind}")]
        single = [self.learner_path, self.log_path, *(self.folder / name for name in AFTERCARE)]
        return [*single, *self._checkpoints(), *scores, *self._curves()]

    def sweep(self) -> None:
        """Removes what a training that was killed left half written; for who has locked the folder."""
        for folder in (self.folder, self.folder / "checkpoints"):
            check_unlinked(folder, self.folder)
            sweep_partials(folder)

    def config(self) -> dict[str, Any]:
        """The settings the run was made with."""
        if not self.folder.is_dir():
            raise RunError(f"there is no run folder {self.folder}. 'stmaml train' makes one; check the path.")
        if not self.config_path.exists():
            why = "so it is not a run folder or was never fully made. Train again."
            raise RunError(f"{self.folder} has no config.json, {why}")
        config = self._checked(check_config, read_json(self.config_path))
        if (found := config.get("format")) not in (OLD_FORMAT, FORMAT) or type(found) is not int:
            known = f"this version of stmaml reads formats {OLD_FORMAT} and {FORMAT}"
            raise RunError(f"{self.config_path} has format {str(found)[:40]}; {known}. {OTHER_VERSION}")
        return self._checked(upgrade, config) if found == OLD_FORMAT else config

    def _checked(self, step: Callable[[dict[str, Any]], dict[str, Any]], config: dict[str, Any]) -> dict[str, Any]:
        """The settings after a step that may refuse them."""
        try:
            return step(config)
        except RunError as error:
            raise RunError(f"{self.config_path}: {error}") from error
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            what = f"has settings that stmaml 0.1.0 cannot have written ({why(error)})"
            raise RunError(f"{self.config_path} {what}. Restore it from a copy, or train again.") from error

    def append_log(self, entry: Mapping[str, Any]) -> None:
        """Adds a line to the log."""
        with writing(self.log_path), self.log_path.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def log(self) -> list[dict[str, Any]]:
        """The log's entries; lines that cannot be read, such as a last one cut short by a crash, are left out."""
        return self._log()[0]

    def _log(self) -> tuple[list[dict[str, Any]], int]:
        """The entries, and how many lines but the last cannot be read."""
        try:
            lines = read_file(self.log_path, LOG_BYTES).split(b"\n")
        except FileNotFoundError:
            return [], 0
        except (OSError, SourceError) as error:
            remark(f"the log is left out: {error}")
            return [], 0
        read = [_entry(line) for line in lines]
        bad = sum(entry is None and bool(line) for entry, line in zip(read[:-1], lines, strict=False))
        return [entry for entry in read if entry is not None], bad

    def trim_log(self, step: int) -> None:
        """Drops log entries after `step`, which a resumed run will write again, and lines that cannot be read."""
        entries, bad = self._log()
        if bad:
            remark(
                f"{self.log_path} has {bad} lines that cannot be read, which are dropped; training needs none of them"
            )
        kept = [json.dumps(entry) for entry in entries if entry.get("step", 0) <= step]
        write_bytes(self.log_path, "".join(line + "\n" for line in kept).encode())

    def save_checkpoint(self, step: int, state: PyTree) -> None:
        """Writes the training state, after the log it belongs to, then drops all but the newest checkpoints."""
        with writing(self.log_path), contextlib.suppress(FileNotFoundError):
            sync(self.log_path)
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
        return load_arrays(self._checkpoint_path(step), like, infinite=True)  # a best score may be none yet

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
        check_unlinked(self.scores_folder, self.folder)
        write_bytes(self.scores_folder / f"{name}.npz", pack_arrays(arrays))
        write_json(self.scores_folder / f"{name}.json", summary)
        return self.scores_folder / f"{name}.json"

    def save_arrays(self, name: Path, arrays: Mapping[str, np.ndarray]) -> None:
        """Writes named arrays to a file of the run."""
        check_unlinked((self.folder / name).parent, self.folder)
        write_bytes(self.folder / name, pack_arrays(arrays))

    def curves(self) -> dict[str, Trace]:
        """What figures of single tasks need, by the task's name."""
        return _read_or_leave(self._curves(), _trace)

    def scores(self) -> dict[str, dict[str, Any]]:
        """The summaries of all evaluations, by name."""
        return _read_or_leave(sorted(self.scores_folder.glob("*.json")), _read_summary)

    def score_arrays(self, name: str) -> dict[str, np.ndarray]:
        """The per-task arrays of an evaluation."""
        return read_npz(self.scores_folder / f"{name}.npz")

    def _curves(self) -> list[Path]:
        return sorted((self.folder / "curves").glob("*.npz"))

    def _checkpoint_path(self, step: int) -> Path:
        return self.folder / "checkpoints" / f"step-{step:09d}.npz"

    def _checkpoints(self) -> list[Path]:
        found = (self.folder / "checkpoints").glob("step-*.npz")
        return sorted(path for path in found if CHECKPOINT.fullmatch(path.name))  # a copy made by hand is none


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


def _trace(path: Path) -> Trace:
    arrays = read_npz(path)
    about = arrays.pop("about", None)
    if about is None:
        return Trace(arrays, about_trace(path.stem))
    try:
        return Trace(arrays, check_about(parse_json(about.tobytes())))
    except (ValueError, RunError) as error:
        raise RunError(f"{path} does not say what it is about ({why(error)}). Evaluate again.") from error


def _read_or_leave(paths: Iterable[Path], read: Callable[[Path], T]) -> dict[str, T]:
    """What each file holds, by its name; one that cannot be read is passed over, and said."""
    found: dict[str, T] = {}
    for path in paths:
        try:
            found[path.stem] = read(path)
        except RunError as error:
            remark(f"left out: {error}")
    return found


def _read_summary(path: Path) -> dict[str, Any]:
    try:
        return check_summary(upgrade_summary(check_summary(read_json(path))))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{path} is no summary of scores ({why(error)}). Evaluate again.") from error
    except RunError as error:
        raise RunError(str(error) if str(path) in str(error) else f"{path}: {error}") from error


def _entry(line: bytes) -> dict[str, Any] | None:
    """A line of the log, if it is whole."""
    try:
        return check_entry(parse_json(line))
    except (ValueError, RecursionError, RunError):
        return None
