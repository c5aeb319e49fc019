"""Pixels of a picture: some are shown, all are asked for."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import UInt8

from stmaml.benchmarks.completion import Completion, Config, GreyAlbum
from stmaml.errors import SourceError
from stmaml.experiments import EvaluateConfig, load_experiment, load_learner
from stmaml.runs import Run
from stmaml.serving.arrays import ArrayServed
from stmaml.serving.base import Card
from stmaml.serving.programs import Sizes
from stmaml.serving.schema import Json

SIDE = 28  # of the paper's pictures
DRAWS = 16
SHOTS = (64, 256)
SHOWN = 7  # pictures of each family to choose from
SMALL = 8  # side of the digits that come with scikit-learn


def open_run(run: Run, card: Card, data: str | None) -> ArrayServed:
    """The learner of a run of completion; its files are asked for pictures, and not needed otherwise."""
    experiment = load_experiment(run)
    source, names = source_of(EvaluateConfig(data=data).of(experiment), asked=data is not None)
    learner = load_learner(run, experiment, source.spec)
    inputs = np.asarray(source.inputs(), dtype=np.float32)
    shots = tuple(size for size in SHOTS if size < len(inputs))
    sizes = Sizes((*shots, len(inputs)), (16, len(inputs)), DRAWS)
    facts = {"shape": list(source.album.shape), "pictures": pictures(source.album, names)}
    return ArrayServed(card, learner, source.spec, sizes, {"pixels": inputs}, facts)


def source_of(settings: Any, *, asked: bool) -> tuple[Completion, tuple[str, ...]]:
    """Test pictures and the names of their families; small digits, enlarged, where the files are not there."""
    try:
        benchmark = settings.open()
    except SourceError:
        if asked:  # somebody named a folder
            raise
        return Completion(small_digits(), replace(Config(), inputs=settings.inputs)), ("digits",)
    source: Any = benchmark.test
    return source, benchmark.families


def pictures(album: GreyAlbum, names: tuple[str, ...]) -> list[Json]:
    """Some pictures of each family, as grey values from 0 to 255."""
    found = []
    for name, start, count in zip(names, album.starts, album.counts, strict=True):
        rows = range(start, start + min(count, SHOWN))
        found += [
            {"name": f"{name} {i + 1}", "grey": np.asarray(album.pixels[row]).tolist()} for i, row in enumerate(rows)
        ]
    return found


def small_digits() -> GreyAlbum:
    """The digits 0 to 6 of scikit-learn, 8 pixels wide, enlarged to the middle 20 of 28."""
    from sklearn.datasets import load_digits

    images = load_digits().images[:SHOWN]  # type: ignore[union-attr]
    return GreyAlbum(jnp.asarray(np.stack([_enlarged(image) for image in images])), (SHOWN,), (SIDE, SIDE))


def _enlarged(image: np.ndarray) -> UInt8[np.ndarray, " p"]:
    from PIL import Image

    inner = SIDE - 8
    grey = Image.fromarray((image * 255 / 16).astype(np.uint8)).resize((inner, inner), Image.Resampling.BICUBIC)
    return np.pad(np.asarray(grey), 4).reshape(-1)
