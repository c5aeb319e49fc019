"""What a report is about: the runs it was given, sorted into variants (rows) and test conditions (sections)."""

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stmaml.benchmarks.floors import Floor, find_floor
from stmaml.errors import RunError, SettingError
from stmaml.metrics import Summary, summarise_seeds
from stmaml.recipes import recipe
from stmaml.runs import Run, find_runs, read_npz

UNTOLD = {"val_every", "val_tasks", "val_samples", "checkpoint_every", "steps_per_call", "on_divergence", "remat"}
UNTOLD |= {"data", "file_list", "images_on"}
"""Settings that say how training is watched or stored or where files lie, not what is learnt: they make no variant."""
BASELINE = "baseline"
"""The preset of runs that scikit-learn fitted: they have neither settings, log nor weights."""
BAYES_LIMIT = "Bayes limit"
IN_CONFIG = ("seed", "benchmark", "method", "modelling", "training")
IN_SUMMARY = ("benchmark", "seed", "tasks", "samples", "task_set", "digest", "settings", "metrics", "families")


@dataclass(frozen=True)
class Variant:
    """Runs that differ in their seed alone."""

    label: str
    runs: tuple[Run, ...]
    config: dict[str, Any]
    """Settings of the first run."""

    @property
    def slug(self) -> str:
        """The label as part of a file name."""
        return slugify(self.label)


@dataclass(frozen=True)
class Evaluation:
    """Scores of one run, as saved."""

    run: Run
    name: str
    summary: dict[str, Any]


@dataclass(frozen=True)
class Row:
    """A variant's scores under the conditions of a section: one evaluation for each seed."""

    variant: Variant
    evaluations: tuple[Evaluation, ...]

    @property
    def metrics(self) -> dict[str, Summary]:
        """Each metric with its interval: over tasks for one seed, over seeds for several."""
        return _pool([evaluation.summary["metrics"] for evaluation in self.evaluations])

    @property
    def families(self) -> dict[str, dict[str, Summary]]:
        """The same for each family."""
        each = [evaluation.summary["families"] for evaluation in self.evaluations]
        return {name: _pool([one[name] for one in each]) for name in each[0] if all(name in one for one in each)}

    @property
    def digest(self) -> str | None:
        """Which tasks these are; None if the seeds were scored on different ones."""
        digests = {evaluation.summary["digest"] for evaluation in self.evaluations}
        return digests.pop() if len(digests) == 1 else None

    def per_task(self) -> dict[str, np.ndarray]:
        """Each task's scores, averaged over seeds."""
        arrays = [evaluation.run.score_arrays(evaluation.name) for evaluation in self.evaluations]
        return {name: np.mean([one[name] for one in arrays], axis=0) for name in _shared(arrays)}


@dataclass(frozen=True)
class Section:
    """All results under the same test conditions."""

    title: str
    rows: tuple[Row, ...]
    floor: Floor | None
    """The best possible scores, with what they are under `name`."""

    @property
    def benchmark(self) -> str:
        """What the tasks are of."""
        return self.rows[0].evaluations[0].summary["benchmark"]

    @property
    def shots(self) -> int | None:
        """Labelled examples in a support set, where the benchmark has such a number."""
        return self.rows[0].evaluations[0].summary["settings"].get("shots")

    @property
    def trained_shots(self) -> int | None:
        """The same in training, of the first row."""
        return self.rows[0].variant.config["benchmark"]["settings"].get("shots")

    @property
    def metrics(self) -> list[str]:
        """The metrics any row has, in the order they were saved."""
        return list(dict.fromkeys(name for row in self.rows for name in row.metrics))

    @property
    def families(self) -> list[str]:
        """The families any row has."""
        return list(dict.fromkeys(name for row in self.rows for name in row.families))


@dataclass(frozen=True)
class Sweep:
    """Results that differ in the number of labelled examples alone."""

    title: str
    benchmark: str
    metric: str
    """The first of those saved."""
    points: dict[str, dict[int, dict[str, Summary]]]
    """Scores by the variant's label and the number of examples."""
    floors: dict[int, dict[str, Summary]]
    floor_name: str


def collect_variants(folders: Iterable[Path]) -> list[Variant]:
    """The runs in these folders, grouped by their settings, in the order given."""
    distinct = {folder.resolve(): folder for folder in folders}.values()
    runs = [(folder, run, _config(run)) for folder in distinct for run in find_runs(folder)]
    several = len({config["benchmark"]["name"] for _, _, config in runs}) > 1
    groups: dict[str, dict[Path, list[Run]]] = {}
    for folder, run, config in runs:
        label = describe(config) + (f" on {config['benchmark']['name']}" if several else "")
        groups.setdefault(label, {}).setdefault(folder, []).append(run)
    return [variant for label, found in groups.items() for variant in _split(label, found)]


def _split(label: str, found: dict[Path, list[Run]]) -> list[Variant]:
    """One variant; or one for each folder where two folders hold the same seed."""
    runs = [run for group in found.values() for run in group]
    seeds = [_place(_config(run)) for run in runs]
    if len(set(seeds)) == len(seeds):
        return [Variant(label, tuple(runs), _config(runs[0]))]
    plain = len({folder.name for folder in found}) == len(found)
    return [
        Variant(f"{label} [{folder.name if plain else folder}]", tuple(group), _config(group[0]))
        for folder, group in found.items()
    ]


def _place(config: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells the runs of a variant apart: the seed; also the shots for a baseline, which is fitted to each anew."""
    return config["seed"], config["benchmark"]["settings"].get("shots") if is_baseline(config) else None


def collect_sections(variants: Iterable[Variant]) -> list[Section]:
    """Every saved evaluation of the variants, by its test conditions."""
    found: dict[str, dict[str, list[Evaluation]]] = {}
    by_label = {variant.label: variant for variant in variants}
    for label, variant in by_label.items():
        for run in variant.runs:
            for title, evaluation in _evaluations(run).items():
                found.setdefault(title, {}).setdefault(label, []).append(evaluation)
    sections = [
        Section(title, tuple(Row(by_label[label], tuple(each)) for label, each in rows.items()), _floor(rows))
        for title, rows in found.items()
    ]
    # Tests with as many examples as in training first, then by their number; else in the order they came.
    return sorted(sections, key=lambda section: (section.shots != section.trained_shots, section.shots or 0))


def _evaluations(run: Run) -> dict[str, Evaluation]:
    """A run's evaluations by their conditions; of several under the same ones, that with the most tasks."""
    best: dict[str, Evaluation] = {}
    for name, summary in run.scores().items():
        _require(run.scores_folder / f"{name}.json", summary, IN_SUMMARY)
        if summary.get("floor"):
            _require(run.scores_folder / f"{name}.json", summary["floor"], ("metrics",))
        title = conditions(summary)
        if title not in best or summary["tasks"] > best[title].summary["tasks"]:
            best[title] = Evaluation(run, name, summary)
    if not best:
        raise RunError(f"{run.folder} has no evaluation yet: run 'stmaml evaluate {run.folder}' first.")
    return best


def collect_sweeps(sections: Iterable[Section]) -> list[Sweep]:
    """Sections that differ in their shots alone, taken together, where a variant was tested with two or more."""
    groups: dict[str, list[Section]] = {}
    for section in sections:
        if section.shots is not None:
            groups.setdefault(re.sub(r"\bshots \d+, ", "", section.title), []).append(section)
    sweeps = [_sweep(title, group) for title, group in groups.items()]
    return [sweep for sweep in sweeps if any(len(numbers) > 1 for numbers in sweep.points.values())]


def _sweep(title: str, sections: list[Section]) -> Sweep:
    points: dict[str, dict[int, dict[str, Summary]]] = {}
    floors: dict[int, dict[str, Summary]] = {}
    name = BAYES_LIMIT
    for section in sections:
        shots = section.shots or 0
        for row in section.rows:
            points.setdefault(row.variant.label, {})[shots] = row.metrics
        if section.floor is not None:
            floors[shots], name = section.floor["metrics"], section.floor["name"]
    return Sweep(title, sections[0].benchmark, sections[0].metrics[0], points, floors, name)


def conditions(summary: Mapping[str, Any]) -> str:
    """The test conditions in words, whatever the number of tasks."""
    benchmark, *parts = summary["task_set"].split("/seed-")[0].split("/")
    words = [re.sub(r"^([a-z_]+)(?=-?\d)", r"\1 ", part) for part in parts]
    words.append(f"{summary['samples']} sample{'s' * (summary['samples'] > 1)} a task")
    if summary.get("inner_steps") is not None:
        words.append(f"inner steps {summary['inner_steps']}")
    return f"{benchmark}: {', '.join(words)}"


def describe(config: Mapping[str, Any]) -> str:
    """The method, with its preset and the settings that differ from its recipe."""
    preset = config["method"]["preset"]
    notes = [] if preset in ("paper", BASELINE) else [preset]
    notes += [f"{name}={_short(value)}" for name, value in changes(config).items()]
    return config["method"]["name"] + (f" ({', '.join(notes)})" if notes else "")


def changes(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run that differ from the recipe it started from."""
    method = config["method"]
    try:
        usual = recipe(config["benchmark"]["name"], method["name"], method["preset"])
    except SettingError:
        return {}
    groups = (
        (usual.method_settings, method["settings"]),
        (usual.benchmark_settings, config["benchmark"]["settings"]),
        (usual.modelling, config["modelling"]),
        (usual.training, config["training"]),
    )
    changed: dict[str, Any] = {}
    for known, used in groups:
        before = flatten(as_json(known))
        changed |= {name: v for name, v in flatten(used).items() if name not in before or before[name] != v}
    return {name: value for name, value in changed.items() if name not in UNTOLD}


def is_baseline(config: Mapping[str, Any]) -> bool:
    """Whether scikit-learn fitted a run."""
    return config["method"]["preset"] == BASELINE


def count_parameters(run: Run) -> int | None:
    """How many numbers a run has trained; None where it has no weights."""
    if not run.learner_path.exists():
        return None
    arrays = read_npz(run.learner_path).values()
    return sum(array.size for array in arrays if np.issubdtype(array.dtype, np.floating))


def as_json(settings: Any) -> dict[str, Any]:
    """A settings dataclass as it looks after a journey through JSON."""
    return json.loads(json.dumps(dataclasses.asdict(settings)))


def flatten(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings within settings, as one level of names."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= flatten(value) if isinstance(value, dict) else {name: value}
    return flat


def slugify(text: str) -> str:
    """Lower-case words with dashes between."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def _short(value: Any) -> str:
    if isinstance(value, list):
        return "x".join(_short(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _config(run: Run) -> dict[str, Any]:
    config = run.config()
    _require(run.config_path, config, IN_CONFIG)
    for part in ("benchmark", "method"):
        _require(
            run.config_path,
            config[part],
            ("name", "settings") if part == "benchmark" else ("name", "preset", "settings"),
        )
    return config


def _require(path: Path, content: Any, names: tuple[str, ...]) -> None:
    missing = [name for name in names if not isinstance(content, dict) or name not in content]
    if missing:
        raise RunError(f"{path} lacks '{missing[0]}'. Restore it from a copy, or train or evaluate again.")


def _pool(parts: list[dict[str, Summary]]) -> dict[str, Summary]:
    if len(parts) == 1:
        return parts[0]
    return {name: summarise_seeds(np.array([part[name]["mean"] for part in parts])) for name in _shared(parts)}


def _shared(parts: list[Any]) -> list[str]:
    return [name for name in parts[0] if all(name in part for part in parts)]


def _floor(rows: dict[str, list[Evaluation]]) -> Floor | None:
    """The limit that came with an evaluation, else one computed before."""
    summaries = [evaluation.summary for each in rows.values() for evaluation in each]
    for summary in summaries:
        if summary.get("floor"):
            return {"name": "floor", **summary["floor"]}
    found = find_floor(summaries[0]["task_set"])
    return None if found is None else {**found, "name": BAYES_LIMIT}
