"""From the folder of a run to a served learner: a benchmark says by its `page` which room opens its runs."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stmaml.benchmarks import BENCHMARKS
from stmaml.benchmarks.base import TABLE
from stmaml.border.files import read_file
from stmaml.conditions import slugify
from stmaml.errors import RunError, SettingError
from stmaml.runs import Run
from stmaml.serving.base import AbstractServed, Card
from stmaml.shipped import pretrained_alone, pretrained_folder

PAGES = {"curves": "curves", "pixels": "pixels", "years": "years", "table": "tables"}
"""Modules of this room by the pages of benchmarks; each opens with `open_run(run, card, data)`."""
CARD_FILE = "card.md"
FIRST = "regression2d"
MOST_CARD = 100_000  # characters of a model card that are shown
Opener = Callable[[Run, Card, str | None], AbstractServed]


@dataclass(frozen=True)
class Source:
    """A folder with a learner in it."""

    folder: Path
    shipped: bool = False


def shipped_sources() -> list[Source]:
    """The learners that come with the package; first the one whose page opens first."""
    names = sorted(pretrained_alone(), key=lambda name: (name != FIRST, name))
    return [Source(pretrained_folder() / name, shipped=True) for name in names]


def open_all(sources: list[Source], data: str | None = None) -> list[AbstractServed]:
    """A served learner for each folder, under names that differ."""
    served: list[AbstractServed] = []
    for source in sources:
        taken = {one.card.name for one in served}
        served.append(open_one(source, _free(slugify(source.folder.resolve().name) or "run", taken), data))
    return served


def open_one(source: Source, name: str, data: str | None = None) -> AbstractServed:
    """The learner of a folder."""
    run = Run(source.folder)
    config = run.config()
    benchmark, method = config["benchmark"]["name"], config["method"]["name"]
    title = f"{benchmark} by {method}" if source.shipped else f"{source.folder.name} ({method})"
    card = Card(name, title, page_of(benchmark, source.folder), method, card_text(source.folder))
    opener: Opener = importlib.import_module(f"stmaml.serving.{PAGES[card.page]}").open_run
    return opener(run, card, data)


def page_of(benchmark: str, folder: Path) -> str:
    """The page that runs of a benchmark are shown on."""
    if benchmark == TABLE:
        return importlib.import_module("stmaml.tables.benchmark").Config.page
    if benchmark not in BENCHMARKS:
        raise RunError(f"{folder} is of a benchmark '{benchmark}' that this version does not know.")
    page = BENCHMARKS[benchmark].page
    if not page:
        known = [name for name, config in BENCHMARKS.items() if config.page]
        raise SettingError(
            f"{folder} is a run of {benchmark}, which has no page. Serve runs of {', '.join(known)} or of 'stmaml fit'."
        )
    return page


def card_text(folder: Path) -> str:
    """The model card beside the weights, if there is one."""
    path = folder / CARD_FILE
    return read_file(path).decode("utf-8", "replace")[:MOST_CARD] if path.is_file() else ""


def _free(name: str, taken: set[str]) -> str:
    numbered = (f"{name}-{i}" for i in range(2, len(taken) + 3))
    return name if name not in taken else next(other for other in numbered if other not in taken)
