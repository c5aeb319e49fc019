"""Runs that 0.1.0 made: they open, and answer and score as they did there."""

import json
import shutil
import tarfile
from pathlib import Path

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import polars as pl
import pytest

from stmaml.errors import RunError
from stmaml.experiments import EvaluateConfig, evaluate_run, load_experiment, load_run, train_runs, training
from stmaml.legacy.settings import OLD_KEYS, plain_names, upgrade_st_maml
from stmaml.methods.base import predict
from stmaml.runs import Run, read_json, read_npz, write_json
from stmaml.shipped import load_shipped
from stmaml.tables.adapted import load_adapted
from stmaml.tables.model import load_model
from stmaml.tasks import Examples
from tests.face_files import faces
from tests.idx_files import write_digits
from tests.noaa_files import write_year
from tests.picture_files import write_dataset

ARCHIVE = Path(__file__).with_name("runs_0_1_0.tar.xz")
with tarfile.open(ARCHIVE) as packed:
    NAMES = sorted(name.split("/")[1] for name in packed.getnames() if name.count("/") == 1)
QUICK = {
    *(f"regression2d-{name}" for name in ("best", "deterministic", "released", "st-maml")),
    "completion-best",
    "table-lines",
    "weather-tuned",
}
"""One of each kind; the others take minutes to compile."""


def marked(names: list[str]) -> list:
    return [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in names]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(ARCHIVE) as packed:
        packed.extractall(folder, filter="data")
    return folder / "runs_0_1_0"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> dict[str, Path]:
    """The small files that the runs were trained on, by benchmark; written when asked for."""
    return {"": tmp_path_factory.mktemp("data")}


def data_for(benchmark: str, data: dict[str, Path]) -> str | None:
    if benchmark == "regression2d":
        return None
    if benchmark not in data:
        folder = data[""] / benchmark
        if benchmark == "completion":
            write_digits(folder, height=8, width=8)
        elif benchmark == "weather":
            write_year(folder, 40, num_days=60)
        elif benchmark == "celeba":
            faces().write(folder)
        else:
            for name, first in (("bird", 0), ("moss", 300)):
                write_dataset(folder / name, classes=(6, 5, 5), images=8, size=8, first=first)
        data[benchmark] = folder
    return str(data[benchmark])


def means(summary: dict) -> dict[str, float]:
    return {name: value["mean"] for name, value in summary["metrics"].items()}


@pytest.mark.parametrize("name", marked([name for name in NAMES if not name.startswith("table")]))
def test_a_run_has_the_scores_it_had(name, runs, data):
    """Digest and every metric of the same 8 test tasks, with 3 draws each."""
    run = Run(runs / name)
    stored = {path.stem: read_json(path) for path in run.scores_folder.glob("*.json")}
    assert stored
    where = data_for(load_experiment(run).benchmark, data)
    for then in stored.values():
        asked = {key: then["settings"].get(key) for key in ("shots", "noise")}
        config = EvaluateConfig(tasks=8, samples=3, inner_steps=then["inner_steps"], data=where, **asked)
        (now,) = evaluate_run(run, config, config.of(load_experiment(run)).open())
        assert now["digest"] == then["digest"]
        assert means(now) == pytest.approx(means(then), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("name", marked([name for name in NAMES if name.startswith("table")]))
def test_a_table_gets_the_predictions_it_got(name, runs):
    folder = runs / name
    support, query, want = (pl.read_csv(folder / f"{part}.csv") for part in ("support", "query", "predictions"))
    assert_same(load_model(folder).predict(query, support, num_samples=5).frame, want)
    (file,) = (folder / "adapted").glob("*.npz")
    adapted = load_adapted(file)
    own = query["shop"] == adapted.group
    assert own.any()
    assert_same(adapted.predict(query.filter(own)).frame, want.filter(own))


def assert_same(got: pl.DataFrame, want: pl.DataFrame) -> None:
    assert "prediction" in got.columns
    for column in (name for name in got.columns if name in want.columns):  # words have been added beside numbers
        if want[column].dtype.is_numeric():
            np.testing.assert_allclose(got[column].to_numpy(), want[column].to_numpy(), rtol=1e-5, atol=1e-5)
        else:
            assert got[column].to_list() == want[column].to_list()


def test_the_shipped_weights_predict_what_they_did():
    """Numbers of 0.1.0 for six points of a sine."""
    x = jnp.stack([jnp.linspace(0.0, 5.0, 6), jnp.ones(6)], axis=1)
    asked = jnp.array([[0.5, 1.0], [2.5, 1.0], [4.2, 1.0]])
    learner = load_shipped(Path(__file__).parent / "shipped_0_1_0" / "regression2d")
    got = predict(learner, Examples.of(x, 3 * jnp.sin(x[:, :1])), asked, num_samples=4, key=jr.key(7))
    np.testing.assert_allclose(got.mean[:, 0], [1.0568129, 1.5828706, -2.4672844], rtol=1e-5)
    np.testing.assert_allclose(got.std[:, 0], [0.42217734, 0.42063117, 0.42791823], rtol=1e-5)


def test_training_goes_on_from_an_old_checkpoint(runs, tmp_path):
    """Two steps more than its six, from the state that 0.1.0 saved, on the tasks and to the weights of 0.1.0."""
    shutil.copytree(runs / "regression2d-maml", tmp_path / "run")
    run = Run(tmp_path / "run")
    config = read_json(run.config_path)
    config["training"]["steps"] = 8
    write_json(run.config_path, config)
    experiment = load_experiment(run)
    train_runs([run], experiment, experiment.benchmark_settings.open())
    assert run.checkpoint_steps() == [6, 8]
    (loss,) = [entry["loss"] for entry in run.log() if entry["step"] == 8 and "loss" in entry]
    assert loss == pytest.approx(15.982512, rel=1e-4)
    head = read_npz(run.folder / "checkpoints" / "step-000000008.npz")["learner.theta.head.weight"]
    np.testing.assert_allclose(head[:4, 0], [-0.38294747, 0.31073725, -1.1616473, -0.10983738], rtol=1e-4)
    assert all("[" not in name for name in read_npz(run.learner_path))


@pytest.mark.parametrize("name", ["regression2d-maml", "table-lines"])
def test_an_old_run_is_marked_with_its_keys(name, runs):
    assert Run(runs / name).config()["keys"] == OLD_KEYS


def test_an_old_run_that_took_no_step_begins_as_in_0_1_0(runs, tmp_path, monkeypatch):
    """With first weights and tasks from the two halves of its seed's own key."""
    shutil.copytree(runs / "regression2d-maml", tmp_path / "run")
    run, begun = Run(tmp_path / "run"), []
    for checkpoint in (run.folder / "checkpoints").iterdir():
        checkpoint.unlink()
    monkeypatch.setattr(training, "train_learners", lambda learners, *_, keys, **__: begun.extend([*learners, *keys]))
    experiment = load_experiment(run)
    benchmark = experiment.benchmark_settings.open()
    train_runs([run], experiment, benchmark)
    init_key, train_key = jr.split(jr.key(0))
    assert eqx.tree_equal(begun[0], experiment.method_settings.build(benchmark.train.spec, key=init_key))
    assert begun[1] == train_key


def test_every_setting_of_an_old_run_has_its_place(runs):
    """Nothing that 0.1.0 wrote is lost, but for what said nothing."""
    for name in ("weather-tuned", "completion-best"):
        experiment = load_experiment(Run(runs / name))
        old = json.loads((runs / name / "config.json").read_text())["method"]["settings"]
        lookup = experiment.modelling.lookup
        assert lookup.lookup == ("attention" if old["cross_attention"] else "lattice")
        assert lookup.lookup_size == (old["encoder"][-1] if old["cross_attention"] else old["lattice_channels"])
        assert lookup.lookup_layers == (old["cross_attention"] or 3)
        assert (lookup.lookup_waves, lookup.lookup_heads) == (old["cross_waves"], old["num_heads"])
        assert lookup.lookup_precision == old["conv"]["precision"]


@pytest.mark.parametrize(
    ("flat", "codes", "gate"),
    [
        ({"adapted": "mean", "redraw": True}, {"adapted": "redrawn-mean"}, {"gate": "affine"}),
        ({"adapted": "codes", "redraw": True}, {"adapted": "codes"}, {"gate": "affine"}),
        ({"gate": "affine", "gate_hidden": [80]}, {}, {"gate": "affine"}),
        ({"gate": "set-mlp", "gate_hidden": [8]}, {}, {"gate": "set-mlp", "gate_hidden": [8]}),
    ],
)
def test_old_settings_that_said_nothing_are_left_out(flat, codes, gate):
    settings, lookup = upgrade_st_maml({"z_size": 4, "augment": False, **flat})
    assert settings == {"augment": False, "encoder": {"z_size": 4}, "codes": codes, "gate": gate}
    assert lookup == {}


def test_a_gate_that_is_no_more_is_named():
    with pytest.raises(RunError, match=r"gate 'mlp' is of stmaml 0\.1\.0 alone"):
        upgrade_st_maml({"gate": "mlp"})


def test_old_names_of_arrays_become_plain_ones_below_the_right_wrapper():
    old = ["learner.theta.body[0].weight", "learner.cross.blocks[1].norms[0].bias", "opt_state[1][0].mu", "rate"]
    new = ["learner.learner.theta.body.0.weight", "learner.reader.blocks.1.norms.0.bias", "opt_state.1.0.mu", "rate"]
    assert list(plain_names(dict.fromkeys(old))) == new
    assert list(plain_names(dict.fromkeys(new))) == new
    held = plain_names({"theta.body[0].bias": 1, "cross.stem": 2})
    assert list(held) == ["learner.theta.body.0.bias", "reader.stem"]
    assert list(plain_names({"cross.stem": 1})) == ["cross.stem"], "a field of today's may have that name"
    assert list(plain_names({"['about']": 1, "['predictors'].predictor.net.h": 2})) == [
        "about",
        "predictors.predictor.net.h",
    ]


def test_old_runs_without_look_ups_keep_their_shape(runs):
    experiment, learner = load_run(runs / "regression2d-released")
    assert experiment.modelling.lookup.lookup == "none"
    assert type(learner).__name__ == "STMAML"
