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

from stmaml.baselines import Boosting, BoostingConfig, support_mean
from stmaml.errors import RunError, SettingError, SourceError
from stmaml.experiments import TEST_SEED
from stmaml.methods import METHODS
from stmaml.runs import Run
from stmaml.tables import adapted as adapted_module
from stmaml.tables import model as model_module
from stmaml.tables import scoring
from stmaml.tables.adapted import load_adapted
from stmaml.tables.answers import level_name
from stmaml.tables.calibration import LEVELS
from stmaml.tables.columns import Numeric
from stmaml.tables.fitting import TableConfig, finish, held_out, prepare, train
from stmaml.tables.folder import Files, create, reopen
from stmaml.tables.groups import Sizes
from stmaml.tables.model import FewShotModel, load_model
from stmaml.tables.scoring import score, verdict
from stmaml.tables.settings import build, default_settings
from stmaml.training import Interrupted
from tests.table_data import SMALL_STMAML, classes, draw, lines, quick

TABLE = TableConfig("shop", "y", sizes=Sizes(shots=10, query_size=6, min_query=2))


@pytest.fixture(scope="module")
def prepared():
    return prepare(lines(2000, 16, seed=300), TABLE, quick())


@pytest.fixture(scope="module")
def model(prepared) -> FewShotModel:
    settings = quick(200)
    return finish(prepared, settings, train(prepared, settings))


@pytest.fixture(scope="module")
def st_maml() -> FewShotModel:
    """Hardly trained, but with a z and an inner loop."""
    settings = quick(20, method="st-maml")
    settings = replace(settings, learner=SMALL_STMAML)
    ready = prepare(lines(60, 16), TABLE, settings)
    return finish(ready, settings, train(ready, settings))


@pytest.fixture(scope="module")
def new() -> tuple[pl.DataFrame, pl.DataFrame]:
    """Labelled rows of six new groups, five each, and seven others to ask for, in no order."""
    frame = lines(6, 12, seed=50, prefix="new").with_columns(pl.int_range(12).over("shop").alias("n"))
    return frame.filter(pl.col("n") < 5), frame.filter(pl.col("n") >= 5).sort("x")


def test_groups_are_split_and_small_ones_left_out():
    frame = pl.concat([lines(40, 16), lines(3, 5, prefix="tiny")])
    ready = prepare(frame, TABLE, quick())
    assert sorted(ready.split.skipped) == ["tiny 0", "tiny 1", "tiny 2"]
    rows = {part: np.asarray(getattr(ready, part).x)[:, 0] for part in ("train", "val", "test")}
    assert sum(map(len, rows.values())) == 640
    assert len(np.unique(np.concatenate(list(rows.values())))) == 640
    by_name = frame.group_by("shop").agg(pl.col("y").mean())
    known = dict(by_name.iter_rows())
    first = ready.val
    expected = known[ready.split.val[1]]
    start, count = int(first.start[1]), int(first.count[1])
    np.testing.assert_allclose(np.asarray(first.y)[start : start + count, 0].mean(), expected, rtol=1e-5)


def test_scales_are_those_of_training_groups():
    frame = lines(40, 16)
    ready = prepare(frame, TABLE, quick())
    inside = frame.filter(pl.col("shop").is_in(list(ready.split.train)))
    column = ready.schema.used[0]
    assert isinstance(column, Numeric)
    assert column.mean == pytest.approx(inside["x"].to_numpy().mean())
    assert ready.schema.target.mean == pytest.approx(inside["y"].to_numpy().mean())
    assert ready.schema.target.std == pytest.approx(inside["y"].to_numpy().std())


def test_rows_without_group_or_target_are_left_out_and_counted():
    frame = lines(40, 18).with_columns(
        pl.when(pl.int_range(pl.len()) % 18 == 0).then(None).otherwise("y").alias("y"),
    )
    assert prepare(frame, TABLE, quick()).notes == [
        "40 of 720 rows have no 'shop' or no 'y' and are left out: rows 1, 19, 37, 55, 73 and others"
    ]
    with pytest.raises(SourceError, match="no row has both a 'shop' and a 'y'"):
        prepare(frame.with_columns(pl.lit(None).cast(pl.Float64).alias("y")), TABLE, quick())


def test_groups_and_classes_called_none_are_learnt_from():
    frame = lines(40, 16).with_columns(pl.col("shop").replace({"shop 0": "NA", "shop 1": "none", "shop 2": "-"}))
    ready = prepare(frame, TABLE, quick())
    assert {"NA", "none", "-"} <= {*ready.split.train, *ready.split.val, *ready.split.test}
    assert ready.num_rows == frame.height
    assert "'shop' has a group called 'NA' (16 rows)" in " ".join(ready.notes)
    labelled = classes(40, 16).with_columns(pl.col("label").replace({"low": "none"}))
    ready = prepare(labelled, replace(TABLE, target="label"), quick())
    assert ready.schema.target.classes == ("high", "none")
    assert ready.num_rows == labelled.height


def test_one_column_with_two_roles_is_refused_before_reading():
    with pytest.raises(SettingError, match="--features and --target must name different columns; both name 'y'"):
        Files((Path("t.csv"),)).reading(replace(TABLE, features=("x", "y")))


@pytest.mark.parametrize("role", ["shop", "y"])
def test_a_group_or_target_of_a_type_that_cannot_be_used_is_told(role):
    frame = lines(40, 16).with_columns(pl.concat_list(role).alias(role))
    with pytest.raises(SourceError, match=f"column '{role}' is of type List, which cannot be used"):
        prepare(frame, TABLE, quick())


def test_a_column_that_numbers_the_rows_is_pointed_out():
    frame = lines(40, 16).sort("shop").with_row_index("n", offset=1).with_columns(twice=2 * pl.col("n"))
    assert prepare(frame, TABLE, quick()).notes == ["column 'n' seems to number the rows; leave it out with --drop n"]
    shuffled = frame.drop("twice").sample(fraction=1.0, shuffle=True, seed=0)
    assert prepare(shuffled, TABLE, quick()).notes == []


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
        prepare(lines(40, 16), replace(TABLE, **change), quick())


def test_an_interrupted_run_ends_where_an_uninterrupted_one_does(tmp_path):
    settings = quick(60)
    ready = prepare(lines(40, 16), TABLE, settings)
    whole = train(ready, settings)
    files = Files((tmp_path / "t.csv",))
    table_run = create(tmp_path / "run", files, TABLE, settings, ready)
    asked = iter([False, True])
    with pytest.raises(Interrupted):
        train(ready, settings, run=table_run.run, should_stop=lambda: next(asked))
    again = reopen(tmp_path / "run")
    assert (again.table, again.settings, again.schema) == (TABLE, settings, ready.schema)
    resumed = train(ready, again.settings, run=again.run)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(resumed), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_changed_table_is_noticed_on_resuming(tmp_path):
    settings = quick()
    frame = lines(40, 16)
    create(tmp_path / "run", Files((tmp_path / "t.csv",)), TABLE, settings, prepare(frame, TABLE, settings))
    changed = prepare(frame.with_columns(pl.col("y") + 1), TABLE, settings)
    with pytest.raises(RunError, match=r"t\.csv has changed since .*run was begun"):
        reopen(tmp_path / "run").check_same(changed)


def test_runs_that_cannot_predict_are_told(tmp_path):
    settings = quick()
    with pytest.raises(RunError, match="there is no run folder"):
        load_model(tmp_path / "gone")
    create(tmp_path / "run", Files((tmp_path / "t.csv",)), TABLE, settings, prepare(lines(40, 16), TABLE, settings))
    with pytest.raises(RunError, match=r"is not finished\. Go on with 'stmaml fit --resume"):
        load_model(tmp_path / "run")
    with pytest.raises(RunError, match=r"already holds a run\. Go on with 'stmaml fit --resume"):
        create(tmp_path / "run", Files(()), TABLE, settings, prepare(lines(40, 16), TABLE, settings))
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    del config["schema"]
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    with pytest.raises(RunError, match="lacks or misnames 'schema'"):
        reopen(tmp_path / "run")
    Run(tmp_path / "other").create({"benchmark": {}})
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
    told = []
    frame = model.predict(
        query, support.with_columns(pl.lit(20.0).alias("y")), on_progress=lambda *progress: told.append(progress)
    ).frame
    assert frame["shots"].to_list() == sizes.tolist()
    assert len(shapes) <= 6
    assert told[-1] == (400, 400)


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


def test_intervals_hold_on_test_groups_after_recalibration_and_not_before():
    """Nominal 50, 80 and 90 % within 3 points at 2, 5 and 10 labelled rows, even if the learner has learnt nothing.

    The mean over tables, each with 300 groups to calibrate on and 300 others to test: a single table strays by up to 2
    points (one standard deviation), so one seed would prove little.
    """
    settings = quick()
    held: dict[tuple[str, float], list[tuple[float, float]]] = {}
    for seed in range(6):
        ready = prepare(lines(2000, 16, seed=1000 + 3 * seed), TABLE, settings)
        found = score(finish(ready, settings, build(ready.schema, settings)), ready, baselines=())["calibration"]
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

        monkeypatch.setattr(adapted_module, "_as_bytes", some)
        adapted.save(tmp_path / "group.npz")
        return tmp_path / "group.npz"

    real, adapted = adapted_module._as_bytes, next(iter(model.adapt(new[0])))
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


def test_classes_are_predicted_with_probabilities():
    settings = quick(200)
    ready = prepare(classes(400, 16), replace(TABLE, target="label"), settings)
    assert ready.schema.target.classes == ("high", "low")
    made = finish(ready, settings, train(ready, settings))
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
    result = score(made, ready, baselines=())
    sets = result["calibration"]["10"]["sets"]["90%"]
    assert sets["holds"]["mean"] == pytest.approx(0.9, abs=0.08)
    assert 1 <= sets["size"]["mean"] <= 2
    assert {"before", "after", "temperature", "sets"} == set(result["calibration"]["10"])
    assert result["scores"]["10"]["cnp"]["accuracy"]["mean"] > result["scores"]["0"]["cnp"]["accuracy"]["mean"]
    with pytest.raises(SourceError, match="has the class 'odd', which training did not have"):
        made.predict(fresh, support.with_columns(label=pl.lit("odd")))


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


def test_the_usual_alternatives_are_scored_beside_it(prepared):
    assert [baseline.name for baseline in scoring._chosen(prepared, None)] == [
        "support-mean",
        "ridge",
        "gradient-boosting",
        "gradient-boosting-offset",
        "gradient-boosting-summaries",
    ]


def test_baselines_see_the_same_groups_and_shots(model, prepared):
    """The mean of the labelled rows, by NumPy, on every test task."""
    result = score(model, prepared, baselines=(support_mean(),))
    tasks, num_groups = held_out(prepared.test, "table/test", TEST_SEED, scoring.TEST_TASKS)
    assert result["test_groups"] == num_groups == 300
    support, query = tasks.batch.tasks.support, tasks.batch.tasks.query
    for shots in (1, 5):
        guess = np.asarray(support.y)[:, :shots, 0].mean(1, keepdims=True)
        error = np.square(np.asarray(query.y)[..., 0] - guess).mean()
        assert result["scores"][str(shots)]["support-mean"]["mse"]["mean"] == pytest.approx(error, rel=0.05)
    for shots, scores in result["scores"].items():  # the score table says of intervals what their own table says
        intervals = result["calibration"][shots]["90%"]
        assert scores["cnp"]["coverage90"] == intervals["after"]
        assert scores["cnp"]["width90"] == intervals["width"]


def test_baselines_do_not_wait_for_busy_cores(prepared):
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

    tasks, _ = held_out(prepared.test, "table/test", TEST_SEED, 1)
    few = BoostingConfig(learning_rate=(0.1,), max_leaf_nodes=(15,), min_samples_leaf=(20,), max_iter=2)
    found = scoring._baseline_scores(prepared, tasks, (Noting(few),), [2], lambda what, done, total: None)
    assert [name for name, _ in found] == ["gradient-boosting"]
    assert seen == {"fit": {max(1, (os.cpu_count() or 1) // 2)}, "predict": {1}}


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_has_settings_for_tables(method):
    settings = default_settings(method, steps=10)
    assert type(settings).from_json(json.loads(json.dumps(settings.to_json()))) == settings
    assert settings.training.steps == 10
    with pytest.raises(SettingError, match="there is no method 'none'"):
        default_settings("none")
    large = default_settings(method, preset="large")
    assert large.training.steps > default_settings(method).training.steps
    without = default_settings(method, linear=False)
    assert type(without).from_json(without.to_json()) == without


def test_a_model_on_disk_is_the_same_model(model, prepared, new, tmp_path):
    table_run = create(tmp_path / "run", Files((Path("t.csv"),)), TABLE, model.settings, prepared)
    model.save(table_run.run)
    again = load_model(tmp_path / "run")
    assert again.calibration == model.calibration
    assert len(again.calibration.scores[0]) == len(LEVELS)
    for field in dataclasses.fields(model.reference):
        np.testing.assert_array_equal(getattr(again.reference, field.name), getattr(model.reference, field.name))
    assert again.predict(new[1], new[0]).frame.equals(model.predict(new[1], new[0]).frame)
