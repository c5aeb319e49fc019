"""Reports of made-up runs: the numbers in the tables are computed here by hand."""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from stmaml.benchmarks.floors import remember_floor
from stmaml.benchmarks.regression2d import FAMILIES, SHOWCASE_CONDITIONS
from stmaml.cli import main
from stmaml.metrics import summarise
from stmaml.recipes import recipe
from stmaml.reports import write_report
from stmaml.reports.tables import training_seconds
from stmaml.reports.variants import collect_variants
from stmaml.runs import Run

TEST_NAME = "regression2d/range0..5/noise0.3/shots10/query40"
MSE = np.array([1.0, 2.0, 3.0, 6.0])


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    """Bayes limits of the person who runs the tests stay out of them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def make_run(folder, *, method="st-maml", seed=0, benchmark="regression2d", log=True, **settings) -> Run:
    """A run folder as training leaves it, with some of its method's or training's settings changed."""
    usual = json.loads(json.dumps(dataclasses.asdict(recipe("regression2d", method))))
    groups = {name: usual[name] for name in ("task", "learner", "modelling", "training")}
    for group in groups.values():
        group.update({name: value for name, value in settings.items() if name in group})
    run = Run(folder)
    run.create(
        {
            "command": f"stmaml train {benchmark} --method {method} --seed {seed}",
            "seed": seed,
            "benchmark": {"name": benchmark, "settings": groups["task"]},
            "method": {"name": method, "preset": "paper", "settings": groups["learner"]},
            "modelling": groups["modelling"],
            "training": groups["training"],
            "versions": {"python": "3.11", "stmaml": "0.1.0"},
            "device": "cpu",
        }
    )
    for step in range(100, 4100, 100) if log else ():
        run.append_log({"step": step, "seconds": step / 50, "loss": 9.0 * np.exp(-step / 1000) + 0.4 + seed})
        run.append_log({"step": step, "validation": {"mse": 5.0 / step**0.3}})
    return run


def score(run, arrays, *, digest="d1", task_set=TEST_NAME, shots=10, inner_steps=None) -> None:
    """Scores as an evaluation leaves them: two families, half of the tasks each."""
    size = len(next(iter(arrays.values())))
    family = np.arange(size) % 2
    config = run.config()
    summary = {
        "benchmark": config["benchmark"]["name"],
        "method": config["method"]["name"],
        "preset": config["method"]["preset"],
        "seed": config["seed"],
        "tasks": size,
        "samples": 20,
        "task_set": f"{task_set}/seed-2/tasks-{size}",
        "digest": digest,
        "settings": {"shots": shots, "noise": 0.3},
        "inner_steps": inner_steps,
        "metrics": {name: summarise(values) for name, values in arrays.items()},
        "families": {
            title: {name: summarise(values[family == i]) for name, values in arrays.items()}
            for i, title in enumerate(("sinusoid", "line"))
        },
    }
    run.save_scores(f"tasks{size}-{digest}-{shots}", summary, {**arrays, "family": family})


def add_curves(run) -> None:
    axis = np.linspace(0, 5, 60)
    for shots, noise in SHOWCASE_CONDITIONS:
        for i, family in enumerate(FAMILIES):
            truth = np.sin(axis + i)[:, None]
            arrays = {"axis": axis, "truth": truth, "median": truth, "low": truth - 1, "high": truth + 1}
            arrays["curves"] = truth + 0.1 * np.arange(-5, 5)[:, None, None]
            arrays["support_x"] = np.stack([np.linspace(0, 5, shots), np.ones(shots)], axis=1)
            arrays["support_y"] = np.sin(arrays["support_x"][:, :1] + i)
            run.save_arrays(Path("curves") / f"{family.name}-shots{shots}-noise{noise:g}.npz", arrays)


def report(*folders) -> str:
    return write_report(list(folders), folders[0] / "report")[0].read_text()


def cells(text, label, *, table=0) -> dict[str, str]:
    """The cells of the row `label` of a report's table, by column."""
    blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    split = [[cell.strip() for cell in line.strip("|").split("|")] for line in blocks[table]]
    row = next(row for row in split if row[0] == label)
    return dict(zip(split[0], row, strict=True))


def test_one_seed_shows_the_interval_over_tasks(tmp_path):
    score(make_run(tmp_path / "a"), {"mse": MSE, "nll": MSE / 2})
    text = report(tmp_path / "a")
    half = 1.96 * MSE.std(ddof=1) / 2
    assert cells(text, "st-maml")["mse"] == f"3.000 ± {half:.3f}"
    assert cells(text, "st-maml")["seeds"] == "1"
    assert "over test tasks" in text
    assert "## regression2d: range 0..5, noise 0.3, shots 10, query 40, 20 samples a task" in text


def test_several_seeds_show_the_interval_over_seeds(tmp_path):
    for seed, shift in ((0, 0.0), (1, 1.0)):
        score(make_run(tmp_path / "a" / f"seed-{seed}", seed=seed), {"mse": MSE + shift})
    text = report(tmp_path / "a")
    half = 12.71 * np.std([3.0, 4.0], ddof=1) / 2**0.5
    assert cells(text, "st-maml")["mse"] == f"3.500 ± {half:.3f}"
    assert cells(text, "st-maml")["seeds"] == "2"
    assert cells(text, "st-maml", table=1)["sinusoid"].startswith("2.500 ± ")
    assert "over training seeds" in text


def test_separate_folders_of_one_variant_are_its_seeds(tmp_path):
    for seed in (0, 1):
        score(make_run(tmp_path / str(seed), seed=seed), {"mse": MSE})
    assert cells(report(tmp_path / "0", tmp_path / "1", tmp_path / "1"), "st-maml")["seeds"] == "2"


def test_the_same_seed_in_two_folders_makes_two_rows(tmp_path):
    for name in ("before", "after"):
        score(make_run(tmp_path / name), {"mse": MSE})
    labels = [variant.label for variant in collect_variants([tmp_path / "before", tmp_path / "after"])]
    assert labels == ["st-maml [before]", "st-maml [after]"]


def test_pairs_compare_with_the_first_run_on_the_same_tasks(tmp_path):
    change = np.array([0.5, -0.5, 1.0, 2.0])
    score(make_run(tmp_path / "a"), {"mse": MSE, "nll": MSE})
    for seed, shift in ((0, -0.25), (1, 0.25)):
        score(make_run(tmp_path / "b" / f"seed-{seed}", method="maml", seed=seed), {"mse": MSE + change + shift})
    text = report(tmp_path / "a", tmp_path / "b")
    half = 1.96 * change.std(ddof=1) / 2
    assert cells(text, "maml", table=2) == {"method": "maml", "mse": f"+0.750 ± {half:.3f}", "nll": ""}
    assert "Difference to st-maml on the same tasks" in text


def test_other_tasks_are_not_paired(tmp_path):
    score(make_run(tmp_path / "a"), {"mse": MSE})
    score(make_run(tmp_path / "b", method="maml"), {"mse": MSE}, digest="d2")
    assert "Difference to" not in report(tmp_path / "a", tmp_path / "b")


def test_bayes_limit_is_the_last_row(tmp_path):
    limit = {"mean": 0.2, "ci95": 0.01}
    remember_floor(TEST_NAME, {"metrics": {"mse": limit}, "families": {"line": {"mse": {"mean": 0.1, "ci95": 0.02}}}})
    score(make_run(tmp_path / "a"), {"mse": MSE, "crps": MSE})
    text = report(tmp_path / "a")
    assert cells(text, "Bayes limit")["mse"] == "0.200 ± 0.010"
    assert cells(text, "Bayes limit")["crps"] == ""
    assert cells(text, "Bayes limit", table=1)["line"] == "0.100 ± 0.020"


def test_best_is_bold_by_the_sense_of_each_metric(tmp_path):
    flat = np.ones(4)
    better = {"accuracy": 0.8 * flat, "bce": 1.0 * flat, "coverage90": 0.88 * flat, "width90": 1.0 * flat}
    worse = {"accuracy": 0.7 * flat, "bce": 2.0 * flat, "coverage90": 0.99 * flat, "width90": 2.0 * flat}
    score(make_run(tmp_path / "a", benchmark="pictures"), better, task_set="pictures/way5")
    score(make_run(tmp_path / "b", benchmark="pictures", method="maml"), worse, task_set="pictures/way5")
    text = report(tmp_path / "a", tmp_path / "b")
    bold = {name for name, cell in cells(text, "st-maml").items() if cell.startswith("**")}
    assert bold == {"accuracy", "bce", "coverage90"}
    assert "**" not in "".join(cells(text, "maml").values())
    assert cells(text, "st-maml", table=1)["line"] == "**0.800 ± 0.000**"


def test_labels_tell_what_differs_from_the_recipe(tmp_path):
    make_run(tmp_path / "a", augment=False, steps=700, val_every=5, hidden=[8, 8])
    assert [v.label for v in collect_variants([tmp_path / "a"])] == ["st-maml (hidden=8x8, augment=False, steps=700)"]
    assert [v.slug for v in collect_variants([tmp_path / "a"])] == ["st-maml-hidden-8x8-augment-false-steps-700"]


def test_the_papers_figure_stands_beside_the_papers_method_and_conditions_only(tmp_path):
    score(make_run(tmp_path / "a", steps=700), {"mse": MSE})
    score(make_run(tmp_path / "b", augment=False), {"mse": MSE})
    text = report(tmp_path / "a", tmp_path / "b")
    assert cells(text, "st-maml (steps=700)")["mse (paper)"] == "0.37 ± 0.04"
    assert cells(text, "st-maml (augment=False)")["mse (paper)"] == ""
    score(make_run(tmp_path / "c"), {"mse": MSE}, task_set=TEST_NAME.replace("shots10", "shots2"), shots=2)
    assert "(paper)" not in report(tmp_path / "c")


def test_conditions_make_sections_and_most_tasks_win(tmp_path):
    run = make_run(tmp_path / "a")
    score(run, {"mse": MSE})
    score(run, {"mse": np.tile(MSE, 2)}, digest="d8")
    score(run, {"mse": MSE}, digest="d2", task_set=TEST_NAME.replace("shots10", "shots2"), shots=2)
    text = report(tmp_path / "a")
    assert text.count("20 samples a task") == 2
    assert cells(text, "st-maml")["tasks"] == "8"


def test_runs_are_described(tmp_path):
    score(make_run(tmp_path / "a"), {"mse": MSE})
    text = report(tmp_path / "a")
    assert "```\nstmaml train regression2d --method st-maml --seed 0\n```" in text
    assert "Seed 0: 4,000 of 40,000 steps in 80 s on cpu. Made with python 3.11, stmaml 0.1.0." in text


def test_training_time_adds_up_over_resumes():
    assert training_seconds([{"seconds": 5.0}, {"step": 1}, {"seconds": 9.0}, {"seconds": 2.0}, {"seconds": 3.0}]) == 12


def test_figures_are_drawn(tmp_path):
    for name, method in (("a", "st-maml"), ("b", "maml")):
        run = make_run(tmp_path / name, method=method)
        score(run, {"mse": MSE, "coverage90": MSE / 8})
        add_curves(run)
    paths = write_report([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    names = [f"{kind}-{method}.png" for method in ("st-maml", "maml") for kind in ("curves", "ambiguity")]
    assert [path.name for path in paths] == ["report.md", *names, "reliability.png", "training.png"]
    assert all(path.stat().st_size > 5000 and path.read_bytes()[:4] == b"\x89PNG" for path in paths[1:])
    assert all(f"]({path.name})" in paths[0].read_text() for path in paths[1:])


def test_a_report_needs_neither_log_nor_curves(tmp_path):
    score(make_run(tmp_path / "a", log=False), {"mse": MSE})
    assert [path.name for path in write_report([tmp_path / "a"], tmp_path / "out")] == ["report.md"]


def test_two_benchmarks_stay_apart(tmp_path):
    score(make_run(tmp_path / "a"), {"mse": MSE})
    score(make_run(tmp_path / "b", benchmark="pictures"), {"accuracy": MSE / 10}, task_set="pictures/way5")
    paths = write_report([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    assert [path.name for path in paths[1:]] == ["training-regression2d.png", "training-pictures.png"]
    assert cells(paths[0].read_text(), "st-maml on pictures", table=2)["accuracy"].startswith("0.300")


def test_command_says_where_the_report_is(tmp_path, monkeypatch, capsys):
    score(make_run(tmp_path / "a"), {"mse": MSE})
    monkeypatch.setattr(sys, "argv", ["stmaml", "report", str(tmp_path / "a")])
    main()
    assert capsys.readouterr().out == f"wrote {tmp_path / 'a' / 'report' / 'report.md'} and 1 figure beside it\n"


def no_evaluation(folder):
    make_run(folder)


def no_folder(folder):
    pass


def no_config(folder):
    folder.mkdir()


def empty_config(folder):
    make_run(folder).config_path.write_text('{"format": 1}')


def cut_scores(folder):
    score(run := make_run(folder), {"mse": MSE})
    next(run.scores_folder.glob("*.json")).write_text("{")


def foreign_scores(folder):
    score(run := make_run(folder), {"mse": MSE})
    next(run.scores_folder.glob("*.json")).write_text("{}")


def cut_curves(folder):
    score(run := make_run(folder), {"mse": MSE})
    add_curves(run)
    (folder / "curves" / "line-shots10-noise0.3.npz").write_bytes(b"PK")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (no_evaluation, "has no evaluation yet: run 'stmaml evaluate {run}' first"),
        (no_folder, "there is no run folder {run}"),
        (no_config, "has no config.json"),
        (empty_config, "lacks 'seed'"),
        (cut_scores, "cannot be read"),
        (foreign_scores, "lacks 'benchmark'"),
        (cut_curves, "is damaged or cut short"),
    ],
)
def test_a_half_run_is_one_clear_sentence(tmp_path, monkeypatch, capsys, spoil, message):
    spoil(tmp_path / "a")
    monkeypatch.setattr(sys, "argv", ["stmaml", "report", str(tmp_path / "a")])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert message.format(run=tmp_path / "a") in said
    assert len(said.splitlines()) == 1


def test_no_run_is_told(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["stmaml", "report"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "report needs at least one run folder" in capsys.readouterr().err
