"""Names of variants, short where nothing is lost."""

import re
from collections.abc import Sequence

from stmaml.reports.content import Cell

SETTINGS = re.compile(r"^(?P<name>[^(]*) \((?P<settings>.*)\)(?P<rest>[^()]*)$")
BENCHMARK = re.compile(r" on [^ ()]+$")


def label_cell(label: str) -> Cell:
    """The method, with its settings as what may be passed over, and its benchmark for who sees no title."""
    bare = BENCHMARK.sub("", label)
    tail = label[len(bare) :].strip()
    found = SETTINGS.match(bare)
    if found is None:
        return Cell(bare, tail=tail)
    return Cell(found["name"], f"({found['settings']}){found['rest']}", tail=tail)


def short_labels(labels: Sequence[str]) -> dict[str, str]:
    """Each label without its benchmark and the settings that all of the same method share; whole where two would look
    the same."""
    bare = {label: BENCHMARK.sub("", label) for label in labels}
    short = {label: _short(one, list(bare.values())) for label, one in bare.items()}
    taken = list(short.values())
    return {label: one if taken.count(one) == 1 else label for label, one in short.items()}


def _short(label: str, labels: Sequence[str]) -> str:
    found = SETTINGS.match(label)
    if found is None:
        return label
    same = [other for other in map(SETTINGS.match, labels) if other is not None and other["name"] == found["name"]]
    shared = set.intersection(*(set(other["settings"].split(", ")) for other in same))
    own = [setting for setting in found["settings"].split(", ") if setting not in shared]
    return f"{found['name']} ({', '.join(own)})" if own else found["name"]
