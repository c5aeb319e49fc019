"""Learners that ship with the package, each with a card: what it was trained on, how well it does, and its limits.

A folder of `pretrained/` is a run without its log: settings, weights, `card.md`, and `shipped.json`, which says what
its tasks look like, so that no benchmark's files are needed, and what the weights' digest is."""

import hashlib
import re
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from stmaml.border.arrays import pack_arrays
from stmaml.border.files import read_file
from stmaml.border.typed import need
from stmaml.errors import RunError, SettingError
from stmaml.experiments import load_experiment, load_learner
from stmaml.methods.base import AbstractMetaLearner
from stmaml.methods.committee import Committee
from stmaml.runs import Run, as_json, from_dict, read_arrays, read_json, write_bytes, write_json
from stmaml.tasks import TaskSpec

ABOUT, CARD = "shipped.json", "card.md"
LEARNERS = "learners"
NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
MOST_BYTES = 64 << 20
REINSTALL = "Install stmaml again."


def pretrained_folder() -> Path:
    """Where shipped learners lie."""
    return Path(str(resources.files("stmaml").joinpath("pretrained")))


def pretrained_names() -> tuple[str, ...]:
    """The learners that ship with the package."""
    return tuple(sorted(path.parent.name for path in pretrained_folder().glob(f"*/{ABOUT}")))


def pretrained_alone() -> tuple[str, ...]:
    """Those that are one learner, not several."""
    return tuple(name for name in pretrained_names() if LEARNERS not in read_json(_folder(name) / ABOUT))


def pretrained_card(name: str) -> str:
    """What a shipped learner was trained on, how well it does and where it ends, in Markdown."""
    return (_folder(name) / CARD).read_text()


def load_pretrained(name: str = "regression2d") -> AbstractMetaLearner:
    """A learner that ships with the package, ready to adapt and predict; `pretrained_names` says which there are."""
    return load_shipped(_folder(name))


def is_shipped(folder: Path) -> bool:
    """Whether a folder is one that `ship` wrote, rather than a run."""
    return (folder / ABOUT).is_file()


def load_shipped(folder: Path) -> AbstractMetaLearner:
    """The learner of a folder that `ship` wrote, whose weights must be those it was written with."""
    about = read_json(folder / ABOUT)
    if LEARNERS in about:
        return Committee(tuple(_load_alone(one) for one in _learners(folder, about)))
    return _load_alone(folder)


def _load_alone(folder: Path) -> AbstractMetaLearner:
    run, about = Run(folder), read_json(folder / ABOUT)
    if "sha256" not in about:
        raise RunError(f"{folder / ABOUT} says nothing of one learner's weights. {REINSTALL}")
    if digest_of(run.learner_path) != about.get("sha256"):
        raise RunError(f"{run.learner_path} is not the file that was shipped: its digest differs. {REINSTALL}")
    spec = from_dict(TaskSpec, about["spec"], "spec.")
    return load_learner(run, load_experiment(run), spec)


def digest_of(path: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(read_file(path, MOST_BYTES)).hexdigest()


def ship(run: Run, spec: TaskSpec, folder: Path, *, card: str, half: bool) -> None:
    """Writes a run's settings and weights, the latter in float16 if `half`, with a card and a digest."""
    write_json(folder / "config.json", _without_paths(read_json(run.config_path)))
    arrays = read_arrays(run.learner_path)
    write_bytes(folder / "learner.npz", pack_arrays({n: narrowed(a) if half else a for n, a in arrays.items()}))
    write_bytes(folder / CARD, card.encode())
    write_json(folder / ABOUT, {"spec": as_json(spec), "sha256": digest_of(folder / "learner.npz")})


def ship_together(learners: list[str], folder: Path, *, card: str) -> None:
    """Writes which learners answer as one, those of folders inside `folder` or of other shipped ones, with a card."""
    write_bytes(folder / CARD, card.encode())
    write_json(folder / ABOUT, {LEARNERS: learners})


def _learners(folder: Path, about: dict[str, Any]) -> list[Path]:
    names = need(tuple[str, ...], about[LEARNERS], LEARNERS)
    if not names or not all(map(NAME.fullmatch, names)):
        raise RunError(f"{folder / ABOUT} must name one learner or more, not folders elsewhere. {REINSTALL}")
    return [folder / name if (folder / name).is_dir() else _folder(name) for name in names]


def _without_paths(config: dict[str, Any]) -> dict[str, Any]:
    """Settings that do not say where files lay on the machine that trained."""
    settings = config["benchmark"]["settings"]
    kept = {name: None if name == "data" else value for name, value in settings.items()}
    command = re.sub(r"(--(?:data|run|resume|start))[ =](?:'[^']*'|\S+)", r"\1 ...", config.get("command", ""))
    return {**config, "command": command, "benchmark": {**config["benchmark"], "settings": kept}}


def narrowed(array: np.ndarray) -> np.ndarray:
    """Numbers in half precision, where that holds them all; others as they are."""
    if array.dtype != np.float32:
        return array
    with np.errstate(over="ignore"):
        half = array.astype(np.float16)
    return half if np.isfinite(half).all() else array


def _folder(name: str) -> Path:
    if name not in pretrained_names():
        known = ", ".join(pretrained_names())
        raise SettingError(f"no weights are shipped for '{name}'; there are some for: {known}.")
    return pretrained_folder() / name
