"""The study of ambiguous faces, at toy size."""

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stmaml.benchmarks.base import TEST_SEED
from stmaml.evaluation import evaluate
from stmaml.inner import InnerLoop
from stmaml.methods import maml, st_maml
from stmaml.nets.conv import Conv
from stmaml.recipes import recipe
from tests import study_modules
from tests.face_files import faces

TINY = ["--image-size", "8", "--tasks", "400", "--val-tasks", "4", "--choosing-tasks", "6"]
TESTS = ["--test-tasks", "6", "--curve-tasks", "4", "--samples", "50"]
SMALL = {"conv": Conv(channels=4, conv_blocks=1), "inner": InnerLoop(inner_lr=0.01, inner_steps=1)}
ST_MAML = "st-maml@open=0.5,method_settings.kl_weight=0.5:1"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return faces((200, 160, 200)).write(tmp_path_factory.mktemp("faces"))


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    module = study_modules.opened("equal_faces", monkeypatch, tmp_path / "cache")
    methods = {"maml": maml.Config(**SMALL), "st-maml": st_maml.Config(**SMALL, h_size=4)}
    small = {name: replace(recipe("celeba", name, "paper"), method_settings=one) for name, one in methods.items()}
    monkeypatch.setattr(module, "recipe", lambda _, name, __: small[name])
    monkeypatch.setattr(module, "AT_ONCE", 4)
    monkeypatch.setattr(module, "FACTORS", (1.0, 0.0, 2.0))
    return module


def run(study: ModuleType, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["equal_faces", *words])
    study.main()


@pytest.mark.slow  # a whole training with its scores
def test_rows_are_trained_scored_and_shown(study, monkeypatch, tmp_path, data, capsys):
    folder, figure = tmp_path / "all", tmp_path / "figure.png"
    run(study, monkeypatch, "prepare", str(folder), "--data", str(data), *TINY)
    rows, scored = [], study.score_row

    def score_row(row, *rest):
        rows.append(row)
        return scored(row, *rest)

    monkeypatch.setattr(study, "score_row", score_row)
    run(study, monkeypatch, "train", str(folder), "maml:1", ST_MAML, *TINY, *TESTS)
    kept = np.load(folder / "answers" / f"{rows[1].training.job.name}.npz")
    assert kept["test 1"].shape == (6, 40, 3, 10)
    told = [json.loads(path.read_text()) for path in sorted((folder / "rows").glob("*.json"))]
    assert [(one["row"], one["seed"], one["trained_on"]) for one in told] == [
        ("maml", 1, 400),
        (ST_MAML.rpartition(":")[0], 1, 400),
    ]
    assert told[0]["metrics"]["test"]["1"]["coverage"]["mean"] == 1
    assert set(told[1]["metrics"]["curve"]) == {"0", "1", "2"}
    assert told[1]["metrics"]["curve"]["0"]["coverage"]["mean"] == 1  # models that are all one
    as_evaluated(study, rows[1], folder / "scores")
    capsys.readouterr()
    run(study, monkeypatch, "show", str(folder), "--figure", str(figure))
    assert f"| {ST_MAML.rpartition(':')[0]} | 1 | 400 | 1 |" in capsys.readouterr().out
    assert figure.stat().st_size > 10_000


def as_evaluated(study, row, folder):
    """The scores are those of `stmaml evaluate`: the same models on the same tasks."""
    test = row.tests.opened.test_set(6)
    ours = np.load(folder / f"{row.training.job.name}.npz")
    theirs = evaluate(row.training.states[1], test, num_samples=50, key=jr.key(TEST_SEED)).values
    for name in study.SCORES:
        np.testing.assert_allclose(ours[f"test 1 {name}"], theirs[name], atol=2e-5, err_msg=name)


def test_seeds_together_are_one_learner_whose_models_take_turns(study, tmp_path):
    together, figures = (importlib.import_module(name) for name in ("faces_together", "faces_figures"))
    # Two learners of 30 models, sure of one rule each, on 4 tasks of 3 rules and 5 queries.
    each = [np.full((4, 30, 3, 5), np.log(0.1), np.float16) for _ in range(2)]
    each[0][:, :, 0], each[1][:, :, 2] = np.log(0.9), np.log(0.9)
    (tmp_path / "answers").mkdir()
    for seed, one in enumerate(each):
        kept: Any = {"choosing 1": one, "test 1": one}
        np.savez(tmp_path / "answers" / f"row-{seed}.npz", **kept)
    told = {seed: {"name": f"row-{seed}", "factor": 1.0, "trained_on": 10} for seed in range(2)}
    row = figures.Row("row", told, {})
    rows = together.with_seeds_together({"row": row}, [tmp_path])
    (both,) = [one for name, one in rows.items() if name == "row, 2 seeds together"]
    assert together.in_turns(each).shape == (4, 40, 3, 5)
    assert both.mean("test", "coverage", 1.0) == 2
    assert both.mean("test", "accuracy", 1.0) == 1
    mixed = -(2 * np.log(0.5) + np.log(0.1)) / 3  # two rules have half of the models each
    assert both.mean("test", "nll", 1.0) == pytest.approx(mixed, abs=1e-3)
    alone = {0: {"name": "row-0", "factor": 1.0}}
    assert together.together(figures.Row("row", alone, {}), [tmp_path]) is None


def test_open_tasks_ask_about_one_pair_of_the_three_attributes_of_their_support(study, data):
    shelf = study.Shelf()
    settings = study.Config(data=str(data), image_size=8)
    tests = study.Tests(settings.open(shelf), None)
    triplets = tests.three_of(0, "training")
    has = np.asarray(settings.read(shelf)[0][0][1])
    seen = []
    album = triplets.album

    class Spy(study.FaceAlbum):
        def expand(self, drawn):
            seen.append(drawn)
            return album.expand(drawn)

    pairs = replace(tests.opened.train, album=Spy(album.pictures, album.attributes))
    batch = study.OpenTasks(pairs, triplets, 1.0).sample(20, key=jr.key(0))
    assert batch.tasks.query.x.shape == (20, 10, 8, 8, 3)
    assert batch.rules is None
    for support, query in zip(np.asarray(seen[0].support), np.asarray(seen[0].query), strict=True):
        assert common(has, support) >= 3
        assert common(has, query[0]) >= 2
        assert not set(support.ravel()) & set(query.ravel())


def common(has: np.ndarray, rows: np.ndarray) -> int:
    """Attributes that all pictures of side 1 have, and none of side 0."""
    return int((has[rows[1]].all(0) & ~has[rows[0]].any(0)).sum())


def test_the_factor_is_the_surest_of_those_that_cover_enough(study):
    found = {1.0: (1.8, 0.60), 2.0: (2.4, 0.62), 3.0: (2.7, 0.61), 4.0: (2.9, 0.7)}
    means = {factor: {"coverage": coverage, "nll": nll} for factor, (coverage, nll) in found.items()}
    assert study.pick(means) == 3.0
    assert study.pick({factor: means[factor] for factor in (1.0,)}) == 1.0
    assert study.pick({factor: {**one, "coverage": one["coverage"] - 1} for factor, one in means.items()}) == 4.0


def test_a_learner_for_ambiguity_is_no_less_right_than_maml(study):
    figures = importlib.import_module("faces_figures")

    def row(name: str, coverage: float, accuracy: float, nll: float):
        kinds = {**dict.fromkeys(study.SCORES, 0.0), "coverage": coverage, "accuracy": accuracy, "nll": nll}
        scores = {f"choosing 2 {kind}": np.full(3, value) for kind, value in kinds.items()}
        return figures.Row(name, {0: {"factor": 2.0}}, {0: scores})

    maml_row = row("maml", 1, 0.78, 0.62)
    rows = [maml_row, row("sharp", 2.5, 0.77, 0.60), row("good", 2.4, 0.79, 0.61), row("narrow", 1.5, 0.8, 0.59)]
    assert figures.for_ambiguity({one.name: one for one in rows}) == ("good", True)
    assert figures.for_ambiguity({one.name: one for one in rows if one.name != "good"}) == ("sharp", False)
    assert figures.for_ambiguity({"maml": maml_row}) == (None, False)


def test_a_wider_z_keeps_its_mean(study):
    encoder = st_maml.Encoding((4,), z_hidden=(), z_size=3).build(2, stochastic=True, key=jr.key(0))
    xy, weight = jr.normal(jr.key(1), (5, 2)), jnp.ones(5)
    plain, wide = encoder(xy, weight), study.Wider(encoder, jnp.asarray(3.0))(xy, weight)
    assert jnp.allclose(wide.mu, plain.mu)
    assert jnp.allclose(wide.sigma, 3 * plain.sigma)
