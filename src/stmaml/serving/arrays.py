"""A served learner whose inputs are numbers: curves, pixels, years."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float

from stmaml.methods.base import AbstractMetaLearner
from stmaml.serving.base import AbstractServed, Adapted, Card, Extra, Forms
from stmaml.serving.programs import Programs, Sizes, held_bytes
from stmaml.serving.schema import AbstractForm, Among, Form, Json, Matrix, Places, Refused, Several, Text, Vector, Whole
from stmaml.tasks import TaskSpec

MOST_ROWS = 2000  # inputs in one request
DIGITS = 6
DRAWS = 16  # if not told otherwise


@dataclass(frozen=True)
class ArrayServed(AbstractServed):
    """A learner, the sets of inputs it knows by name, and tasks to begin with."""

    card: Card
    learner: AbstractMetaLearner
    spec: TaskSpec
    sizes: Sizes
    sets: Mapping[str, Float[np.ndarray, "n dx"]]
    """Inputs that requests may name instead of giving them."""
    facts: Json
    """What else the page begins with."""
    extras: Mapping[str, Extra] = field(default_factory=dict)

    @cached_property
    def programs(self) -> Programs:
        """What is compiled."""
        return Programs(self.learner, self.spec, self.sizes)

    @property
    def forms(self) -> Forms:
        """What it is asked and answers."""
        return self._forms

    @cached_property
    def _forms(self) -> Forms:
        """Inputs as rows of numbers, or by the name of a set."""
        taught = {"support": self._support(), "seed": Whole("Seed of the sampled predictors.", 0, 2**31 - 1)}
        defaults: Json = {"support": {"x": [], "y": []}, "seed": 0}
        if steps := self.programs.steps:
            taught["inner_steps"] = Among("Gradient steps on the labelled examples.", tuple(sorted(steps)))
            defaults["inner_steps"] = steps[0]
        most = self.sizes.draws
        asked: dict[str, AbstractForm] = {
            "query": Form("Where to predict.", self._inputs(MOST_ROWS), rule=self._one_way),
            "draws": Whole("Sampled predictors in the mixture; rounded up to a power of two.", 1, most),
            "samples": Whole("How many of their answers to give.", 0, most),
        }
        return Forms(
            Form("Labelled examples.", taught, (), defaults),
            Form("Where to predict.", asked, ("query",), {"draws": min(DRAWS, most), "samples": 0}),
            _answer_form(self.spec.target == "real"),
            self.extras,
        )

    def _inputs(self, most: int) -> dict[str, AbstractForm]:
        return {
            "x": Matrix("Inputs, one row each.", self.spec.x_size, most),
            "of": Text("A set of inputs that the learner knows, instead of x.", tuple(self.sets)),
            "rows": Places("Which inputs of that set; all if not given.", most),
        }

    def _support(self) -> Form:
        most = self.sizes.shots[-1]
        fields = {**self._inputs(most), "y": Vector("The target of each input.", most)}
        return Form("Labelled examples; none may be.", fields, ("y",), rule=self._labelled)

    def _one_way(self, value: Json, where: str) -> None:
        if (value["x"] is None) == (value["of"] is None):
            raise Refused(f"'{where}' must have either 'x' or 'of'.")
        if value["x"] is not None and value["rows"] is not None:
            raise Refused(f"'{where}.rows' are rows of a set: name it with 'of', or leave them out.")
        last = max(value["rows"] or [0])
        if value["of"] is not None and last >= len(self.sets[value["of"]]):
            raise Refused(f"'{where}.rows' must be below {len(self.sets[value['of']])}; got {last}.")

    def _labelled(self, value: Json, where: str) -> None:
        self._one_way(value, where)
        count = len(self._x(value))
        if len(value["y"]) != count:
            raise Refused(f"'{where}.y' must have a target for each of the {count} inputs; got {len(value['y'])}.")
        if self.spec.target == "binary" and np.any((value["y"] < 0) | (value["y"] > 1)):
            raise Refused(f"'{where}.y' must lie between 0 and 1.")

    def _x(self, value: Json) -> Float[np.ndarray, "n dx"]:
        if value["x"] is not None:
            return value["x"]
        known = self.sets[value["of"]]
        return known if value["rows"] is None else known[np.array(value["rows"], dtype=int)]

    def material(self) -> Json:
        """The sets of inputs, the choices there are, and what is special to the page."""
        return {
            "sets": {name: len(x) for name, x in self.sets.items()},
            "inner_steps": sorted(self.programs.steps),
            "own_steps": self.programs.steps[0] if self.programs.steps else None,
            "most_shots": self.sizes.shots[-1],
            "most_draws": self.sizes.draws,
            **self.facts,
        }

    def warm_up(self) -> Iterator[str]:
        """Programs for all sizes, and for what else can be asked, which comes second."""
        programs = self.programs.compile()
        yield next(programs)
        for name, extra in self.extras.items():
            extra.warm_up()
            yield name
        yield from programs

    def adapt(self, told: Json) -> Adapted:
        """Predictors; those of a stochastic method are drawn from the seed."""
        support: Any = told["support"]
        empty = not len(support["y"])
        x = np.zeros((0, *self.spec.x_shape), np.float32) if empty else self._x(support)
        predictors = self.programs.adapt(x, np.asarray(support["y"]), told.get("inner_steps"), told["seed"])
        return Adapted(predictors, len(support["y"]), held_bytes(predictors))

    def predict(self, adapted: Adapted, asked: Json) -> Json:
        """Mean, spread, samples, and the 90 % band of real targets."""
        x = self._x(asked["query"])
        if not len(x):
            raise Refused("'query' has no input. Give at least one.")
        said, used = self.programs.answer(adapted.value, x, asked["draws"])
        said["samples"] = said["samples"][: asked["samples"]]
        if not all(np.isfinite(values).all() for values in said.values()):
            raise Refused("the prediction is not finite: the examples lie too far from what was learnt.", 422)
        return {**{name: rounded(values) for name, values in said.items()}, "draws": used, "shots": adapted.shots}


def rounded(values: np.ndarray) -> list[Any]:
    """Numbers as JSON, without digits that nobody reads."""
    largest = float(np.abs(values).max(initial=0))
    places = DIGITS - 1 - int(np.floor(np.log10(largest))) if largest > 0 else 0
    return np.round(values.astype(float), places).tolist()


def _answer_form(real: bool) -> Form:
    each = {
        "mean": "The expected target at each input.",
        "std": "Its whole spread.",
        "task_std": "The part of the spread that comes from not knowing the task.",
        **({"low": "The lower end of the 90 % band.", "high": "Its upper end."} if real else {}),
    }
    fields: dict[str, AbstractForm] = {name: Vector(words, MOST_ROWS) for name, words in each.items()}
    fields["samples"] = Several("What single predictors say, if asked for.", Vector("One of them.", MOST_ROWS), 64, 0)
    counts = {"draws": "Sampled predictors in the mixture.", "shots": "Labelled examples."}
    return Form("A prediction.", {**fields, **{name: Whole(words, 0, MOST_ROWS) for name, words in counts.items()}})
