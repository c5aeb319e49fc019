"""Scores of the runs of a report by what they are scores of: only the same test tasks stand in one table."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from stmaml.benchmarks.base import Floor
from stmaml.benchmarks.floors import BAYES_LIMIT, find_floor
from stmaml.conditions import Conditions
from stmaml.errors import RunError
from stmaml.legacy.scores import split_tables
from stmaml.metric_table import in_order
from stmaml.metrics import Summary, of_each_task, summarise, summarise_crossed
from stmaml.reports.variants import Variant, flatten, require, settings_of
from stmaml.runs import Run

IN_SUMMARY = ("benchmark", "seed", "tasks", "samples", "digest", "metrics", "families", "conditions")


@dataclass(frozen=True)
class Evaluation:
    """Scores of one run, as saved."""

    run: Run
    name: str
    summary: dict[str, Any]

    @property
    def conditions(self) -> Conditions:
        """What the scores are of."""
        return Conditions.from_json(self.summary["conditions"])

    @property
    def digest(self) -> str:
        """Which tasks these are."""
        return self.summary["digest"]


@dataclass(frozen=True)
class Row:
    """Scores of one thing under the conditions of a section: one evaluation for each seed."""

    label: str
    variant: Variant
    evaluations: tuple[Evaluation, ...]
    beside: bool = False
    """Not the variant's own method but something scored beside it, such as a baseline of a table."""

    @cached_property
    def metrics(self) -> dict[str, Summary]:
        """Each metric with its interval: over tasks for one seed, over seeds and tasks for several."""
        return self._pooled([evaluation.summary["metrics"] for evaluation in self.evaluations], slice(None))

    @cached_property
    def families(self) -> dict[str, dict[str, Summary]]:
        """The same for each family."""
        each = [evaluation.summary["families"] for evaluation in self.evaluations]
        names = [name for name in each[0] if all(name in one for one in each)]
        family = self.per_task["family"][0] if "family" in self.per_task else np.zeros(0)
        numbers = np.unique(family)
        known = dict(zip(each[0], numbers, strict=True)) if len(numbers) == len(each[0]) else {}
        return {name: self._pooled([one[name] for one in each], family == known.get(name)) for name in names}

    @cached_property
    def per_task(self) -> dict[str, np.ndarray]:
        """Each task's scores under each seed; none where they were not saved."""
        if any(evaluation.summary.get("arrays") is False for evaluation in self.evaluations):
            return {}
        arrays = [evaluation.run.score_arrays(evaluation.name) for evaluation in self.evaluations]
        alike = [name for name in _shared(arrays) if len({one[name].shape for one in arrays}) == 1]
        return {name: np.stack([of_each_task(one[name]) for one in arrays]) for name in alike}

    def median(self, name: str) -> float | None:
        """The median over tasks of a score averaged over seeds, where the scores of tasks were saved."""
        return float(np.median(self.per_task[name].mean(0))) if name in self.per_task else None

    def _pooled(self, parts: list[dict[str, Summary]], chosen: Any) -> dict[str, Summary]:
        """Summaries of several seeds as one: with tasks as well where their scores were saved, else over seeds."""
        if len(parts) == 1:
            return parts[0]
        over_seeds = _pool(parts)
        crossed = {name: self.per_task[name][:, chosen] for name in over_seeds if name in self.per_task}
        return over_seeds | {name: summarise_crossed(values) for name, values in crossed.items() if values.size}


@dataclass(frozen=True)
class Section:
    """All results on the same test tasks."""

    conditions: Conditions
    digest: str
    """Of the tasks as the first row was shown them."""
    rows: tuple[Row, ...]
    floor: Floor | None
    """The best possible scores, with what they are under `name`."""
    mark: str = ""
    """Tells its title from that of other sections of the same conditions."""
    apart: str = ""
    """Why it does not stand in one table with those."""

    @property
    def title(self) -> str:
        """The conditions in words."""
        return self.conditions.words() + self.mark

    @property
    def summary(self) -> dict[str, Any]:
        """That of the first evaluation, for what all share."""
        return self.rows[0].evaluations[0].summary

    @property
    def shots(self) -> int | None:
        """Labelled examples in a support set, where the benchmark has such a number."""
        return self.conditions.tasks.get("shots")

    @property
    def units(self) -> str:
        """What is independent of each other: tasks, or the groups that several tasks are of."""
        return "groups" if "groups" in self.conditions.tasks else "tasks"

    @property
    def metrics(self) -> list[str]:
        """The metrics any row has, in the order of the table of metrics."""
        return in_order(dict.fromkeys(name for row in self.rows for name in row.metrics))

    @property
    def families(self) -> list[str]:
        """The families any row has."""
        return list(dict.fromkeys(name for row in self.rows for name in row.families))


@dataclass(frozen=True)
class Sweep:
    """Results that differ in the number of labelled examples alone."""

    title: str
    metric: str
    """The first of those saved."""
    points: dict[str, dict[int, dict[str, Summary]]]
    """Scores by the row's label and the number of examples."""
    floors: dict[int, dict[str, Summary]] = field(default_factory=dict)
    floor_name: str = BAYES_LIMIT
    figure: str = "shots"
    """The kind of figure that shows it."""
    label: str = "labelled examples"
    """What is counted."""
    benchmark: str = ""


def collect_sections(variants: Iterable[Variant]) -> list[Section]:
    """Every saved evaluation of the variants, by its conditions and its very tasks."""
    scored = [(variant, each) for variant in variants for run in variant.runs for each in _evaluations(run)]
    # Inputs shown otherwise change the digest, not the tasks; scores of 0.1.0 have no digest of the targets alone.
    same = {each.digest: each.summary["targets_digest"] for _, each in scored if each.summary.get("targets_digest")}
    found: dict[tuple[Conditions, str], dict[tuple[str, bool], Row]] = {}
    for variant, evaluation in scored:
        key = evaluation.conditions, same.get(evaluation.digest, evaluation.digest)
        _add(found.setdefault(key, {}), variant, evaluation)
    groups: dict[Conditions, list[Section]] = {}
    for (conditions, _), by_label in found.items():
        rows = tuple(sorted(by_label.values(), key=lambda row: row.beside))  # runs first, in the order they came
        section = Section(conditions, rows[0].evaluations[0].digest, rows, _floor(conditions, rows))
        groups.setdefault(conditions, []).append(section)
    benchmarks = list(dict.fromkeys(conditions.benchmark for conditions in groups))
    ranked = sorted(
        groups.values(), key=lambda group: (benchmarks.index(group[0].conditions.benchmark), *_rank(group[0]))
    )
    return [section for group in ranked for section in _told_apart(group)]


def _rank(section: Section) -> tuple[bool, int]:
    """Tests with as many examples as in training first, then by their number; else in the order they came."""
    trained = section.rows[0].variant.config["benchmark"]["settings"].get("shots")
    return section.shots != trained, section.shots or 0


def _add(rows: dict[tuple[str, bool], Row], variant: Variant, evaluation: Evaluation) -> None:
    """Puts an evaluation into its row. What was scored beside several runs on the same tasks counts once."""
    beside = "row" in evaluation.summary
    label = evaluation.summary["row"] if beside else variant.label
    if (label, beside) not in rows:
        rows[label, beside] = Row(label, variant, (evaluation,), beside)
    elif not beside:
        row = rows[label, beside]
        rows[label, beside] = replace(row, evaluations=(*row.evaluations, evaluation))


def _evaluations(run: Run) -> Iterator[Evaluation]:
    """A run's evaluations, one for the same thing on the same tasks."""
    found: dict[tuple[Any, ...], Evaluation] = {}
    for name, summary in _summaries(run).items():
        require(run.scores_folder / f"{name}.json", summary, IN_SUMMARY)
        if summary.get("floor"):
            require(run.scores_folder / f"{name}.json", summary["floor"], ("metrics",))
        evaluation = Evaluation(run, name, summary)
        found.setdefault((evaluation.conditions, evaluation.digest, summary.get("row")), evaluation)
    if not found:
        raise RunError(f"{run.folder} has no evaluation yet: run 'stmaml evaluate {run.folder}' first.")
    yield from found.values()


def _summaries(run: Run) -> dict[str, dict[str, Any]]:
    """The summaries of a run, those of 0.1.0 taken apart."""
    config = settings_of(run)
    try:
        return split_tables(run.scores(), config)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(
            f"{run.config_path} does not fit the scores beside it ({error}). Restore it, or fit again."
        ) from error


def _told_apart(group: list[Section]) -> list[Section]:
    """Sections of the same conditions, that with the most tasks first, each saying why it stands by itself."""
    if len(group) == 1:
        return group
    group = sorted(group, key=lambda section: -section.summary["tasks"])
    counts = [section.summary["tasks"] for section in group]
    marks = {n: f" ({n:,} tasks)" for n in counts if counts.count(n) == 1}
    first, *others = [replace(s, mark=marks.get(s.summary["tasks"], f" (digest {s.digest})")) for s in group]
    return [first, *(replace(section, apart=_why_apart(section, first)) for section in others)]


def _why_apart(section: Section, first: Section) -> str:
    here, there = section.summary["tasks"], first.summary["tasks"]
    why = f"on other tasks: {here:,} instead of {there:,} tasks"
    if here == there:
        # All settings of the benchmark, among them those that say where its files lie or how they are shown.
        own, others = (Conditions("", flatten(each.summary.get("settings", {}))) for each in (section, first))
        differ = own.differences(others)
        why = f"on other data: digest {section.digest} instead of {first.digest}"
        why += f"; settings that differ: {differ}" if differ else ""
    return f"The same settings {why}. Scores here do not compare with those of the table before."


def collect_sweeps(sections: Iterable[Section]) -> list[Sweep]:
    """Sections that differ in their shots alone, taken together, where a row was tested with two or more. Of several
    with the same shots, which are of other tasks, the first is taken."""
    groups: dict[tuple[Conditions, int, str], dict[int, Section]] = {}
    for section in sections:
        if section.shots is not None:
            # The tasks of a table are the same whatever is labelled, so that their digest tells tables apart.
            table = section.digest if "groups" in section.conditions.tasks else ""
            key = section.conditions.without("shots"), section.summary["tasks"], table
            groups.setdefault(key, {}).setdefault(section.shots, section)
    several = Counter(conditions for conditions, *_ in groups)
    marks = {key: f" ({key[2] or f'{key[1]:,} tasks'})" if several[key[0]] > 1 else "" for key in groups}
    sweeps = [_sweep(key[0].words() + marks[key], by_shots) for key, by_shots in groups.items()]
    return [sweep for sweep in sweeps if any(len(numbers) > 1 for numbers in sweep.points.values())]


def _sweep(title: str, sections: dict[int, Section]) -> Sweep:
    points: dict[str, dict[int, dict[str, Summary]]] = {}
    for shots, section in sections.items():
        for row in section.rows:
            points.setdefault(row.label, {})[shots] = row.metrics
    floors = {shots: section.floor for shots, section in sections.items() if section.floor is not None}
    limits = {shots: floor["metrics"] for shots, floor in floors.items()}
    name = next((floor["name"] for floor in floors.values()), BAYES_LIMIT)
    first = next(iter(sections.values()))
    shown = {name: value for name, value in first.summary.get("sweep", {}).items() if name in ("figure", "label")}
    return Sweep(title, first.metrics[0], points, limits, name, benchmark=first.conditions.benchmark, **shown)


def _pool(parts: list[dict[str, Summary]]) -> dict[str, Summary]:
    return {name: summarise(np.array([part[name]["mean"] for part in parts])) for name in _shared(parts)}


def _shared(parts: list[Any]) -> list[str]:
    return [name for name in parts[0] if all(name in part for part in parts)]


def _floor(conditions: Conditions, rows: Iterable[Row]) -> Floor | None:
    """The limit that came with an evaluation, else one computed before."""
    for summary in (evaluation.summary for row in rows for evaluation in row.evaluations):
        if summary.get("floor"):
            return {"name": "floor", **summary["floor"]}
    return find_floor(conditions)
