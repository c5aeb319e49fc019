"""Tables in Markdown and the figure of what `studies/equal_faces.py` wrote.

A learner for ambiguity is chosen by tasks of the test's kind on validation attributes, each row with the factor on
sigma that each of its seeds chose by them (`pick`): of the rows with at least TARGET rules covered, an accuracy not
below MAML's and an NLL below it there, that with the lowest NLL; where there is none, the one with the lowest NLL of
those that cover TARGET. All are means over the seeds there are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stmaml.metrics import summarise_crossed
from stmaml.run_files import read_json

SCORES = ("accuracy", "nll", "nll_served", "accuracy_all", "coverage")
BY_FACTOR = "{} {:g} {}"  # how scores of a part, a factor and a kind are called
TARGET = 2.3  # rules of three that have a model
AGAINST = "maml"
Means = Mapping[str, float]


def pick(found: Mapping[float, Means]) -> float:
    """The factor with the lowest NLL among those that cover TARGET rules; without any, that which covers the most."""
    enough = [factor for factor, means in found.items() if means["coverage"] >= TARGET]
    if not enough:
        return max(found, key=lambda factor: found[factor]["coverage"])
    return min(enough, key=lambda factor: found[factor]["nll"])


@dataclass(frozen=True)
class Row:
    """All seeds of a row: what each told, and the scores of each task."""

    name: str
    told: dict[int, dict[str, Any]]
    scores: dict[int, dict[str, np.ndarray]]

    def values(self, part: str, kind: str, factor: float | None, seeds: Sequence[int] = ()) -> np.ndarray:
        """Scores by seed and task under one factor, or under that which each seed chose."""
        chosen = {seed: self.told[seed]["factor"] if factor is None else factor for seed in seeds or self.told}
        return np.stack([self.scores[seed][BY_FACTOR.format(part, one, kind)] for seed, one in chosen.items()])

    def mean(self, part: str, kind: str, factor: float | None) -> float:
        return float(self.values(part, kind, factor).mean())

    @property
    def factors(self) -> list[float]:
        return sorted(float(one) for one in next(iter(self.told.values()))["metrics"]["choosing"])

    @property
    def chosen(self) -> str:
        return ", ".join(f"{one['factor']:g}" for one in self.told.values())


def rows_of(folders: Sequence[Path]) -> dict[str, Row]:
    """All rows, by their names."""
    found: dict[str, Row] = {}
    for path in sorted(path for folder in folders for path in (folder / "rows").glob("*.json")):
        told = read_json(path)
        row = found.setdefault(told["row"], Row(told["row"], {}, {}))
        row.told[told["seed"]] = told
        row.scores[told["seed"]] = dict(np.load(path.parents[1] / "scores" / f"{path.stem}.npz"))
    return found


def for_ambiguity(rows: Mapping[str, Row]) -> tuple[str | None, bool]:
    """The row that the rule above chooses, None if no row covers enough; and whether it is as right as MAML there."""
    means = {name: {kind: row.mean("choosing", kind, None) for kind in SCORES} for name, row in rows.items()}
    covering = [name for name in rows if means[name]["coverage"] >= TARGET]
    limit = means.get(AGAINST, {"accuracy": 0.0, "nll": np.inf})
    good = [n for n in covering if means[n]["accuracy"] >= limit["accuracy"] and means[n]["nll"] < limit["nll"]]
    return min(good or covering, key=lambda name: means[name]["nll"], default=None), bool(good)


def show(rows: Mapping[str, Row], figure: Path | None) -> None:
    """Prints the tables, and draws the figure if it has a path."""
    for part, factor, title in (
        ("test", 1.0, "Test tasks, z as it was trained"),
        ("test", None, "Test tasks, the factor on sigma that each seed chose"),
        ("choosing", None, "Tasks for choosing, the same factors"),
    ):
        _print_table(rows, part, factor, title)
    name, good = for_ambiguity(rows)
    print(f"\nFor ambiguity, by tasks for choosing: {name}{'' if good else ', though not as right as MAML there'}")
    _print_curve(rows)
    if figure is not None:
        draw(rows, figure)


def _print_table(rows: Mapping[str, Row], part: str, factor: float | None, title: str) -> None:
    print(f"\n**{title}**\n")
    print(f"| row | seeds | tasks | factors | {' | '.join(SCORES)} | accuracy over {AGAINST} | NLL over {AGAINST} |")
    print("|---|--:|--:|---|" + "--:|" * (len(SCORES) + 2))
    for row in rows.values():
        about = [row.name, str(len(row.told)), f"{next(iter(row.told.values()))['trained_on']:,}"]
        cells = [_cell(row.values(part, kind, factor)) for kind in SCORES]
        gaps = [_gap(row, rows.get(AGAINST), part, kind, factor) for kind in ("accuracy", "nll")]
        print(f"| {' | '.join([*about, row.chosen if factor is None else f'{factor:g}', *cells, *gaps])} |")


def _cell(values: np.ndarray) -> str:
    one = summarise_crossed(values)
    return f"{one['mean']:.3f} ± {one['ci95']:.3f}"


def _gap(row: Row, base: Row | None, part: str, kind: str, factor: float | None) -> str:
    """On the same tasks, seed by seed."""
    if base is None or row.name == base.name or not (seeds := [seed for seed in row.told if seed in base.told]):
        return ""
    return _cell(row.values(part, kind, factor, seeds) - base.values(part, kind, 1.0, seeds))


def _print_curve(rows: Mapping[str, Row]) -> None:
    for part, title in (("curve", "Some of the test tasks"), ("choosing", "Tasks for choosing")):
        print(f"\n**{title}, by the factor on sigma; means over seeds**\n\n| row | factor | {' | '.join(SCORES)} |")
        print("|---|--:|" + "--:|" * len(SCORES))
        for row in rows.values():
            for factor in row.factors:
                cells = [f"{row.mean(part, kind, factor):.3f}" for kind in SCORES]
                print(f"| {row.name} | {factor:g} | {' | '.join(cells)} |")


def draw(rows: Mapping[str, Row], path: Path) -> None:
    """Coverage against accuracy and NLL: a line through the factors of each row that has a z, a point for others."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    for axis, kind, word in zip(axes, ("accuracy", "nll"), ("accuracy", "NLL"), strict=True):
        for index, row in enumerate(rows.values()):
            x, y = ([row.mean("curve", one, factor) for factor in row.factors] for one in ("coverage", kind))
            colour, several = f"C{index % 10}", len(row.factors) > 1
            axis.plot(x, y, "o-" if several else "s", color=colour, markersize=4, label=short(row.name))
            if several:
                axis.plot(*(row.mean("curve", one, 1.0) for one in ("coverage", kind)), "o", color=colour, markersize=9)
            if row.name == AGAINST:
                axis.axhline(y[0], color=colour, linewidth=0.8)
        axis.axvline(TARGET, color="gray", linewidth=0.8, linestyle="--")
        axis.set(xlabel="rules of three with a model (coverage)", ylabel=word)
    axes[1].legend(frameon=False, fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def short(name: str) -> str:
    """A row's name without the paths of its settings."""
    recipe, _, changes = name.partition("@")
    inside = ", ".join(change.removeprefix("method_settings.").replace("_", " ") for change in changes.split(","))
    return f"{recipe}, {inside}" if changes else recipe
