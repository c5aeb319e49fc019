"""Pixels of a picture: some are shown, all are asked for."""

from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from stmaml.benchmarks.completion import Completion, Config
from stmaml.benchmarks.grey_albums import GreyAlbum
from stmaml.errors import SourceError
from stmaml.experiments import EvaluateConfig, load_experiment, load_learner
from stmaml.runs import Run, read_npz
from stmaml.serving.arrays import ArrayServed
from stmaml.serving.base import Card
from stmaml.serving.programs import Sizes
from stmaml.serving.schema import Json
from stmaml.shipped import is_shipped

SIDE = 28  # of the paper's pictures
DRAWS = 16
SHOTS = (64, 256)
SHOWN = 7  # pictures of each family to choose from
DRAWN = Path(str(resources.files("stmaml").joinpath("serving", "drawn.npz")))  # studies/draw_pictures.py makes it


def open_run(run: Run, card: Card, data: str | None) -> ArrayServed:
    """The learner of a run of completion; its files are asked for pictures, and not needed otherwise."""
    experiment = load_experiment(run)
    settings = EvaluateConfig(data=data).of(experiment)
    source, shown = tasks_of(settings, asked=data is not None, drawn=is_shipped(run.folder))
    learner = load_learner(run, experiment, source.spec)
    inputs = np.asarray(source.inputs(), dtype=np.float32)
    shots = tuple(size for size in SHOTS if size < len(inputs))
    sizes = Sizes((*shots, len(inputs)), (16, len(inputs)), DRAWS)
    facts = {"shape": list(source.album.shape), "pictures": shown}
    return ArrayServed(card, learner, source.spec, sizes, {"pixels": inputs}, facts)


def tasks_of(settings: Any, *, asked: bool, drawn: bool) -> tuple[Completion, list[Json]]:
    """Test pictures, and those to show; drawn ones where that is asked for, or the files are not there."""
    if drawn and not asked:
        return drawn_tasks(settings)
    try:
        benchmark = settings.open()
    except SourceError:
        if asked:  # somebody named a folder
            raise
        return drawn_tasks(settings)
    source: Any = benchmark.test
    return source, pictures(source.album, benchmark.families)


def drawn_tasks(settings: Any) -> tuple[Completion, list[Json]]:
    """Pictures that come with the package, as the learner is shown its own."""
    arrays = read_npz(DRAWN)
    grey = arrays["grey"].reshape(len(arrays["grey"]), -1)
    shown = [{"name": str(name), "grey": row.tolist()} for name, row in zip(arrays["names"], grey, strict=True)]
    album = GreyAlbum(jnp.asarray(grey), (len(grey),), (SIDE, SIDE))
    return Completion(album, replace(Config(), inputs=settings.inputs)), shown


def pictures(album: GreyAlbum, names: tuple[str, ...]) -> list[Json]:
    """Some pictures of each family, as grey values from 0 to 255."""
    found = []
    for name, start, count in zip(names, album.starts, album.counts, strict=True):
        rows = range(start, start + min(count, SHOWN))
        found += [
            {"name": f"{name} {i + 1}", "grey": np.asarray(album.pixels[row]).tolist()} for i, row in enumerate(rows)
        ]
    return found
