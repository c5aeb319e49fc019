"""The commands on a table, from the outside: words in, exit code, text and files out."""

import datetime as dt
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from rich.console import Console
from rich.table import Table
from scipy import stats

from stmaml import cli
from stmaml.baselines import ridge, support_mean
from stmaml.border import writing
from stmaml.cli import fit as fit_command
from stmaml.cli import predict as predict_command
from stmaml.cli.predict import as_csv, file_name
from stmaml.cli.progress import showing
from stmaml.cli.showing import plain_console
from stmaml.cli.stopping import StopRequest
from stmaml.numbers import with_interval
from stmaml.progress import tell
from stmaml.recipes import Experiment
from stmaml.runs import Run, read_json, read_npz, write_json
from stmaml.tables import scoring
from stmaml.tables.benchmark import Config
from stmaml.tables.reading import read_table
from stmaml.tables.settings import table_recipe
from tests.table_data import draw, lines, quick

FLAGS = ["--task", "shop", "--target", "y", "--shots", "6", "--query-size", "6", "--min-query", "2", "--method", "cnp"]


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Small learners, and the two quickest baselines."""
    monkeypatch.setattr(fit_command, "table_recipe", tiny)
    monkeypatch.setattr(scoring, "usual_baselines", lambda spec: (support_mean(), ridge()))


def tiny(table: Config, method: str, *, steps: int | None, preset: str, linear: bool, noise_model: str) -> Experiment:
    del method, preset
    return quick(steps or 40, table, linear=linear, noise_model=noise_model)


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("table") / "shops.csv"
    frame = lines(40, 12).with_columns(
        pl.Series("day", [f"2020-01-{1 + i % 12:02}" for i in range(480)]), pl.lit("same").alias("rate [/min]")
    )
    frame.write_csv(path)
    return path


@pytest.fixture(scope="module")
def fitted(table, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "shops"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["stmaml", "fit", str(table), *FLAGS, "--no-baselines", "--run", str(folder)])
        patch.setattr(fit_command, "table_recipe", tiny)
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


@pytest.fixture(scope="module")
def beside(table, tmp_path_factory) -> tuple[Path, str, str]:
    """A run with baselines beside it, and what `fit` printed and said."""
    folder, out, err = tmp_path_factory.mktemp("runs") / "beside", io.StringIO(), io.StringIO()
    words = ["stmaml", "fit", str(table), *FLAGS, "--run", str(folder)]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", words)
        patch.setattr(fit_command, "table_recipe", tiny)
        patch.setattr(scoring, "usual_baselines", lambda spec: (support_mean(), ridge()))
        cli.main()
    return folder, out.getvalue(), err.getvalue()


def test_fit_shows_schema_groups_scores_and_calibration(stmaml, beside):
    folder, out, err = beside
    flat = " ".join(err.split())
    assert "rate [/min] dropped constant" in flat
    assert "note: intervals without labelled rows rest on 6 groups to calibrate on and may not hold" in flat
    assert "day date" in flat
    assert "groups by 'shop': 28 to train, 6 to validate and calibrate, 6 to test" in flat
    code, again, _ = stmaml("fit", "--resume", folder, "--json")
    assert code == 0
    scores = json.loads(again)["scores"]
    assert list(scores) == ["0", "1", "2", "5", "6"]
    assert all(list(rows) == ["cnp", "support-mean", "ridge"] for rows in scores.values())
    assert with_interval(scores["5"]["ridge"]["mse"]) in out
    assert "90% interval holds" in " ".join(out.split())
    assert "Meta-learning " in out
    assert Run(folder).config()["benchmark"]["settings"]["schema"]["target"]["name"] == "y"


def test_a_finished_run_shows_its_scores_without_training(stmaml, beside, monkeypatch):
    monkeypatch.setattr(fit_command, "train_runs", None)
    monkeypatch.setattr(fit_command, "score_table", None)
    code, again, _ = stmaml("fit", "--resume", beside[0])
    assert (code, again) == (0, beside[1])


def test_a_report_has_baselines_as_rows_and_the_verdict(stmaml, beside, tmp_path):
    code, _, _ = stmaml("report", beside[0], "--out", tmp_path)
    assert code == 0
    text = (tmp_path / "report.md").read_text()
    for name in ("cnp", "ridge", "support-mean"):  # with one seed, on 600 tasks
        assert len(re.findall(rf"^\| {name} +\| +1 \| +600 \|", text, re.MULTILINE)) == 5
    assert text.count("Meta-learning ") == 1


def scored_by(stmaml, *words: object) -> dict[str, Any]:
    code, out, _ = stmaml(*words, "--json")
    assert code == 0
    return json.loads(out)


def same(one: Any, other: Any) -> None:
    """Equal but for rounding: evaluating again adds in another order."""
    if isinstance(one, dict):
        assert list(one) == list(other)
        for name in one:
            same(one[name], other[name])
    else:
        assert one == (pytest.approx(other, rel=1e-5) if isinstance(one, float) else other)


def test_evaluate_says_what_fit_said_with_baselines_as_rows(stmaml, beside):
    folder, out, _ = beside
    before = scored_by(stmaml, "fit", "--resume", folder)
    files = sorted(path.name for path in Run(folder).scores_folder.iterdir())
    code, shown, err = stmaml("evaluate", folder)
    assert code == 0
    assert "6 to test" in err
    same(scored_by(stmaml, "evaluate", folder), before)
    assert shown.splitlines() == out.splitlines()[:-2]  # which name the next command
    assert sorted(path.name for path in Run(folder).scores_folder.iterdir()) == files
    same(scored_by(stmaml, "fit", "--resume", folder), before)  # the verdict is kept, too


def test_evaluate_scores_at_one_number_of_labelled_rows(stmaml, beside):
    whole = scored_by(stmaml, "fit", "--resume", beside[0])
    two = scored_by(stmaml, "evaluate", beside[0], "--shots", 2)
    assert list(two["scores"]) == list(two["calibration"]) == ["2"]
    same(two["scores"]["2"], whole["scores"]["2"])
    assert "with 2 labelled rows (6 test groups)" in two["verdict"]
    same(scored_by(stmaml, "fit", "--resume", beside[0]), whole)
    for shots in (7, -1):
        code, _, err = stmaml("evaluate", beside[0], "--shots", shots)
        assert code == 2
        assert one_line(err)
        assert f"--shots must be from 0 to 6, the most it was fitted for; got {shots}." in err


def test_evaluate_with_other_tasks_changes_nothing_that_fit_said(stmaml, fitted, tmp_path):
    fitted = shutil.copytree(fitted, tmp_path / "run")
    whole = scored_by(stmaml, "fit", "--resume", fitted)
    few = scored_by(stmaml, "evaluate", fitted, "--tasks", 6)
    assert few["digest"] != whole["digest"]
    same(scored_by(stmaml, "fit", "--resume", fitted), whole)
    code, _, err = stmaml("evaluate", fitted, "--tasks", 6, "--validation")
    assert code == 2
    assert "the validation groups of a table have calibrated its runs" in err


def test_another_table_of_the_same_columns_is_tested_on(stmaml, fitted, tmp_path):
    other = lines(40, 12, seed=9, prefix="other").with_columns(pl.lit("2020-01-03").alias("day"))
    other.write_csv(tmp_path / "other.csv")
    shutil.copytree(fitted, tmp_path / "run")
    found = scored_by(stmaml, "evaluate", tmp_path / "run", "--data", tmp_path / "other.csv")
    assert found["task_set"].startswith("table/tableother.csv/targety/groups6/")


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
        "fit.table_recipe = tiny; main()"
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
    shorter["training"]["steps"] = step + 40
    config_path.write_text(json.dumps(shorter))
    resumed = start("fit", "--resume", str(tmp_path / "a"), "--no-baselines", "--json")
    out, err = resumed.communicate(timeout=240)
    assert resumed.returncode == 0, err
    assert Run(tmp_path / "a").checkpoint_steps()[-1] == step + 40
    assert "cnp" in json.loads(out)["scores"]["6"]


class Soon(StopRequest):
    """Asks to stop when training looks for the first time."""

    def requested(self) -> bool:
        self.signal = signal.SIGTERM
        return super().requested()


@pytest.mark.parametrize("command", ["fit", "train"])
def test_an_interrupted_run_ends_as_one_that_was_not(stmaml, table, fitted, tmp_path, monkeypatch, command):
    """The same weights to the last bit, whichever command goes on with it; then the same scores."""
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(fit_command, "StopRequest", Soon)
        code, _, err = stmaml("fit", table, *FLAGS, "--no-baselines", "--run", folder)
    assert code == 143
    assert f"stopped at step 20, state saved. Go on with: stmaml fit --resume {folder}" in " ".join(err.split())
    assert Run(folder).checkpoint_steps() == [20]
    code, _, err = stmaml(command, "--resume", folder, *["--no-baselines"] * (command == "fit"))
    assert code == 0
    assert Run(folder).checkpoint_steps()[-1] == 40
    for name in ("learner.npz", "reference.npz"):
        np.testing.assert_equal(read_npz(folder / name), read_npz(fitted / name))
    assert read_json(folder / "calibration.json") == read_json(fitted / "calibration.json")
    whole = scored_by(stmaml, "fit", "--resume", fitted)
    same(scored_by(stmaml, "fit", "--resume", folder, "--no-baselines"), whole)


def test_a_run_whose_table_changed_is_refused(stmaml, table, fitted, tmp_path):
    """Wherever rows would be read again: learning goes on, or scores are made, with the same rows or not at all."""
    changed, unfinished = tmp_path / "shops.csv", tmp_path / "run"
    changed.write_text(table.read_text().replace("shop 3,", "shop 3x,"))
    shutil.copytree(fitted, unfinished)
    config = read_json(unfinished / "config.json")
    config["benchmark"]["settings"]["files"] = [str(changed)]
    write_json(unfinished / "config.json", config)
    assert stmaml("fit", "--resume", unfinished)[0] == 0  # nothing is read
    (unfinished / "calibration.json").unlink()
    for words in (["fit", "--resume"], ["train", "--resume"], ["evaluate"]):
        code, out, err = stmaml(*words, unfinished)
        assert (code, out) == (2, "")
        assert one_line(err)
        assert f"the table at {changed} has changed since it was first learnt from. Restore it, or fit anew" in err


@pytest.mark.parametrize("noise_model", ["student", "mixture"])
def test_other_noise_models_are_fitted_and_predict(stmaml, new, tmp_path, noise_model):
    """A table with heavy tails: quantiles rise and are finite."""
    frame = lines(40, 12)
    heavy = frame.with_columns(pl.col("y") + pl.Series(draw(stats.t, 2.5, size=frame.height, random_state=3)))
    heavy.write_csv(tmp_path / "heavy.csv")
    words = [*FLAGS, "--noise-model", noise_model, "--no-baselines", "--run", tmp_path / "run"]
    found = scored_by(stmaml, "fit", tmp_path / "heavy.csv", *words)
    assert Run(tmp_path / "run").config()["modelling"]["noise_model"] == noise_model
    assert all(abs(rows["cnp"]["nll"]["mean"]) < 1e3 for rows in found["scores"].values())
    support, query = new
    code, out, _ = stmaml("predict", tmp_path / "run", "--support", support, "--query", query)
    assert code == 0
    quantiles = pl.read_csv(out.encode()).select("q05", "q10", "q25", "q50", "q75", "q90", "q95").to_numpy()
    assert np.isfinite(quantiles).all()
    assert (np.diff(quantiles, axis=1) >= 0).all()
    code, _, err = stmaml("fit", tmp_path / "heavy.csv", *FLAGS, "--noise-model", "heavy", "--run", tmp_path / "other")
    assert code == 2
    assert "there is no noise model 'heavy'" in err


def test_a_run_of_0_1_0_shows_the_scores_it_has(stmaml, tmp_path):
    """Its table is gone; all that it was scored at lies in one file."""
    with tarfile.open(Path(__file__).with_name("runs_0_1_0.tar.xz")) as packed:
        packed.extractall(tmp_path, filter="data")
    folder = tmp_path / "runs_0_1_0" / "table-lines"
    found = scored_by(stmaml, "fit", "--resume", folder)
    assert found == read_json(folder / "scores" / "test-groups.json")
    code, out, _ = stmaml("fit", "--resume", folder)
    assert code == 0
    assert "Scores are means over 2 test groups, ± the 95 % interval." in out


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
    pl.read_csv(query).with_columns(day=None).write_csv(lone)
    code, out, err = stmaml("predict", fitted, "--support", support, "--query", lone, "--suggest", 2)
    assert code == 0
    assert "note: 'day' is missing in 24 rows; in training it never was" in " ".join(err.split())
    ranks = pl.read_csv(out.encode(), infer_schema_length=None)["suggested"]
    assert sorted(ranks.drop_nulls().to_list()) == [1, 1, 1, 1, 2, 2, 2, 2]


@pytest.mark.parametrize("ending", ["csv.gz", "tsv", "feather", "jsonl", "xlsx"])
def test_predictions_are_written_in_the_format_of_their_name(stmaml, fitted, new, tmp_path, ending):
    if ending == "xlsx":
        pytest.importorskip("fastexcel")
        pytest.importorskip("xlsxwriter")
    out, asked = tmp_path / f"p.{ending}", pl.read_csv(new[1])
    assert stmaml("predict", fitted, "--query", new[1], "--out", out)[0] == 0
    written = read_table([out])
    assert written.columns[: asked.width] == asked.columns
    assert written["shop"].to_list() == asked["shop"].to_list()
    assert written["prediction"].cast(pl.Float64).is_finite().all()
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


@pytest.mark.parametrize("ending", ["parquet", "feather", "jsonl", "xlsx"])
def test_numbers_of_a_csv_query_are_numbers_in_formats_with_types(stmaml, fitted, new, tmp_path, ending):
    if ending == "xlsx":
        pytest.importorskip("fastexcel")
        pytest.importorskip("xlsxwriter")
    query, out = tmp_path / "typed.csv", tmp_path / f"p.{ending}"
    asked = pl.read_csv(new[1], infer_schema=False).with_columns(
        x=pl.Series(["0.50", "1"] * 12), code=pl.lit("007"), price=pl.Series(["1.5", "2"] * 12)
    )
    asked.write_csv(query)
    assert stmaml("predict", fitted, "--query", query, "--out", out)[0] == 0
    written = read_table([out])
    assert written.schema["id"].is_integer()
    assert written["x"].to_list() == [0.5, 1.0] * 12
    assert written["price"].to_list() == [1.5, 2.0] * 12
    for name in ("shop", "code", "day"):
        assert written[name].to_list() == asked[name].to_list()
    asked.write_parquet(tmp_path / "typed.parquet")
    assert stmaml("predict", fitted, "--query", tmp_path / "typed.parquet", "--out", out)[0] == 0
    assert read_table([out])["x"].to_list() == asked["x"].to_list()
    assert stmaml("predict", fitted, "--query", query, "--out", tmp_path / "p.csv")[0] == 0
    assert read_table([tmp_path / "p.csv"]).select(asked.columns).equals(asked)


def test_predictions_that_cannot_be_written_are_not_computed(stmaml, fitted, new, tmp_path, monkeypatch):
    monkeypatch.setattr(predict_command, "_answer", lambda flags: pytest.fail("was computed"))
    (tmp_path / "folder.csv").mkdir()
    code, _, err = stmaml("predict", fitted, "--query", new[1], "--out", tmp_path / "folder.csv")
    assert (code, one_line(err)) == (2, True)
    assert "folder.csv is a folder; expected a file" in err
    code, _, err = stmaml("predict", fitted, "--query", new[1], "--out", new[0] / "p.csv")
    assert (code, one_line(err)) == (2, True)
    assert f"could not write {new[0]}" in err

    def refuse(path: Path, content: bytes) -> None:
        del content
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(writing, "write_new", refuse)
    for out in (tmp_path / "p.csv", tmp_path / "new" / "deep" / "p.csv"):
        code, _, err = stmaml("predict", fitted, "--query", new[1], "--out", out)
        assert (code, one_line(err)) == (2, True)
        assert f"could not write {tmp_path}: Permission denied" in err
    assert not (tmp_path / "new").exists()


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
    code, out, err = stmaml("predict", tmp_path / "kept" / f"{file_name('new/ 2')}.npz", "--query", query)
    assert (code, out) == (2, "")
    assert one_line(err)
    assert "18 rows of the query table are of other groups, such as 'new/ 0'" in err
    code, _, err = stmaml(
        "predict", tmp_path / "kept" / f"{file_name('new/ 2')}.npz", "--query", query, "--support", support
    )
    assert code == 2
    assert "already adapted, so --support cannot change it" in err


def test_moments_with_a_zone_in_parquet_are_the_dates_of_a_csv_file(stmaml, fitted, new, tmp_path):
    support, query = new
    asked = pl.read_csv(query)
    moments = asked.with_columns(pl.col("day").str.to_datetime("%Y-%m-%d", time_zone="UTC"))
    moments.write_parquet(tmp_path / "query.parquet")
    answers = [
        stmaml("predict", fitted, "--support", support, "--query", path) for path in (query, tmp_path / "query.parquet")
    ]
    expected, found = (pl.read_csv(out.encode())["prediction"] for _, out, _ in answers)
    assert found.equals(expected)


def test_columns_that_csv_cannot_hold_are_refused_and_the_others_kept(stmaml, fitted, new, tmp_path):
    asked = pl.read_csv(new[1]).with_columns(
        at=pl.lit(dt.time(3)), lasts=pl.lit(dt.timedelta(hours=2)), kind=pl.lit("a").cast(pl.Categorical)
    )
    path = tmp_path / "query.parquet"
    asked.write_parquet(path)
    code, out, _ = stmaml("predict", fitted, "--query", path)
    assert code == 0
    row = pl.read_csv(out.encode()).row(0, named=True)
    assert (row["at"], row["lasts"], row["kind"]) == ("03:00:00.000000000", "PT2H", "a")
    for odd, form, flags in [
        (pl.Series("odd", [[1, 2]] * 24), "CSV", []),
        (pl.Series("odd", [b"\xff"] * 24), "CSV", []),
        (pl.Series("odd", [b"\xff"] * 24), "JSON", ["--json"]),
    ]:
        asked.with_columns(odd).write_parquet(path)
        code, out, err = stmaml("predict", fitted, "--query", path, *flags)
        assert (code, out) == (2, "")
        assert one_line(err)
        assert f"values, which {form} cannot. Write Parquet with --out FILE.parquet" in err
        kept = tmp_path / "answer.parquet"
        assert stmaml("predict", fitted, "--query", path, *flags, "--out", kept)[0] == 0
        assert pl.read_parquet(kept)["odd"].equals(odd)


def test_small_numbers_keep_their_digits_and_the_querys_own_are_not_touched():
    frame = pl.DataFrame({"own": [0.1 + 0.2, 1e-300], "prediction": [1.23456789e-9, -2.5], "shots": [1, 2]})
    text = as_csv(frame)
    assert text.splitlines()[1:] == ["0.30000000000000004,1.234568e-9,1", "1e-300,-2.5,2"]


def test_a_query_may_lack_no_input_of_few_and_a_header_is_no_labelled_row(stmaml, fitted, new, tmp_path):
    (tmp_path / "lone.csv").write_text("x\n1.5\n-0.5\n")
    code, out, err = stmaml("predict", fitted, "--query", tmp_path / "lone.csv")
    assert (code, out) == (2, "")
    assert "the query table lacks 'day', 1 of 2 inputs. Add what is lacking" in err
    pl.read_csv(new[1]).rename({"day": "Day"}).write_csv(tmp_path / "renamed.csv")
    code, out, err = stmaml("predict", fitted, "--query", tmp_path / "renamed.csv")
    assert (code, out) == (2, "")
    assert "lacks 'day'; did it mean 'Day' for 'day'? Rename it as in training." in err
    (tmp_path / "none.csv").write_text("shop,x,y,day\n")
    words = ("--query", new[1], "--support", tmp_path / "none.csv", "--save-adapted", tmp_path / "kept")
    code, out, err = stmaml("predict", fitted, *words)
    assert code == 0
    assert pl.read_csv(out.encode())["shots"].unique().to_list() == [0]
    flat = " ".join(err.split())
    assert "4 of 4 groups have no labelled row and are predicted without any" in flat
    assert "intervals without labelled rows rest on 6 groups to calibrate on and may not hold" in flat
    assert "no group has a labelled row, so nothing is saved in" in flat


def test_names_like_markup_are_printed_as_they_stand(capsys):
    plain_console().print(Table("speed [km/h]", title="rate [/min]"))
    plain_console(stderr=True).print("note: 'rate [/min]' :smile:")
    out, err = capsys.readouterr()
    assert "speed [km/h]" in out
    assert "rate [/min]" in out
    assert err == "note: 'rate [/min]' :smile:\n"


def test_names_like_markup_do_not_break_a_bar():
    written = io.StringIO()
    with showing(Console(file=written, force_terminal=True, width=200), "reading"):
        tell("reading a [/b].zip", 1, 2)
    assert "reading a [/b].zip" in re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "", written.getvalue())


def bad_table(name: str, table: Path) -> tuple[bytes, list[str]]:
    """The content of a table that cannot be used, and the flags it is used with."""
    good = table.read_text()
    frame = lines(40, 12)
    changes = {
        "missing column": (good, ["--target", "price"]),
        "misspelt group": (good, ["--task", "Shop"]),
        "misspelt column to drop": (good, ["--drop", "dya"]),
        "unknown categories": (good, ["--categorical", "price"]),
        "codes in the target": (
            frame.with_columns(y=pl.when(pl.int_range(480) % 19 == 0).then(-9999.0).otherwise("y")).write_csv(),
            [],
        ),
        "a slip in the target": (
            frame.with_columns(y=pl.when(pl.int_range(480) == 16).then(1e30).otherwise("y")).write_csv(),
            ["--keep-codes"],
        ),
        "two kinds": (good, ["--categorical", "x", "--ordinal", "x"]),
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
        "no labelled rows": (good, ["--shots", "0"]),
        "target among features": (good, ["--features", "x", "y"]),
        "feature named twice": (good, ["--features", "x", "x"]),
        "group among features": (good, ["--features", "x", "shop"]),
        "stray word": (good.replace(str(frame["y"][3]), "n. a."), []),
    }
    text, flags = changes[name]
    return text.encode("latin-1" if name == "wrong encoding" else "utf-8"), flags


MESSAGES = {
    "missing column": "no column 'price'; it has: shop, x, y, day, rate [/min].",
    "misspelt group": "no column 'Shop'; did you mean 'shop'? It has: shop, x, y",
    "misspelt column to drop": "no column 'dya'; did you mean 'day'? It has: shop, x, y",
    "unknown categories": "no column 'price'; it has: shop, x, y",
    "codes in the target": "the target 'y' holds -9999 in 26 of 480 rows, far from all others",
    "a slip in the target": "the target 'y' holds 1e+30 in row 17, ",
    "two kinds": "--categorical and --ordinal must name different columns; both name 'x'",
    "target not numeric": "the target 'day' must hold numbers for regression; it holds '2020-01-01'",
    "a single group": "the table has a single group, 'a'",
    "constant target": "the target 'y' is '3' in every row",
    "duplicate columns": "two columns named 'y'",
    "wrong delimiter": "single column 'shop,x,y,day,rate [/min]' when split at semicolons",
    "wrong encoding": "is not UTF-8 text",
    "empty file": "is empty or starts with an empty line",
    "infinite values": "column 'x' holds infinity in row 37",
    "too few groups": "5 of 5 groups have the 8 rows",
    "unknown method": "there is no method 'st-mamml'. Did you mean st-maml",
    "no labelled rows": "--shots must be at least 1; got 0.",
    "target among features": "--features and --target must name different columns; both name 'y'",
    "feature named twice": "--features names 'x' twice",
    "group among features": "--features and --task must name different columns; both name 'shop'",
    "stray word": "it holds 'n. a.' (1 of 480 cells are no numbers). Correct it, name such cells with --missing 'n",
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_bad_table_is_told_in_one_line_and_leaves_no_run(stmaml, table, tmp_path, name):
    content, flags = bad_table(name, table)
    (tmp_path / "bad.csv").write_bytes(content)
    words = [*FLAGS, *flags]
    code, out, err = stmaml("fit", tmp_path / "bad.csv", *words, "--run", tmp_path / "run")
    assert code == 2
    assert out == ""
    assert one_line(err)
    assert MESSAGES[name] in err
    assert not (tmp_path / "run").exists()


def test_a_method_that_does_not_suit_the_target_leaves_no_run(stmaml, table, tmp_path, monkeypatch):
    monkeypatch.setattr(fit_command, "table_recipe", table_recipe)
    code, out, err = stmaml("fit", table, *FLAGS[:-1], "protonet", "--run", tmp_path / "run")
    assert (code, out) == (2, "")
    assert one_line(err)
    assert "protonet compares class means, so it needs class targets" in err
    assert not (tmp_path / "run").exists()


def test_a_finished_run_shows_its_scores_without_its_table(stmaml, fitted, table):
    hidden = table.rename(table.with_suffix(".gone"))
    try:
        code, out, _ = stmaml("fit", "--resume", fitted)
    finally:
        hidden.rename(table)
    assert code == 0
    assert "6 labelled rows" in out


def test_a_table_scored_without_baselines_has_a_report_too(stmaml, fitted, tmp_path):
    code, out, _ = stmaml("report", fitted, "--out", tmp_path)
    assert (code, out) == (0, f"wrote {tmp_path / 'report.html'}, and report.md with 7 figures beside it\n")
    assert (tmp_path / "shots.png").stat().st_size > 5000


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
    for folder, message in [
        ("nowhere", "there is no run folder"),
        ("other.csv", "is neither the folder of a run of 'stmaml fit' nor a whole file of an adapted group"),
        (".", "has no config.json, so it is not the folder of a run"),
    ]:
        code, _, err = stmaml("predict", tmp_path / folder, "--query", query)
        assert code == 2
        assert one_line(err)
        assert message in err
    code, _, err = stmaml("predict", fitted, "--query", tmp_path / "other.csv")
    assert code == 2
    assert "of another kind than the training table: it lacks 'x', 'day'" in err
