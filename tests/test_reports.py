"""Reports of made-up runs: the numbers in the tables are computed here by hand."""

import dataclasses
import json
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

from stmaml.benchmarks import regression2d
from stmaml.benchmarks.floors import remember_floor
from stmaml.benchmarks.regression2d import AMBIGUOUS_CURVES, USUAL_CURVE
from stmaml.cli import main
from stmaml.conditions import Conditions, slugify
from stmaml.evaluation import trace
from stmaml.methods.base import AbstractMetaLearner, AbstractPredictor, stack_one
from stmaml.metrics import summarise, summarise_crossed
from stmaml.outcomes import NormalOutcome
from stmaml.recipes import recipe
from stmaml.reports import figures, images, limits, write_report
from stmaml.reports import shots as shots_module
from stmaml.reports.made import training_seconds
from stmaml.reports.sections import Sweep, collect_sections, collect_sweeps
from stmaml.reports.shots import shots_figure, spread
from stmaml.reports.variants import collect_variants
from stmaml.runs import Run, json_bytes

TASKS = {"input_range": [0.0, 5.0], "noise": 0.3, "shots": 10, "query": 40}
MSE = np.array([1.0, 2.0, 3.0, 6.0])
MORE = ["mse (median)", "trained on"]
T3 = 3.182446  # the 97.5 % point of Student's t with three degrees of freedom


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    """Bayes limits of the person who runs the tests stay out of them."""
    monkeypatch.setenv("STMAML_CACHE", str(tmp_path / "cache"))


def make_run(
    folder, *, method="st-maml", preset="paper", seed=0, benchmark="regression2d", log=True, **settings
) -> Run:
    """A run folder as training leaves it, with some of its method's or training's settings changed."""
    known = benchmark if benchmark == "weather" else "regression2d"
    usual = json.loads(json.dumps(dataclasses.asdict(recipe(known, method, preset))))
    groups = {name: usual[name] for name in ("benchmark_settings", "method_settings", "modelling", "training")}
    for group in groups.values():
        group.update({name: value for name, value in settings.items() if name in group})
    run = Run(folder)
    run.create(
        {
            "command": f"stmaml train {benchmark} --method {method} --seed {seed}",
            "seed": seed,
            "benchmark": {"name": benchmark, "settings": groups["benchmark_settings"]},
            "method": {"name": method, "preset": preset, "settings": groups["method_settings"]},
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


def make_baseline(folder, name="ridge", *, shots=10) -> Run:
    """A run folder as fitting a baseline leaves it: neither settings, log nor weights."""
    run = Run(folder)
    run.create(
        {
            "command": "stmaml reproduce weather --only ridge",
            "seed": 0,
            "benchmark": {"name": "regression2d", "settings": {"shots": shots}},
            "method": {"name": name, "preset": "baseline", "settings": {}},
            "modelling": {},
            "training": {},
            "versions": {"python": "3.11", "scikit-learn": "1.5"},
            "device": "cpu",
        }
    )
    return run


def conditions(benchmark="regression2d", **changes) -> Conditions:
    """The paper's test tasks of 2D regression, with some settings changed."""
    return Conditions(benchmark, {**TASKS, **changes}, samples=20)


def score(run, arrays, *, digest="d1", inner_steps=None, about=None, **changes) -> None:
    """Scores as an evaluation leaves them: two families, half of the tasks each; `changes` are of its conditions."""
    size = len(next(iter(arrays.values())))
    family = np.arange(size) % 2
    config = run.config()
    tested = replace(conditions(config["benchmark"]["name"], **changes), inner_steps=inner_steps)
    summary = {
        "benchmark": config["benchmark"]["name"],
        "method": config["method"]["name"],
        "preset": config["method"]["preset"],
        "seed": config["seed"],
        "tasks": size,
        "samples": 20,
        "digest": digest,
        "conditions": tested.to_json(),
        "metrics": {name: summarise(values) for name, values in arrays.items()},
        "families": {
            title: {name: summarise(values[family == i]) for name, values in arrays.items()}
            for i, title in enumerate(("sinusoid", "line"))
        },
        **(about or {}),
    }
    name = f"{tested.slug()}-{digest}-{slugify(summary.get('row', 'own'))}"
    run.save_scores(name, summary, {**arrays, "family": family})


def add_trace(run, name, arrays, **about) -> None:
    run.save_arrays(Path("curves") / f"{name}.npz", {**arrays, "about": json_bytes(about)})


def add_curves(run) -> None:
    axis = np.linspace(0, 5, 60)
    for place, (shots, noise) in enumerate((USUAL_CURVE, *AMBIGUOUS_CURVES)):
        for i, family in enumerate(("sinusoid", "line") if place == 0 else ("sinusoid", "cubic")):
            truth = np.sin(axis + i)[:, None]
            arrays = {"axis": axis, "truth": truth, "median": truth, "low": truth - 1, "high": truth + 1}
            arrays["curves"] = truth + 0.1 * np.arange(-5, 5)[:, None, None]
            arrays["support_x"] = np.stack([np.linspace(0, 5, shots), np.ones(shots)], axis=1)
            arrays["support_y"] = np.sin(arrays["support_x"][:, :1] + i)
            figure = "ambiguity" if place else "curves"
            add_trace(run, f"{place}-{family}", arrays, figure=figure, family=family, shots=shots, noise=noise)


def add_images(run) -> None:
    truth = np.linspace(0, 1, 12)[:, None]
    arrays = {"axis": np.arange(12) % 3, "truth": truth, "curves": truth + np.zeros((5, 1, 1))}
    arrays |= {"support_x": np.array([[0.0, 0.5]]), "support_y": np.array([[0.1]])}
    for pixels in (8, 40):
        add_trace(run, f"image{pixels}", arrays, figure="completion", family="mnist", pixels=pixels)


def add_year(run) -> None:
    axis = np.arange(365)
    truth = 40 + np.sin(axis / 58)[:, None]
    arrays = {"axis": axis, "truth": truth, "low": truth - 1, "median": truth, "high": truth + 1}
    arrays |= {"support_x": np.array([[0.5, 1.0]]), "support_y": truth[182:183], "curves": truth[None]}
    add_trace(run, "year", arrays, figure="years", band="polar", station="04360099999")


@pytest.fixture
def caught(monkeypatch) -> list[Figure]:
    """The figures drawn, on their way to a file."""
    drawn: list[Figure] = []
    for module in (figures, images, limits, shots_module):
        monkeypatch.setattr(module, "png", lambda figure: drawn.append(figure) or b"a picture")
    return drawn


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
    half = T3 * MSE.std(ddof=1) / 2
    assert cells(text, "st-maml")["mse"] == f"3.000 ± {half:.3f}"
    assert cells(text, "st-maml")["seeds"] == "1"
    assert "over test tasks" in text
    assert "## regression2d: range 0..5, noise 0.3, shots 10, query 40, 20 samples a task" in text


def test_several_seeds_show_the_interval_over_seeds(tmp_path):
    for seed, shift in ((0, 0.0), (1, 1.0)):
        score(make_run(tmp_path / "a" / f"seed-{seed}", seed=seed), {"mse": MSE + shift})
    text = report(tmp_path / "a")
    half = summarise_crossed(np.stack([MSE, MSE + 1]))["ci95"]
    assert cells(text, "st-maml")["mse"] == f"3.500 ± {half:.3f}"
    assert cells(text, "st-maml")["mse (median)"] == "3.000"
    assert cells(text, "st-maml")["trained on"] == "1,000,000 tasks"
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
    half = summarise_crossed(np.stack([change - 0.25, change + 0.25]))["ci95"]
    assert half > T3 * change.std(ddof=1) / 2
    assert cells(text, "maml", table=2) == {"method": "maml", "mse": f"+0.750 ± {half:.3f}", "nll": ""}
    assert "Difference to st-maml on the same tasks" in text


def test_other_tasks_are_not_paired(tmp_path):
    score(make_run(tmp_path / "a"), {"mse": MSE})
    score(make_run(tmp_path / "b", method="maml"), {"mse": MSE}, digest="d2")
    assert "Difference to" not in report(tmp_path / "a", tmp_path / "b")


def test_bayes_limit_is_the_last_row(tmp_path):
    limit = {"mean": 0.2, "ci95": 0.01}
    remember_floor(
        conditions(), {"metrics": {"mse": limit}, "families": {"line": {"mse": {"mean": 0.1, "ci95": 0.02}}}}
    )
    score(make_run(tmp_path / "a"), {"mse": MSE, "crps": MSE})
    text = report(tmp_path / "a")
    assert cells(text, "Bayes limit")["mse"] == "0.200 ± 0.010"
    assert cells(text, "Bayes limit")["crps"] == ""
    assert cells(text, "Bayes limit", table=1)["line"] == "0.100 ± 0.020"


def test_best_is_bold_by_the_sense_of_each_metric(tmp_path):
    flat = np.ones(4)
    better = {"accuracy": 0.8 * flat, "bce": 1.0 * flat, "coverage90": 0.88 * flat, "width90": 1.0 * flat}
    worse = {"accuracy": 0.7 * flat, "bce": 2.0 * flat, "coverage90": 0.99 * flat, "width90": 2.0 * flat}
    score(make_run(tmp_path / "a", benchmark="pictures"), better)
    score(make_run(tmp_path / "b", benchmark="pictures", method="maml"), worse)
    text = report(tmp_path / "a", tmp_path / "b")
    bold = {name for name, cell in cells(text, "st-maml").items() if cell.startswith("**")}
    assert bold == {"accuracy", "bce", "coverage90"}
    assert "**" not in "".join(cells(text, "maml").values())
    assert cells(text, "st-maml", table=1)["line"] == "**0.800 ± 0.000**"


def test_new_metrics_are_errors_and_diversity_has_no_best(tmp_path):
    names = ("bce", "bce_unseen", "bce_single", "mse", "mae", "diversity")
    for folder, method, level in (("a", "st-maml", 1.0), ("b", "maml", 2.0)):
        run = make_run(tmp_path / folder, method=method, log=False)
        score(run, {name: level * np.ones(4) for name in names})
    text = report(tmp_path / "a", tmp_path / "b")
    assert {name for name, cell in cells(text, "st-maml").items() if cell.startswith("**")} == set(names[:-1])
    assert "**" not in "".join(cells(text, "maml").values())


def test_cost_is_the_number_of_trained_numbers_and_the_mean_time(tmp_path):
    for seed in (0, 1):
        run = make_run(tmp_path / "a" / f"seed-{seed}", seed=seed)
        run.append_log({"step": 4100, "seconds": 80 + 40 * seed})
        run.save_arrays(Path("learner.npz"), {"w": np.ones((30, 40)), "b": np.ones(()), "count": np.arange(7)})
        score(run, {"mse": MSE})
    score(make_run(tmp_path / "b", method="maml"), {"mse": MSE})
    text = report(tmp_path / "a", tmp_path / "b")
    assert list(cells(text, "st-maml"))[-2:] == ["parameters", "training"]
    assert (cells(text, "st-maml")["parameters"], cells(text, "st-maml")["training"]) == ("1,201", "2 min")
    assert (cells(text, "maml")["parameters"], cells(text, "maml")["training"]) == ("", "80 s")
    assert "Seeds trained side by side each show the time all took." in text


def test_cost_is_left_out_where_nobody_knows_it(tmp_path):
    score(make_run(tmp_path / "a", log=False), {"mse": MSE})
    text = report(tmp_path / "a")
    assert list(cells(text, "st-maml")) == ["method", "seeds", "tasks", "mse", "mse (paper)", *MORE]
    assert "side by side" not in text


def test_a_baseline_is_a_row_without_cost(tmp_path, caught):
    score(make_baseline(tmp_path / "ridge"), {"mse": MSE + 1})
    run = make_run(tmp_path / "a", val_metric="nll")
    run.append_log({"step": 4100, "validation": {"mse": 1.0, "nll": 2.0}})
    score(run, {"mse": MSE})
    text = report(tmp_path / "ridge", tmp_path / "a")
    assert cells(text, "ridge")["mse"] == f"4.000 ± {T3 * MSE.std(ddof=1) / 2:.3f}"
    assert (cells(text, "ridge")["training"], cells(text, "ridge")["mse (paper)"]) == ("", "")
    assert cells(text, "st-maml (val_metric=nll)")["mse"].startswith("**3.000")
    assert cells(text, "st-maml (val_metric=nll)", table=2)["mse"] == "-1.000 ± 0.000"
    assert (
        "**ridge**\n\n```\nstmaml reproduce weather --only ridge\n```\n\n"
        "Fitted by scikit-learn on the training rows. Made with python 3.11, scikit-learn 1.5."
    ) in text
    (training,) = caught
    assert training.axes[1].get_title() == "validation nll"  # the learner's, though the baseline came first
    assert [text.get_text() for text in training.legends[0].get_texts()] == ["st-maml (val_metric=nll)"]


def test_a_log_without_validations_is_drawn_as_far_as_it_goes(tmp_path, caught):
    run = make_run(tmp_path / "a", log=False)
    run.append_log({"step": 100, "seconds": 1.0, "loss": 2.0})
    score(run, {"mse": MSE})
    report(tmp_path / "a")
    left, right = caught[0].axes
    np.testing.assert_allclose(np.asarray(left.get_lines()[0].get_xydata()), [(100, 2.0)])
    assert not right.get_lines()


def test_baselines_alone_make_a_report_without_figures(tmp_path):
    score(make_baseline(tmp_path / "a"), {"mse": MSE})
    assert [path.name for path in write_report([tmp_path / "a"], tmp_path / "out")] == ["report.md"]


def test_a_baseline_fitted_for_other_shots_is_the_same_baseline(tmp_path):
    for number in (2, 10):
        score(make_baseline(tmp_path / str(number), shots=number), {"mse": MSE}, shots=number)
    variants = collect_variants([tmp_path / "2", tmp_path / "10"])
    assert [variant.label for variant in variants] == ["ridge"]
    assert [len(section.rows[0].evaluations) for section in collect_sections(variants)] == [1, 1]
    score(make_baseline(tmp_path / "again"), {"mse": MSE})
    labels = [variant.label for variant in collect_variants([tmp_path / "10", tmp_path / "again"])]
    assert labels == ["ridge [10]", "ridge [again]"]


def test_where_files_lie_makes_no_variant(tmp_path):
    make_run(tmp_path / "a", benchmark="weather", data="/somewhere", file_list="/else/list.csv")
    make_run(tmp_path / "b", benchmark="weather", seed=1, shots=3)
    labels = [variant.label for variant in collect_variants([tmp_path / "a", tmp_path / "b"])]
    assert labels == ["st-maml", "st-maml (shots=3)"]


def test_a_floor_that_came_with_the_scores_goes_before_one_computed_before(tmp_path):
    remember_floor(conditions(), {"metrics": {"mse": {"mean": 0.2, "ci95": 0.01}}, "families": {}})
    own = {"mse": {"mean": 0.135, "ci95": 0.002}}
    floor = {"name": "entropy of the grey values", "metrics": own, "families": {"line": own}}
    score(make_baseline(tmp_path / "ridge"), {"mse": MSE})
    score(make_run(tmp_path / "a"), {"mse": MSE}, about={"floor": floor})
    text = report(tmp_path / "ridge", tmp_path / "a")
    assert cells(text, "entropy of the grey values")["mse"] == "0.135 ± 0.002"
    assert cells(text, "entropy of the grey values", table=1) == {
        "method": "entropy of the grey values",
        "sinusoid": "",
        "line": "0.135 ± 0.002",
    }
    assert "Entropy of the grey values: no prediction can score below it." in text
    assert "Bayes" not in text
    score(make_run(tmp_path / "b"), {"mse": MSE}, about={"floor": {"metrics": own}})
    assert cells(report(tmp_path / "b"), "floor")["mse"] == "0.135 ± 0.002"


def test_labels_tell_what_differs_from_the_recipe(tmp_path):
    make_run(tmp_path / "a", augment=False, steps=700, val_every=5, hidden=[8, 8])
    assert [v.label for v in collect_variants([tmp_path / "a"])] == ["st-maml (hidden=8x8, augment=False, steps=700)"]
    assert [slugify(v.label) for v in collect_variants([tmp_path / "a"])] == [
        "st-maml-hidden-8x8-augment-false-steps-700"
    ]


def test_the_papers_figure_stands_beside_the_papers_method_and_conditions_only(tmp_path):
    score(make_run(tmp_path / "a", steps=700), {"mse": MSE})
    score(make_run(tmp_path / "b", augment=False), {"mse": MSE})
    text = report(tmp_path / "a", tmp_path / "b")
    assert cells(text, "st-maml (steps=700)")["mse (paper)"] == "0.37 ± 0.04"
    assert cells(text, "st-maml (augment=False)")["mse (paper)"] == ""
    score(make_run(tmp_path / "c"), {"mse": MSE}, shots=2)
    assert "(paper)" not in report(tmp_path / "c")


@pytest.mark.parametrize(
    ("settings", "printed"),
    [
        ({}, "86.56 ± 4.89"),
        ({"augment": False}, "100.27 ± 5.87"),
        ({"tailor": False}, "106.37 ± 5.77"),
        ({"stochastic": False}, None),
        ({"augment": False, "tailor": False}, None),
        ({"h_size": 3}, None),
        ({"lookup": {"lookup": "attention"}}, None),
        ({"inputs": "rich"}, None),
        ({"preset": "best"}, None),
        ({"preset": "tuned"}, None),
        ({"preset": "released"}, "86.56 ± 4.89"),
        ({"preset": "released", "augment": False}, "100.27 ± 5.87"),
    ],
)
def test_the_papers_ablations_stand_beside_methods_with_that_one_part_off(tmp_path, settings, printed):
    run = make_run(tmp_path / "a", benchmark="weather", log=False, **settings)
    score(run, {"mse": MSE}, query=100)
    (variant,) = collect_variants([tmp_path / "a"])
    assert cells(report(tmp_path / "a"), variant.label).get("mse (paper)") == printed


def sweep_runs(folder) -> list[Path]:
    """ST-MAML tested with several numbers of examples, MAML with two, another with one alone."""
    for name, method, tried in (("a", "st-maml", (4, 10, 20)), ("b", "maml", (4, 20)), ("c", "mmaml", (10,))):
        run = make_run(folder / name, method=method, log=False)
        for number in tried:
            score(run, {"mse": MSE / number, "nll": MSE}, shots=number)
    return [folder / name for name in "abc"]


def test_errors_are_drawn_against_the_number_of_examples(tmp_path, caught):
    for number, mean in ((20, 0.1), (10, 0.2)):
        limit = {"metrics": {"mse": {"mean": mean, "ci95": 0.01}}}
        remember_floor(conditions(shots=number), limit)
    paths = write_report(sweep_runs(tmp_path), tmp_path / "out")
    assert [path.name for path in paths] == ["report.md", "shots.png"]
    assert "How the error falls with the number of labelled examples" in paths[0].read_text()
    (figure,) = caught
    (ax,) = figure.axes
    first, second, limit = (np.asarray(line.get_xydata()) for line in ax.get_lines())
    np.testing.assert_allclose(first, [(4, 0.75), (10, 0.3), (20, 0.15)])
    np.testing.assert_allclose(second, [(4, 0.75), (20, 0.15)])
    np.testing.assert_allclose(limit, [(10, 0.2), (20, 0.1)])
    assert [text.get_text() for text in ax.texts] == ["st-maml", "maml", "Bayes limit"]
    band = ax.collections[0].get_paths()[0].vertices
    half = T3 * MSE.std(ddof=1) / 2
    np.testing.assert_allclose(np.ptp(band[band[:, 0] == 10], axis=0)[1], 2 * half / 10)
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["4", "10", "20"]
    assert (ax.get_xscale(), ax.get_yscale(), ax.get_ylabel()) == ("log", "log", "mean squared error")
    (suptitle,) = [text.get_text() for text in figure.texts]
    assert suptitle == "regression2d: range 0..5, noise 0.3, query 40, 20 samples a task"


def test_other_conditions_make_other_sweeps(tmp_path):
    run = make_run(tmp_path / "a")
    for noise, number in ((0.3, 2), (0.3, 10), (0.8, 5)):
        score(run, {"mse": MSE}, shots=number, noise=noise)
    (sweep,) = collect_sweeps(collect_sections(collect_variants([tmp_path / "a"])))
    assert list(sweep.points["st-maml"]) == [10, 2]
    assert sweep.metric == "mse"


def test_a_score_below_zero_or_an_unknown_interval_is_drawn_too(caught):
    points = {"a": {n: {"nll": {"mean": 1.0 - n, "ci95": float("nan")}} for n in (1, 2)}}
    assert shots_figure(Sweep("t", "nll", points)) is not None
    assert caught[0].axes[0].get_yscale() == "linear"
    assert shots_figure(Sweep("t", "nll", {"a": {1: points["a"][1]}})) is None


def test_names_of_lines_move_apart_as_little_as_they_must():
    np.testing.assert_allclose(spread(np.array([0.8, 0.2]), np.array([0.1, 0.1])), [0.8, 0.2])
    np.testing.assert_allclose(spread(np.array([0.5, 0.5]), np.array([0.1, 0.3])), [0.4, 0.6])
    np.testing.assert_allclose(spread(np.array([1.0, 0.0, 0.99]), np.full(3, 0.2)), [0.9, 0.1, 0.7])
    np.testing.assert_allclose(
        spread(np.array([0.3, 0.2]), np.array([0.8, 0.8])), [1.2, 0.4]
    )  # more than there is room


def test_completion_has_its_own_figures(tmp_path, caught):
    run = make_run(tmp_path / "a", log=False)
    config = {**run.config(), "benchmark": {"name": "completion", "settings": {}}}
    run.config_path.write_text(json.dumps(config))
    add_images(run)
    floor = {"metrics": {"bce": {"mean": 0.135, "ci95": 0.0}}, "families": {}}
    for number in (40, 4):
        about = {"floor": floor, "sweep": {"figure": "pixels", "label": "observed pixels"}}
        score(run, {"bce": MSE / number, "diversity": MSE}, shots=number, about=about)
    paths = write_report([tmp_path / "a"], tmp_path / "out")
    assert [path.name for path in paths] == ["report.md", "pixels.png", "completion.png"]
    assert "sampled completions and their mean:" in paths[0].read_text()
    left, right = caught[-1].axes
    np.testing.assert_allclose(np.asarray(left.get_lines()[0].get_xydata()), [(4, 0.75), (40, 0.075)])
    np.testing.assert_allclose(left.get_lines()[1].get_ydata(), 0.135)
    np.testing.assert_allclose(np.asarray(right.get_lines()[0].get_xydata()), [(0.75, 3.0), (0.075, 3.0)])


def test_weather_shows_a_year_of_each_variant(tmp_path):
    for name, method in (("a", "st-maml"), ("b", "maml")):
        run = make_run(tmp_path / name, method=method, benchmark="weather", log=False)
        score(run, {"mse": MSE}, query=100)
        add_year(run)
    paths = write_report([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    assert [path.name for path in paths] == ["report.md", "years-st-maml.png", "years-maml.png"]
    assert paths[0].read_text().count("A year at a station of each band") == 4  # each above its figure and within


def test_conditions_make_sections(tmp_path):
    run = make_run(tmp_path / "a")
    score(run, {"mse": MSE})
    score(run, {"mse": MSE}, digest="d2", shots=2)
    text = report(tmp_path / "a")
    assert text.split("## Runs")[0].count("20 samples a task") == 2
    assert "The same settings" not in text


def test_runs_scored_on_other_data_never_share_a_table(tmp_path):
    score(make_run(tmp_path / "a"), {"mse": MSE})
    score(make_run(tmp_path / "b", method="maml"), {"mse": MSE / 2}, digest="d2")
    score(make_run(tmp_path / "c", method="mmaml"), {"mse": MSE / 3})
    text = report(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    first, second = text.split("## ")[1:3]
    assert first.startswith("regression2d: range 0..5, noise 0.3, shots 10, query 40, 20 samples a task (digest d1)\n")
    assert "\n\nThe same settings on other data: digest d2 instead of d1. Scores here do not compare" in second
    assert all(f"| {method} " in first for method in ("st-maml", "mmaml"))
    assert "| maml " in second
    assert "| maml " not in first
    assert "**" in first  # of the two that share their tasks
    assert "**" not in second
    assert "Difference to st-maml" in first
    assert "Difference to" not in second


def test_settings_that_may_be_why_tasks_differ_are_named(tmp_path):
    for name, data in (("a", "here"), ("b", "there")):
        score(make_run(tmp_path / name), {"mse": MSE}, digest=name, about={"settings": {"data": data, "shots": 10}})
    said = "on other data: digest b instead of a; settings that differ: data there instead of here."
    assert said in report(tmp_path / "a", tmp_path / "b")


def test_the_same_tasks_with_other_inputs_share_a_table_also_with_scores_of_the_first_version(tmp_path):
    for name, method, digest, about in (
        ("paper", "st-maml", "d1", {"targets_digest": "t"}),
        ("rich", "maml", "d2", {"targets_digest": "t"}),
        ("old", "mmaml", "d2", {}),
        ("other", "bmaml", "d3", {"targets_digest": "u"}),
    ):
        score(make_run(tmp_path / name, method=method), {"mse": MSE}, digest=digest, about=about)
    folders = [tmp_path / name for name in ("paper", "rich", "old", "other")]
    sections = collect_sections(collect_variants(folders))
    assert [[row.label for row in section.rows] for section in sections] == [["st-maml", "maml", "mmaml"], ["bmaml"]]


def test_two_runs_on_different_tasks_are_two_tables_without_a_best(tmp_path):
    score(make_run(tmp_path / "a", log=False), {"mse": MSE, "coverage90": MSE / 8})
    score(make_run(tmp_path / "b", method="maml", log=False), {"mse": MSE / 2, "coverage90": MSE / 9}, digest="d2")
    text = report(tmp_path / "a", tmp_path / "b").split("## Runs")[0]
    assert text.count("| method ") == 6  # all tasks, by family and beside the paper, for each
    assert "**" not in text
    assert "The same settings on other data: digest d2 instead of d1." in text


def test_every_set_of_tasks_a_run_was_scored_on_is_shown_that_with_the_most_first(tmp_path):
    run = make_run(tmp_path / "a")
    score(run, {"mse": MSE})
    score(run, {"mse": np.tile(MSE, 2)}, digest="d8")
    text = report(tmp_path / "a")
    assert [line for line in text.splitlines() if line.startswith("## regression2d")] == [
        f"## regression2d: range 0..5, noise 0.3, shots 10, query 40, 20 samples a task ({n} tasks)" for n in (8, 4)
    ]
    assert text.count("The same settings on other tasks: 4 instead of 8 tasks.") == 1
    assert (cells(text, "st-maml")["tasks"], cells(text, "st-maml", table=3)["tasks"]) == ("8", "4")


def test_figures_of_sections_with_the_same_conditions_have_files_of_their_own(tmp_path):
    run = make_run(tmp_path / "a", log=False)
    for digest in ("d1", "d2"):
        score(run, {"coverage90": MSE / 8}, digest=digest)
    names = [path.name for path in write_report([tmp_path / "a"], tmp_path / "out")]
    assert len(set(names)) == 3
    assert all(name.startswith("reliability-regression2d-range-0..5") for name in names[1:])


def test_a_sweep_takes_one_set_of_tasks_for_each_number_of_examples(tmp_path):
    run, other = make_run(tmp_path / "a"), make_run(tmp_path / "b", method="maml")
    for number in (2, 10):
        score(run, {"mse": MSE}, shots=number)
        score(other, {"mse": MSE}, digest="elsewhere", shots=number)
    (sweep,) = collect_sweeps(collect_sections(collect_variants([tmp_path / "a", tmp_path / "b"])))
    assert list(sweep.points) == ["st-maml"]


def table_run(folder, *, method="st-maml", seed=0, hidden=8) -> Run:
    """A run of `stmaml fit` on a table, which no recipe knows."""
    run = Run(folder)
    run.create(
        {
            **{"command": "stmaml fit lines.csv", "seed": seed, "versions": {"python": "3.11"}, "device": "cpu"},
            "benchmark": {"name": "table", "settings": {"task": "shop", "target": "y", "sizes": {"shots": 4}}},
            "method": {"name": method, "preset": "default", "settings": {"hidden": [hidden, hidden]}},
            "modelling": {"noise_model": "predicted"},
            "training": {"steps": 100, "val_metric": "nll"},
        }
    )
    run.append_log({"step": 100, "seconds": 3.0, "loss": 1.0})
    return run


def score_table_run(run) -> None:
    """The method and a baseline at each number of labelled rows, as `stmaml fit` scores them."""
    for shots in (0, 1, 4):
        tasks = {"table": "lines", "target": "y", "groups": 4, "shots": shots}
        shared = {
            **{"conditions": Conditions("table", tasks, 20).to_json(), "families": {}},
            "sweep": {"figure": "shots", "label": "labelled rows"},
        }
        for row, level in (("st-maml", 1.0), ("ridge", 2.0)):
            about = {**shared, **({} if row == "st-maml" else {"row": row}), "note": "Meta-learning helps."}
            values = level * MSE / (1 + shots)
            score(run, {"width90": values, "coverage90": MSE / 7, "mse": values}, about=about, shots=shots)


def test_a_table_has_a_section_for_each_number_of_rows_and_a_row_for_each_baseline(tmp_path, caught):
    score_table_run(table_run(tmp_path / "a"))
    paths = write_report([tmp_path / "a"], tmp_path / "out")
    text = paths[0].read_text()
    assert [path.name.split("-")[0] for path in paths[1:]] == [*["reliability"] * 3, "shots.png", "training.png"]
    assert text.count("## table: table lines, target y, groups 4, shots ") == 3
    scores = ["mse", "coverage90", "width90"]
    assert list(cells(text, "ridge")) == ["method", "seeds", "tasks", *scores, MORE[0], "training"]
    assert cells(text, "ridge")["mse"].startswith("6.000")
    assert cells(text, "st-maml")["mse"].startswith("**3.000")
    assert (cells(text, "st-maml")["training"], cells(text, "ridge")["training"]) == ("3 s", "")
    assert cells(text, "ridge", table=1)["mse"].startswith("+3.000")
    assert text.count("Meta-learning helps.") == 3
    (ax,) = caught[0].axes
    method, baseline = (np.asarray(line.get_xydata()) for line in ax.get_lines())
    np.testing.assert_allclose(method, [(0, 3.0), (1, 1.5), (4, 0.6)])
    np.testing.assert_allclose(baseline, [(0, 6.0), (1, 3.0), (4, 1.2)])
    assert (ax.get_xscale(), ax.get_xlabel()) == ("symlog", "labelled rows")
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["0", "1", "4"]


def test_a_tables_own_method_is_the_first_row_and_its_intervals_are_over_groups(tmp_path):
    """Whatever the names of files say: baselines were scored beside the run, and groups are what is independent."""
    run = table_run(tmp_path / "a")
    tested = Conditions("table", {"table": "lines.csv", "target": "y", "groups": 4, "shots": 4}, 20).to_json()
    for row, level in (("boosting", 1.0), ("ridge", 2.0), (None, 3.0)):
        about = {"conditions": tested, "families": {}, **({"row": row} if row else {})}
        score(run, {"mse": level * MSE}, about=about)
    (section,) = collect_sections(collect_variants([tmp_path / "a"]))
    assert [row.label for row in section.rows] == ["st-maml", "boosting", "ridge"]
    text = report(tmp_path / "a")
    assert "interval over test groups, for one training seed." in text
    assert "of the difference over groups, and seeds if several (negative" in text
    assert "over test tasks" not in text
    assert cells(text, "boosting", table=1)["mse"].startswith("-6.000"), "compared with the run's own method"


def test_a_baseline_beside_several_seeds_is_one_row_with_its_interval_over_tasks(tmp_path):
    for seed in (0, 1):
        score_table_run(table_run(tmp_path / f"seed-{seed}", seed=seed))
    text = report(tmp_path)
    assert (cells(text, "st-maml")["seeds"], cells(text, "ridge")["seeds"]) == ("2", "1")
    assert cells(text, "ridge")["mse"] == f"6.000 ± {T3 * 2 * MSE.std(ddof=1) / 2:.3f}"


def test_runs_that_no_recipe_tells_apart_are_no_seeds_of_each_other(tmp_path):
    for seed, hidden in ((0, 8), (1, 16)):
        score_table_run(table_run(tmp_path / str(hidden), seed=seed, hidden=hidden))
    labels = [variant.label for variant in collect_variants([tmp_path / "8", tmp_path / "16"])]
    assert labels == ["st-maml [8]", "st-maml [16]"]


@pytest.mark.parametrize(("extent", "warned"), [([0, 5], True), ([-5, 5], False)])
def test_figures_of_the_paper_that_flatter_ours_come_with_a_warning(extent, warned, tmp_path):
    score(make_run(tmp_path / "a"), {"mse": MSE}, input_range=extent)
    text = report(tmp_path / "a")
    assert "mse (paper)" in text
    assert ("no fair comparison" in text) == warned


def test_sections_stand_by_the_number_of_examples_after_that_of_training(tmp_path):
    run = make_run(tmp_path / "a")
    for shots in (20, 100, 10, 2):
        score(run, {"mse": MSE}, digest=f"d{shots}", shots=shots)
    sections = collect_sections(collect_variants([tmp_path / "a"]))
    assert [section.shots for section in sections] == [10, 2, 20, 100]


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
    assert [path.name for path in paths] == ["report.md", "reliability.png", *names, "training.png"]
    assert all(path.stat().st_size > 5000 and path.read_bytes()[:4] == b"\x89PNG" for path in paths[1:])
    assert all(f"]({path.name})" in paths[0].read_text() for path in paths[1:])


class Flat(AbstractPredictor):
    """0 everywhere."""

    level: jax.Array

    def __call__(self, x):
        return NormalOutcome(jnp.zeros((x.shape[0], 1)), jnp.ones((x.shape[0], 1)))


class Indifferent(AbstractMetaLearner):
    """Learns nothing."""

    def loss(self, task, *, key):
        raise NotImplementedError

    def adapt(self, support, *, num_samples, key):
        return stack_one(Flat(jnp.zeros(())))


def test_the_showcases_of_the_benchmark_make_all_figures_of_curves(tmp_path, caught, key):
    run = make_run(tmp_path / "a", log=False)
    score(run, {"mse": MSE})
    for case in regression2d.Config().open().showcases():
        arrays = trace(Indifferent(), case, num_curves=1, num_samples=2, key=key)
        run.save_arrays(Path("curves") / f"{case.name}.npz", arrays)
    names = [path.name for path in write_report([tmp_path / "a"], tmp_path / "out")]
    assert names == ["report.md", "curves.png", "ambiguity.png", "limit.png"]
    curves, ambiguity, limit = caught
    titles = [ax.get_title() for ax in curves.axes]
    assert titles[:2] == ["sinusoid", "line"]  # those of the scores first, in their order
    assert sorted(titles) == sorted(family.name for family in regression2d.FAMILIES)
    assert curves.get_suptitle() == "st-maml: shots 10, noise 0.3"
    assert [ax.get_title() for ax in ambiguity.axes[:4]] == [
        f"shots {shots}, noise {noise}" for shots, noise in AMBIGUOUS_CURVES
    ]
    assert [ax.get_ylabel() for ax in ambiguity.axes if ax.get_ylabel()] == ["sinusoid: y", "cubic: y"]
    assert [ax.get_title() for ax in limit.axes[:4]] == ["1 example", "2 examples", "5 examples", "10 examples"]
    widths = [np.ptp(ax.collections[0].get_paths()[0].vertices[:, 1]) for ax in limit.axes[4:]]
    assert widths[1] > widths[3]  # what can be known at best grows with the examples


def test_a_report_needs_neither_log_nor_curves(tmp_path):
    score(make_run(tmp_path / "a", log=False), {"mse": MSE})
    assert [path.name for path in write_report([tmp_path / "a"], tmp_path / "out")] == ["report.md"]


def test_two_benchmarks_stay_apart(tmp_path):
    score(make_run(tmp_path / "a"), {"mse": MSE})
    score(make_run(tmp_path / "b", benchmark="pictures"), {"accuracy": MSE / 10})
    paths = write_report([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    assert [path.name for path in paths[1:]] == ["training-regression2d.png", "training-pictures.png"]
    assert cells(paths[0].read_text(), "st-maml on pictures", table=3)["accuracy"].startswith("0.300")


def test_command_says_where_the_report_is(tmp_path, monkeypatch, capsys):
    score(make_run(tmp_path / "a"), {"mse": MSE})
    monkeypatch.setattr(sys, "argv", ["stmaml", "report", str(tmp_path / "a")])
    main()
    page = tmp_path / "a" / "report" / "report.html"
    assert capsys.readouterr().out == f"wrote {page}, and report.md with 1 figure beside it\n"


def test_folders_without_a_run_are_left_out_with_a_line(tmp_path, stmaml):
    score(make_run(tmp_path / "b"), {"mse": MSE})
    (tmp_path / "a-report").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    code, out, err = stmaml("report", tmp_path / "a-report", tmp_path / "b", tmp_path / "notes.txt")
    assert code == 0
    assert f"wrote {tmp_path / 'b' / 'report' / 'report.html'}" in out
    assert err.splitlines() == [f"left out {tmp_path / name}: it holds no run" for name in ("a-report", "notes.txt")]
    code, _, err = stmaml("report", tmp_path / "b", tmp_path / "typo")
    assert code == 2
    assert "there is no run folder" in err


@pytest.fixture(scope="module")
def old_runs(tmp_path_factory) -> Path:
    """Runs that version 0.1.0 made."""
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(Path(__file__).parent / "runs_0_1_0.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "runs_0_1_0"


def test_runs_of_the_first_version_make_a_report(old_runs, tmp_path):
    names = (
        "regression2d-maml",
        "regression2d-st-maml",
        "celeba-bmaml",
        "completion-cnp",
        "weather-maml",
        "table-lines",
    )
    paths = write_report([old_runs / name for name in names], tmp_path)
    text = paths[0].read_text()
    for title in (
        "regression2d: range 0..5, noise 0.3, shots 10, query 40, 3 samples a task\n",
        "regression2d: range 0..5, noise 0.3, shots 10, query 40, 3 samples a task, inner steps 4",
        "regression2d: range 0..5, noise 0.3, shots 5, query 40",
        "celeba: pictures 90, shots 2, query 2",
        "completion: families mnist+fashion-mnist+kmnist, shots 10",
        "weather: split station, shots 10, query 20",
        "table: table lines.csv, target y, groups 2, shots 4, 20 samples a task",
    ):
        assert f"## {title}" in text
    assert "The same settings" not in text
    kinds = {path.name.split("-")[0] for path in paths[1:]}
    assert kinds == {"curves", "ambiguity", "rules", "completion", "years", "shots", "reliability", "training"}


def test_old_and_new_scores_on_the_same_tasks_share_a_table(old_runs, tmp_path):
    run = make_run(tmp_path / "new", log=False)
    (old,) = Run(old_runs / "regression2d-maml").scores().values()
    score(run, {"mse": np.ones(8)}, digest=old["digest"], about={"conditions": old["conditions"]})
    assert Conditions.from_json(old["conditions"]) == replace(conditions(), samples=3)
    (section,) = collect_sections(collect_variants([old_runs / "regression2d-maml", tmp_path / "new"]))
    assert len(section.rows) == 2


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


def cut_weights(folder):
    score(run := make_run(folder), {"mse": MSE})
    run.learner_path.write_bytes(b"PK")


def odd_floor(folder):
    score(make_run(folder), {"mse": MSE}, about={"floor": {"mse": 1.0}})


def cut_curves(folder):
    score(run := make_run(folder), {"mse": MSE})
    add_curves(run)
    (folder / "curves" / "0-line.npz").write_bytes(b"PK")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (no_evaluation, "has no evaluation yet: run 'stmaml evaluate {run}' first"),
        (no_folder, "there is no run folder {run}"),
        (no_config, "has no config.json"),
        (empty_config, "lacks 'seed'"),
        (foreign_scores, "lacks 'benchmark'"),
        (cut_weights, "is damaged or cut short"),
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


@pytest.mark.parametrize(
    ("spoil", "message"), [(cut_scores, "cannot be read"), (odd_floor, "'floor.metrics' must be an object")]
)
def test_scores_that_cannot_be_read_are_named_before_it_says_that_none_are_left(tmp_path, stmaml, spoil, message):
    spoil(tmp_path / "a")
    code, _, err = stmaml("report", tmp_path / "a")
    note, end = err.splitlines()
    assert code == 2
    assert note.startswith("left out: ")
    assert message in note
    assert "has no evaluation yet" in end


def test_a_trace_that_cannot_be_read_is_left_out_of_the_report(tmp_path, stmaml):
    cut_curves(tmp_path / "a")
    code, out, err = stmaml("report", tmp_path / "a")
    assert code == 0
    assert "wrote" in out
    (note,) = err.splitlines()
    assert "0-line.npz is damaged or cut short" in note


def test_no_run_is_told(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["stmaml", "report"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "report needs at least one run folder" in capsys.readouterr().err
