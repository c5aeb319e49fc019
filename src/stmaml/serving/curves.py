"""Curves of 2D regression: labelled points, sampled solutions, and the best band there can be."""

from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Float

from stmaml.benchmarks.families2d import FAMILIES, Family
from stmaml.benchmarks.posterior2d import posterior
from stmaml.benchmarks.regression2d import Config
from stmaml.experiments import load_experiment, load_learner
from stmaml.runs import Run
from stmaml.serving.arrays import ArrayServed, rounded
from stmaml.serving.base import Card, Extra
from stmaml.serving.programs import Sizes, padded
from stmaml.serving.schema import Form, Json, Matrix, Number, Refused, Vector

GRID = 121
SIZES = Sizes(shots=(32, 128), rows=(16, GRID), draws=64)
BAYES_SHOTS = 32
BAYES_DRAWS = 2**16  # for each family: a quarter of a second, and rough from about ten labelled points on
PARTS = (0.7, 0.25, 0.6, 0.4)  # where in its range each coefficient of an example lies
PLACES = (0.05, 0.17, 0.31, 0.42, 0.5, 0.63, 0.74, 0.9)  # of an example's points
NOISES = (0.4, -0.9, 0.7, -0.2, 1.1, -0.6, 0.1, -0.8)
ONE_DIMENSION = 1.0  # what x2 is where a function does not use it


def open_run(run: Run, card: Card, data: str | None) -> ArrayServed:
    """The learner of a run of regression2d."""
    del data  # nothing is read
    experiment = load_experiment(run)
    settings: Any = experiment.benchmark_settings
    benchmark = settings.open()
    learner = load_learner(run, experiment, benchmark.train.spec, benchmark.own_scaling)
    low, high = settings.input_range
    sets = {"line": grid_at(settings, ONE_DIMENSION), "cut": grid_at(settings, (low + high) / 2)}
    facts = {
        "range": [low, high],
        "noise": settings.noise,
        "x2": {name: float(x[0, 1]) for name, x in sets.items()},
        "grid": rounded(sets["line"][:, 0]),
        "examples": examples(settings),
    }
    extras = {"optimum": _optimum(settings)}
    return ArrayServed(card, learner, benchmark.train.spec, SIZES, sets, facts, extras)


def grid_at(settings: Config, x2: float) -> Float[np.ndarray, "n 2"]:
    """Inputs along x1."""
    x1 = np.linspace(*settings.input_range, GRID, dtype=np.float32)
    return np.stack([x1, np.full_like(x1, x2)], axis=1)


def examples(settings: Config) -> list[Json]:
    """A task of each family: its points, and the truth on the grid."""
    return [_example(settings, family) for family in FAMILIES]


def _example(settings: Config, family: Family) -> Json:
    """Everything in it is fixed: nothing has to be drawn, which would take seconds of compiling."""
    low, high = settings.input_range
    x2 = (low + high) / 2 if family.uses_x2 else ONE_DIMENSION
    coefficients = [a + part * (b - a) for a, b, part in zip(family.low, family.high, PARTS, strict=False)]

    def at(x1: Float[np.ndarray, " n"]) -> list[list[float]]:
        y = family.function(jnp.array(coefficients), jnp.asarray(x1, dtype=jnp.float32), jnp.asarray(x2))
        return np.round(np.stack([x1, np.broadcast_to(np.asarray(y), x1.shape)], axis=1), 3).tolist()

    seen = at(low + (high - low) * np.array(PLACES))
    points = [[x, round(y + settings.noise * noise, 3)] for (x, y), noise in zip(seen, NOISES, strict=True)]
    where = "cut" if family.uses_x2 else "line"
    return {"name": family.name, "set": where, "points": points, "truth": at(np.linspace(low, high, GRID))}


def _optimum(settings: Config) -> Extra:
    """What the best possible predictor would say, which knows how tasks are made."""
    inputs = Matrix("Inputs x1, x2; x2 is 1 for functions of x1 alone.", 2, BAYES_SHOTS)
    asked = Form("Labelled points.", {"x": inputs, "y": Vector("Their targets.", BAYES_SHOTS)}, ("x", "y"))
    fields = {"support": asked, "x2": Number("Where x2 is cut; 1 for functions of x1 alone.")}
    form = Form("Labelled points.", fields, ("support",), {"x2": ONE_DIMENSION}, rule=_same_length)
    answer = {name: Vector(f"The {name} at each input of the grid.", GRID) for name in ("mean", "low", "high")}
    said = {**answer, "effective_draws": Number("What the band is worth in draws; below 30 it is rough.")}
    nothing = {"support": {"x": np.zeros((0, 2), np.float32), "y": np.zeros(0, np.float32)}}

    def act(told: Json) -> Json:
        return _best(settings, told)

    def warm() -> None:
        for x2 in (ONE_DIMENSION, 0.0):
            act({**nothing, "x2": x2})

    return Extra(form, Form("The Bayes-optimal mean and 90 % band.", said), act, warm)


def _same_length(value: Json, where: str) -> None:
    if len(value["support"]["x"]) != len(value["support"]["y"]):
        raise Refused(f"'{where}.support' must have a target for each input.")


def _best(settings: Config, told: Json) -> Json:
    x, y = told["support"]["x"], told["support"]["y"]
    points = padded(x, y, BAYES_SHOTS)
    grid = jnp.asarray(grid_at(settings, told["x2"]))
    found = posterior(
        points, grid, uses_x2=told["x2"] != ONE_DIMENSION, noise=settings.noise, num_draws=BAYES_DRAWS, key=jr.key(0)
    )
    band = {name: rounded(np.asarray(getattr(found, name))) for name in ("mean", "low", "high")}
    return {**band, "effective_draws": round(float(found.effective_draws), 1)}
