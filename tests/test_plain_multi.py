"""From pictures on disk to the table: training, evaluation and report of few-shot classification."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stmaml import recipes
from stmaml.benchmarks.plain_multi import Config
from stmaml.methods import bmaml, maml
from stmaml.metrics import summarise
from stmaml.recipes import PUBLISHED_FAMILIES, RECIPES, recipe
from stmaml.recipes.rows import ABLATIONS
from stmaml.reports import write_report
from stmaml.reproduction import cells
from stmaml.runs import Run
from tests.changed import changed
from tests.picture_files import write_dataset

METHODS = ("maml", "meta-sgd", "bmaml", "platipus", "mmaml", "hsml", "arml", "cnp", "protonet", "st-maml")
ROWS = ("maml", "protonet", "st-maml")


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    for i, name in enumerate(("CUB_Bird", "VGG_Flower")):
        write_dataset(folder / name, classes=(4, 3, 3), images=4, first=100 * i)
    return folder


@pytest.fixture(autouse=True)
def _small(monkeypatch, tmp_path_factory):
    """Networks that compile in seconds: one block of four channels, one inner step."""
    monkeypatch.setenv("STMAML_CACHE", str(tmp_path_factory.mktemp("cache")))
    for method in ROWS:
        experiment: Any = recipe("plain-multi", method)
        learner = dataclasses.replace(
            experiment.method_settings,
            conv=dataclasses.replace(experiment.method_settings.conv, channels=4, conv_blocks=1),
        )
        if hasattr(learner, "inner"):
            learner = dataclasses.replace(learner, inner=dataclasses.replace(learner.inner, inner_steps=1))
        if method == "st-maml":
            learner = changed(learner, encoder=(8,), z_size=4, h_size=3)
        monkeypatch.setitem(
            RECIPES, ("plain-multi", method, "paper"), dataclasses.replace(experiment, method_settings=learner)
        )


def command(root: Path, out: Path, *words: str) -> list[str]:
    sizes = ["--image-size", "8", "--ways", "3", "--shots", "1", "--query-per-class", "2"]
    return ["reproduce", "plain-multi", "--budget", "smoke", "--data", str(root), *sizes, "--out", str(out), *words]


@pytest.mark.parametrize("rows", [("protonet",), pytest.param(ROWS, marks=pytest.mark.slow)])
def test_a_smoke_run_on_tiny_pictures_fills_the_table(rows, stmaml, root, tmp_path):
    code, out, err = stmaml(*command(root, tmp_path / "out", "--rows", *rows))
    assert code == 0, err
    assert "report.md" in out
    report = (tmp_path / "out" / "report" / "report.md").read_text()
    for row in rows:
        scores = Run(tmp_path / "out" / row).scores()
        (summary,) = scores.values()
        assert list(summary["metrics"]) == ["accuracy", "nll", "ece"]
        assert summary["tasks"] == 8
        assert list(summary["families"]) == ["CUB_Bird", "VGG_Flower"]
        assert 0 <= summary["metrics"]["accuracy"]["mean"] <= 1
        assert 0 <= summary["metrics"]["ece"]["mean"] <= 1
        (line,) = [line for line in report.split("accuracy by family")[0].splitlines() if line.startswith(f"| {row} ")]
        assert line.split("|")[2].strip() == "batch"
    digests = {next(iter(Run(tmp_path / "out" / row).scores().values()))["digest"] for row in rows}
    assert len(digests) == 1  # all on the same tasks


@pytest.mark.parametrize("flaw", ["few classes", "empty split"])
def test_bad_input_ends_with_one_sentence_and_code_2(flaw, stmaml, root, tmp_path):
    if flaw == "few classes":
        code, _, err = stmaml(*command(root, tmp_path / "out", "--ways", "4"))
        want = "CUB_Bird/val has 3 classes; --ways 4 needs as many."
    else:
        write_dataset(tmp_path / "own" / "bird", classes=(4, 0, 3))
        code, _, err = stmaml(*command(tmp_path / "own", tmp_path / "out"))
        want = "bird/val has no pictures"
    assert code == 2
    assert want in " ".join(err.split())


def test_every_method_of_the_table_has_a_recipe_and_a_row(root):
    benchmark = Config(data=str(root), image_size=8, ways=3, shots=1, query_per_class=2).open()
    names = [row.name for row in cells("plain-multi", benchmark, Config.budgets.paper)]
    assert set(names) >= {*METHODS, *ABLATIONS, "st-maml-best"}
    for method in METHODS:
        experiment: Any = recipe("plain-multi", method)
        assert experiment.training.val_metric == "accuracy"
        assert experiment.method_settings.conv.norm == "batch"
        assert (
            experiment.benchmark_settings.ways,
            experiment.benchmark_settings.shots,
            experiment.benchmark_settings.query_per_class,
        ) == (5, 5, 15)
    assert Config.budgets.paper.tasks == 4000


@pytest.mark.parametrize("benchmark", ["plain-multi", "celeba"])
def test_the_kl_of_platipus_is_weighed_to_a_tenth_of_the_elbo_at_least(benchmark):
    experiment: Any = recipe(benchmark, "platipus")
    classes = getattr(experiment.benchmark_settings, "ways", 2)
    queries = classes * experiment.benchmark_settings.query_per_class
    assert 0.1 / queries <= experiment.method_settings.kl_weight <= 1 / queries


@pytest.mark.parametrize("benchmark", ["plain-multi", "celeba"])
def test_each_particle_of_bmaml_steps_as_far_as_maml(benchmark):
    single, particles = (recipe(benchmark, method).method_settings for method in ("maml", "bmaml"))
    assert isinstance(single, maml.Config)
    assert isinstance(particles, bmaml.Config)
    assert particles.inner.inner_lr / particles.num_particles == pytest.approx(single.inner.inner_lr)


def evaluated(folder: Path, method: str, accuracy: dict[str, float], **changes) -> Path:
    """A run with made-up scores: a task of each data set and its mirror image around the mean."""
    usual = json.loads(json.dumps(dataclasses.asdict(recipe("plain-multi", method))))
    usual["method_settings"].update(changes)
    usual["method_settings"]["conv"].update(
        {name: v for name, v in changes.items() if name in usual["method_settings"]["conv"]}
    )
    for name in set(changes) & set(usual["method_settings"]["conv"]):
        usual["method_settings"].pop(name)
    run = Run(folder)
    run.create(
        {
            "command": "stmaml train",
            "seed": 0,
            "benchmark": {"name": "plain-multi", "settings": usual["benchmark_settings"]},
            "method": {"name": method, "preset": "paper", "settings": usual["method_settings"]},
            "modelling": usual["modelling"],
            "training": usual["training"],
        }
    )
    values = {name: np.array([mean - 0.1, mean + 0.1]) for name, mean in accuracy.items()}
    every = np.concatenate(list(values.values()))
    summary = {
        **{"benchmark": "plain-multi", "method": method, "preset": "paper", "seed": 0, "tasks": len(every)},
        **{"samples": 1, "digest": "d", "settings": usual["benchmark_settings"], "inner_steps": None},
        "norm": changes.get("norm", "batch"),
        "task_set": f"plain-multi/{'+'.join(accuracy)}/ways5/shots5/query5/size84/seed-2/tasks-{len(every)}",
        "metrics": {"accuracy": summarise(every)},
        "families": {name: {"accuracy": summarise(v)} for name, v in values.items()},
    }
    run.save_scores("tasks", summary, {"accuracy": every, "family": np.repeat(np.arange(len(accuracy)), 2)})
    return folder


def cells_of(report: str, method: str) -> dict[str, str]:
    """A row of the table by family, as a dictionary."""
    lines = report.split("accuracy by family:\n\n")[1].split("\n\n")[0].splitlines()
    head, rows = lines[0].split("|")[1:-1], [line.split("|")[1:-1] for line in lines[2:]]
    (row,) = [row for row in rows if row[0].strip() == method]
    return {name.strip(): cell.strip() for name, cell in zip(head, row, strict=True)}


def test_published_figures_stand_under_data_sets_of_the_same_name_alone(tmp_path):
    scores = {"CUB_Bird": 0.7, "VGG_Flower": 0.8}
    folders = [evaluated(tmp_path / method, method, scores) for method in ("st-maml", "maml")]
    folders.append(evaluated(tmp_path / "off", "st-maml", scores, tailor=False))
    folders.append(evaluated(tmp_path / "group", "maml", scores, norm="group"))
    report = write_report(folders, tmp_path / "report")[0].read_text()
    whole = cells_of(report, "st-maml")
    assert list(whole) == ["method", "norm", "CUB_Bird", "CUB_Bird (paper)", "VGG_Flower"]
    assert whole["CUB_Bird"].strip("*").startswith("0.700")
    assert whole["CUB_Bird (paper)"] == "0.7249 ± 0.0053"
    assert cells_of(report, "maml")["CUB_Bird (paper)"] == "0.6852 ± 0.0079"
    assert cells_of(report, "st-maml (tailor=False)")["CUB_Bird (paper)"] == "0.7148 ± 0.0055"
    other = cells_of(report, "maml (norm=group)")
    assert (other["norm"], other["CUB_Bird (paper)"]) == ("group", "")
    assert (
        "Not among these data sets: DTD_Texture, FGVC_Aircraft, FGVCx_Fungi. Not in the paper: VGG_Flower. Figures of "
        "the one say nothing about the other." in report
    )


def test_a_report_on_the_papers_own_sets_has_nothing_to_explain(tmp_path):
    names = PUBLISHED_FAMILIES["plain-multi", "arml", None]
    folder = evaluated(tmp_path / "arml", "arml", dict.fromkeys(names, 0.5))
    report = write_report([folder], tmp_path / "report")[0].read_text()
    assert "Not among these data sets" not in report
    row = cells_of(report, "arml")
    assert [row[f"{name} (paper)"] for name in names] == ["0.7334", "0.4967", "0.7488", "0.5755"]


def test_the_published_figures_are_those_of_the_papers():
    table = {(method, part): list(each.values()) for (_, method, part), each in recipes.PUBLISHED_FAMILIES.items()}
    assert table["hsml", None] == [(0.7168, 0.0073), (0.4808, 0.0069), (0.7349, 0.0068), (0.5632, 0.008)]
    assert table["st-maml", "augment"][1] == (0.4717, 0.0044)
    assert {method for method, _ in table} <= set(METHODS)
