"""`stmaml fit` and `stmaml predict`, from the outside: words in, exit code, text and files out."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from stmaml import cli
from stmaml.baselines import ridge, support_mean
from stmaml.cli import fit as fit_command
from stmaml.cli.predict import file_name
from stmaml.fewshot import scoring
from stmaml.fewshot.settings import Settings
from stmaml.runs import Run
from tests.tables import lines, quick

FLAGS = ["--task", "shop", "--target", "y", "--shots", "6", "--query-size", "6", "--min-query", "2", "--method", "cnp"]


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Small learners, and the two quickest baselines."""
    monkeypatch.setattr(fit_command, "default_settings", tiny)
    monkeypatch.setattr(
        scoring, "_chosen", lambda prepared, given: (support_mean(), ridge()) if given is None else given
    )


def tiny(
    method: str, *, steps: int | None = None, seed: int = 0, preset: str = "default", linear: bool = True
) -> Settings:
    del method, preset
    return quick(steps or 40, seed=seed, linear=linear)


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("table") / "shops.csv"
    frame = lines(40, 12).with_columns(
        pl.Series("day", [f"2020-01-{1 + i % 12:02}" for i in range(480)]), pl.lit("same").alias("always")
    )
    frame.write_csv(path)
    return path


@pytest.fixture(scope="module")
def fitted(table, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "shops"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["stmaml", "fit", str(table), *FLAGS, "--no-baselines", "--run", str(folder)])
        patch.setattr(fit_command, "default_settings", tiny)
        cli.main()
    return folder


@pytest.fixture
def new(tmp_path) -> tuple[Path, Path]:
    frame = lines(4, 10, seed=40, prefix="new/").with_columns(pl.lit("2020-01-05").alias("day"))
    rows = frame.with_row_index("id")
    rows.filter(pl.col("id") % 10 < 4).write_csv(tmp_path / "support.csv")
    rows.filter(pl.col("id") % 10 >= 4).drop("y").write_csv(tmp_path / "query.csv")
    return tmp_path / "support.csv", tmp_path / "query.csv"


def one_line(text: str) -> bool:
    return text.count("\n") == 1


def test_fit_shows_schema_groups_scores_and_calibration(stmaml, table, tmp_path):
    code, out, err = stmaml("fit", table, *FLAGS, "--run", tmp_path / "run")
    assert code == 0
    flat = " ".join(err.split())
    assert "always dropped constant" in flat
    assert "day date" in flat
    assert "groups by 'shop': 28 to train, 6 to validate and calibrate, 6 to test" in flat
    scores = Run(tmp_path / "run").scores()["test-groups"]["scores"]
    assert set(scores) == {"0", "1", "2", "5", "6"}
    assert all(set(rows) == {"cnp", "ridge", "support-mean"} for rows in scores.values())
    assert f"{scores['5']['ridge']['mse']['mean']:.4g}" in out
    assert "90% interval holds" in " ".join(out.split())
    assert "Meta-learning " in out
    config = Run(tmp_path / "run").config()
    assert config["schema"]["target"]["name"] == "y"
    assert config["groups"] == {"train": 28, "val": 6, "test": 6, "skipped": 0}
    code, again, _ = stmaml("fit", "--resume", tmp_path / "run")
    assert (code, again) == (0, out)  # nothing is left to do


def test_fit_prints_one_json_object(stmaml, fitted):
    code, out, _ = stmaml("fit", "--resume", fitted, "--json")
    assert code == 0
    result = json.loads(out)
    assert set(result["scores"]) == {"0", "1", "2", "5", "6"}
    assert set(result["scores"]["6"]) == {"cnp"}
    assert 0 <= result["calibration"]["5"]["80%"]["after"]["mean"] <= 1


def test_fit_refuses_to_overwrite_unless_forced(stmaml, table, fitted):
    code, _, err = stmaml("fit", table, *FLAGS, "--run", fitted)
    assert code == 2
    assert one_line(err)
    assert f"already holds a run. Go on with 'stmaml fit --resume {fitted}'" in err


@pytest.mark.slow
def test_a_stopped_fit_goes_on_with_resume(table, tmp_path):
    """SIGTERM in the middle: exit code 143, then the same scores as a fit that was never stopped."""
    words = ["fit", str(table), *FLAGS, "--no-baselines", "--json"]
    script = (
        "import sys; from stmaml.cli import fit, main; from tests.test_cli_tables import tiny; "
        "fit.default_settings = tiny; main()"
    )

    def start(*more: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-c", script, *more],
            cwd=Path(__file__).parents[1],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=dict(os.environ),
        )

    stopped = start(*words, "--steps", "4000", "--run", str(tmp_path / "a"))
    log = tmp_path / "a" / "log.jsonl"
    while stopped.poll() is None and (not log.exists() or log.read_text().count("\n") < 3):
        time.sleep(0.05)
    stopped.send_signal(signal.SIGTERM)
    _, err = stopped.communicate(timeout=120)
    assert stopped.returncode == 143, err
    assert "Go on with: stmaml fit --resume" in " ".join(err.split())
    config_path = tmp_path / "a" / "config.json"
    step = Run(tmp_path / "a").checkpoint_steps()[-1]
    shorter = json.loads(config_path.read_text())
    shorter["settings"]["training"]["steps"] = step + 40
    config_path.write_text(json.dumps(shorter))
    resumed = start("fit", "--resume", str(tmp_path / "a"), "--no-baselines", "--json")
    out, err = resumed.communicate(timeout=240)
    assert resumed.returncode == 0, err
    assert Run(tmp_path / "a").checkpoint_steps()[-1] == step + 40
    assert "cnp" in json.loads(out)["scores"]["6"]


def test_predict_gives_rows_back_in_order(stmaml, fitted, new, tmp_path):
    support, query = new
    code, _, _ = stmaml("predict", fitted, "--support", support, "--query", query, "--out", tmp_path / "p.csv")
    assert code == 0
    answer, asked = pl.read_csv(tmp_path / "p.csv"), pl.read_csv(query)
    assert answer.select(asked.columns).equals(asked)
    for name in ("prediction", "std", "q05", "q50", "q95", "task_std", "shots", "novelty"):
        assert name in answer.columns
    assert answer["shots"].unique().to_list() == [4]
    code, out, _ = stmaml("predict", fitted, "--support", support, "--query", query, "--quantiles", "0.1", "0.9")
    assert code == 0
    printed = pl.read_csv(out.encode())
    assert printed["prediction"].to_list() == answer["prediction"].to_list()
    assert [name for name in printed.columns if name.startswith("q")] == ["q10", "q90"]


def test_predict_without_support_and_as_parquet_and_json(stmaml, fitted, new, tmp_path):
    _, query = new
    code, out, _ = stmaml("predict", fitted, "--query", query, "--out", tmp_path / "deep" / "p.parquet", "--json")
    assert code == 0
    assert json.loads(out)["rows"] == 24
    assert pl.read_parquet(tmp_path / "deep" / "p.parquet")["shots"].unique().to_list() == [0]
    code, out, _ = stmaml("predict", fitted, "--query", query, "--json")
    assert len([json.loads(line) for line in out.splitlines()]) == 24


def test_predict_suggests_rows_and_says_what_it_assumed(stmaml, fitted, new, tmp_path):
    support, query = new
    lone = tmp_path / "lone.csv"
    pl.read_csv(query).drop("day").write_csv(lone)
    code, out, err = stmaml("predict", fitted, "--support", support, "--query", lone, "--suggest", 2)
    assert code == 0
    assert "note: the query table lacks 'day'; taken as missing in all rows" in " ".join(err.split())
    ranks = pl.read_csv(out.encode(), infer_schema_length=None)["suggested"]
    assert sorted(ranks.drop_nulls().to_list()) == [1, 1, 1, 1, 2, 2, 2, 2]


def test_adapted_groups_are_files_that_predict_alone(stmaml, fitted, new, tmp_path):
    support, query = new
    words = ("--support", support, "--query", query, "--out", tmp_path / "p.csv", "--save-adapted", tmp_path / "kept")
    assert stmaml("predict", fitted, *words)[0] == 0
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == sorted(
        f"{file_name(f'new/ {i}')}.npz" for i in range(4)
    )
    expected = pl.read_csv(tmp_path / "p.csv").filter(pl.col("shop") == "new/ 2")
    pl.read_csv(query).filter(pl.col("shop") == "new/ 2").write_csv(tmp_path / "two.csv")
    code, out, _ = stmaml("predict", tmp_path / "kept" / f"{file_name('new/ 2')}.npz", "--query", tmp_path / "two.csv")
    assert code == 0
    found = pl.read_csv(out.encode())
    assert found["prediction"].to_list() == pytest.approx(expected["prediction"].to_list(), abs=1e-3)
    code, _, err = stmaml(
        "predict", tmp_path / "kept" / f"{file_name('new/ 2')}.npz", "--query", query, "--support", support
    )
    assert code == 2
    assert "already adapted, so --support cannot change it" in err


def bad_table(name: str, table: Path) -> tuple[bytes, list[str]]:
    """The content of a table that cannot be used, and the flags it is used with."""
    good = table.read_text()
    frame = lines(40, 12)
    changes = {
        "missing column": (good, ["--target", "price"]),
        "target not numeric": (good, ["--target", "day", "--kind", "regression"]),
        "a single group": (frame.with_columns(shop=pl.lit("a")).write_csv(), []),
        "constant target": (frame.with_columns(y=pl.lit(3)).write_csv(), []),
        "duplicate columns": (good.replace("shop,x,y", "shop,y,y", 1), []),
        "wrong delimiter": (good, ["--delimiter", ";"]),
        "wrong encoding": (good.replace("shop 1,", "M\xfcller,"), []),
        "empty file": ("", []),
        "infinite values": (
            frame.with_columns(x=pl.when(pl.int_range(480) == 36).then(float("inf")).otherwise("x")).write_csv(),
            [],
        ),
        "too few groups": (frame.head(60).write_csv(), []),
        "unknown method": (good, ["--method", "st-mamml"]),
    }
    text, flags = changes[name]
    return text.encode("latin-1" if name == "wrong encoding" else "utf-8"), flags


MESSAGES = {
    "missing column": "no column 'price'; it has: shop, x, y, day, always.",
    "target not numeric": "the target 'day' must hold numbers for regression; it holds '2020-01-01'",
    "a single group": "the table has a single group, 'a'",
    "constant target": "the target 'y' is '3' in every row",
    "duplicate columns": "two columns named 'y'",
    "wrong delimiter": "single column 'shop,x,y,day,always' when split at semicolons",
    "wrong encoding": "is not UTF-8 text",
    "empty file": "is empty or starts with an empty line",
    "infinite values": "column 'x' holds infinity in row 37",
    "too few groups": "5 of 5 groups have the 8 rows",
    "unknown method": "there is no method 'st-mamml'. Did you mean st-maml",
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_bad_table_is_told_in_one_line_and_leaves_no_run(stmaml, table, tmp_path, name):
    content, flags = bad_table(name, table)
    (tmp_path / "bad.csv").write_bytes(content)
    words = [*FLAGS, *flags]
    code, out, err = stmaml("fit", tmp_path / "bad.csv", *words, "--run", tmp_path / "run")
    assert code == 2
    assert out == ""
    last = [line for line in err.splitlines() if line.startswith("stmaml: ")]
    assert len(last) == 1
    assert MESSAGES[name] in last[0]
    assert not (tmp_path / "run").exists()


def test_bad_questions_are_told_in_one_line(stmaml, fitted, new, tmp_path):
    support, query = new
    frame = pl.read_csv(support)
    (tmp_path / "empty.csv").write_text("")
    frame.select("id", "shop").write_csv(tmp_path / "other.csv")
    frame.drop("y").write_csv(tmp_path / "unlabelled.csv")
    frame.with_columns(pl.col("y") * 1000).write_csv(tmp_path / "unit.csv")
    frame.with_columns(y=pl.lit("many")).write_csv(tmp_path / "words.csv")
    for words, message in [
        (["--support", tmp_path / "other.csv"], "has no column 'y' with the labels; it has: id, shop"),
        (["--support", tmp_path / "unlabelled.csv"], "has no column 'y' with the labels"),
        (["--support", tmp_path / "unit.csv"], "in training it went from"),
        (["--support", tmp_path / "words.csv"], "the target 'y' must hold numbers; it holds 'many'"),
        (["--support", tmp_path / "empty.csv"], "empty.csv is empty"),
        (["--support", tmp_path / "gone.csv"], "there is no file"),
        (["--samples", "0"], "--samples must be at least 1; got 0"),
        (["--quantiles", "5"], "--quantiles must lie between 0 and 1; got 5.0"),
        (["--coverage", "90"], "--coverage must lie between 0 and 1; got 90"),
        (["--suggest", "-1"], "--suggest must be at least 0; got -1"),
        (["--save-adapted", tmp_path / "kept"], "--save-adapted needs labelled rows"),
    ]:
        code, out, err = stmaml("predict", fitted, "--query", query, *words)
        assert (code, out) == (2, "")
        assert one_line(err)
        assert message in err
    code, _, err = stmaml("predict", tmp_path / "nowhere", "--query", query)
    assert code == 2
    assert "there is no run folder" in err
    code, _, err = stmaml("predict", fitted, "--query", tmp_path / "other.csv")
    assert code == 2
    assert "of another kind than the training table: it lacks 'x', 'day'" in err
