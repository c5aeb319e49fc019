"""A learner that needs no compiling, for tests of what is around learners."""

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from stmaml.serving.base import AbstractServed, Adapted, Card, Extra, Forms
from stmaml.serving.schema import Form, Json, Matrix, Number, Refused, Vector, Whole
from stmaml.serving.service import Service


class MeanServed(AbstractServed):
    """Predicts the mean of the labels, everywhere."""

    def __init__(self, name: str = "mean", size: int = 100):
        self.card = Card(name, "Means", "curves", "mean", "# A card\n\nIt says means.")
        self.size = size

    @property
    def forms(self) -> Forms:
        return self._forms

    @cached_property
    def _forms(self) -> Forms:
        support = Form("Labels.", {"x": Matrix("Inputs.", 2, 50), "y": Vector("Labels.", 50)}, ("x", "y"))
        query = Form("Inputs.", {"x": Matrix("Inputs.", 2, 50)}, ("x",))
        shift = Form("A number.", {"by": Number("How far.")}, ("by",))
        return Forms(
            Form("Labels.", {"support": support}, (), {"support": {"x": [], "y": []}}),
            Form("Inputs.", {"query": query, "times": Whole("How often.", 1, 3)}, ("query",), {"times": 1}),
            Form("Means.", {"mean": Vector("Means.", 150), "shots": Whole("Labels.", 0, 50)}),
            {"shift": Extra(shift, shift, lambda told: told, lambda: None)},
        )

    def material(self) -> Json:
        return {}

    def warm_up(self) -> Iterator[str]:
        yield "nothing"
        yield "nothing else"

    def adapt(self, told: Json) -> Adapted:
        y = told["support"]["y"]
        if len(y) == 13:
            raise RuntimeError("a secret of the inside")
        return Adapted(float(np.mean(y)) if len(y) else 0.0, len(y), self.size)

    def predict(self, adapted: Adapted, asked: Json) -> Json:
        if not len(asked["query"]["x"]):
            raise Refused("nothing is asked.")
        return {"mean": [adapted.value] * len(asked["query"]["x"]) * asked["times"], "shots": adapted.shots}


def service_of(*served: AbstractServed) -> Service:
    """A service that is ready."""
    service = Service.of(served or [MeanServed()])
    assert len(list(service.warm_up())) >= 1
    return service
