"""A served learner: what it is asked, how it adapts and predicts, and what its page begins with."""

import abc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from stmaml.serving.schema import Form, Json, Several

MOST_GROUPS = 32  # in one request


@dataclass(frozen=True)
class Card:
    """What a learner is."""

    name: str
    """In addresses; unique among those that are served together."""
    title: str
    page: str
    """The page that shows it: a name of opening.PAGES."""
    method: str
    text: str = ""
    """Its model card, in Markdown; empty where none lies beside the weights."""


@dataclass(frozen=True)
class Adapted:
    """What a learner keeps of labelled examples."""

    value: Any
    shots: int
    size: int
    """Bytes it holds, about."""


@dataclass(frozen=True)
class Extra:
    """Something that only some learners can be asked."""

    form: Form
    answer: Form
    act: Callable[[Json], Json]
    warm_up: Callable[[], None]
    """Compiles what `act` needs."""


@dataclass(frozen=True)
class Forms:
    """What a learner is asked and answers."""

    taught: Form
    """To adapt: `support` and how."""
    asked: Form
    """To predict: `query` and how."""
    answer: Form
    extras: Mapping[str, Extra] = field(default_factory=dict)

    @property
    def predict(self) -> Form:
        """Both in one request."""
        return self.taught.joined(self.asked, "Labelled examples, and where to predict.")

    @property
    def batch(self) -> Form:
        """Several groups in one request, all in one way."""
        group = self.predict.only("support", "query")
        groups = Several("Groups, each with its own labelled examples.", group, MOST_GROUPS)
        ways = self.predict.without("support", "query")
        return Form("Groups to predict.", {"groups": groups}, ("groups",)).joined(ways, "Groups to predict.")


class AbstractServed(abc.ABC):
    """A learner that is ready to be asked."""

    card: Card

    @property
    @abc.abstractmethod
    def forms(self) -> Forms:
        """What it is asked and answers."""

    @abc.abstractmethod
    def material(self) -> Json:
        """What its page begins with."""

    @abc.abstractmethod
    def warm_up(self) -> Iterator[str]:
        """Compiles one program after the other, and says what for. After the first it can be asked."""

    @abc.abstractmethod
    def adapt(self, told: Json) -> Adapted:
        """What it makes of labelled examples, given as `forms.taught` checked them."""

    @abc.abstractmethod
    def predict(self, adapted: Adapted, asked: Json) -> Json:
        """What it says where it is asked, given as `forms.asked` checked it."""

    @property
    def about(self) -> Json:
        """What is listed of it."""
        return {"name": self.card.name, "title": self.card.title, "page": self.card.page, "method": self.card.method}
