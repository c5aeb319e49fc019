"""Makes a learner that ships with the package out of a run: weights, settings, tasks to play with, and a card.

    stmaml evaluate runs/best-completion --data digits
    python studies/ship.py runs/best-completion completion --data digits --half

The card is filled from the run's settings and scores, or from those that studies/timed.py told (--log). Weights in half
precision (--half) are refused where they move a score on validation tasks by more than a tenth of its 95 % interval."""

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np

from stmaml.benchmarks.base import Benchmark
from stmaml.evaluation import evaluate
from stmaml.experiments import EvaluateConfig, load_experiment, load_learner
from stmaml.metric_table import in_order, metric
from stmaml.metrics import Summary
from stmaml.numbers import with_interval
from stmaml.recipes import Experiment
from stmaml.run_files import read_arrays
from stmaml.runs import Run
from stmaml.serving.examples import Example, save_examples
from stmaml.shipped import load_shipped, pretrained_folder, ship

DATA = {
    "regression2d": "Synthetic curves and surfaces of six families, drawn while training. No data, no licence.",
    "completion": (
        "Training images of MNIST (LeCun, Cortes, Burges; CC BY-SA 3.0), Fashion-MNIST (Zalando; MIT) and KMNIST "
        "(ROIS-DS Center for Open Data in the Humanities; CC BY-SA 4.0). None of these images is in the package: the "
        "page shows pictures drawn for it (`studies/draw_pictures.py`)."
    ),
    "weather": (
        "NOAA's Global Summary of the Day, free to use. What stations outside the United States report is exchanged "
        "under WMO Resolution 40, which has terms for commercial redistribution. The package has a year of six "
        "stations in the United States to play with, which are in the public domain, and no other measurement."
    ),
}
LIMITS = {
    "regression2d": (
        "Two inputs and one real target. Functions of one input expect 1 as the second. Inputs outside of the range "
        "above, more noise and functions of other kinds were never seen."
    ),
    "completion": (
        "Grey pictures of 28 x 28 pixels, white on black, like those of its training. With other numbers of observed "
        "pixels than those above it works on the page, but was not scored."
    ),
    "weather": (
        "Daily values of a station in the columns of GSOD, temperatures in °F. It is told the time of year and the "
        "rest of the weather of a day and, with inputs `-around`, of its neighbours, but not the place. It does not "
        "forecast: the other readings of the asked day must be known."
    ),
}
# Years of weather to play with: stations that no training saw, in the United States, as different as can be.
YEAR = 2022
STATIONS = {
    "72306013722": "Raleigh, North Carolina",
    "70260026435": "Nenana, Alaska",
    "72278903192": "Scottsdale, Arizona",
    "72775024143": "Great Falls, Montana",
    "72645014898": "Green Bay, Wisconsin",
    "72791094224": "Astoria, Oregon",
}
LABELLED = 10  # days of a year that are labelled at first
PARITY_TASKS, PARITY_SAMPLES = 200, 8
MOST_MOVED = 0.1  # of a score's 95 % interval
SHOWN = ("accuracy", "bce", "bce_unseen", "mse", "nll", "crps", "coverage90", "width90")
HALF = "is half a 95 % interval over tasks"
YEAR_AND_SHOTS = re.compile(r"^(\d{4})-(\d+)$")


def main() -> None:
    flags = parsed()
    run = Run(flags.run)
    experiment = load_experiment(run)
    benchmark = EvaluateConfig(data=flags.data).of(experiment).open()
    spec = benchmark.train.spec
    folder = (flags.into or pretrained_folder()) / flags.name
    ship(run, spec, folder, card="", half=flags.half)
    before, after = scores_on(
        benchmark, load_learner(run, experiment, spec, benchmark.own_scaling), load_shipped(folder)
    )
    words = parity_words(before, after)
    scores = scores_of(run) if flags.log is None else scores_told(flags.log.read_text(), run.config()["command"])
    card = card_of(flags.name, run, flags.half, [*scores, *([words] if flags.half else [])])
    ship(run, spec, folder, card=card, half=flags.half)
    if experiment.benchmark == "weather":
        save_examples(folder, years_to_play_with(experiment, flags.data))
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder}: {size / 1e6:.2f} MB. {words}")
    if worst_move(before, after) > MOST_MOVED:
        raise SystemExit("that is too much: leave --half out.")


def parsed() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    parser.add_argument("--data", help="where the files of the run's benchmark lie")
    parser.add_argument("--log", type=Path, help="what studies/timed.py said, where it scored the run")
    parser.add_argument("--half", action="store_true", help="weights in float16")
    parser.add_argument("--into", type=Path, help="folder of shipped learners, if not the package's")
    return parser.parse_args()


def scores_on(benchmark: Benchmark, *learners: Any) -> list[dict[str, Summary]]:
    """Scores of learners on the same validation tasks."""
    tasks = benchmark.val_set(PARITY_TASKS)
    return [evaluate(one, tasks, num_samples=PARITY_SAMPLES, key=jr.key(0)).summary() for one in learners]


def worst_move(before: dict[str, Summary], after: dict[str, Summary]) -> float:
    """How far a score moves at most, in halves of its 95 % interval."""
    moves = [abs(after[name]["mean"] - one["mean"]) / max(one["ci95"], 1e-12) for name, one in before.items()]
    return max(moves)


def parity_words(before: dict[str, Summary], after: dict[str, Summary]) -> str:
    """How far the scores of the shipped weights are from the run's."""
    name = next(iter(in_order(before)))
    pair = " and ".join(f"{some[name]['mean']:.5g}" for some in (before, after))
    worst = worst_move(before, after)
    return (
        f"On {PARITY_TASKS} validation tasks the weights as trained and as shipped have a {metric(name).label} of "
        f"{pair}; no score moves by more than {max(worst, 1e-4):.1g} of its 95 % interval."
    )


def years_to_play_with(experiment: Experiment, data: str | None) -> list[Example]:
    """A year of each station of `STATIONS`, in the inputs that the learner knows."""
    settings: Any = EvaluateConfig(data=data, years=(YEAR,)).of(experiment)
    benchmark = settings.open()
    stations, _ = settings.stations(benchmark.shelf)
    test: Any = benchmark.test
    held_out = {str(stations.station[int(file)]): i for i, file in enumerate(np.asarray(test.days.file))}
    if missing := [number for number in STATIONS if number not in held_out]:
        raise SystemExit(f"station {missing[0]} is not among the test stations of {YEAR}: choose another.")
    return [_year(test, held_out[number], f"{name}, {YEAR}") for number, name in STATIONS.items()]


def _year(test: Any, file: int, name: str) -> Example:
    rows = int(test.days.first[file]) + jnp.arange(int(test.days.count[file]), dtype=jnp.int32)
    x, y = test.rows(rows, jnp.full(rows.shape, file, dtype=jnp.int32))
    axis = np.asarray(test.days.day[rows], dtype=np.float64)
    labelled = np.linspace(0.04, 0.96, LABELLED) * len(rows)
    return Example(
        name, np.asarray(x), axis, np.asarray(y[:, 0], dtype=np.float64), tuple(labelled.astype(int).tolist())
    )


def card_of(name: str, run: Run, half: bool, scores: list[str]) -> str:
    """The card, from the run's settings and provenance, with its scores."""
    config = run.config()
    benchmark, method = config["benchmark"]["name"], config["method"]["name"]
    count = sum(array.size for array in read_arrays(run.learner_path).values())
    kind = "half precision (float16)" if half else "float32"
    parts = {
        "": [
            f"{method} on the benchmark {benchmark}, preset `{config['method']['preset']}`, seed {config['seed']}. "
            f"{count:,} weights in {kind}.",
            f'    learner = stmaml.load_pretrained("{name}")',
        ],
        "Data": [DATA.get(benchmark, "See the page of the benchmark.")],
        "Settings": ["\n".join(settings_of(config))],
        "Scores": scores,
        "Limits": [
            LIMITS.get(benchmark, "Tasks like those of its benchmark."),
            "Scores hold for tasks drawn like those above. On others, look at a few answers first.",
        ],
    }
    blocks = [f"# {name}"]
    for title, paragraphs in parts.items():
        blocks += [*([f"## {title}"] if title else []), *paragraphs]
    return "\n\n".join(blocks) + "\n"


def settings_of(config: dict[str, Any]) -> list[str]:
    """What a reader asks first; `config.json` beside the card has the rest."""
    tasks, training = config["benchmark"]["settings"], config["training"]
    when, device = str(config.get("created", "unknown"))[:10], config.get("device", "unknown")
    fewest, most = tasks.get("min_shots"), tasks.get("most_shots") or tasks["shots"]
    told = {
        "labelled examples in training": f"{most}" if fewest in (None, most) else f"{fewest} to {most}",
        "steps": f"{training['steps']:,} of {training['tasks_per_batch']} tasks",
        "chosen by": f"{training['val_metric']} on {training['val_tasks']} validation tasks",
        "trained": f"{when}, on {device}",
    }
    if "input_range" in tasks:
        both = " and -5 to 5" if tasks.get("both_ranges") else ""
        noise = "{:g} to {:g}, not told".format(*tasks.get("noise_range") or [tasks["noise"]] * 2)
        told = {"inputs": "{:g} to {:g}".format(*tasks["input_range"]) + both, "noise": noise, **told}
    if "years" in tasks:
        told = {"years": ", ".join(map(str, tasks["years"])) or "all", "inputs": f"`{tasks['inputs']}`", **told}
    return ["| setting | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in told.items())]


def scores_of(run: Run) -> list[str]:
    """The tests of a run in a table, with 95 % intervals over tasks."""
    tests = [summary for summary in run.scores().values() if not summary.get("row")]
    if not tests:
        return ["None were saved with the run."]
    samples = max(test["samples"] for test in tests)
    chosen = [test for test in tests if test["samples"] == samples]
    counts = " or ".join(f"{n:,}" for n in sorted({test["tasks"] for test in chosen}))
    about = f"{counts} test tasks each, {samples} samples a task"
    return [f"± {HALF}; {about}.", table_of([(label, test["metrics"]) for label, test in labelled(chosen)])]


def scores_told(log: str, command: str) -> list[str]:
    """The scores that stand in a log of studies/timed.py, which was run by this command."""
    events = [json.loads(line) for line in log.splitlines() if '"event": "score"' in line]
    if not events:
        raise SystemExit("the log has no scores.")
    rows = [(told["test"], {k: _summary(v) for k, v in told.items() if isinstance(v, list)}) for told in events]
    rows.sort(key=lambda row: [-int(part) for part in row[0].split("-") if part.isdigit()][::-1], reverse=True)
    tasks = re.search(r"--tasks (\d+)", command)
    about = f"; {int(tasks[1]):,} test tasks each" if tasks else ""
    named = [(YEAR_AND_SHOTS.sub(r"\1, \2 labelled days", name), row) for name, row in rows]
    return [f"± {HALF}{about}.", table_of([("as in training" if name == "test" else name, row) for name, row in named])]


def _summary(told: list[float]) -> Summary:
    return {"mean": told[0], "ci95": told[1]}


def table_of(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Scores that all rows have, with their intervals."""
    names = [name for name in SHOWN if all(name in scores for _, scores in rows)]
    cells = [[label, *(with_interval(scores[name]) for name in names)] for label, scores in rows]
    lines = ["test tasks", *(metric(name).label for name in names)], ["---"] * (len(names) + 1), *cells
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def labelled(tests: Sequence[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Tests with what tells them apart, in the order of their labelled examples."""
    ordered = sorted(tests, key=lambda test: (test["conditions"]["tasks"].get("shots", 0), test["task_set"]))
    shared = set.intersection(*(set(test["task_set"].split("/")) for test in ordered))
    apart = [", ".join(part for part in test["task_set"].split("/") if part not in shared) for test in ordered]
    told = [re.sub(r"shots(\d+)", r"\1 labelled", words) or "as in training" for words in apart]
    return list(zip(told, ordered, strict=True))


if __name__ == "__main__":
    main()
