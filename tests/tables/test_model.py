"""From a table to predictions: groups, order, calibration, saved models, and what cannot be done."""

import dataclasses
import json
import os
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import jax
import numpy as np
import polars as pl
import pytest
from scipy import stats
from threadpoolctl import threadpool_info

from stmaml import experiments
from stmaml.baselines import Boosting, BoostingConfig, support_mean
from stmaml.benchmarks.base import Benchmark
from stmaml.conditions import Conditions
from stmaml.errors import RunError, SettingError, SourceError
from stmaml.experiments import describe, experiment_of, fresh, load_experiment, train_once, train_runs
from stmaml.methods import METHODS
from stmaml.progress import Told, listening
from stmaml.recipes import recipe
from stmaml.runs import Run, read_json, write_json
from stmaml.tables import adapted as adapted_module
from stmaml.tables import aftercare, scoring
from stmaml.tables import benchmark as benchmark_module
from stmaml.tables import model as model_module
from stmaml.tables.adapted import load_adapted
from stmaml.tables.answers import Collected, level_name, sets_of
from stmaml.tables.benchmark import Config, open_frame
from stmaml.tables.calibration import LEVELS, SET_LEVELS, Calibration, caution
from stmaml.tables.columns import Numeric
from stmaml.tables.model import FewShotModel, fit_frame, load_model
from stmaml.tables.schema import Schema, Target
from stmaml.tables.scoring import score_table, verdict
from stmaml.tables.settings import table_recipe
from stmaml.training import Interrupted
from tests.table_data import TABLE, classes, draw, lines, opened, quick, run_of, schema_in, split_of, trained

MANY = lines(2000, 16, seed=300)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory) -> tuple[Run, Benchmark]:
    return trained(tmp_path_factory.mktemp("fitted"), MANY, quick(200))


@pytest.fixture(scope="module")
def model(fitted) -> FewShotModel:
    return load_model(fitted[0].folder)


@pytest.fixture(scope="module")
def st_maml() -> FewShotModel:
    """Hardly trained, but with a z and an inner loop."""
    return fit_frame(lines(60, 16), quick(20, method="st-maml"))


@pytest.fixture(scope="module")
def new() -> tuple[pl.DataFrame, pl.DataFrame]:
    """Labelled rows of six new groups, five each, and seven others to ask for, in no order."""
    frame = lines(6, 12, seed=50, prefix="new").with_columns(pl.int_range(12).over("shop").alias("n"))
    return frame.filter(pl.col("n") < 5), frame.filter(pl.col("n") >= 5).sort("x")


@pytest.mark.slow  # test_cli_tables fits and predicts with both in the quick tests
@pytest.mark.parametrize("noise_model", ["student", "mixture"])
def test_other_noise_models_predict_a_table_with_heavy_tails(noise_model, new, tmp_path, monkeypatch):
    monkeypatch.setattr(aftercare, "CALIBRATION_TASKS", 20)
    monkeypatch.setattr(benchmark_module, "TEST_TASKS", 20)
    frame = lines(60, 16)
    frame = frame.with_columns(pl.col("y") + pl.Series(draw(stats.t, 2.5, size=frame.height, random_state=9)))
    run, benchmark = trained(tmp_path, frame, quick(20, noise_model=noise_model))
    heavy = load_model(run.folder)
    answer = heavy.predict(new[1], new[0]).frame
    quantiles = answer.select("q05", "q10", "q25", "q50", "q75", "q90", "q95").to_numpy()
    assert np.isfinite(quantiles).all()
    assert (np.diff(quantiles, axis=1) >= 0).all()
    assert np.isfinite(answer["std"].to_numpy()).all()
    assert np.isfinite(heavy.sample(new[1].head(3), new[0].head(5), 4)).all()
    own = score_table(run, benchmark, baselines=())["scores"]["10"]["cnp"]
    assert np.isfinite([own[name]["mean"] for name in ("nll", "crps", "coverage90", "width90")]).all()


def test_a_noise_model_for_tables_is_one_there_is():
    assert quick(noise_model="student").modelling.noise_model == "student"
    with pytest.raises(SettingError, match="there is no noise model 'heavy'; choose one of: residual"):
        quick(noise_model="heavy")


def test_groups_are_split_and_small_ones_left_out():
    frame = pl.concat([lines(40, 16), lines(3, 5, prefix="tiny")])
    ready, split = opened(frame), split_of(frame)
    assert sorted(split.skipped) == ["tiny 0", "tiny 1", "tiny 2"]
    assert "; groups by 'shop': 28 to train, 6 to validate and calibrate, 6 to test; 3 skipped" in ready.notes[0]
    rows = {part: np.asarray(getattr(ready, part).x)[:, 0] for part in ("train", "val", "test")}
    assert sum(map(len, rows.values())) == 640
    assert len(np.unique(np.concatenate(list(rows.values())))) == 640
    by_name = frame.group_by("shop").agg(pl.col("y").mean())
    known = dict(by_name.iter_rows())
    first: Any = ready.val
    expected = known[split.val[1]]
    start, count = int(first.start[1]), int(first.count[1])
    np.testing.assert_allclose(np.asarray(first.y)[start : start + count, 0].mean(), expected, rtol=1e-5)


def test_scales_are_those_of_training_groups():
    frame = lines(40, 16)
    schema = schema_in(opened(frame))
    inside = frame.filter(pl.col("shop").is_in(list(split_of(frame).train)))
    column = schema.used[0]
    assert isinstance(column, Numeric)
    assert column.mean == pytest.approx(inside["x"].to_numpy().mean())
    assert schema.target.mean == pytest.approx(inside["y"].to_numpy().mean())
    assert schema.target.std == pytest.approx(inside["y"].to_numpy().std())


def test_rows_without_group_or_target_are_left_out_and_counted():
    frame = lines(40, 18).with_columns(pl.when(pl.int_range(pl.len()) % 18 == 0).then(None).otherwise("y").alias("y"))
    said, few = "40 of 720 rows have no 'shop' or no 'y' and are left out: rows 1, 19, 37, 55, 73 and others", 6
    assert opened(frame).notes[1:] == (said, *caution(few, is_class=False))
    with pytest.raises(SourceError, match="no row has both a 'shop' and a 'y'"):
        opened(frame.with_columns(pl.lit(None).cast(pl.Float64).alias("y")))


def test_groups_and_classes_called_none_are_learnt_from():
    frame = lines(40, 16).with_columns(pl.col("shop").replace({"shop 0": "NA", "shop 1": "none", "shop 2": "-"}))
    split = split_of(frame)
    assert {"NA", "none", "-"} <= {*split.train, *split.val, *split.test}
    notes = opened(frame).notes
    assert notes[0].startswith("640 rows; ")
    assert "'shop' has a group called 'NA' (16 rows)" in " ".join(notes)
    labelled = classes(40, 16).with_columns(pl.col("label").replace({"low": "none"}))
    ready = opened(labelled, replace(TABLE, target="label"))
    assert schema_in(ready).target.classes == ("high", "none")
    assert ready.notes[0].startswith("640 rows; ")


def test_one_column_with_two_roles_is_refused_before_reading():
    with pytest.raises(SettingError, match="--features and --target must name different columns; both name 'y'"):
        Config(replace(TABLE, features=("x", "y")), ("t.csv",)).open()


@pytest.mark.parametrize("role", ["shop", "y"])
def test_a_group_or_target_of_a_type_that_cannot_be_used_is_told(role):
    frame = lines(40, 16).with_columns(pl.concat_list(role).alias(role))
    with pytest.raises(SourceError, match=f"column '{role}' is of type List, which cannot be used"):
        opened(frame)


def test_a_column_that_numbers_the_rows_is_pointed_out():
    frame = lines(40, 16).sort("shop").with_row_index("n", offset=1).with_columns(twice=2 * pl.col("n"))
    found = opened(frame).notes
    assert found[1] == "column 'n' seems to number the rows; leave it out with --drop n"
    assert found[2] == "column 'twice' seems to number the rows; leave it out with --drop twice"
    assert len(found) == 4  # the groups, these two, and that few calibrate
    shuffled = frame.drop("twice").sample(fraction=1.0, shuffle=True, seed=0)
    assert len(opened(shuffled).notes) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": "z"}, "the table has no column 'z'; it has: shop, x, y"),
        ({"drop": ("x",)}, "no column is left to predict from"),
        ({"task": "x", "features": ("shop",)}, "0 of 640 groups have the 12 rows"),
    ],
)
def test_what_cannot_be_learnt_from_is_told(change, message):
    with pytest.raises(SourceError, match=message):
        opened(lines(40, 16), replace(TABLE, **change))


def test_an_interrupted_run_ends_where_an_uninterrupted_one_does(tmp_path):
    experiment, benchmark = quick(60), opened(lines(40, 16))
    whole = train_once(experiment, benchmark)
    run = run_of(tmp_path / "run", experiment, benchmark)
    asked = iter([False, True])
    with pytest.raises(Interrupted):
        train_runs([run], experiment, benchmark, should_stop=lambda: next(asked))
    again = load_experiment(run)
    assert again == replace(experiment, benchmark_settings=benchmark.settings)
    (resumed,) = train_runs([run], again, benchmark)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(resumed), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_changed_table_is_noticed(tmp_path):
    frame = lines(40, 16)
    first: Any = open_frame(frame, Config(TABLE, (str(tmp_path / "t.csv"),))).settings
    changed = frame.with_columns(pl.col("y") + 1)
    assert open_frame(frame, first).settings == first
    with pytest.raises(RunError, match=r"t\.csv has changed since it was first learnt from\. Restore it, or fit anew"):
        open_frame(changed, first)
    elsewhere = open_frame(changed, replace(first, data="other.csv"))  # a test on other rows, with the same scales
    assert schema_in(elsewhere).to_json() == first.schema
    assert elsewhere.conditions["table"] == "other.csv"


def test_runs_that_cannot_predict_are_told(tmp_path):
    with pytest.raises(RunError, match="there is no run folder"):
        load_model(tmp_path / "gone")
    run = run_of(tmp_path / "run", quick(), opened(lines(40, 16)))
    with pytest.raises(RunError, match=r"is not finished\. Go on with 'stmaml fit --resume"):
        load_model(run.folder)
    with pytest.raises(RunError, match=r"already holds a run\. Go on with 'stmaml fit --resume"):
        run.check_free("fit")
    config = read_json(run.config_path)
    schema = config["benchmark"]["settings"].pop("schema")
    write_json(run.config_path, config)
    with pytest.raises(RunError, match="does not say what its columns hold"):
        load_model(run.folder)
    del schema["target"]
    config["benchmark"]["settings"]["schema"] = schema
    write_json(run.config_path, config)
    with pytest.raises(RunError, match="lacks or misnames 'target'"):
        load_model(run.folder)
    Run(tmp_path / "other").create(describe(recipe("regression2d", "maml", "paper"), 0))
    with pytest.raises(RunError, match="is not a run of 'stmaml fit'"):
        load_model(tmp_path / "other")


def test_rows_come_back_in_their_order_with_their_columns(model, new):
    support, query = new
    answer = model.predict(query, support)
    assert answer.frame.select(query.columns).equals(query)
    assert answer.notes == []
    assert answer.frame["shots"].to_list() == [5] * query.height
    shuffled = query.sample(fraction=1.0, shuffle=True, seed=3)
    again = model.predict(shuffled, support.reverse()).frame.sort("x")
    np.testing.assert_allclose(again["prediction"], answer.frame["prediction"], rtol=1e-4)


def test_a_column_of_the_querys_own_gives_way_to_the_predicted_one(model, new):
    support, query = new
    answer = model.predict(query.with_columns(std=pl.lit(-1.0)), support)
    assert answer.notes == ["the query table's own 'std' gives way to the predicted one"]
    assert (answer.frame["std"] > 0).all()
    answer = model.predict(query.with_columns(std=pl.lit(-1.0), shots=pl.lit(1)), support)
    assert answer.notes == ["the query table's own 'std', 'shots' give way to the predicted ones"]


def test_it_has_learnt_to_use_labelled_rows(model, new):
    support, query = new

    def error(labelled: pl.DataFrame | None) -> float:
        frame = model.predict(query, labelled).frame
        return float(np.square(frame["prediction"].to_numpy() - query["y"].to_numpy()).mean())

    assert error(support) < 0.5 * error(None)


def test_quantiles_rise_and_frame_the_mean(model, new):
    support, query = new
    frame = model.predict(query, support, levels=(0.05, 0.25, 0.5, 0.75, 0.95)).frame
    values = frame.select("q05", "q25", "q50", "q75", "q95").to_numpy()
    assert (np.diff(values, axis=1) > 0).all()
    mean = frame["prediction"].to_numpy()
    assert ((values[:, 0] < mean) & (mean < values[:, -1])).all()
    assert [level_name(level) for level in (0.05, 0.5, 0.975)] == ["q05", "q50", "q97.5"]


@pytest.mark.parametrize("which", ["model", pytest.param("st_maml", marks=pytest.mark.slow)])
def test_a_groups_prediction_depends_on_no_other_group_and_no_padding(which, new, request):
    chosen: FewShotModel = request.getfixturevalue(which)
    support, query = new
    together = chosen.predict(query, support).frame.filter(pl.col("shop") == "new 2")
    alone = chosen.predict(query.filter(pl.col("shop") == "new 2"), support.filter(pl.col("shop") == "new 2")).frame
    names = [name for name in alone.columns if alone[name].dtype == pl.Float64]
    np.testing.assert_allclose(together.select(names).to_numpy(), alone.select(names).to_numpy(), rtol=2e-3, atol=2e-3)


def test_thousands_of_groups_take_few_compilations(model, monkeypatch):
    shapes = set()
    real = model_module.adapt_groups

    def counted(learner, support, num_samples, keys):
        shapes.add(support.x.shape)
        return real(learner, support, num_samples, keys)

    monkeypatch.setattr(model_module, "adapt_groups", counted)
    sizes = np.arange(400) % 13
    query = pl.DataFrame({"shop": [f"g{i}" for i in range(400)], "x": np.zeros(400)})
    support = pl.DataFrame({"shop": np.repeat(query["shop"].to_numpy(), sizes), "x": np.zeros(sizes.sum())})
    told: list[Told] = []
    with listening(told.append):
        frame = model.predict(query, support.with_columns(pl.lit(20.0).alias("y"))).frame
    assert frame["shots"].to_list() == sizes.tolist()
    assert len(shapes) <= 6
    assert told[-1] == Told("predicting rows", 400, 400)


def test_groups_without_labelled_rows_are_predicted_and_said(model, new):
    support, query = new
    answer = model.predict(query, support.filter(pl.col("shop") != "new 1"))
    assert answer.notes == ["1 of 6 groups have no labelled row and are predicted without any"]
    lone = answer.frame.filter(pl.col("shop") == "new 1")
    assert lone["shots"].to_list() == [0] * 7
    assert lone["novelty"].null_count() == 7
    none = model.predict(query)
    assert none.notes == []
    np.testing.assert_allclose(
        none.frame.filter(pl.col("shop") == "new 1")["prediction"], lone["prediction"], rtol=1e-4
    )
    assert (lone["std"] > 1.5 * answer.frame.filter(pl.col("shop") == "new 2")["std"].max()).all()


def test_tables_without_the_group_column_are_one_group(model, new):
    support, query = (part.filter(pl.col("shop") == "new 3") for part in new)
    named = model.predict(query, support).frame["prediction"]
    for asked, labelled in ((query.drop("shop"), support), (query, support.drop("shop"))):
        np.testing.assert_allclose(model.predict(asked, labelled).frame["prediction"], named, rtol=1e-5)
    bare = model.predict(query.drop("shop"), support.drop("shop")).frame["prediction"]
    np.testing.assert_allclose(bare, named, rtol=1e-5)  # a CNP draws nothing, so the name does not matter
    with pytest.raises(SourceError, match="query table has no column 'shop', and the support table has 6 groups"):
        model.predict(query.drop("shop"), new[0])
    with pytest.raises(SourceError, match="support table has no column 'shop', and the query table has 6 groups"):
        model.predict(new[1], support.drop("shop"))


def test_groups_called_none_are_kept_apart(model, new):
    support, query = new
    odd = {"new 0": "NA", "new 1": "none", "new 2": "-", "new 3": "nan"}
    renamed = model.predict(*(part.with_columns(pl.col("shop").replace(odd)) for part in (query, support)))
    expected = model.predict(query, support).frame
    assert renamed.notes == []
    assert renamed.frame["shots"].to_list() == [5] * query.height
    np.testing.assert_allclose(renamed.frame["prediction"], expected["prediction"], rtol=1e-5)


def test_rows_without_a_group_are_left_out_and_said(model, new):
    support, query = new
    blank = pl.when(pl.col("n") == 7).then(pl.lit(" ")).otherwise("shop").alias("shop")
    answer = model.predict(query.with_columns(blank), support)
    expected = model.predict(query, support).frame.filter(pl.col("n") != 7)
    np.testing.assert_allclose(answer.frame["prediction"], expected["prediction"], rtol=1e-4)
    assert answer.frame["x"].equals(expected["x"])
    assert answer.notes[0].startswith("6 rows of the query table have no 'shop' and are left out: row")
    labelled = support.with_columns(pl.when(pl.col("n") == 4).then(None).otherwise("shop").alias("shop"))
    answer = model.predict(query, labelled)
    assert answer.frame["shots"].to_list() == [4] * query.height
    assert answer.notes[0].startswith("6 rows of the support table have no 'shop' and are left out: rows 5, 10")
    with pytest.raises(SourceError, match="'shop' is empty in all rows of the query table"):
        model.predict(query.with_columns(shop=pl.lit("")), support)


def test_a_support_table_without_rows_is_none(model, new):
    support, query = new
    answer = model.predict(query, support.head(0))
    assert answer.frame.equals(model.predict(query).frame)
    assert answer.notes == ["6 of 6 groups have no labelled row and are predicted without any"]
    assert list(model.adapt(support.head(0))) == []
    alone = query.drop("shop")
    np.testing.assert_array_equal(model.sample(alone, support.head(0), 3), model.sample(alone, None, 3))


def test_labelled_rows_of_another_kind_are_refused(model, new):
    support, query = new
    with pytest.raises(SourceError, match="support table has no column 'y' with the labels; it has: shop, x, n"):
        model.predict(query, support.drop("y"))
    with pytest.raises(SourceError, match="of another kind than the training table: it lacks 'x'"):
        model.predict(query, support.rename({"x": "width"}))
    with pytest.raises(SourceError, match=r"column 'y' holds values such as .* in training it went from"):
        model.predict(query, support.with_columns(pl.col("y") * 1000))
    with pytest.raises(SourceError, match="column 'x' holds infinity in row 1"):
        model.predict(query.with_columns(x=pl.lit(float("inf"))), support)


def test_labelled_rows_without_label_are_left_out_and_said(model, new):
    support, query = new
    some = support.with_columns(pl.when(pl.col("n") == 4).then(None).otherwise("y").alias("y"))
    answer = model.predict(query, some)
    assert answer.notes == [
        "6 rows of the support table have no 'y' and are left out: rows 5, 10, 15, 20, 25 and others"
    ]
    expected = model.predict(query, support.filter(pl.col("n") < 4)).frame["prediction"]
    np.testing.assert_allclose(answer.frame["prediction"], expected, rtol=1e-5)


def test_very_many_labelled_rows_are_thinned_out(model):
    support = lines(1, 700, seed=70)
    answer = model.predict(support.head(3), support)
    assert "more than 256 labelled rows" in answer.notes[0]
    assert answer.frame["shots"].to_list() == [256] * 3


def test_large_groups_are_asked_in_parts(model):
    support, query = lines(1, 5, seed=71), lines(1, 1100, seed=71)
    frame = model.predict(query, support).frame
    assert frame["prediction"].null_count() == 0
    tail = model.predict(query.tail(3), support).frame
    np.testing.assert_allclose(frame["prediction"].tail(3), tail["prediction"], rtol=1e-4)


def test_intervals_hold_on_test_groups_after_recalibration_and_not_before(tmp_path):
    """Nominal 50, 80 and 90 % within 3 points at 2, 5 and 10 labelled rows, even if the learner has learnt nothing.

    The mean over tables, each with 300 groups to calibrate on and 300 others to test: a single table strays by up to 2
    points (one standard deviation), so one seed would prove little.
    """
    experiment = quick()
    held: dict[tuple[str, float], list[tuple[float, float]]] = {}
    for seed in range(6):
        benchmark = opened(lines(2000, 16, seed=1000 + 3 * seed))
        run = run_of(tmp_path / str(seed), experiment, benchmark)
        learner = fresh(experiment, benchmark.train.spec, benchmark.own_scaling)
        run.save_learner(learner)
        assert benchmark.aftercare is not None
        benchmark.aftercare.finish(learner, run.folder)
        found = score_table(run, benchmark, baselines=())["calibration"]
        for shots, nominal in product(("2", "5", "10"), (0.5, 0.8, 0.9)):
            row = found[shots][f"{nominal:.0%}"]
            held.setdefault((shots, nominal), []).append((row["before"]["mean"], row["after"]["mean"]))
    mean = {case: np.mean(values, axis=0) for case, values in held.items()}
    for (shots, nominal), (_, after) in mean.items():
        assert after == pytest.approx(nominal, abs=0.03), (shots, nominal)
    assert all(mean[shots, 0.5][0] > 0.6 for shots in ("2", "5", "10"))


def test_predicted_quantiles_hold_as_the_report_says(model):
    frame = lines(150, 12, seed=90, prefix="fresh").with_columns(pl.int_range(12).over("shop").alias("n"))
    support, query = frame.filter(pl.col("n") < 5), frame.filter(pl.col("n") >= 5)
    answer = model.predict(query, support, levels=(0.1, 0.9)).frame
    inside = ((answer["q10"] <= query["y"]) & (query["y"] <= answer["q90"])).mean()
    assert inside == pytest.approx(0.8, abs=0.05)


def test_a_strange_group_looks_new_and_a_usual_one_does_not(model):
    usual = lines(60, 8, seed=80, prefix="usual")
    told = model.predict(usual, usual).frame.group_by("shop").agg(pl.col("novelty").first())["novelty"]
    assert 0.2 < told.median() < 0.8
    strange = lines(1, 8, seed=81).with_columns(y=20 + 9 * pl.col("x"))
    assert model.predict(strange, strange).frame["novelty"].to_numpy()[0] > 0.97


def test_what_is_known_of_z_is_told_against_usual_groups(st_maml, new):
    support, query = new
    frame = st_maml.predict(query, support).frame
    assert {"novelty", "task_entropy", "task_std"} <= set(frame.columns)
    assert frame["task_entropy"].null_count() == 0
    assert (frame["task_std"] > 0).all()
    assert st_maml.predict(query).frame["task_entropy"].null_count() == query.height


def test_suggestions_rank_rows_within_each_group(st_maml, new):
    support, query = new
    frame = st_maml.predict(query, support, suggest=3).frame
    for ranks in frame.group_by("shop").agg(pl.col("suggested").drop_nulls())["suggested"]:
        assert sorted(ranks.to_list()) == [1, 2, 3]


def test_an_adapted_group_is_one_file_that_predicts_the_same(st_maml, new, tmp_path, monkeypatch):
    support, query = new
    expected = st_maml.predict(query, support).frame.filter(pl.col("shop") == "new 4")
    (adapted,) = [one for one in st_maml.adapt(support) if one.group == "new 4"]
    adapted.save(tmp_path / "group.npz")
    monkeypatch.setattr(type(st_maml.learner), "adapt", None)
    monkeypatch.setattr("stmaml.tables.adapted._blank_predictors", lambda *_: adapted.predictors)
    again = load_adapted(tmp_path / "group.npz").predict(query.filter(pl.col("shop") == "new 4")).frame
    names = ["prediction", "std", "q05", "q50", "q95", "task_std", "novelty"]
    np.testing.assert_allclose(again.select(names).to_numpy(), expected.select(names).to_numpy(), rtol=2e-3, atol=2e-3)


def test_an_adapted_group_is_read_without_its_run(st_maml, model, new, tmp_path):
    for chosen in (st_maml, model):
        adapted = next(iter(chosen.adapt(new[0])))
        adapted.save(tmp_path / "group.npz")
        again = load_adapted(tmp_path / "group.npz")
        assert (again.group, again.shots, again.novelty) == ("new 0", 5, adapted.novelty)
        query = new[1].filter(pl.col("shop") == "new 0")
        assert again.predict(query).frame.equals(adapted.predict(query).frame)
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(RunError, match="is not an adapted model"):
        load_adapted(tmp_path / "other.npz")


def test_an_adapted_group_answers_for_no_other(st_maml, new, tmp_path):
    adapted = next(iter(st_maml.adapt(new[0])))
    query = new[1].filter(pl.col("shop") == "new 0")
    expected = adapted.predict(query).frame["prediction"]
    with pytest.raises(SourceError, match=r"35 rows of the query table are of other groups.*adapted to 'new 0' alone"):
        adapted.predict(new[1])
    nobody = pl.when(pl.col("n") > 8).then(None).otherwise("shop").alias("shop")
    for unnamed in (query.drop("shop"), query.with_columns(nobody), query.with_columns(shop=pl.lit(" new 0 "))):
        assert adapted.predict(unnamed).frame["prediction"].equals(expected)
    adapted = replace(adapted, group="")  # its labelled rows came without a name
    adapted.save(tmp_path / "group.npz")
    assert load_adapted(tmp_path / "group.npz").predict(new[1]).frame.height == new[1].height


def test_an_adapted_file_without_a_name_serves_any_group_and_one_that_lacks_more_is_refused(
    model, new, tmp_path, monkeypatch
):
    def save_without(lacking: str) -> Path:
        def some(content: dict[str, Any]) -> np.ndarray:
            return real({name: value for name, value in content.items() if name != lacking})

        monkeypatch.setattr(adapted_module, "json_bytes", some)
        adapted.save(tmp_path / "group.npz")
        return tmp_path / "group.npz"

    real, adapted = adapted_module.json_bytes, next(iter(model.adapt(new[0])))
    assert load_adapted(save_without("group")).predict(new[1]).frame.height == new[1].height
    with pytest.raises(RunError, match=r"group\.npz lacks or misnames 'shots'\. Write it again with"):
        load_adapted(save_without("shots"))


def test_few_groups_to_calibrate_on_are_said_where_nothing_is_labelled(st_maml, model, new):
    support, query = new
    expected = (
        "intervals without labelled rows rest on 9 groups to calibrate on and may not hold: those of 80 % typically "
        "hold 12 points more or fewer; 19 groups or more would be better"
    )
    assert st_maml.predict(query).notes == [expected]
    assert st_maml.predict(query, support).notes == []
    assert model.predict(query).notes == []


def test_drawn_targets_have_the_predicted_mean_and_spread(model, new):
    support, query = (part.filter(pl.col("shop") == "new 0") for part in new)
    drawn = model.sample(query, support, 4000)
    frame = model.predict(query.drop("shop"), support.drop("shop")).frame
    np.testing.assert_allclose(drawn.mean(0), frame["prediction"], atol=0.1)
    np.testing.assert_allclose(drawn.std(0), frame["std"], rtol=0.06)


def test_classes_are_predicted_with_probabilities(tmp_path):
    run, benchmark = trained(tmp_path, classes(400, 16), quick(200, replace(TABLE, target="label")))
    made = load_model(run.folder)
    assert made.schema.target.classes == ("high", "low")
    fresh = classes(40, 12, seed=60)
    support = fresh.filter(pl.int_range(pl.len()) % 12 < 6)
    frame = made.predict(fresh.drop("label"), support).frame
    shares = frame.select("p_high", "p_low").to_numpy()
    np.testing.assert_allclose(shares.sum(1), 1.0, rtol=1e-5)
    assert ((frame["prediction"] == "high") == (shares[:, 0] > 0.5)).all()
    assert np.mean((frame["prediction"] == fresh["label"]).to_numpy()) > 0.8
    inside = [label in held.split("|") for label, held in zip(fresh["label"], frame["set90"], strict=True)]
    assert np.mean(inside) > 0.85
    assert all(best in held.split("|") for best, held in zip(frame["prediction"], frame["set90"], strict=True))
    wide = made.predict(fresh.drop("label"), support, coverage=0.99).frame["set99"]
    assert wide.str.len_chars().sum() >= frame["set90"].str.len_chars().sum()
    result = score_table(run, benchmark, baselines=())
    sets = result["calibration"]["10"]["sets"]["90%"]
    assert sets["holds"]["mean"] == pytest.approx(0.9, abs=0.08)
    assert 1 <= sets["size"]["mean"] <= 2
    assert {"before", "after", "temperature", "sets"} == set(result["calibration"]["10"])
    assert result["scores"]["10"]["cnp"]["accuracy"]["mean"] > result["scores"]["0"]["cnp"]["accuracy"]["mean"]
    with pytest.raises(SourceError, match="has the class 'odd', which training did not have"):
        made.predict(fresh, support.with_columns(label=pl.lit("odd")))


def test_sets_of_many_rows_need_the_floors_of_few_numbers(monkeypatch):
    """A calibration looked up for each row of a large table would take more memory than all its predictions."""
    asked, real = [], Calibration.at
    monkeypatch.setattr(Calibration, "at", lambda self, shots: (asked.append(np.size(shots)), real(self, shots))[1])
    floors = tuple(tuple(np.linspace(0.6, 0.1, len(SET_LEVELS)) / share) for share in (1, 2))
    schema = Schema("shop", Target("label", classes=("high", "low")), (), ())
    table = Collected(schema, Calibration((0, 10), (1.0, 1.0), (), 9, floors), (), 6000, False)
    high, shots = np.tile([0.5, 0.7, 0.9], 2000), np.repeat([0, 10], 3000)
    table.columns |= {"prediction": (high < 0.5) * 1.0, "p_high": high, "p_low": 1 - high}
    table.columns |= {"task_std": np.zeros(6000), "shots": shots.astype(float)}
    found = table.frame()["set90"].to_list()
    assert asked == [2]
    floor = {count: float(real(table.calibration, count).floor(0.9)) for count in (0, 10)}
    expected = [
        "high|low" if 1 - p >= floor[count] or p == 0.5 else "high" for p, count in zip(high, shots, strict=True)
    ]
    assert found == expected
    assert set(found[:3000]) == set(found[3000:]) == {"high", "high|low"}


def test_the_verdict_needs_a_clear_difference_on_the_same_groups():
    base = draw(stats.norm, 10, 3, size=40, random_state=0)

    def said(gap: float) -> str:
        rows = {"st-maml": {"mse": base + gap}, "ridge": {"mse": base + draw(stats.norm, size=40, random_state=1) / 10}}
        return verdict({**rows, "worse": {"mse": base + 100}}, "st-maml", 5)

    assert said(-1.0).startswith("meta-learning helps on this table: mse")
    assert said(+1.0).startswith("meta-learning does not help")
    assert said(0.0).startswith("meta-learning makes no clear difference")
    assert "of ridge, the best baseline, with 5 labelled rows (40 test groups)" in said(1.0)
    assert "no baseline was scored" in verdict({"st-maml": {"mse": base}}, "st-maml", 5)


def test_the_usual_alternatives_are_scored_beside_it(fitted):
    assert [baseline.name for baseline in scoring.usual_baselines(fitted[1].train.spec)] == [
        "support-mean",
        "ridge",
        "gradient-boosting",
        "gradient-boosting-offset",
        "gradient-boosting-summaries",
    ]


def test_baselines_see_the_same_groups_and_shots(fitted):
    """The mean of the labelled rows, by NumPy, on every test task."""
    run, benchmark = fitted
    result = score_table(run, benchmark, baselines=(support_mean(),))
    tasks = benchmark.test_set(benchmark.test_tasks)
    assert result["test_groups"] == tasks.num_groups == 300
    assert (tasks.num_tasks, result["digest"]) == (600, tasks.digest)
    support, query = tasks.batch.tasks.support, tasks.batch.tasks.query
    for shots in (1, 5):
        guess = np.asarray(support.y)[:, :shots, 0].mean(1, keepdims=True)
        error = np.square(np.asarray(query.y)[..., 0] - guess).mean()
        assert result["scores"][str(shots)]["support-mean"]["mse"]["mean"] == pytest.approx(error, rel=0.05)
    for shots, scores in result["scores"].items():  # the score table says of intervals what their own table says
        intervals = result["calibration"][shots]["90%"]
        assert scores["cnp"]["coverage90"] == pytest.approx(intervals["after"], rel=1e-5)
        assert scores["cnp"]["width90"] == pytest.approx(intervals["width"], rel=1e-5)


def test_baselines_do_not_wait_for_busy_cores(fitted):
    """scikit-learn's own threads: half of the cores to fit, one to predict."""
    seen: dict[str, set[int]] = {"fit": set(), "predict": set()}

    def note(what: str) -> None:
        seen[what] |= {one["num_threads"] for one in threadpool_info() if one["user_api"] == "openmp"}

    class Noting(Boosting):
        def fit(self, train, val):
            note("fit")
            return super().fit(train, val)

        def predict(self, support_x, support_y, query_x):
            note("predict")
            return super().predict(support_x, support_y, query_x)

    tasks = fitted[1].test_set(1).with_shots(2)
    few = BoostingConfig(learning_rate=(0.1,), max_leaf_nodes=(15,), min_samples_leaf=(20,), max_iter=2)
    found = scoring._rival_scores(fitted[1], [experiments.Test(tasks, Conditions("table", {}), 2)], (Noting(few),))
    assert [name for name, _ in found] == ["gradient-boosting"]
    assert seen == {"fit": {max(1, (os.cpu_count() or 1) // 2)}, "predict": {1}}


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_has_settings_for_tables(method):
    table = Config(TABLE)
    chosen = table_recipe(table, method, steps=10)
    assert experiment_of(json.loads(json.dumps(describe(chosen, 0)))) == chosen
    assert chosen.training.steps == 10
    with pytest.raises(SettingError, match="there is no method 'none'"):
        table_recipe(table, "none")
    large = table_recipe(table, method, preset="large")
    assert large.training.steps > table_recipe(table, method).training.steps
    without = table_recipe(table, method, linear=False)
    assert experiment_of(describe(without, 0)) == without


def test_a_model_on_disk_is_that_in_memory(model, new):
    """By way of a run folder, and without one."""
    made = fit_frame(MANY, quick(200))
    assert model.calibration == made.calibration
    assert len(model.calibration.scores[0]) == len(LEVELS)
    for field in dataclasses.fields(made.reference):
        np.testing.assert_array_equal(getattr(model.reference, field.name), getattr(made.reference, field.name))
    assert model.predict(new[1], new[0]).frame.equals(made.predict(new[1], new[0]).frame)


def test_names_in_sets_of_classes_are_told_apart():
    inside = np.array([[True, False, True], [False, True, True]])
    assert sets_of(("a", "b", "a|b"), inside) == ['a|"a|b"', 'b|"a|b"']
