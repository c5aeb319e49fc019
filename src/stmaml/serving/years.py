"""A year of a weather station: some days are labelled with their temperature, all are asked for."""

from typing import Any

from stmaml.benchmarks.weather_inputs import INPUT_NAMES
from stmaml.errors import SourceError
from stmaml.experiments import EvaluateConfig, load_experiment, load_learner
from stmaml.runs import Run
from stmaml.serving.arrays import ArrayServed
from stmaml.serving.base import Card
from stmaml.serving.examples import Example, example_of, load_examples
from stmaml.serving.programs import Sizes
from stmaml.tasks import TaskSpec

SIZES = Sizes(shots=(16, 64), rows=(16, 366), draws=16)


def open_run(run: Run, card: Card, data: str | None) -> ArrayServed:
    """The learner of a run of weather, with years from its files or from beside its weights."""
    experiment = load_experiment(run)
    settings: Any = EvaluateConfig(data=data).of(experiment)
    names = INPUT_NAMES[settings.inputs]
    spec = TaskSpec(x_shape=(len(names),), y_size=1)
    years = load_examples(run.folder, len(names)) or examples_of(settings, run, asked=data is not None)
    learner = load_learner(run, experiment, spec)
    facts = {"inputs": list(names), "years": [year.to_json() for year in years]}
    return ArrayServed(card, learner, spec, SIZES, {year.name: year.x for year in years}, facts)


def examples_of(settings: Any, run: Run, *, asked: bool) -> list[Example]:
    """A year of a station of each band."""
    try:
        return [example_of(showcase) for showcase in settings.open().showcases()]
    except SourceError as error:
        if asked:
            raise
        raise SourceError(
            f"{run.folder} has no years to show beside its weights, and its files are not there: {error}"
        ) from error
