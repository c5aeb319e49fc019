"""Makes several learners that answer as one, which ship with the package: weights in half precision, and a card.

    python studies/ship_together.py weather-committee weather runs/tnp-0 runs/tnp-1 --data gsod.npz --log scored.jsonl

A learner is one that ships by itself or a run, whose weights then lie in a folder of its name. The log is what
`studies/scored.py --together` said. Half precision is refused where it moves a score, as in `studies/ship.py`."""

import argparse
from pathlib import Path
from typing import Any

from ship import DATA, LIMITS, MOST_MOVED, scores_on, scores_told, settings_of, worst_move

from stmaml.conditions import slugify
from stmaml.experiments import EvaluateConfig, load_experiment, load_learner
from stmaml.run_files import read_arrays
from stmaml.runs import Run
from stmaml.shipped import load_shipped, pretrained_folder, pretrained_names, ship, ship_together

CAUTION = "Scores hold for tasks drawn like those above. On others, look at a few answers first."


def main() -> None:
    flags = parsed()
    folder = (flags.into or pretrained_folder()) / flags.name
    runs = [Run(pretrained_folder() / one if one in pretrained_names() else Path(one)) for one in flags.learners]
    names = [slugify(run.folder.name) for run in runs]
    for run, name in zip(runs, names, strict=True):
        if name not in pretrained_names():
            shrink(run, folder / name, flags.data)
    ship_together(names, folder, card=card_of(flags.name, runs, flags.log.read_text()))
    load_shipped(folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {size / 1e6:.2f} MB")


def parsed() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("learners", nargs="+")
    parser.add_argument("--data", help="where the files of the runs' benchmark lie")
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--into", type=Path, help="folder of shipped learners, if not the package's")
    return parser.parse_args()


def shrink(run: Run, folder: Path, data: str | None) -> None:
    """A run's weights in half precision, unless that moves a score on validation tasks."""
    experiment = load_experiment(run)
    benchmark = EvaluateConfig(data=data).of(experiment).open()
    spec = benchmark.train.spec
    ship(run, spec, folder, card=f"# {folder.name}\n\nOne of several learners: see `../card.md`.\n", half=True)
    before, after = scores_on(
        benchmark, load_learner(run, experiment, spec, benchmark.own_scaling), load_shipped(folder)
    )
    print(f"{folder.name}: half precision moves no score by more than {worst_move(before, after):.1g} of its interval")
    if worst_move(before, after) > MOST_MOVED:
        raise SystemExit("that is too much.")


def card_of(name: str, runs: list[Run], log: str) -> str:
    """The card of all of them together."""
    benchmark = runs[0].config()["benchmark"]["name"]
    blocks = [
        f"# {name}",
        f"{len(runs)} learners on the benchmark {benchmark} that answer as one: a mixture, in which each has the same "
        "share.",
        f'    learner = stmaml.load_pretrained("{name}")',
        "It has no page in `stmaml serve`.",
        "## Data",
        DATA[benchmark],
        "## Settings",
    ]
    for run in runs:
        config = run.config()
        count = sum(array.size for array in read_arrays(run.learner_path).values())
        method = config["method"]
        told = f"{method['name']}, preset `{method['preset']}`, seed {config['seed']}"
        blocks += [f"**{told}.** {count:,} weights in half precision (float16).", "\n".join(settings_of(config))]
    return "\n\n".join([*blocks, "## Scores", *scores_in(log), "## Limits", LIMITS[benchmark], CAUTION]) + "\n"


def scores_in(log: str) -> list[str]:
    """What they scored as one, by the lines of `studies/scored.py`."""
    return scores_told("\n".join(line for line in log.splitlines() if '"learner": "together"' in line), "--tasks 1000")


if __name__ == "__main__":
    main()
