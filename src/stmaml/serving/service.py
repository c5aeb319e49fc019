"""What the service does, apart from the network: learners by name, requests checked, adaptations kept."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from stmaml.serving.base import AbstractServed
from stmaml.serving.kept import Kept
from stmaml.serving.schema import WAIT, Json, Refused

WHERE = "request"


@dataclass
class Service:
    """Learners, and what is kept of earlier requests."""

    learners: dict[str, AbstractServed]
    kept: Kept = field(default_factory=Kept)
    ready: bool = False
    """Whether all programs are compiled."""
    compiled: set[tuple[str, str]] = field(default_factory=set)
    """Learners, and what is compiled of them."""

    @staticmethod
    def of(served: Sequence[AbstractServed]) -> "Service":
        """A service of these learners."""
        return Service({one.card.name: one for one in served})

    def warm_up(self, tell: Callable[[str], None] = lambda words: None) -> Iterator[None]:
        """Compiles: comes back once the first learner can be asked, then after each of the others, then after each
        further program."""
        under_way = {name: one.warm_up() for name, one in self.learners.items()}
        firsts = ((name, next(programs)) for name, programs in under_way.items())
        rest = ((name, words) for name, programs in under_way.items() for words in programs)
        for name, words in chain(firsts, rest):
            self.compiled.add((name, words))
            tell(f"{name}: {words}")
            yield
        self.ready = True

    def find(self, name: str) -> AbstractServed:
        """A learner by its name."""
        if name not in self.learners:
            raise Refused(f"there is no learner '{name[:80]}'. There are: {', '.join(self.learners)}.", 404)
        return self.learners[name]

    def listing(self) -> Json:
        """All learners."""
        return {"learners": [one.about for one in self.learners.values()]}

    def about(self, name: str) -> Json:
        """All that is known of a learner."""
        one = self.find(name)
        ready = self.ready or any(name == known for known, _ in self.compiled)
        told = {"card": one.card.text, "extras": list(one.forms.extras), "ready": ready}
        return {**one.about, **told, "material": one.material()}

    def predict(self, name: str, body: Any) -> Json:
        """Adapts and predicts in one call."""
        one = self.find(name)
        told = one.forms.predict.check(body, WHERE)
        return one.predict(one.adapt(told), told)

    def adapt(self, name: str, body: Any) -> Json:
        """Adapts, and keeps what comes of it."""
        one = self.find(name)
        adapted = one.adapt(one.forms.taught.check(body, WHERE))
        return {"id": self.kept.add(name, adapted), "shots": adapted.shots}

    def predict_kept(self, name: str, number: str, body: Any) -> Json:
        """Predicts with an adaptation that was kept."""
        one = self.find(name)
        adapted = self.kept.get(name, number)
        return one.predict(adapted, one.forms.asked.check(body, WHERE))

    def forget(self, name: str, number: str) -> Json:
        """Drops an adaptation."""
        self.find(name)
        self.kept.drop(name, number)
        return {"forgotten": number}

    def batch(self, name: str, body: Any) -> Json:
        """Adapts to several groups and predicts each."""
        one = self.find(name)
        told = one.forms.batch.check(body, WHERE)
        groups = [
            {**told, **{part: value for part, value in group.items() if value is not None}} for group in told["groups"]
        ]
        return {"groups": [one.predict(one.adapt(group), group) for group in groups]}

    def extra(self, name: str, what: str, body: Any) -> Json:
        """What only some learners can be asked."""
        extras = self.find(name).forms.extras
        if what not in extras:
            raise Refused(f"'{name}' cannot be asked for '{what[:80]}'.", 404)
        if not self.ready and (name, what) not in self.compiled:
            raise Refused(f"'{what}' is still being compiled. Ask again soon.", 503, WAIT)
        return extras[what].act(extras[what].form.check(body, WHERE))
