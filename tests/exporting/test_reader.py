"""The reader makes the same numbers of a table's cells as the package does, and needs no JAX to answer."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import polars as pl
import pytest

from stmaml.cli.export import Export, _refusal
from stmaml.exporting.columns import columns_of
from stmaml.exporting.files import write_export
from stmaml.exporting.programs import Wanted, of_learner, of_table, recalibration_at
from stmaml.exporting.reader import Exported
from stmaml.tables.calibration import LEVELS, Calibration
from stmaml.tables.model import fit_frame
from stmaml.tables.schema import Schema, infer_schema
from stmaml.tasks import TaskSpec
from tests.methods.small import small_learner
from tests.table_data import lines, quick

ROWS = 40


def odd_table() -> pl.DataFrame:
    """Every kind of column, some cells of which are missing, new or written in other ways."""
    turn = range(ROWS)
    return pl.DataFrame(
        {
            "shop": [f"s{i % 4}" for i in turn],
            "price": ["" if i % 9 == 0 else f"{i / 3:.3f}" for i in turn],
            "colour": ["NA" if i % 11 == 0 else ("red", "Blue", "green")[i % 3] for i in turn],
            "open": [("yes", "No", "TRUE", "f")[i % 4] for i in turn],
            "size": [("1", "2.0", "03")[i % 3] for i in turn],
            "day": [f"{1 + i % 28:02d}.{1 + i % 12:02d}.2024" for i in turn],
            "at": [f"2024-03-{1 + i % 28:02d} 10:{i:02d}" for i in turn],
            "code": ["-9" if i % 7 == 0 else str(i) for i in turn],
            "y": [f"{i * 1.5:.2f}" for i in turn],
        }
    )


def schema_of(frame: pl.DataFrame, **how) -> Schema:
    return infer_schema(frame, "shop", "y", train=np.ones(ROWS, bool), ordinal=["size"], missing=["-9"], **how)


def reader_of(schema: Schema) -> Exported:
    reader = object.__new__(Exported)
    reader.about = json.loads(json.dumps(columns_of(schema)))
    return reader


def test_cells_become_the_numbers_of_the_schema():
    frame = odd_table()
    schema = schema_of(frame)
    asked = frame.with_columns(colour=pl.when(pl.col("colour") == "red").then(pl.lit("RED")).otherwise("colour"))
    reader = reader_of(schema)
    kinds = {column.kind for column in schema.used}
    assert kinds == {"numeric", "categorical", "boolean", "ordinal", "date"}
    columns = reader.about["columns"]
    found = [[n for column in columns for n in reader._cell(row, column)] for row in asked.to_dicts()]
    np.testing.assert_allclose(np.array(found), schema.encode(asked), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("mark", "wrong", "words"), [("", "Z", "no zone"), ("Z", "", "a zone")])
def test_moments_have_a_zone_where_training_had_one(mark: str, wrong: str, words: str):
    frame = odd_table().with_columns(pl.col("at").str.replace(" ", "T") + mark)
    reader = reader_of(schema_of(frame))
    (column,) = (one for one in reader.about["columns"] if one["name"] == "at")
    later, earlier = (reader._cell({"at": f"2024-03-{day}T10:07{mark}"}, column)[0] for day in ("06", "05"))
    assert later - earlier == pytest.approx(1 / column["std"])
    with pytest.raises(TypeError, match=f"must have {words}, as moments in training"):
        reader._cell({"at": f"2024-03-05T10:07{wrong}"}, column)
    assert len(reader._cell({"at": "2024-03-05"}, column)) == len(column["gone"]), "days go with both"


def test_targets_are_numbers_or_classes_and_may_be_missing():
    frame = odd_table()
    numbers = reader_of(schema_of(frame))
    cell = numbers.about["column"]
    assert [numbers._cell({"y": y}, cell) for y in ("3.5", "NA", "", "-9")] == [[3.5], [], [], []]
    named = frame.with_columns(y=pl.Series([("none", "some")[i % 2] for i in range(ROWS)]))
    classes = reader_of(schema_of(named))
    cell = classes.about["column"]
    assert [classes._cell({"y": y}, cell) for y in ("none", "some", "")] == [[0.0], [1.0], []]
    with pytest.raises(ValueError, match="training did not have"):
        classes._cell({"y": "other"}, cell)


def test_calibration_between_numbers_of_labelled_rows_is_the_packages():
    scores = tuple(tuple(np.linspace(-3 - k, 3 + k, len(LEVELS))) for k in range(3))
    calibration = Calibration((0, 3, 10), (0.5, 1.5, 1.1), scores, groups=30)
    for shots in (0, 1, 3, 5, 10, 40):
        found, expected = recalibration_at(calibration, jnp.asarray(float(shots))), calibration.at(shots)
        np.testing.assert_allclose(found.temperature, expected.temperature, rtol=1e-6)
        np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5, atol=1e-6)


def test_sets_of_any_size_are_padded_thinned_and_asked_in_turns(tmp_path):
    spec = TaskSpec((2,), 1)
    what = of_learner(small_learner("cnp", spec, key=jr.key(0)), spec, Wanted(labelled=4, asked=3, draws=2))
    written = write_export(what, tmp_path / "cnp.onnx", "cnp")
    assert written.difference is not None
    assert written.difference < 1e-5
    reader = Exported(tmp_path / "cnp.onnx")
    x, y = np.linspace(-1, 1, 16).reshape(8, 2), np.arange(8.0)
    whole = reader.run(x, x, y)
    kept = [0, 2, 5, 7]  # evenly thinned out
    one_by_one = [reader.run(x[i : i + 1], x[kept], y[kept]) for i in range(8)]
    for name, axis in (("mean", 0), ("quantiles", 1)):
        np.testing.assert_allclose(whole[name], np.concatenate([one[name] for one in one_by_one], axis), rtol=1e-5)
    assert whole["quantiles"].shape == (7, 8, 1)


SCRIPT = """
import sys
for name in ("jax", "jaxlib", "equinox", "stmaml", "polars"):
    sys.modules[name] = None  # importing it fails
sys.path.insert(0, sys.argv[1])
import json
from read_export import Exported
asked, labelled = json.load(open(sys.argv[2]))
print(json.dumps({n: v.tolist() for n, v in Exported(sys.argv[1] + "/shops.onnx").predict(asked, labelled).items()}))
"""


@pytest.mark.slow
def test_a_table_is_answered_without_jax_as_with_it(tmp_path):
    model = fit_frame(lines(24, 16), quick(20))
    written = write_export(of_table(model, Wanted()), tmp_path / "shops.onnx", "cnp")
    assert written.difference is not None
    assert written.difference < 1e-5
    frame = lines(1, 12, seed=9)
    labelled, asked = frame.head(5), frame.tail(7).drop("y")
    Path(tmp_path / "rows.json").write_text(json.dumps([asked.to_dicts(), labelled.to_dicts()]))
    words = [sys.executable, "-c", SCRIPT, str(tmp_path), str(tmp_path / "rows.json")]
    found = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    expected = model.predict(asked, labelled).frame  # a conditional neural process draws nothing
    for name, column in (("mean", "prediction"), ("std", "std")):
        np.testing.assert_allclose(found[name], expected[column], rtol=1e-5)
    np.testing.assert_allclose(found["quantiles"][0], expected["q05"], rtol=1e-5)


def test_a_pool_is_refused_with_what_to_do_instead():
    flags = Export(Path("runs/shops"), Path("a.onnx"))
    said = _refusal(flags, ["mixed", "st-maml"], ["st-maml"])
    assert "is a pool" in said
    assert "--member st-maml" in said
    assert "fit ... --method st-maml" in said
    other = _refusal(replace(flags, member="mixed"), ["mixed"], [])
    assert "no meta-learned member" in other
    assert "--member st-maml" not in other


def test_the_command_says_in_a_sentence_what_it_cannot_do(stmaml, tmp_path):
    for words in ((tmp_path / "none", "--out", "a.onnx"), (tmp_path, "--out", "a.onnx", "--coverage", "2")):
        code, _, err = stmaml("export", *words)
        assert code == 2
        assert err.count("\n") == 1
